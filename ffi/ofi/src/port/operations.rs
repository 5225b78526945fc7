//! The operations under way.

use nemesia::{PeerRef, Request, Segment};

use crate::bindings as fi;
use crate::object::Errno;

/// An operation under way.
#[derive(Default)]
pub(super) struct Operation {
    /// What the application has given it.
    pub(super) context: usize,
    /// The kind, as completions report it.
    pub(super) flags: u64,
    /// Its success is reported, and not only an error.
    pub(super) is_wanted: bool,
    /// Where it receives.
    pub(super) buffer: usize,
    /// The request of a receive.
    pub(super) request: Option<Request>,
    /// The bytes of a send, if they were copied.
    pub(super) copy: Option<Box<[u8]>>,
    /// The parts of a one-sided operation that are under way; 0 for a message.
    pub(super) parts: u32,
    /// What the target of a write reports, when the write is executed.
    pub(super) notice: Option<Box<Notice>>,
    /// Why a part of it has failed.
    pub(super) error: Option<Errno>,
    /// The runs of its memory, if there are several.
    pub(super) list: Box<[Segment]>,
}

/// The data of a write, for its target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) rank: usize,
    /// The process that had this number when the write began.
    pub(super) peer: Option<PeerRef>,
    pub(super) data: u64,
    pub(super) len: u64,
}

// SAFETY: the addresses in the list are used by the endpoint only, which may move between threads.
unsafe impl Send for Operation {}

/// The operations under way, by number.
#[derive(Default)]
pub(super) struct Operations {
    places: Vec<Option<Operation>>,
    free: Vec<u32>,
}

impl Operations {
    /// Keeps an operation. Returns its number.
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let at = self.free.pop().unwrap_or(self.places.len() as u32);
        if at as usize == self.places.len() {
            self.places.push(None);
        }
        self.places[at as usize] = Some(operation);
        at.into()
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Operation> {
        self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Forgets an operation that has ended.
    pub(super) fn remove(&mut self, number: u64) -> Option<Operation> {
        let removed = self.places.get_mut(usize::try_from(number).ok()?)?.take()?;
        self.free.push(number as u32);
        Some(removed)
    }

    /// Returns the request of a receive with this context.
    pub(super) fn receive_of(&self, context: usize) -> Option<Request> {
        let is_it = |it: &&Operation| it.context == context && it.flags & u64::from(fi::FI_RECV) != 0;
        self.places.iter().flatten().find(is_it)?.request
    }
}
