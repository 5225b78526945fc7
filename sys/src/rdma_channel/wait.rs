//! Which rank has bytes, and sleeping until one has.
//!
//! Peers find by shared words that this process sleeps, and wake it by a socket ([`nemesia_core::shared::sleep`]). A
//! process that polls costs them no call of the system.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::{ChannelFabric, ChannelGroup, ChannelLink};
use crate::error::Error;
use crate::os;

/// The looks before a sleep, and how many of them let others run.
const LOOKS: u32 = 600;
const YIELDS: u32 = 40;
/// The longest sleep, because a peer can damage the words.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

impl ChannelGroup {
    /// Waits until a pipe has bytes to get, or has ended and a get reports that, and returns its rank. The ranks take
    /// turns. `None` after the limit, or if gets have reported the ends of all pipes. With a limit of zero this looks
    /// once, so one call replaces a get from each rank. Makes progress meanwhile.
    ///
    /// A get from that rank may return 0, as when a part of a put has arrived. This process sleeps while there is
    /// nothing to do, but not if an RDMA device reaches a rank: bytes that are polled in memory wake no process.
    ///
    /// # Errors
    /// The group is not connected, or this is a forked child.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<usize>, Error> {
        self.check_origin()?;
        if !self.is_connected {
            return Err(self.unconnected(self.rank + 1));
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut looks = 0;
        loop {
            if let Some(rank) = self.ready_rank() {
                return Ok(Some(rank));
            }
            let are_all_over = (0..self.size).all(|rank| rank == self.rank || self.over[rank]);
            if are_all_over || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            looks += 1;
            if looks < LOOKS - YIELDS {
                std::hint::spin_loop();
            } else if looks < LOOKS || self.verbs.is_some() {
                std::thread::yield_now();
            } else if let Some(rank) = self.sleep(deadline) {
                return Ok(Some(rank));
            }
        }
    }

    /// Makes progress, and returns a rank of which a get has something to do or to report.
    fn ready_rank(&mut self) -> Option<usize> {
        self.shm.as_mut().map(ChannelFabric::progress);
        self.tcp.as_mut().map(ChannelFabric::progress);
        self.verbs.as_mut().map(ChannelFabric::progress);
        let mut turns = (self.next..self.size).chain(0..self.next.min(self.size));
        let rank = turns.find(|rank| !self.over[*rank] && self.is_ready(*rank))?;
        self.next = rank + 1;
        Some(rank)
    }

    fn is_ready(&mut self, rank: usize) -> bool {
        match &mut self.links[rank] {
            ChannelLink::None => false,
            ChannelLink::Direct(link) => {
                link.push();
                link.is_ready()
            }
            ChannelLink::Shm(at) => self.shm.as_mut().is_some_and(|fabric| fabric.has_bytes(*at)),
            ChannelLink::Tcp(at) => self.tcp.as_mut().is_some_and(|fabric| fabric.has_bytes(*at)),
            ChannelLink::Verbs(at) => self.verbs.as_mut().is_some_and(|fabric| fabric.has_bytes(*at)),
        }
    }

    /// Sleeps once, unless a last look finds a rank.
    fn sleep(&mut self, deadline: Option<Instant>) -> Option<usize> {
        for link in &self.links {
            if let ChannelLink::Direct(link) = link {
                link.prepare_sleep();
            }
        }
        let mut can_sleep = self.shm.as_mut().is_none_or(ChannelFabric::arm);
        can_sleep &= self.tcp.as_mut().is_none_or(ChannelFabric::arm);
        let found = self.ready_rank();
        if found.is_none() && can_sleep {
            let longest = Instant::now() + LONGEST_SLEEP;
            self.sleep_until(deadline.map_or(longest, |deadline| deadline.min(longest)));
        }
        for link in &mut self.links {
            if let ChannelLink::Direct(link) = link {
                link.awake();
            }
        }
        found
    }

    fn sleep_until(&mut self, deadline: Instant) {
        let ports = [
            self.shm.as_mut().and_then(ChannelFabric::descriptor),
            self.tcp.as_mut().and_then(ChannelFabric::descriptor),
        ];
        let links = self.links.iter().filter_map(|link| match link {
            ChannelLink::Direct(link) => Some(link.descriptors()),
            _ => None,
        });
        // SAFETY: the ports keep their descriptors open, and live longer than this call.
        let ports = ports.into_iter().flatten().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let fds: Vec<BorrowedFd<'_>> = ports.chain(links.flatten()).collect();
        // If the call fails, the next look finds what there is.
        let _ = os::wait_any(&fds, deadline);
    }
}
