//! The bytes of one message of a link.
#![forbid(unsafe_code)]

use core::fmt;

use crate::wire::hello::{PROOF_BYTES, Proof};

/// Bytes of the longest message: the call of a virtual interface.
pub const MOST_LINK_BYTES: usize = 368;

/// The bytes of a message.
#[derive(Clone, Copy)]
pub struct LinkBytes {
    bytes: [u8; MOST_LINK_BYTES],
    len: usize,
}

impl LinkBytes {
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; MOST_LINK_BYTES], len: 0 };

    /// Returns a copy of these bytes, cut to [`MOST_LINK_BYTES`].
    pub fn copied(from: &[u8]) -> Self {
        let mut all = Self::EMPTY;
        all.put(from);
        all
    }

    /// Returns the bytes.
    pub fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Returns the bytes that the proof at the end of a message covers.
    pub fn proven(&self) -> &[u8] {
        proven(self.get())
    }

    /// Writes the proof at the end of a message.
    pub fn seal(&mut self, proof: &Proof) {
        let at = self.len.saturating_sub(PROOF_BYTES);
        if let Some(to) = self.bytes.get_mut(at..self.len) {
            to.copy_from_slice(&proof.0);
        }
    }

    /// Appends bytes. Those that do not fit are left out.
    pub(super) fn put(&mut self, field: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or(&mut []);
        let fits = field.len().min(room.len());
        room.iter_mut().zip(field).for_each(|(to, from)| *to = *from);
        self.len += fits;
    }

    /// Overwrites two bytes.
    pub(super) fn set(&mut self, at: usize, [one, two]: [u8; 2]) {
        (self.bytes[at], self.bytes[at + 1]) = (one, two);
    }

    /// Appends zeros until there are so many bytes.
    pub(super) fn fill(&mut self, until: usize) {
        self.len = self.len.max(until.min(MOST_LINK_BYTES));
    }
}

impl fmt::Debug for LinkBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkBytes({} bytes)", self.len)
    }
}

/// Returns the bytes that the proof at the end of a message covers.
pub fn proven(message: &[u8]) -> &[u8] {
    message.get(..message.len().saturating_sub(PROOF_BYTES)).unwrap_or(&[])
}
