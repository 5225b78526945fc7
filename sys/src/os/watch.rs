//! Detection of departed peers and of wake-ups: one system call polls all peers.
//!
//! A peer is gone when its process has ended (pidfd) or when its end of the connection is closed. Neither check
//! suffices alone: a forked child can keep the socket open after its parent's death, and a pidfd is not always
//! available.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{checked, timespec};
use super::descriptor::own;
use super::error::ShmError;
use super::handoff::{Departure, Glance, HandoffConnection};

/// The largest number of events that one [`Watch::poll`] processes; the next call processes the rest.
const BATCH: usize = 16;

/// The number of unexpected packets, over the life of a connection, above which the peer counts as lost. This bounds
/// the work that a flooding peer can cause.
const STRAYS: u32 = 16;
/// The largest number of wake packets of one peer that one check reads; the next check reads the rest.
const WAKES_A_CHECK: u32 = 16;
/// The key of the clock, which no peer has.
const CLOCK: u64 = u64::MAX;
/// The key of descriptors that the caller handles.
const OTHER: u64 = u64::MAX - 1;
/// The key of descriptors that need no attention here: they only make the set readable.
const SILENT: u64 = u64::MAX - 2;

/// The departed peers that one [`Watch::poll`] found.
#[derive(Clone, Debug)]
pub struct Departed {
    found: [(usize, Departure); BATCH],
    range: std::ops::Range<usize>,
}

impl Iterator for Departed {
    type Item = (usize, Departure);

