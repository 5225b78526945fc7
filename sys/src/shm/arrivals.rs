//! Concurrent handling of unauthenticated connections at start.
//!
//! Any process of the machine can connect to our listening socket, and need not send anything. So a connection
//! is first checked by the kernel's credentials of the process behind it. If that process belongs to another
//! user, or is not the process of an awaited rank, the connection is closed before anything that it has sent is
//! received. The other connections are read as their packets arrive. None of them delays the others: the time
//! for which each may be silent is limited, and so is their number.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::handshake::{self, ShmHandshake};
use super::peer::{self, Unheard};
use crate::os::{ForeignFd, HandoffConnection, HandoffListener, ShmError, closer, wait_any};

/// The time within which one handshake must arrive.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// The same limit while there is no room for more connections.
const SHORT_HANDSHAKE_TIME: Duration = Duration::from_millis(200);
/// The number of connections at once, beyond one for each rank.
const SPARE: usize = 64;
/// The number of connections that are accepted before the present ones are read.
const AT_ONCE: usize = 64;
/// The wait before the next try if no connection can be accepted, although one may be pending.
const FULL_FOR: Duration = Duration::from_millis(10);

/// Connections that have not sent their handshake.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// In the order of their arrival.
    silent: Vec<(HandoffConnection, Instant)>,
    most: usize,
    /// The last try accepted no connection, although one may be pending.
    full: bool,
    /// Why no connection could be accepted, since the last one that was.
    problem: Option<ShmError>,
}

/// A connection with its handshake and descriptors.
pub(super) type ArrivedHandshake = (HandoffConnection, ShmHandshake, Vec<ForeignFd>);

impl Arrivals {
    /// Returns an empty set, with room for this many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { silent: Vec::new(), most: ranks + SPARE, full: false, problem: None }
    }

    /// Accepts pending connections as far as there is room, and closes those that are not from an awaited rank.
    pub(super) fn accept(
        &mut self,
        listener: &HandoffListener,
        belongs: impl Fn(&HandoffConnection) -> bool,
    ) {
        let now = Instant::now();
        self.full = false;
        for _ in 0..AT_ONCE {
            self.make_room(now);
            if self.silent.len() >= self.most || !closer::has_room() {
                self.full = true;
                return;
            }
            match listener.accept(now) {
                Ok(connection) if connection.require_same_user().is_err() => {}
                Ok(connection) if !belongs(&connection) => {
                    refuse(&connection, "this rank is not awaited here");
                }
                Ok(connection) => self.silent.push((connection, now)),
                Err(ShmError::TimedOut { .. }) => {
                    self.problem = None;
                    return;
                }
                // For example, no descriptors are left.
                Err(error) => {
                    self.problem = Some(error);
                    self.full = true;
                    return;
                }
            }
        }
    }

    /// Returns why no connection can be accepted now.
    pub(super) const fn problem(&mut self) -> Option<ShmError> {
        self.problem.take()
    }

    fn make_room(&mut self, now: Instant) {
        let patience = if self.silent.len() < self.most { HANDSHAKE_TIME } else { SHORT_HANDSHAKE_TIME };
        self.silent.retain(|(_, since)| now.duration_since(*since) < patience);
    }

    /// Returns the next connection whose handshake has arrived. A connection with an invalid packet is closed.
    pub(super) fn hear(&mut self) -> Option<ArrivedHandshake> {
        let now = Instant::now();
        let Self { silent, problem, full, .. } = self;
        let mut hear = |connection: &HandoffConnection| match peer::hear_answer(connection, now) {
            // Its packet is received when there is room for the descriptors.
            Err(Unheard::Shortage(error)) => {
                (*problem, *full) = (Some(error), true);
                None
            }
            heard => heard.transpose(),
        };
        let mut next = |silent: &[(HandoffConnection, Instant)]| {
            silent.iter().enumerate().find_map(|(at, (connection, _))| Some((at, hear(connection)?)))
        };
        while let Some((at, heard)) = next(silent) {
            let (connection, _) = silent.remove(at);
            if let Ok((handshake, fds)) = heard {
                return Some((connection, handshake, fds));
            }
        }
        None
    }

    /// Waits for a connection, a packet, or the end of a connection's time for its handshake; not longer than
    /// `until`.
    pub(super) fn wait(&self, listener: &HandoffListener, until: Instant) {
        let first = self.silent.first().map(|(_, since)| *since + HANDSHAKE_TIME);
        let until = first.into_iter().fold(until, Instant::min);
        let mut fds: Vec<_> = self.silent.iter().map(|(connection, _)| connection.as_fd()).collect();
        let until = if self.full {
            until.min(Instant::now() + FULL_FOR)
        } else {
            fds.push(listener.as_fd());
            until
        };
        // If it fails, the caller checks all connections again, until its own deadline.
        let _ = wait_any(&fds, until);
    }
}

/// Sends the reason for the refusal, if that is possible without waiting.
pub(super) fn refuse(connection: &HandoffConnection, problem: &str) {
    let _ = connection.send(&handshake::refusal(problem), &[], Instant::now());
}

#[cfg(test)]
mod tests;
