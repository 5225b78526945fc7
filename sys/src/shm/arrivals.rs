//! Unauthenticated connections at start, heard side by side.
//!
//! Anybody on the machine can connect to the socket at which peers meet, and need not say anything. So a connection is
//! first judged by what the kernel knows of the process behind it: of another user, or no process of a rank that is
//! awaited, it is closed before anything that it has sent is received. The others are heard as they speak. None of them
//! delays the others: how long each may be silent is limited, and how many there are at once.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::connect;
use super::handshake::{self, ShmHandshake};
use crate::os::{ForeignFd, HandoffConnection, HandoffListener, ShmError, closer, wait_any};

/// How long one handshake may take to arrive.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long, when there is no room for more.
const SHORT_HANDSHAKE_TIME: Duration = Duration::from_millis(200);
/// Connections at once, beyond one for each rank.
const SPARE: usize = 64;
/// Connections that are accepted before those that are there are heard.
const AT_ONCE: usize = 64;
/// How long to wait when nobody can be accepted although somebody may have called.
const FULL_FOR: Duration = Duration::from_millis(10);

/// Connections that have not said who they are.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// In the order in which they came.
    silent: Vec<(HandoffConnection, Instant)>,
    most: usize,
    /// Nobody was accepted at the last try, though somebody may have called.
    full: bool,
}

/// Somebody who has said who it is.
pub(super) type ArrivedHandshake = (HandoffConnection, ShmHandshake, Vec<ForeignFd>);

impl Arrivals {
    /// For so many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { silent: Vec::new(), most: ranks + SPARE, full: false }
    }

    /// Accepts those who have called, as far as there is room, and refuses those who don't belong here.
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
                    refuse(&connection, "no such rank is awaited here");
                }
                Ok(connection) => self.silent.push((connection, now)),
                Err(ShmError::TimedOut { .. }) => return,
                // Without descriptors, for one.
                Err(_) => {
                    self.full = true;
                    return;
                }
            }
        }
    }

    fn make_room(&mut self, now: Instant) {
        let patience = if self.silent.len() < self.most { HANDSHAKE_TIME } else { SHORT_HANDSHAKE_TIME };
        self.silent.retain(|(_, since)| now.duration_since(*since) < patience);
    }

    /// The next that has said who it is. What cannot be understood is closed.
    pub(super) fn hear(&mut self) -> Option<ArrivedHandshake> {
        let now = Instant::now();
        while let Some((at, heard)) = self.silent.iter().enumerate().find_map(|(at, (connection, _))| {
            connect::hear(connection, now).transpose().map(|heard| (at, heard))
        }) {
            let (connection, _) = self.silent.remove(at);
            if let Ok((handshake, fds)) = heard {
                return Some((connection, handshake, fds));
            }
        }
        None
    }

    /// Waits until somebody calls or speaks, or has been silent for too long; no longer than `until`.
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
        // If it fails, the caller looks at all of them again, until its own deadline.
        let _ = wait_any(&fds, until);
    }
}

/// Says why, if that can be said at once.
pub(super) fn refuse(connection: &HandoffConnection, problem: &str) {
    let _ = connection.send(&handshake::refusal(problem), &[], Instant::now());
}

#[cfg(test)]
mod tests;
