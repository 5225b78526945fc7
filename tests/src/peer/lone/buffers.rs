//! Messages under way, each with its buffer.

use nemesia::{Endpoint, Error, PeerAddress, Request, Source, Status, Tag};

use super::directory::LoneName;
use crate::content::{difference, fill, seed_of};
use crate::peer::{Outcome, broken, ensure};

/// The bytes of a [`LoneHeader`].
pub(super) const HEADER_BYTES: usize = 64 + 6 * 8;
/// For small and large fastbox messages, cells, several cells, and rendezvous.
pub(super) const SIZES: [u64; 12] = [0, 1, 7, 8, 63, 200, 777, 4001, 9999, 20_011, 65_537, 99_999];

/// The tags of the four messages of an exchange. All but requests have the exchange's number in the lower bits.
pub(super) const REQUEST: u64 = 1 << 50;
pub(super) const REQUEST_BODY: u64 = 2 << 50;
pub(super) const REPLY: u64 = 3 << 50;
pub(super) const REPLY_BODY: u64 = 4 << 50;

/// The facts in a request and in a reply. A body follows each, as a message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoneHeader {
    /// The sender's own.
    pub(super) address: PeerAddress,
    pub(super) name: LoneName,
    pub(super) round: u64,
    /// The number of the exchange, which no other exchange has.
    pub(super) nonce: u64,
    /// The bytes of the request's body, and of the reply's.
    pub(super) lens: [u64; 2],
}

impl LoneHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { address, name, round, nonce, lens } = *self;
        let names = u64::from(name.slot) << 32 | u64::from(name.life);
        let words =
            [names, round, nonce, lens[0], lens[1], seed_of(&[names, round, nonce, lens[0], lens[1]])];
        let words = words.into_iter().flat_map(u64::to_le_bytes);
        address.bytes().iter().copied().chain(words).collect()
    }

    /// Decodes a header, which has come whole and unchanged.
    pub(super) fn decode(bytes: &[u8]) -> Outcome<Self> {
        let mut address = [0; 64];
        ensure(bytes.len() == HEADER_BYTES, || format!("a header of {} bytes", bytes.len()))?;
        address.copy_from_slice(&bytes[..64]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[64 + at * 8..72 + at * 8]);
            u64::from_le_bytes(word)
        };
        let sum = seed_of(&[0, 1, 2, 3, 4].map(word));
        ensure(sum == word(5), || format!("a header with other content: {bytes:?}"))?;
        let name = LoneName { slot: (word(0) >> 32) as u32, life: word(0) as u32 };
        let (address, lens) = (PeerAddress::from_bytes(address), [word(3), word(4)]);
        Ok(Self { address, name, round: word(1), nonce: word(2), lens })
    }
}

/// Returns the content of a body.
pub(super) fn body(nonce: u64, kind: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(seed_of(&[nonce, kind]), &mut bytes);
    bytes
}

/// Checks the content of a body.
pub(super) fn check(nonce: u64, kind: u64, bytes: &[u8]) -> Outcome {
    let wanted = body(nonce, kind, bytes.len() as u64);
    let at = difference(seed_of(&[nonce, kind]), bytes);
    ensure(at.is_none(), || {
        let from = at.unwrap_or(0);
        let seen = &bytes[from..bytes.len().min(from + 32)];
        let wanted = &wanted[from..from + seen.len()];
        format!(
            "{} bytes of exchange {nonce:x}, {kind}: from {from} on {seen:x?} instead of {wanted:x?}",
            bytes.len()
        )
    })
}

/// A send or a receive, with its buffer.
#[derive(Debug)]
pub(super) struct Transfer {
    request: Request,
    pub(super) bytes: Box<[u8]>,
    /// Set when it is complete.
    pub(super) status: Option<Status>,
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.status.is_none() {
            // The engine may still use the buffer: it stays.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

impl Transfer {
    pub(super) fn send(endpoint: &mut Endpoint, to: usize, tag: u64, bytes: Vec<u8>) -> Result<Self, Error> {
        let bytes = bytes.into_boxed_slice();
        // SAFETY: the bytes lie on the heap, no code changes them, and they are freed only once the request is
        // complete.
        let request = unsafe { endpoint.isend(to, tag, bytes.as_ptr(), bytes.len())? };
        Ok(Self { request, bytes, status: None })
    }

    pub(super) fn receive(endpoint: &mut Endpoint, from: Source, tag: u64, len: u64) -> Result<Self, Error> {
        let mut bytes = vec![0xa5; len as usize].into_boxed_slice();
        // SAFETY: the bytes lie on the heap, no code refers to them before the request is complete, and they are freed
        // only then.
        let request = unsafe { endpoint.irecv(from, Tag::Exactly(tag), bytes.as_mut_ptr(), bytes.len())? };
        Ok(Self { request, bytes, status: None })
    }

    /// Returns whether it is complete.
    ///
    /// # Errors
    /// It has failed; it must be dropped.
    pub(super) fn is_complete(&mut self, endpoint: &mut Endpoint) -> Result<bool, Error> {
        if self.status.is_none() {
            self.status = endpoint.test(self.request)?;
        }
        Ok(self.status.is_some())
    }

    /// Ends a transfer with a peer whose connection has ended. That has completed all of them.
    pub(super) fn end(mut self, endpoint: &mut Endpoint) -> Outcome {
        let (request, ended) = (self.request, self.is_complete(endpoint));
        // From here on no code uses the buffer.
        self.status.get_or_insert(Status { rank: 0, tag: 0, len: 0, immediate: None });
        match ended {
            Ok(true) | Err(Error::PeerFailed { .. } | Error::Stale) => Ok(()),
            other => broken(format!("{request:?} with an ended connection: {other:?}")),
        }
    }
}
