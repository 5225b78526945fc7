//! All streams of a simulation, and their time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use nemesia_core::port::memory::ConnectError;
use nemesia_core::port::placement::LISTENER;

use super::StreamConditions;
use crate::rng::Rng;

/// The steps of each stream in one unit of time.
const STEPS: usize = 4;
/// A stream that is not ready is reported as ready once in so many times, as the kernel may.
const SPURIOUS: usize = 50;

/// The streams and the processes.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) conditions: StreamConditions,
    pub(super) rng: Rng,
    /// Addresses to which no stream may copy.
    pub(super) kept_off: Range<u64>,
    now: Duration,
    nodes: Vec<NetworkNode>,
    /// A place is used again when both ends are gone.
    pairs: Vec<Option<StreamPair>>,
}

/// A process.
#[derive(Debug)]
struct NetworkNode {
    alive: bool,
    /// The streams that have come in and were not accepted.
    incoming: VecDeque<usize>,
}

/// A stream with its two ends; the first end has connected.
#[derive(Debug)]
pub(super) struct StreamPair {
    /// The result of connecting, when it is known.
    pub(super) connected: Option<Result<(), ConnectError>>,
    pub(super) ends: [StreamEnd; 2],
}

/// One end of a stream.
#[derive(Debug, Default)]
pub(super) struct StreamEnd {
    pub(super) node: usize,
    /// The word by which the end is reported, once it is watched.
    pub(super) word: Option<u64>,
    pub(super) wants_writable: bool,
    /// Bytes that were sent to this end and have not arrived; bytes that have arrived.
    pub(super) flying: VecDeque<u8>,
    pub(super) arrived: VecDeque<u8>,
    /// Whether this end has ended its outgoing stream; whether it was dropped.
    pub(super) finished: bool,
    pub(super) gone: bool,
    /// Whether it has revoked the memory that the other end may read.
    pub(super) withdrawn: bool,
    /// Whether the end of the incoming stream has arrived.
    pub(super) ended: bool,
    /// Whether bytes that were sent to this end are lost.
    pub(super) cut: bool,
}

impl Network {
    pub(super) const fn new(seed: u64, conditions: StreamConditions) -> Self {
        let rng = Rng::new(seed, 1);
        Self { conditions, rng, kept_off: 0..0, now: Duration::ZERO, nodes: Vec::new(), pairs: Vec::new() }
    }

    pub(super) fn add_node(&mut self) -> usize {
        self.nodes.push(NetworkNode { alive: true, incoming: VecDeque::new() });
        self.nodes.len() - 1
    }

    /// Ends a process. Its streams were dropped before.
    pub(super) fn remove_node(&mut self, node: usize) {
        self.nodes[node].alive = false;
        // Streams that it never accepted end with it.
        for pair in std::mem::take(&mut self.nodes[node].incoming) {
            self.drop_end(pair, 1);
        }
    }

    pub(super) fn connect(&mut self, node: usize, to: usize) -> Result<usize, ConnectError> {
        if to >= self.nodes.len() {
            return Err(ConnectError::Unreachable);
        }
        let end = |node| StreamEnd { node, ..StreamEnd::default() };
        let pair = StreamPair { connected: None, ends: [end(node), end(to)] };
        let free = self.pairs.iter().position(Option::is_none);
        match free {
            Some(free) => self.pairs[free] = Some(pair),
            None => self.pairs.push(Some(pair)),
        }
        Ok(free.unwrap_or(self.pairs.len() - 1))
    }

    pub(super) fn accept(&mut self, node: usize) -> Option<usize> {
        self.nodes[node].incoming.pop_front()
    }

    pub(super) fn pair(&mut self, pair: usize) -> Option<&mut StreamPair> {
        self.pairs.get_mut(pair)?.as_mut()
    }

    /// Drops an end. If its process did not end its stream in good order, a part of the last bytes is lost.
    pub(super) fn drop_end(&mut self, pair: usize, side: usize) {
        let Self { pairs, rng, .. } = self;
        let Some(Some(it)) = pairs.get_mut(pair) else { return };
        let [a, b] = &mut it.ends;
        let (own, other) = if side == 0 { (a, b) } else { (b, a) };
        own.gone = true;
        if !own.finished && rng.one_in(2) {
            other.flying.truncate(rng.below(other.flying.len() + 1));
            other.cut = true;
        }
        let never_accepted = side == 0 && it.connected.is_none();
        if never_accepted || it.ends.iter().all(|end| end.gone) {
            pairs[pair] = None;
        }
    }

    /// Lets a little time pass.
    pub(super) fn pass(&mut self) -> Duration {
        self.now += Duration::from_micros(1);
        for pair in 0..self.pairs.len() {
            for _ in 0..STEPS {
                if self.pairs[pair].is_some() && self.rng.one_in(self.conditions.delay) {
                    self.step(pair);
                }
            }
        }
        self.now
    }

    fn step(&mut self, at: usize) {
        let Self { pairs, rng, nodes, conditions, .. } = self;
        let Some(pair) = &mut pairs[at] else { return };
        if pair.connected.is_none() {
            let to = &mut nodes[pair.ends[1].node];
            pair.connected = Some(if to.alive { Ok(()) } else { Err(ConnectError::NotListening) });
            if to.alive {
                to.incoming.push_back(at);
            } else {
                pair.ends[1].gone = true;
            }
            return;
        }
        let side = rng.below(2);
        let [a, b] = &mut pair.ends;
        let (own, other) = if side == 0 { (a, b) } else { (b, a) };
        if own.flying.is_empty() {
            own.ended = other.finished || other.gone;
            return;
        }
        let count = 1 + rng.below(own.flying.len().min(conditions.most));
        own.arrived.extend(own.flying.drain(..count));
    }

    /// Fills `words` with the words of ends that are ready.
    pub(super) fn ready(&mut self, node: usize, words: &mut [u64]) -> usize {
        let Self { pairs, rng, nodes, conditions, .. } = self;
        let mut all = Vec::new();
        if !nodes[node].incoming.is_empty() {
            all.push(LISTENER);
        }
        for pair in pairs.iter().flatten() {
            for side in 0..2 {
                let (end, other) = (&pair.ends[side], &pair.ends[1 - side]);
                let Some(word) = end.word.filter(|_| end.node == node && !end.gone) else { continue };
                let has_room = other.flying.len() + other.arrived.len() < conditions.capacity;
                let writable = end.wants_writable && (has_room || other.gone) && pair.connected.is_some();
                if !end.arrived.is_empty() || end.ended || writable || rng.one_in(SPURIOUS) {
                    all.push(word);
                }
            }
        }
        let first = rng.below(all.len());
        all.rotate_left(first);
        let count = words.len().min(all.len());
        words[..count].copy_from_slice(&all[..count]);
        count
    }
}
