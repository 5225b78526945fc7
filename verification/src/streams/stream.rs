//! The ends of simulated streams, and their source.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use nemesia_core::payload::{GatherList, LentMemory, ScatterList};
use nemesia_core::port::memory::{Address, ConnectError, LostError, Origin};
use nemesia_core::port::placement::{ByteStream, Interest, PullResult, StreamResult, StreamTransport};

use super::network::Network;

/// Once in so many times, the bytes that are to be pulled are not in memory.
const ABSENT: usize = 4;
/// The prefix of an address.
const MARK: &[u8; 4] = b"str1";

/// The source of the streams of one process.
#[derive(Debug)]
pub struct SimStreams {
    network: Rc<RefCell<Network>>,
    node: usize,
}

/// One end of a stream.
#[derive(Debug)]
pub struct SimStream {
    network: Rc<RefCell<Network>>,
    pair: usize,
    side: usize,
}

impl SimStreams {
    pub(super) fn new(network: Rc<RefCell<Network>>) -> Self {
        let node = network.borrow_mut().add_node();
        Self { network, node }
    }

    fn stream(&self, pair: usize, side: usize) -> SimStream {
        SimStream { network: Rc::clone(&self.network), pair, side }
    }
}

impl Drop for SimStreams {
    fn drop(&mut self) {
        self.network.borrow_mut().remove_node(self.node);
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.network.borrow_mut().drop_end(self.pair, self.side);
    }
}

// SAFETY: the memory of the lists is copied by `fill` and `copy_to`, during the call. `pull` reads nothing when the
// other end was dropped or has withdrawn, and everything happens in one thread.
#[allow(unsafe_code, reason = "a stream has obligations")]
unsafe impl ByteStream for SimStream {
    const REPORTS_REST: bool = true;

    fn is_connected(&mut self) -> Option<Result<(), ConnectError>> {
        self.network.borrow_mut().pair(self.pair)?.connected
    }

    fn read(&mut self, into: &mut ScatterList<'_>) -> StreamResult {
        let mut network = self.network.borrow_mut();
        let network = &mut *network;
        check(&network.kept_off, into);
        let most = network.conditions.most;
        let most = 1 + network.rng.below(most);
        let Some(pair) = network.pair(self.pair) else { return StreamResult::Failed(LostError::Closed) };
        let end = &mut pair.ends[self.side];
        if end.arrived.is_empty() {
            return match (end.ended, end.cut) {
                (false, _) => StreamResult::Blocked,
                (true, false) => StreamResult::Ended,
                (true, true) => StreamResult::Failed(LostError::Closed),
            };
        }
        let count = most.min(end.arrived.len());
        let count = into.fill(&end.arrived.make_contiguous()[..count]);
        end.arrived.drain(..count);
        StreamResult::Bytes(count)
    }

    fn write(&mut self, from: &GatherList<'_>) -> StreamResult {
        let mut network = self.network.borrow_mut();
        let network = &mut *network;
        let (most, capacity) = (network.conditions.most, network.conditions.capacity);
        let most = 1 + network.rng.below(most);
        let Some(pair) = network.pair(self.pair) else { return StreamResult::Failed(LostError::Closed) };
        let other = &mut pair.ends[1 - self.side];
        if other.gone {
            return StreamResult::Failed(LostError::Closed);
        }
        let room = capacity.saturating_sub(other.flying.len() + other.arrived.len());
        if room == 0 {
            return StreamResult::Blocked;
        }
        let mut bytes = vec![0; most.min(room)];
        let count = from.copy_to(&mut bytes);
        other.flying.extend(&bytes[..count]);
        StreamResult::Bytes(count)
    }

    fn can_pull(&mut self) -> bool {
        self.network.borrow().conditions.pulls
    }

    fn pull(&mut self, from: u64, into: &mut ScatterList<'_>) -> PullResult {
        let mut network = self.network.borrow_mut();
        check(&network.kept_off, into);
        let other = network.pair(self.pair).map(|pair| &pair.ends[1 - self.side]);
        if other.is_none_or(|other| other.gone || other.withdrawn) {
            return PullResult::Failed;
        }
        if network.rng.one_in(ABSENT) {
            return PullResult::Later;
        }
        let len = into.pieces().iter().map(|piece| piece.len).sum();
        let mut bytes = vec![0; len];
        let base = std::ptr::with_exposed_provenance::<u8>(from as usize);
        // SAFETY: the other end has reported this memory of its port, and has it until it is told that it was
        // read, withdraws, or is dropped; all of these happen in this thread.
        let theirs = unsafe { LentMemory::from_readable(base, len) };
        let is_read = theirs.read(0, &mut bytes) && into.fill(&bytes) == len;
        if is_read { PullResult::Done } else { PullResult::Failed }
    }

    fn withdraw(&mut self) {
        if let Some(pair) = self.network.borrow_mut().pair(self.pair) {
            pair.ends[self.side].withdrawn = true;
        }
    }

    fn origin(&self) -> Option<Origin> {
        // All simulated processes live in this one.
        Some(Origin::Process(std::process::id()))
    }

    fn finish(&mut self) {
        if let Some(pair) = self.network.borrow_mut().pair(self.pair) {
            pair.ends[self.side].finished = true;
        }
    }
}

/// Checks that a stream does not copy to these addresses.
fn check(kept_off: &Range<u64>, into: &ScatterList<'_>) {
    for piece in into.pieces() {
        let start = piece.base.addr() as u64;
        let is_apart = start >= kept_off.end || start + piece.len as u64 <= kept_off.start;
        assert!(is_apart, "a stream copies to {kept_off:#x?}: {} bytes at {start:#x}", piece.len);
    }
}

impl StreamTransport for SimStreams {
    type Stream = SimStream;

    const NAME: &'static str = "simulated streams";

    const PULLS: bool = true;

    fn address(&self, token: u64) -> Option<Address> {
        let words = [self.node as u64, token].map(u64::to_le_bytes);
        Address::new(&[MARK.as_slice(), words.as_flattened()].concat())
    }

    fn parse(address: &Address) -> Option<(&[u8], u64)> {
        let (place, token) = address.bytes().strip_prefix(MARK.as_slice())?.split_at_checked(8)?;
        Some((place, u64::from_le_bytes(token.try_into().ok()?)))
    }

    fn connect(&mut self, to: &[u8]) -> Result<SimStream, ConnectError> {
        let to = to.try_into().map(u64::from_le_bytes).map_err(|_| ConnectError::Address)?;
        let pair = self.network.borrow_mut().connect(self.node, to as usize)?;
        Ok(self.stream(pair, 0))
    }

    fn accept(&mut self) -> Option<SimStream> {
        let pair = self.network.borrow_mut().accept(self.node)?;
        Some(self.stream(pair, 1))
    }

    fn watch(&mut self, stream: &SimStream, word: u64, interest: Interest) {
        if let Some(pair) = self.network.borrow_mut().pair(stream.pair) {
            let end = &mut pair.ends[stream.side];
            (end.word, end.wants_writable) = (Some(word), interest.writable);
        }
    }

    fn unwatch(&mut self, stream: &SimStream) {
        if let Some(pair) = self.network.borrow_mut().pair(stream.pair) {
            pair.ends[stream.side].word = None;
        }
    }

    fn ready(&mut self, words: &mut [u64]) -> usize {
        self.network.borrow_mut().ready(self.node, words)
    }

    fn random(&mut self) -> Result<u64, i32> {
        Ok(self.network.borrow_mut().rng.next())
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}
