//! Head and tail pointers, each with its master copy at the end that moves it and a replica at the other (paper 1,
//! section 4.2). A third pointer counts acknowledged buffers of the zero-copy design, and a fourth one announces the
//! end.
//!
//! Pointers are positions that only grow. A replica may be out of date; this delays its reader and does no harm. Values
//! of the peer are untrusted: each design checks a value against its own positions before it uses the value.
#![forbid(unsafe_code)]

use super::PipeError;
use super::link::PipeLink;
use super::messages::PointerMessages;
use super::pointer::Pointer;
use super::words::PointerWords;
use crate::port::memory::MemoryPort;

/// The pointers of both directions, at one end.
#[derive(Debug)]
pub(super) enum Pointers {
    /// Written into the peer's inbox.
    Words(PointerWords),
    /// Sent as messages.
    Messages(PointerMessages),
}

impl Pointers {
    /// Returns the pointer as far as it is known here. The value is the peer's, and untrusted.
    #[inline]
    pub(super) fn theirs(&mut self, link: &PipeLink, pointer: Pointer) -> u64 {
        match self {
            Self::Words(words) => words.theirs(link, pointer),
            Self::Messages(messages) => messages.theirs(pointer),
        }
    }

    /// Moves an own pointer; [`Pointers::push`] publishes it.
    #[inline]
    pub(super) const fn publish(&mut self, pointer: Pointer, value: u64) {
        match self {
            Self::Words(words) => words.publish(pointer, value),
            Self::Messages(messages) => messages.publish(pointer, value),
        }
    }

    /// Returns whether this end may send anything yet.
    #[inline]
    pub(super) const fn may_speak(&self) -> bool {
        match self {
            Self::Words(_) => true,
            Self::Messages(messages) => messages.may_speak(),
        }
    }

    /// Returns whether everything is published.
    #[inline]
    pub(super) fn is_clean(&self) -> bool {
        match self {
            Self::Words(words) => words.is_clean(),
            Self::Messages(messages) => messages.is_clean(),
        }
    }

    /// Posts what the queue has room for.
    pub(super) fn push<P: MemoryPort>(&mut self, port: &mut P, link: &PipeLink) -> Result<(), PipeError> {
        match self {
            Self::Words(words) => words.push(port, link),
            Self::Messages(messages) => messages.push(port, link),
        }
    }

    /// Takes note that a pointer left this end.
    pub(super) const fn on_posted(&mut self, group: u8, number: u64) {
        match self {
            Self::Words(words) => words.on_written(group, number),
            Self::Messages(messages) => messages.on_sent(number),
        }
    }
}