    fn next(&mut self) -> Option<Self::Item> {
        self.range.next().map(|index| self.found[index])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl ExactSizeIterator for Departed {}

#[derive(Debug)]
struct Watched {
    peer: usize,
    connection: Arc<HandoffConnection>,
    pidfd: Option<OwnedFd>,
    /// The departure that the peer has announced.
    said: Option<Departure>,
    strays: u32,
    wakes: u64,
}

/// A set of watched peers. One thread at a time may use it.
///
/// Must not be used in a forked child, which shares the kernel's set with its parent. Dropping it there is harmless.
#[derive(Debug)]
pub struct Watch {
    epoll: Arc<OwnedFd>,
    /// Wakes a thread of this process that waits for the set ([`Watch::prepare_sleep`]).
    notice: Option<OwnedFd>,
    // By a number that is never reused: an event of a departed peer finds no entry.
    watched: BTreeMap<u64, Watched>,
    next: u64,
    clock: Option<OwnedFd>,
    ticked: bool,
    /// The largest number of times that a peer may have been asked to wake us.
    wakes: u64,
}

impl Watch {
    /// Returns an empty set.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> Result<Self, ShmError> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: a new descriptor, given to us alone.
        let epoll =
            unsafe { own(fd) }.map_err(|errno| ShmError::system("making the set of watched peers", errno))?;
        Ok(Self {
            epoll: Arc::new(epoll),
            notice: None,
            watched: BTreeMap::new(),
            next: 0,
            clock: None,
            ticked: false,
            wakes: 0,
        })
    }

    /// Watches a peer from now on, until it is gone or removed. The caller must have read the whole handshake. Without
    /// a pidfd, only the connection shows that the peer is gone.
    ///
    /// # Errors
    /// The kernel's limit is reached (`fs.epoll.max_user_watches`); the peer is then not watched.
    pub fn add(
        &mut self,
        peer: usize,
        connection: impl Into<Arc<HandoffConnection>>,
        pidfd: Option<OwnedFd>,
    ) -> Result<(), ShmError> {
        let connection = connection.into();
        let key = self.next;
        self.next += 1;
        refuse_descriptors(connection.as_fd());
        self.control(libc::EPOLL_CTL_ADD, connection.as_fd(), key)?;
        if let Some(fd) = &pidfd {
            self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), key)
                .inspect_err(|_| self.forget(connection.as_fd()))?;
        }
        self.watched.insert(key, Watched { peer, connection, pidfd, said: None, strays: 0, wakes: 0 });
        Ok(())
    }

    /// Stops watching a peer, and returns its connection.
    pub fn remove(&mut self, peer: usize) -> Option<Arc<HandoffConnection>> {
        let key = *self.watched.iter().find(|(_, watched)| watched.peer == peer)?.0;
        self.release(key).map(|watched| watched.connection)
    }

    /// Returns the process of a watched peer. `None` if it is not watched, or is in a pid namespace whose numbers have
    /// no meaning here.
    pub fn pid(&self, peer: usize) -> Option<i32> {
        let watched = self.watched.values().find(|watched| watched.peer == peer)?;
        Some(watched.connection.peer().pid).filter(|pid| *pid > 0)
    }

    /// Returns the processes of all watched peers; 0 for one that is in a pid namespace whose numbers have no meaning
    /// here.
    pub(crate) fn pids(&self) -> impl ExactSizeIterator<Item = i32> {
        self.watched.values().map(|watched| watched.connection.peer().pid)
    }

    /// Makes the set readable periodically even without events, until it is dropped: for callers that wait for it and
    /// cannot rely on being woken.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn tick(&mut self, every: Duration) -> Result<(), ShmError> {
        const DOING: &str = "making a clock for an event loop";
        if self.clock.is_some() {
            return Ok(());
        }
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        // SAFETY: a new descriptor, given to us alone.
        let clock = unsafe { own(fd) }.map_err(|errno| ShmError::system(DOING, errno))?;
        let every = libc::itimerspec { it_interval: timespec(every), it_value: timespec(every) };
        // SAFETY: the value outlives the call; a null pointer for the old value is permitted.
        checked(unsafe {
            libc::timerfd_settime(clock.as_raw_fd(), 0, &raw const every, std::ptr::null_mut())
        })
        .map_err(|errno| ShmError::system(DOING, errno))?;
        self.control(libc::EPOLL_CTL_ADD, clock.as_fd(), CLOCK)?;
        self.clock = Some(clock);
        Ok(())
    }

    /// Permits each peer to wake us once more ([`HandoffConnection::send_wake`]): the set is then readable until the
    /// next [`Watch::poll`].
    pub fn expect_wake(&mut self) {
        self.wakes += 1;
    }

    /// Returns the peers found gone since the last call, each once, and closes their descriptors. Does not wait, and
    /// does a bounded amount of work: the next call returns the rest.
    ///
    /// # Errors
    /// The epoll descriptor was closed by other code.
    pub fn poll(&mut self) -> Result<Departed, ShmError> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let room = c_int::try_from(BATCH).unwrap_or(1);
        // SAFETY: the kernel writes at most the number of events announced.
        let result =
            checked(unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), room, 0) });
        let count = match result {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(errno) if errno.raw_os_error() == Some(libc::EINTR) => 0,
            Err(errno) => return Err(ShmError::system("watching the peers", errno)),
        };
        let mut departed = Departed { found: [(0, Departure::Died); BATCH], range: 0..0 };
        for event in events.iter().take(count) {
            if event.u64 == CLOCK {
                self.reset_clock();
            }
            if let Some(found) = self.examine(event.u64) {
                departed.found[departed.range.end] = found;
                departed.range.end += 1;
            }
        }
        Ok(departed)
    }

    /// Makes the set readable also while this descriptor is readable. The caller handles the descriptor.
    ///
    /// # Errors
    /// The kernel's limit is reached (`fs.epoll.max_user_watches`).
    pub fn attend(&self, fd: BorrowedFd<'_>) -> Result<(), ShmError> {
        self.control(libc::EPOLL_CTL_ADD, fd, OTHER)
    }

    /// Makes the set readable also while the descriptor of a port to other machines is readable, and prepares for
    /// [`Watch::prepare_sleep`].
    ///
    /// # Errors
    /// No descriptors are left, or the kernel's limit is reached (`fs.epoll.max_user_watches`).
    pub(crate) fn attend_net(&mut self, fd: BorrowedFd<'_>) -> Result<(), ShmError> {
        self.control(libc::EPOLL_CTL_ADD, fd, SILENT)?;
        self.expect_sleep()
    }

    /// Prepares for [`Watch::prepare_sleep`].
    ///
    /// # Errors
    /// As for [`Watch::attend`], and no descriptors are left.
    pub(crate) fn expect_sleep(&mut self) -> Result<(), ShmError> {
        if self.notice.is_some() {
            return Ok(());
        }
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: takes no pointers.
        let notice = unsafe { libc::eventfd(0, flags) };
        // SAFETY: a new descriptor, given to us alone.
        let notice = unsafe { own(notice) }
            .map_err(|errno| ShmError::system("making a descriptor to wake threads", errno))?;
        self.control(libc::EPOLL_CTL_ADD, notice.as_fd(), SILENT)?;
        self.notice = Some(notice);
        Ok(())
    }

    /// Returns the set, for a thread that waits for it while others use this value. Each peer may wake that thread once
    /// more. Notices from before are forgotten, so the caller checks afterwards that there is nothing to do.
    pub(crate) fn prepare_sleep(&mut self) -> EventSet {
        self.expect_wake();
        let mut count = [0_u8; 8];
        if let Some(notice) = &self.notice {
            // SAFETY: the kernel writes at most the length announced. Without a notice the call fails, which has no
            // effect.
            unsafe { libc::read(notice.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
        EventSet(Arc::clone(&self.epoll))
    }

    /// Wakes the thread that waits since [`Watch::prepare_sleep`], if there is one.
    pub(crate) fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        if let Some(notice) = &self.notice {
            // SAFETY: the kernel reads the length announced. If the counter is full, the thread is awake.
            unsafe { libc::write(notice.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Removes a descriptor from the set, before it is closed or watched.
    pub fn unattend(&self, fd: BorrowedFd<'_>) {
        self.forget(fd);
    }

    /// Returns whether the clock of [`Watch::tick`] has ticked since the last call.
    pub fn has_ticked(&mut self) -> bool {
        std::mem::take(&mut self.ticked)
    }

    /// Returns whether the process of a pidfd has ended.
    pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
        has_ended(pidfd)
    }

    /// Checks one peer: returns how it left if it is gone now. It is then not watched any more.
    pub fn look_at(&mut self, peer: usize) -> Option<Departure> {
        let key = *self.watched.iter().find(|(_, watched)| watched.peer == peer)?.0;
        self.examine(key).map(|(_, departure)| departure)
    }

    fn reset_clock(&mut self) {
        self.ticked = true;
        let mut ticks = [0_u8; 8];
        if let Some(clock) = &self.clock {
            // SAFETY: the kernel writes at most the length announced. Without ticks the call fails, which has no
            // effect.
            unsafe { libc::read(clock.as_raw_fd(), ticks.as_mut_ptr().cast(), ticks.len()) };
        }
    }

    /// Checks a peer for which the kernel reported an event.
    fn examine(&mut self, key: u64) -> Option<(usize, Departure)> {
        let expected = self.wakes;
        let watched = self.watched.get_mut(&key)?; // both of its descriptors may be in one batch
        // Checked before the packets are read: a dead process sends no further packets.
        let ended = watched.pidfd.as_ref().is_some_and(|fd| has_ended(fd.as_fd()));
        if !(watched.drain(expected) || ended) {
            return None;
        }
        let departure = watched.said.unwrap_or(Departure::Died);
        self.release(key).map(|watched| (watched.peer, departure))
    }

    fn release(&mut self, key: u64) -> Option<Watched> {
        let watched = self.watched.remove(&key)?;
        // Closing is not enough: if a forked child holds copies, the kernel continues to report events.
        self.forget(watched.connection.as_fd());
        if let Some(fd) = &watched.pidfd {
            self.forget(fd.as_fd());
        }
        Some(watched)
    }

    /// Announces to every remaining peer that this process has finished; call it last. A peer that the packet does not
    /// reach sees a death.
    pub fn send_goodbyes(&self) {
        for watched in self.watched.values() {
            let _ = watched.connection.send_goodbye();
        }
    }

    /// As [`Watch::send_goodbyes`], to one peer.
    pub(crate) fn send_goodbye_to(&self, peer: usize) {
        for watched in self.watched.values().filter(|watched| watched.peer == peer) {
            let _ = watched.connection.send_goodbye();
        }
    }

    /// Announces to every remaining peer that this process leaves without having finished; call it last. A peer that
    /// the packet does not reach sees a death.
    pub fn send_dropped(&self) {
        for watched in self.watched.values() {
            let _ = watched.connection.send_dropped();
        }
    }

    /// Returns whether no peer is watched.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Returns the number of watched peers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.watched.len()
    }

    fn control(&self, operation: c_int, fd: BorrowedFd<'_>, key: u64) -> Result<(), ShmError> {
        // Level-triggered: events that one bounded check leaves are reported again.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: key };
        // SAFETY: both descriptors are open, and the event outlives the call.
        checked(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) })
            .map(|_| ())
            .map_err(|errno| ShmError::system("watching a peer (see fs.epoll.max_user_watches)", errno))
    }

    fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0); // fails only if it was not in the set
    }
}

