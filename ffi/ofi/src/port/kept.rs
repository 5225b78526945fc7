//! The messages that the application takes for sent, and that could not leave yet.
//!
//! Copies have a bound: [`MOST_BYTES`] for the endpoint, and [`OWN_BYTES`] for each peer. A peer may fill as much as
//! is free: half of all, if it is the only one that takes nothing. Its own bytes it may always fill. The memory is
//! taken in chunks when it is needed, and each chunk is given back when its last message has left.
//!
//! A send that began behind such messages waits among them. It is a record without a copy, which no bound refuses.

use std::collections::VecDeque;

use super::{DELIVERED, Kind, Sending};

/// The bytes of all copies of an endpoint. Half of them is 100,000 messages of the largest size that may be injected.
const MOST_BYTES: usize = 64 << 20;
/// The bytes of copies for a peer that other peers cannot take from it.
const OWN_BYTES: usize = 64 << 10;
/// The bytes of messages that are taken and given back at once.
const CHUNK: usize = 4096;
/// The bytes before each message: its tag, its data, its length and its flags.
const HEADER: usize = 24;

const IS_PLAIN: u64 = 1 << 32;
const HAS_DATA: u64 = 1 << 33;
const IS_DELIVERED: u64 = 1 << 34;
const IS_OPERATION: u64 = 1 << 35;

const _: () = assert!((CHUNK / (HEADER + crate::info::INJECT_BYTES)) * (MOST_BYTES / 2 / CHUNK) >= 100_000);

/// The oldest message that is kept for a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptMessage<'a> {
    /// How it is sent. It has no destination and no context.
    pub(super) it: Sending,
    pub(super) body: KeptBody<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptBody<'a> {
    Bytes(&'a [u8]),
    /// The number of the operation, which has the list of its runs or a copy.
    Operation(u64),
}

/// Messages behind each other.
struct Chunk {
    bytes: Vec<u8>,
    /// Where the oldest message begins.
    at: usize,
}

/// What is kept for a peer.
#[derive(Default)]
struct KeptPeer {
    chunks: VecDeque<Chunk>,
    /// The bytes of chunks, and of copies that operations have.
    used: usize,
    is_waiting: bool,
    is_silent: bool,
}

/// The messages that could not leave yet, by the endpoint's number of the peer.
#[derive(Default)]
pub(super) struct Kept {
    peers: Vec<KeptPeer>,
    used: usize,
    /// The chunks of all peers.
    chunks: usize,
    /// The peers for which the oldest message could not become an operation.
    stalled: Vec<usize>,
}

impl Kept {
    /// Returns whether messages are kept for a peer: no other one may overtake them.
    #[inline]
    pub(super) fn has(&self, rank: usize) -> bool {
        self.chunks > 0 && self.peers.get(rank).is_some_and(|peer| !peer.chunks.is_empty())
    }

    /// Returns whether a message waits in the endpoint, after which those that are kept shall follow.
    pub(super) fn is_waiting(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(|peer| peer.is_waiting)
    }

    pub(super) fn set_waiting(&mut self, rank: usize, is_waiting: bool) {
        self.peer(rank).is_waiting = is_waiting;
    }

    /// Returns whether a wait for a peer has ended without a result, and it has taken nothing since.
    pub(super) fn is_silent(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(|peer| peer.is_silent)
    }

    pub(super) fn set_silent(&mut self, rank: usize, is_silent: bool) {
        self.peer(rank).is_silent = is_silent;
    }

    #[inline]
    pub(super) const fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Lets the messages for a peer be sent with the next progress.
    pub(super) fn set_stalled(&mut self, rank: usize) {
        self.stalled.push(rank);
    }

