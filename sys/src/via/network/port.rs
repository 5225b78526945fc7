//! The memory port of connections to other machines: over an RDMA device, or over TCP.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use nemesia_core::port::memory::{Armed, Completion, MemoryPort};

use crate::tcp::TcpPort;
use crate::transport::net::Transport;
use crate::verbs::VerbsPort;

/// Completions that are taken at once while the port is being armed.
const COMPLETIONS: usize = 16;

/// A memory port of either kind.
#[derive(Debug)]
pub(in crate::via) enum AnyViaPort {
    /// Over TCP.
    Tcp(Box<TcpPort>),
    /// Over an RDMA device.
    Verbs(Box<VerbsPort>),
}

impl AnyViaPort {
    /// Returns the kind.
    pub(in crate::via) const fn transport(&self) -> Transport {
        match self {
            Self::Tcp(_) => Transport::Tcp,
            Self::Verbs(_) => Transport::Verbs,
        }
    }

    /// Lets posted work leave this process, as far as possible, without looking for what has arrived.
    pub(in crate::via) fn push_out(&mut self) {
        match self {
            Self::Tcp(port) => port.push_out(),
            // The device has it.
            Self::Verbs(_) => {}
        }
    }
}

impl Deref for AnyViaPort {
    type Target = dyn MemoryPort;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Tcp(port) => port.as_ref(),
            Self::Verbs(port) => port.as_ref(),
        }
    }
}

impl DerefMut for AnyViaPort {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Tcp(port) => port.as_mut(),
            Self::Verbs(port) => port.as_mut(),
        }
    }
}

/// Whether the port wakes the service thread, and the completions that were found when this was requested.
#[derive(Debug, Default)]
pub(super) struct PortAlarm {
    is_set: bool,
    found: VecDeque<Completion>,
}

impl PortAlarm {
    /// Takes completions, those that were found before first. Returns their number.
    pub(super) fn poll(&mut self, port: &mut AnyViaPort, into: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < into.len()
            && let Some(completion) = self.found.pop_front()
        {
            into[count] = completion;
            count += 1;
        }
        count += port.poll(&mut into[count..]);
        // The next completion may have woken the service thread already, or not.
        self.is_set &= count == 0;
        count
    }

    /// Requests that the next completion makes the descriptor of the port readable. Returns whether the caller can
    /// sleep until then; if not, it must poll. A request that stands costs nothing, unless `again` is set.
    pub(super) fn set(&mut self, port: &mut AnyViaPort, again: bool) -> bool {
        if matches!(port, AnyViaPort::Tcp(_)) {
            // A poll after the request would make it void.
            return port.arm() == Armed::Sleep;
        }
        if self.is_set && !again && self.found.is_empty() {
            return true;
        }
        if !self.found.is_empty() || port.arm() != Armed::Sleep {
            return false;
        }
        // A completion that arrived before the request wakes no thread.
        let mut completions = [Completion::EMPTY; COMPLETIONS];
        let count = port.poll(&mut completions);
        self.found.extend(completions.iter().take(count));
        self.is_set = count == 0;
        self.is_set
    }
}
