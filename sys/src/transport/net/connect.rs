//! Connecting with all ranks on other machines when the world is opened.

use std::time::{Duration, Instant};

use nemesia_core::port::channel::{ChannelEvent, JoinError};
use nemesia_core::port::memory::ConnectError;
use nemesia_core::port::{PacketPort as _, PeerId};
use nemesia_core::wire::channel::ChannelRefusal;

use super::{AnyChannel, CHECK_NETWORK, LOOK_EVERY, NetPort, with};
use crate::error::Error;
use crate::opening::OpeningReport;
use crate::os::wait_any;

/// The most connections that this process requests at once. The other side can only hold a limited number of
/// requests.
const AT_ONCE: usize = 16;
/// The remedy over TCP if the network lets connections through in one direction only: here a rank connects to the lower
/// ones.
const ONE_DIRECTION: &str =
    "; if connections are let through in one direction only, NEMESIA_CONNECT=demand uses it";
/// The time before a refused request is repeated.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The state of a connection while the world is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningStage {
    /// This process requests the connection, from this time on.
    Due(Instant),
    Requested,
    /// The request failed, and the connection is not closed yet.
    Closing,
    /// The other side requests the connection.
    Awaited,
    Ready,
}

impl NetPort {
    /// Connects with every rank that this port reaches, by the deadline. If that takes long and `explains`, it says
    /// which ranks are missing.
    ///
    /// # Errors
    /// [`Error::Net`] names the first rank that cannot be reached, the reason and the remedy.
    pub(crate) fn meet(&mut self, deadline: Instant, explains: bool) -> Result<(), Error> {
        let mut report = OpeningReport::new(explains, (self.rank as usize, self.ranks() as usize));
        let now = Instant::now();
        let begin = |peer: PeerId| match (self.reaches(peer), peer < self.rank) {
            (false, _) => OpeningStage::Ready,
            (true, true) => OpeningStage::Due(now),
            (true, false) => OpeningStage::Awaited,
        };
        let mut meetings: Vec<OpeningStage> = (0..self.ranks()).map(begin).collect();
        let mut last_failures: Vec<Option<String>> = vec![None; meetings.len()];
        while meetings.iter().any(|meeting| *meeting != OpeningStage::Ready) {
            self.request(&mut meetings, deadline)?;
            let mut events = Vec::new();
            self.advance_with(self.now(), |event| events.push(event));
            for event in &events {
                self.heed(event, &mut meetings, &mut last_failures)?;
            }
            self.widen(&events);
            self.flush_receives(&meetings);
            report.look(|| absent(&meetings).collect());
            let now = Instant::now();
            if now >= deadline {
                return Err(self.missing(&meetings, &last_failures));
            }
            if events.is_empty()
                && self.arm()
                && let Some(descriptor) = self.descriptor()
            {
                // If it fails, the loop looks again until its own time limit.
                let _ = wait_any(&[descriptor], deadline.min(now + LOOK_EVERY));
            }
        }
        // All members are here. A process that connects from now on was started again.
        self.hold_requests();
        Ok(())
    }

    /// Takes the completions of receives of connections that were not made, because the peer has refused the request,
    /// or because this process could not accept it. Only then is their end reported, and another request accepted.
    fn flush_receives(&mut self, meetings: &[OpeningStage]) {
        for (peer, meeting) in (0..).zip(meetings) {
            if *meeting != OpeningStage::Ready {
                // A peer that is not connected has sent no packet that is delivered.
                let _ = self.poll_peer(peer);
            }
        }
    }

    /// Requests the connections that are due, in falling order of ranks, so that the lowest ranks are not all called
    /// at once.
    fn request(&mut self, meetings: &mut [OpeningStage], deadline: Instant) -> Result<(), Error> {
        let now = Instant::now();
        let until = self.begun.elapsed() + deadline.saturating_duration_since(now);
        let mut requested = meetings.iter().filter(|it| **it == OpeningStage::Requested).count();
        for peer in (0..self.ranks()).rev() {
            let place = &mut meetings[peer as usize];
            let OpeningStage::Due(at) = *place else { continue };
            if requested >= AT_ONCE || now < at {
                continue;
            }
            let Some(address) = self.addresses[peer as usize] else { continue };
            match with!(&mut self.any, it => it.channel.connect(peer, 0, &address, until)) {
                Ok(()) => {
                    *place = OpeningStage::Requested;
                    requested += 1;
                }
                Err(JoinError::Exists | JoinError::Buffers { .. }) => {
                    *place = OpeningStage::Due(now + RETRY_AFTER);
                }
                Err(error) => return Err(self.failed(peer, &error.to_string())),
            }
        }
        Ok(())
    }

    fn heed(
        &self,
        event: &ChannelEvent,
        meetings: &mut [OpeningStage],
        last_failures: &mut [Option<String>],
    ) -> Result<(), Error> {
        match *event {
            ChannelEvent::Up { peer, rail: 0 } => meetings[peer as usize] = OpeningStage::Ready,
            ChannelEvent::Failed { peer, rail: 0, error, refusal } => {
                let problem = match refusal {
                    Some(refusal) => format!("it refused the connection: {refusal}"),
                    None => error.to_string(),
                };
                let mine = meetings[peer as usize] == OpeningStage::Requested;
                if mine && !is_passing(error, refusal) {
                    return Err(self.failed(peer, &problem));
                }
                last_failures[peer as usize] = Some(problem);
                if mine {
                    meetings[peer as usize] = OpeningStage::Closing;
                }
            }
            ChannelEvent::Refused { claimed: Some(peer), refusal } => {
                if let Some(last) = last_failures.get_mut(peer as usize) {
                    *last = Some(format!("its request was refused here: {refusal}"));
                }
            }
            ChannelEvent::Closed { peer, rail: 0 } if meetings[peer as usize] == OpeningStage::Closing => {
                meetings[peer as usize] = OpeningStage::Due(Instant::now() + RETRY_AFTER);
            }
            // Further connections are not awaited (`streams.rs`).
            _ => {}
        }
        Ok(())
    }

    /// Names the first rank with which there is no connection by the deadline.
    fn missing(&self, meetings: &[OpeningStage], last_failures: &[Option<String>]) -> Error {
        let (rank, count) = (absent(meetings).next().unwrap_or(0), absent(meetings).count());
        let what = if (rank as PeerId) < self.rank { "it did not answer" } else { "it never connected" };
        let last = last_failures[rank].as_deref().map_or_else(String::new, |last| format!(": {last}"));
        let direction = if matches!(self.any, AnyChannel::Tcp(_)) { ONE_DIRECTION } else { "" };
        let problem =
            format!("{what} in time ({count} ranks are missing){last}; did it fail at start?{direction}");
        self.failed(rank as PeerId, &problem)
    }

    fn failed(&self, peer: PeerId, problem: &str) -> Error {
        let problem = format!("{problem}{CHECK_NETWORK}");
        Error::Net { rank: peer as usize, transport: self.transport().name(), problem }
    }
}

/// Returns the ranks that are not connected yet.
fn absent(meetings: &[OpeningStage]) -> impl Iterator<Item = usize> {
    (0..meetings.len()).filter(|at| meetings[*at] != OpeningStage::Ready)
}

/// Returns whether a later request may succeed: the other side had no room.
pub(super) const fn is_passing(error: ConnectError, refusal: Option<ChannelRefusal>) -> bool {
    match refusal {
        Some(ChannelRefusal::Exists | ChannelRefusal::Buffers | ChannelRefusal::Unproven) => true,
        Some(_) => false,
        None => matches!(error, ConnectError::Refused | ConnectError::Unreachable),
    }
}