    pub(super) fn take_stalled(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.stalled)
    }

    /// Takes room for a copy. `false`: the bound, or the share of the peer, does not permit it.
    pub(super) fn take(&mut self, rank: usize, bytes: usize) -> bool {
        let free = MOST_BYTES.saturating_sub(self.used);
        let peer = self.peer(rank);
        if peer.used + bytes > free.max(OWN_BYTES) {
            return false;
        }
        peer.used += bytes;
        self.used += bytes;
        true
    }

    /// Gives the room of a copy back.
    pub(super) fn give_back(&mut self, rank: usize, bytes: usize) {
        let peer = self.peer(rank);
        peer.used = peer.used.saturating_sub(bytes);
        self.used = self.used.saturating_sub(bytes);
    }

    /// Keeps a message behind those that are kept. `false`: there is no room.
    pub(super) fn push(&mut self, rank: usize, it: &Sending, body: KeptBody<'_>) -> bool {
        let number;
        let (bytes, kind): (&[u8], u64) = match body {
            KeptBody::Bytes(bytes) => (bytes, 0),
            KeptBody::Operation(at) => {
                number = at.to_le_bytes();
                (&number, IS_OPERATION)
            }
        };
        let len = HEADER + bytes.len();
        if len > CHUNK {
            return false;
        }
        let has_room = self.peer(rank).chunks.back().is_some_and(|chunk| chunk.bytes.len() + len <= CHUNK);
        if !has_room && !self.add_chunk(rank, kind == IS_OPERATION) {
            return false;
        }
        let flags = kind
            | if it.kind == Kind::Plain { IS_PLAIN } else { 0 }
            | if it.data.is_some() { HAS_DATA } else { 0 }
            | if it.flags & DELIVERED != 0 { IS_DELIVERED } else { 0 };
        let Some(chunk) = self.peer(rank).chunks.back_mut() else { return false };
        for word in [it.tag, it.data.unwrap_or(0), flags | bytes.len() as u64] {
            chunk.bytes.extend_from_slice(&word.to_le_bytes());
        }
        chunk.bytes.extend_from_slice(bytes);
        true
    }

    /// Adds an empty chunk. Operations are never refused: their bytes are the application's.
    fn add_chunk(&mut self, rank: usize, is_operation: bool) -> bool {
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(CHUNK).is_err() {
            return false;
        }
        if !self.take(rank, CHUNK) {
            if !is_operation {
                return false;
            }
            self.peer(rank).used += CHUNK;
            self.used += CHUNK;
        }
        self.peer(rank).chunks.push_back(Chunk { bytes, at: 0 });
        self.chunks += 1;
        true
    }

    /// Returns the oldest message that is kept for a peer.
    pub(super) fn first(&self, rank: usize) -> Option<KeptMessage<'_>> {
        let chunk = self.peers.get(rank)?.chunks.front()?;
        let [tag, data, word] = chunk.header();
        let body = chunk.bytes.get(chunk.at + HEADER..chunk.at + chunk.message_len())?;
        let kind = if word & IS_PLAIN != 0 { Kind::Plain } else { Kind::Tagged };
        let flags = if word & IS_DELIVERED != 0 { DELIVERED } else { 0 };
        let data = (word & HAS_DATA != 0).then_some(data);
        let it = Sending { kind, to: 0, tag, data, flags, context: 0, is_silent: true };
        let body = match word & IS_OPERATION {
            0 => KeptBody::Bytes(body),
            _ => KeptBody::Operation(u64::from_le_bytes(body.try_into().ok()?)),
        };
        Some(KeptMessage { it, body })
    }

    /// Forgets the oldest message.
    pub(super) fn pop(&mut self, rank: usize) {
        let Some(peer) = self.peers.get_mut(rank) else { return };
        let Some(chunk) = peer.chunks.front_mut() else { return };
        chunk.at += chunk.message_len();
        if chunk.at >= chunk.bytes.len() {
            peer.chunks.pop_front();
            if peer.chunks.is_empty() {
                peer.chunks = VecDeque::new();
            }
            self.chunks -= 1;
            self.give_back(rank, CHUNK);
        }
    }

    /// Returns a number that is larger than that of each peer.
    pub(super) const fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn peer(&mut self, rank: usize) -> &mut KeptPeer {
        if rank >= self.peers.len() {
            self.peers.resize_with(rank + 1, KeptPeer::default);
        }
        &mut self.peers[rank]
    }
}

impl Chunk {
    /// Returns the words before the oldest message.
    fn header(&self) -> [u64; 3] {
        [0, 8, 16].map(|from| {
            let word = self.bytes.get(self.at + from..self.at + from + 8);
            word.and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
        })
    }

    /// Returns the bytes of the oldest message, with its header.
    fn message_len(&self) -> usize {
        HEADER + self.header()[2] as u32 as usize
    }
}

#[cfg(test)]
mod tests;
