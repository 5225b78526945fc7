//! Shortages of this process or its machine that may pass: of descriptors, or of memory for sockets.
//!
//! They concern no peer: what failed is tried again. A listener whose `accept` fails stays readable, and would keep a
//! process from sleeping. So it is left out of the set of descriptors for a while ([`Shortage::next_connection`]).

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::error::ShmError;
use super::limits::sufficient_files;
use super::watch::Watch;

/// The time for which no connection is accepted after a failure.
const PAUSE: Duration = Duration::from_millis(100);
/// A shortage that comes back after this time is reported again.
const QUIET: Duration = Duration::from_secs(10);

/// The pause of a listener, and what is to be reported of shortages: the first one of several.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// The peers that this process may connect with, as far as it knows.
    peers: u64,
    pause: Option<Instant>,
    /// The last failure, and the first one after which no connection was made.
    last: Option<Instant>,
    first: Option<Instant>,
    /// What failed last.
    present: String,
    report: Option<String>,
    /// The calls of `accept` that have failed.
    failed: u64,
}

impl Shortage {
    /// Returns the state of a process that may connect with so many peers.
    pub(crate) fn among(peers: u64) -> Self {
        Self { peers, ..Self::default() }
    }

    /// Records that an operation has failed, which is tried again.
    pub(crate) fn record(&mut self, error: &ShmError) {
        let now = Instant::now();
        self.present = self.text_of(error);
        if self.last.is_none_or(|last| now.duration_since(last) >= QUIET) {
            self.report = Some(self.present.clone());
            self.first = None;
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Records that a connection was made.
    pub(crate) const fn end(&mut self) {
        self.first = None;
    }

    /// Returns what failed last, with the remedy, if no connection was made since.
    pub(crate) fn present(&self) -> Option<&str> {
        self.first.map(|_| self.present.as_str())
    }

    /// As [`Shortage::present`], if operations have failed for so long.
    pub(crate) fn lasting(&self, limit: Duration) -> Option<&str> {
        self.present().filter(|_| self.first.is_some_and(|first| first.elapsed() >= limit))
    }

    /// Records that a packet could not be received, which waits in its socket. The socket stays readable, and would
    /// keep this process from sleeping. So it is left out of the set of descriptors: the next look finds the packet.
    pub(crate) fn record_packet(&mut self, error: &ShmError, watch: &Watch, socket: BorrowedFd<'_>) {
        // If the socket is not there, nothing has to be taken out.
        watch.unattend(socket);
        self.record(error);
    }

    fn text_of(&self, error: &ShmError) -> String {
        let is_own = matches!(error, ShmError::Descriptors { errno, .. }
            if errno.raw_os_error() == Some(libc::EMFILE));
        match sufficient_files(self.peers) {
            Some(files) if is_own && self.peers > 0 => {
                format!("{error}: {files} suffice for {} peers", self.peers)
            }
            _ => error.to_string(),
        }
    }

    /// Accepts a connection by `accept`, which returns `None` if there is none, unless the listener pauses. `listen`
    /// puts the listener into the set of descriptors (`true`), or takes it out: while it pauses, it is not in the set.
    pub(crate) fn next_connection<T>(
        &mut self,
        now: Instant,
        listen: impl Fn(bool) -> Result<(), ShmError>,
        accept: impl FnOnce() -> Result<Option<T>, ShmError>,
    ) -> Option<T> {
        self.resume(now, &listen);
        if self.is_paused() {
            return None;
        }
        let error = match accept() {
            Ok(accepted) => return accepted,
            Err(error) => error,
        };
        self.failed += 1;
        // If it is not there, nothing has to be taken out.
        let _ = listen(false);
        self.pause(now, &error);
        None
    }

    /// Lets the time pass after which a shortage lasts.
    #[cfg(test)]
    pub(crate) fn expire(&mut self, time: Duration) {
        self.first = self.first.and_then(|first| first.checked_sub(time));
    }

    /// Puts the listener into the set again, if its pause is over.
    pub(crate) fn resume(&mut self, now: Instant, listen: impl Fn(bool) -> Result<(), ShmError>) {
        if self.pause.take_if(|until| now >= *until).is_some()
            && let Err(error) = listen(true)
        {
            self.pause(now, &error);
        }
    }

    fn pause(&mut self, now: Instant, error: &ShmError) {
        self.pause = Some(now + PAUSE);
        self.record(error);
    }

    /// Returns whether no connection is to be accepted.
    pub(crate) const fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Returns the number of calls of `accept` that have failed.
    pub(crate) const fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns the next report for the user, once.
    pub(crate) const fn next_report(&mut self) -> Option<String> {
        self.report.take()
    }
}

/// Returns the function that puts a listener into a set and takes it out.
pub(crate) fn listening<'a>(
    watch: &'a Watch,
    listener: BorrowedFd<'a>,
) -> impl Fn(bool) -> Result<(), ShmError> + 'a {
    move |listens| {
        if listens {
            return watch.attend(listener);
        }
        watch.unattend(listener);
        Ok(())
    }
}

/// Returns what a hand-over socket has accepted; `None` if there was no connection.
pub(crate) fn arrived<T>(accepted: Result<T, ShmError>) -> Result<Option<T>, ShmError> {
    match accepted {
        Err(ShmError::TimedOut { .. }) => Ok(None),
        accepted => accepted.map(Some),
    }
}

/// As [`arrived`], for a socket of the network.
pub(crate) fn arrived_stream<T>(accepted: io::Result<T>) -> Result<Option<T>, ShmError> {
    match accepted {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) => match error.kind() {
            // There is none, or it has ended before it was accepted.
            ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => Ok(None),
            _ => Err(ShmError::system("accepting a connection", error)),
        },
    }
}