/// The set of a [`Watch`], for a thread that waits.
#[derive(Debug)]
pub(crate) struct EventSet(Arc<OwnedFd>);

impl EventSet {
    /// Waits until the set is readable. Returns false if the deadline passes first.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        // If the call fails, the caller finds out by polling.
        super::call::wait_ready(self.0.as_fd(), libc::POLLIN, deadline).unwrap_or(true)
    }
}

/// Readable when [`Watch::poll`] has events to process: for event loops and for `epoll` within `epoll`.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Watched {
    /// Reads the peer's packets. True if the connection is at its end, or must be ended. The peer may have sent as many
    /// wake packets as it was asked for.
    fn drain(&mut self, expected: u64) -> bool {
        let mut taken = 0;
        // Bounded: each iteration but the last reads one of a few wakes, a stray, the one goodbye, or the one reset.
        loop {
            match self.connection.glance() {
                Glance::Nothing => return false,
                Glance::End => return true,
                Glance::Leaving(how) if self.said.is_none() => self.said = Some(how),
                Glance::Wake if self.wakes < expected => {
                    self.wakes += 1;
                    taken += 1;
                    if taken == WAKES_A_CHECK {
                        return false;
                    }
                }
                Glance::Leaving(_) | Glance::Wake | Glance::Stray | Glance::Reset => {
                    self.strays += 1;
                    if self.strays > STRAYS {
                        self.said = None;
                        return true;
                    }
                }
            }
        }
    }
}

fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    super::call::ready_now(pidfd, libc::POLLIN).is_ok_and(|events| events != 0)
}

/// Makes the kernel refuse descriptors that the peer sends from now on, where it can (Linux 6.16). No descriptor is
/// expected, and closing one that its sender has prepared can take as long as the sender chooses.
fn refuse_descriptors(socket: BorrowedFd<'_>) {
    // From asm-generic/socket.h; libc does not have it yet.
    const SO_PASSRIGHTS: c_int = 83;
    let no: c_int = 0;
    let len = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the value is a live int of the length that is passed. An older kernel refuses, which changes nothing.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), len);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::os::call::{checked_long, ready_now, wait_ready};
    use crate::os::testing;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn pidfd_of(pid: i32) -> Option<OwnedFd> {
        // SAFETY: takes no pointers.
        let fd = checked_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).ok()?;
        // SAFETY: a new descriptor, given to us alone.
        Some(unsafe { OwnedFd::from_raw_fd(fd.try_into().ok()?) })
    }

    /// Returns all departures up to the first, or those that are there without waiting.
    fn wait_for_departures(watch: &mut Watch) -> Vec<(usize, Departure)> {
        let deadline = soon();
        loop {
            assert!(wait_ready(watch.as_fd(), libc::POLLIN, deadline).unwrap(), "no peer departed");
            let departed: Vec<_> = watch.poll().unwrap().collect();
            if !departed.is_empty() {
                return departed;
            }
        }
    }

    #[test]
    fn the_living_are_not_reported() {
        let mut watch = Watch::new().unwrap();
        assert!(watch.is_empty() && watch.poll().unwrap().next().is_none());
        let (ours, _theirs) = HandoffConnection::pair().unwrap();
        watch.add(3, ours, pidfd_of(crate::os::call::process_id())).unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0);
        assert_eq!(watch.len(), 1);
    }

    #[test]
    fn a_disconnect_is_reported_once() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        let (other, _still_there) = HandoffConnection::pair().unwrap();
        watch.add(7, ours, None).unwrap();
        watch.add(8, other, None).unwrap();
        drop(theirs);
        assert_eq!(wait_for_departures(&mut watch), [(7, Departure::Died)]);
        assert_eq!(watch.poll().unwrap().len(), 0);
        assert_eq!(watch.len(), 1);
    }

    /// The peer's end of the connection stays open in this process: only the pidfd shows the death.
    #[test]
    fn a_killed_process_is_seen_even_when_its_socket_lives_on() {
        let child = testing::fork(testing::sleep_forever);
        let Some(pidfd) = pidfd_of(child.pid()) else {
            testing::skipped("no pidfds here");
            return;
        };
        let mut watch = Watch::new().unwrap();
        let (ours, _theirs) = HandoffConnection::pair().unwrap();
        watch.add(1, ours, Some(pidfd)).unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0);
        child.kill();
        assert_eq!(wait_for_departures(&mut watch), [(1, Departure::Died)]);
        assert!(watch.is_empty());
    }

    #[test]
    fn a_killed_process_is_seen_by_its_socket_alone() {
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        let (start, started) = HandoffConnection::pair().unwrap();
        let child = testing::fork(|| {
            // The child's copy of our own end must be closed, else no end disconnects. SAFETY: takes no pointers.
            unsafe { libc::close(ours.as_fd().as_raw_fd()) };
            let _ = start.send(b"up", &[], soon());
            testing::sleep_forever()
        });
        drop(theirs);
        started.recv(&mut [0; 4], 0, soon()).unwrap();
        let mut watch = Watch::new().unwrap();
        watch.add(1, ours, None).unwrap();
        child.kill();
        assert_eq!(wait_for_departures(&mut watch), [(1, Departure::Died)]);
    }

    #[test]
    fn a_goodbye_makes_the_difference() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(2, ours, None).unwrap();
        theirs.send_goodbye().unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0, "it has not left yet");
        drop(theirs);
        assert_eq!(wait_for_departures(&mut watch), [(2, Departure::Finished)]);
    }

    #[test]
    fn the_first_announced_departure_of_a_peer_counts() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(2, ours, None).unwrap();
        theirs.send_dropped().unwrap();
        theirs.send_goodbye().unwrap();
        drop(theirs);
        assert_eq!(wait_for_departures(&mut watch), [(2, Departure::Dropped)]);
    }

    /// The kernel turns our unread goodbye into a reset, which arrives before theirs.
    #[test]
    fn goodbyes_that_cross_are_both_goodbyes() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(2, ours, None).unwrap();
        watch.send_goodbyes();
        theirs.send_goodbye().unwrap();
        drop(theirs);
        assert_eq!(wait_for_departures(&mut watch), [(2, Departure::Finished)]);
    }

    #[test]
    fn a_peer_that_talks_out_of_turn_loses_its_connection_and_nothing_else_happens() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(5, ours, None).unwrap();
        theirs.send_goodbye().unwrap();
        while theirs.send(b"x", &[], Instant::now()).is_ok() {}
        assert_eq!(wait_for_departures(&mut watch), [(5, Departure::Died)]);
        testing::eventually(|| {
            matches!(theirs.send(b"x", &[], Instant::now()), Err(ShmError::PeerGone { .. }))
        });
    }

    #[test]
    fn unexpected_descriptors_are_refused_by_the_kernel() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(5, ours, None).unwrap();
        if theirs.send(b"x", &[theirs.as_fd()], soon()).is_ok() {
            testing::skipped("this kernel (before 6.16) cannot refuse descriptors");
        }
        assert_eq!(watch.poll().unwrap().len(), 0);
    }

    /// The packet was sent before the kernel was asked to refuse descriptors.
    #[test]
    fn a_stray_descriptor_whose_close_blocks_does_not_hold_up_the_look() {
        let began = Instant::now();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        let mut others = Vec::new();
        for _ in 0..2 {
            let (bad, other) = crate::os::closer::lingering(600);
            theirs.send(b"hello again", &[bad.as_fd()], soon()).unwrap();
            others.push(other);
        }
        let mut watch = Watch::new().unwrap();
        watch.add(3, ours, None).unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0);
        // This packet is not read before the connection is closed.
        drop(watch);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }

    #[test]
    fn a_few_strays_are_forgiven() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(5, ours, None).unwrap();
        theirs.send(b"a longer packet than a goodbye is", &[], soon()).unwrap();
        theirs.send_goodbye().unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0);
        drop(theirs);
        assert_eq!(wait_for_departures(&mut watch), [(5, Departure::Finished)]);
    }

    #[test]
    fn requested_wakes_are_reported_and_others_are_strays() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        watch.add(5, ours, None).unwrap();
        for _ in 0..3 * WAKES_A_CHECK {
            watch.expect_wake();
            theirs.send_wake().unwrap();
        }
        while ready_now(watch.as_fd(), libc::POLLIN).unwrap() != 0 {
            assert_eq!(watch.poll().unwrap().len(), 0);
        }
        for _ in 0..=STRAYS {
            theirs.send_wake().unwrap();
        }
        assert_eq!(wait_for_departures(&mut watch), [(5, Departure::Died)]);
    }

    #[test]
    fn a_clock_makes_the_set_readable_again_and_again() {
        let mut watch = Watch::new().unwrap();
        watch.tick(Duration::from_millis(1)).unwrap();
        for _ in 0..3 {
            assert!(wait_ready(watch.as_fd(), libc::POLLIN, soon()).unwrap());
            assert_eq!(watch.poll().unwrap().len(), 0);
            assert!(watch.has_ticked() && !watch.has_ticked());
        }
    }

    #[test]
    fn many_departures_are_reported_in_bounded_batches_each_once() {
        let mut watch = Watch::new().unwrap();
        let peers = 3 * BATCH + 1;
        for peer in 0..peers {
            let (ours, theirs) = HandoffConnection::pair().unwrap();
            watch.add(peer, ours, None).unwrap();
            drop(theirs);
        }
        let mut seen = Vec::new();
        while !watch.is_empty() {
            let batch = wait_for_departures(&mut watch);
            assert!(batch.len() <= BATCH);
            seen.extend(batch.into_iter().map(|(peer, _)| peer));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..peers).collect::<Vec<_>>());
    }

    #[test]
    fn a_removed_peer_is_not_reported_even_if_a_copy_of_its_socket_lives() {
        let mut watch = Watch::new().unwrap();
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        let _copy = ours.as_fd().try_clone_to_owned().unwrap();
        watch.add(4, ours, None).unwrap();
        drop(watch.remove(4).unwrap());
        assert!(watch.remove(4).is_none());
        drop(theirs);
        assert_eq!(watch.poll().unwrap().len(), 0);
    }
}
