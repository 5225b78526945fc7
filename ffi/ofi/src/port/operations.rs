//! The operations under way.

use nemesia::{PeerRef, Request, Segment};

use crate::bindings as fi;
use crate::failure::Failure;

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
    /// The parts of a one-sided operation that are under way; 0 for a message.
    pub(super) parts: u32,
    /// Why a part of it has failed.
    pub(super) error: Option<Failure>,
    /// What most operations do not have: they are small, because each one is moved in and out.
    pub(super) rare: Option<Box<Rare>>,
}

/// What the completion of a message needs of its operation.
#[derive(Clone, Copy)]
pub(super) struct EndedMessage {
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) is_wanted: bool,
    pub(super) buffer: usize,
}

#[derive(Default)]
pub(super) struct Rare {
    copy: Option<Box<[u8]>>,
    notice: Option<Notice>,
    list: Box<[Segment]>,
    /// The peer, and the room that its copy takes.
    room: Option<(usize, usize)>,
    /// The peer for which messages wait for the end of this one.
    followed: Option<usize>,
}

impl Operation {
    /// Keeps a copy of the bytes of a send. Returns its address, which is valid as long as the operation is kept.
    pub(super) fn keep_copy(&mut self, bytes: Box<[u8]>) -> *const [u8] {
        &raw const **self.rare.get_or_insert_default().copy.insert(bytes)
    }

    /// Returns the bytes of a send, if they were copied.
    pub(super) fn copy(&self) -> Option<&[u8]> {
        self.rare.as_ref()?.copy.as_deref()
    }

    /// Keeps the room that the copy for a peer takes.
    pub(super) fn set_room(&mut self, rank: usize, bytes: usize) {
        self.rare.get_or_insert_default().room = Some((rank, bytes));
    }

    /// Returns the peer of a copy, and the room that the copy takes.
    pub(super) fn room(&self) -> Option<(usize, usize)> {
        self.rare.as_ref()?.room
    }

    /// Lets messages for a peer wait for the end of this one.
    pub(super) fn set_followed(&mut self, rank: usize) {
        self.rare.get_or_insert_default().followed = Some(rank);
    }

    /// Returns the peer for which messages wait for the end of this one.
    pub(super) fn followed(&self) -> Option<usize> {
        self.rare.as_ref()?.followed
    }

    /// Returns what the completion of a message needs.
    pub(super) const fn ended(&self) -> EndedMessage {
        let Self { context, flags, is_wanted, buffer, .. } = *self;
        EndedMessage { context, flags, is_wanted, buffer }
    }

    /// Keeps the runs of the operation's memory, if there are several.
    pub(super) fn keep_list(&mut self, list: Box<[Segment]>) {
        if !list.is_empty() {
            self.rare.get_or_insert_default().list = list;
        }
    }

    /// Returns the runs of the operation's memory, if there are several.
    pub(super) fn list(&self) -> &[Segment] {
        self.rare.as_ref().map_or(&[], |rare| &rare.list)
    }

    /// Keeps what the target of a write reports, when the write is executed.
    pub(super) fn keep_notice(&mut self, notice: Notice) {
        self.rare.get_or_insert_default().notice = Some(notice);
    }

    pub(super) fn has_notice(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.notice.is_some())
    }

    /// Takes what the target of a write reports.
    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        self.rare.as_mut()?.notice.take()
    }
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
    /// Returns the number that the next operation has.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.free.last().map_or(self.places.len() as u64, |at| u64::from(*at))
    }

    /// Keeps an operation. Returns its number.
    #[inline(always)]
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let number = self.next();
        self.free.pop();
        match self.places.get_mut(number as usize) {
            Some(place) => *place = Some(operation),
            None => self.places.push(Some(operation)),
        }
        number
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Operation> {
        self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Forgets an operation that has ended.
    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<Operation> {
        let removed = self.places.get_mut(usize::try_from(number).ok()?)?.take()?;
        self.free.push(number as u32);
        Some(removed)
    }

    /// Forgets an operation of a message that has ended. Returns what its completion needs. `None` if it has more, or
    /// does not exist: [`Operations::remove`] returns all of it. The whole is not moved.
    #[inline(always)]
    pub(super) fn finish(&mut self, number: u64) -> Option<EndedMessage> {
        let place = self.places.get_mut(usize::try_from(number).ok()?)?;
        let ended = place.as_ref().filter(|it| it.rare.is_none())?.ended();
        *place = None;
        self.free.push(number as u32);
        Some(ended)
    }

    /// Returns the request of a receive with this context.
    pub(super) fn receive_of(&self, context: usize) -> Option<Request> {
        let is_it = |it: &&Operation| it.context == context && it.flags & u64::from(fi::FI_RECV) != 0;
        self.places.iter().flatten().find(is_it)?.request
    }
}
