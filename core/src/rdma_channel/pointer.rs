//! The names of the pointers.
#![forbid(unsafe_code)]

/// A pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Pointer {
    /// Up to here the sender has written.
    Head = 0,
    /// Up to here the receiver has read.
    Tail = 1,
    /// So many exposed buffers the receiver has read.
    Acks = 2,
    /// 1 if this end puts and gets nothing more: it was finalized.
    End = 3,
}

/// The number of pointers.
pub(super) const POINTERS: usize = 4;
