//! Worlds whose actors take completions out of the completion queue, and post buffers that receive one message after
//! the other, against a model. Their processes do not die.
//!
//! The rules: each operation is reported once; the messages of a buffer have the places that the model gives them, in
//! the order of arrival, whether there are slots or not; those that arrive whole are reported in this order; the end of
//! a buffer is reported after its messages.

mod model;

use nemesia_core::engine::{MultiPlace, MultiReceiveOptions, OperationCompletion};
use nemesia_verification::oracle::Name;

use crate::bug::Bug;
use crate::fabric::Fabric;
use crate::memory::first_difference;
use crate::port::{is_matched, is_offer};
use crate::rng::Rng;
use crate::shape::{Shape, Terms};
use crate::tally::Event;
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use crate::world::{CompletionError, Outgoing, Pattern, RequestHandle, Source, StartError, World, WorldPort};
use model::{ModelMessage, ModelReceive, QueueModel};

/// The rounds after which a world counts as restless for ever.
const RESTLESS: usize = 50_000;
/// The numbers of sends begin here, those of receives at 0.
const SENDS: u64 = 1 << 32;

/// A send that is not reported as complete.
#[derive(Debug)]
struct QueuedSend {
    number: u64,
    handle: RequestHandle,
    is: Outgoing,
}

/// One process.
#[derive(Debug, Default)]
struct Actor {
    model: QueueModel,
    /// The handle of each receive of the model.
    handles: Vec<RequestHandle>,
    sends: Vec<QueuedSend>,
    sent: u64,
}

/// A running world.
#[derive(Debug)]
pub(crate) struct CollectWorld<P: WorldPort> {
    rng: Rng,
    pub(crate) world: World<P>,
    actors: Vec<Actor>,
    /// Whether no actor posts multi-receive buffers. They take most messages, and the engine completes none of these at
    /// once.
    is_plain: bool,
    /// The messages by source and destination, and how many of them have arrived.
    sent: Vec<Vec<Vec<Outgoing>>>,
    arrived: Vec<Vec<usize>>,
}

impl<P: WorldPort> CollectWorld<P> {
    pub(crate) fn new(
        mut rng: Rng,
        shape: Shape,
        medium: P::Medium,
        bug: Option<Bug>,
        trace: Trace,
    ) -> Result<Self, Violation> {
        let fabric = Fabric::new(shape.conditions, Rng::new(rng.next(), 0), bug, trace);
        let count = shape.conditions.ranks as usize;
        let is_plain = rng.one_in(3);
        Ok(Self {
            rng,
            is_plain,
            // These actors know each other from the start.
            world: World::new(fabric, medium, Terms { most_peers: None, unmet: false, ..shape.terms })?,
            actors: std::iter::repeat_with(Actor::default).take(count).collect(),
            sent: vec![vec![Vec::new(); count]; count],
            arrived: vec![vec![0; count]; count],
        })
    }

    fn note(&self, event: impl FnOnce() -> String) {
        let mut fabric = self.world.fabric();
        let now = fabric.now;
        fabric.trace.note(now, event);
    }

    fn count(&self, event: Event) {
        self.world.fabric().tally.count(event);
    }

    fn rank(&mut self) -> u32 {
        self.rng.below(self.actors.len()) as u32
    }

    /// Runs one random operation.
    pub(crate) fn step(&mut self) -> Check {
        self.world.fabric().now += self.rng.below(3) as u64;
        let rank = self.rank();
        match self.rng.below(16) {
            0..4 => self.send(rank)?,
            4 | 5 if !self.is_plain => self.post(rank)?,
            4 | 5 => self.receive(rank)?,
            6 => self.receive(rank)?,
            7 if self.rng.one_in(2) => self.cancel(rank)?,
            7..10 => {
                let most = 1 + self.rng.below(5);
                self.take(rank, most)?;
            }
            10 => self.converse(rank)?,
            _ => self.progress(rank)?,
        }
        self.hear(rank)
    }

    /// Makes progress. A rank that finds nothing to do leaves out most calls, as a process does that polls without a
    /// pause.
    fn progress(&mut self, rank: u32) -> Check {
        if self.world.is_quiet(rank)? {
            self.count(Event::Quiet);
            if !self.rng.one_in(4) {
                return Ok(());
            }
        }
        let whole = self.rng.one_in(2);
        self.world.progress(rank, whole);
        Ok(())
    }

    /// Lets a rank post receives, a peer send short messages for them, and the rank take what has come, before it makes
    /// progress: it then takes most of them without the queue.
    fn converse(&mut self, rank: u32) -> Check {
        let peer = self.peer_of(rank);
        while self.take(rank, 7)? > 0 {}
        let tag = self.rng.below(2) as u64;
        let pattern = Pattern { source: Source::Rank(peer), context: 0, tag, ignore: 0 };
        for _ in 0..1 + self.rng.below(4) {
            self.receive_into(rank, pattern, 1500)?;
            if self.actors[peer as usize].sends.len() >= 6 {
                self.take(peer, 4)?;
            }
            let len = self.rng.pick(&[0, 1, 8, 8, 30]);
            self.send_one(peer, rank, tag, len)?;
        }
        let delay = self.world.fabric().conditions.delay as u64;
        self.world.fabric().now += delay;
        self.take(rank, 5).map(drop)
    }

    /// Returns another rank.
    fn peer_of(&mut self, rank: u32) -> u32 {
        let ranks = self.actors.len();
        ((rank as usize + 1 + self.rng.below(ranks - 1)) % ranks) as u32
    }

    fn pattern(&mut self, rank: u32) -> Pattern {
        let peer = self.peer_of(rank);
        let source = if self.rng.one_in(2) { Source::Any } else { Source::Rank(peer) };
        let ignore = if self.rng.one_in(2) { u64::MAX } else { 0 };
        Pattern { source, context: 0, tag: self.rng.below(2) as u64, ignore }
    }

    fn send(&mut self, from: u32) -> Check {
        let to = self.peer_of(from);
        if self.actors[from as usize].sends.len() >= 6 || self.actors[to as usize].model.stored.len() > 20 {
            return self.take(from, 4).map(drop);
        }
        let len = self.rng.pick(&[0, 1, 8, 8, 30, 60, 200, 300, 1500]);
        let tag = self.rng.below(2) as u64;
        self.send_one(from, to, tag, len)
    }

    fn send_one(&mut self, from: u32, to: u32, tag: u64, len: usize) -> Check {
        // Several empty messages may have one place: their immediate data name them.
        let immediate = if len == 0 || self.rng.one_in(2) { Some(self.rng.next()) } else { None };
        let is = Outgoing {
            to,
            context: 0,
            tag,
            key: self.rng.next(),
            len,
            immediate,
            synchronous: self.rng.one_in(6),
        };
        let number = SENDS + self.actors[from as usize].sent;
        self.sent[from as usize][to as usize].push(is);
        match self.world.send_queued(from, &is, number) {
            Ok(handle) => {
                self.note(|| format!("rank {from} sends {is:?}"));
                let actor = &mut self.actors[from as usize];
                actor.sent += 1;
                actor.sends.push(QueuedSend { number, handle, is });
                Ok(())
            }
            Err(StartError::Requests { .. }) => {
                self.sent[from as usize][to as usize].pop();
                Ok(())
            }
            Err(error) => Err(Violation(format!("rank {from} can't send: {error}"))),
        }
    }

    fn post(&mut self, rank: u32) -> Check {
        let pattern = self.pattern(rank);
        let len = self.rng.pick(&[0, 40, 200, 200, 700, 4000]);
        let (align, least) = (1 << self.rng.below(7), self.rng.pick(&[1, 1, 30, 100]));
        let options = MultiReceiveOptions::default().least(least).align(align).unwrap_or_default();
        let number = self.actors[rank as usize].handles.len();
        let posted = self.world.post_multi(rank, pattern, len, options, number as u64);
        self.posted(rank, posted, ModelReceive::multi(pattern, len, align, least))
    }

    fn receive(&mut self, rank: u32) -> Check {
        let pattern = self.pattern(rank);
        self.receive_into(rank, pattern, 1500)
    }

    fn receive_into(&mut self, rank: u32, pattern: Pattern, room: usize) -> Check {
        let number = self.actors[rank as usize].handles.len();
        let posted = self.world.receive_queued(rank, pattern, room, number as u64);
        self.posted(rank, posted, ModelReceive::plain(pattern))
    }

    fn posted(
        &mut self,
        rank: u32,
        posted: Result<RequestHandle, StartError>,
        receive: ModelReceive,
    ) -> Check {
        match posted {
            Ok(handle) => {
                self.note(|| format!("rank {rank} posts {receive:?}"));
                let actor = &mut self.actors[rank as usize];
                actor.handles.push(handle);
                actor.model.post(receive);
                Ok(())
            }
            Err(StartError::Requests { .. }) => Ok(()),
            Err(error) => Err(Violation(format!("rank {rank} can't post {receive:?}: {error}"))),
        }
    }

    fn cancel(&mut self, rank: u32) -> Check {
        let count = self.actors[rank as usize].handles.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.below(count);
        self.cancel_one(rank, at)
    }

    fn cancel_one(&mut self, rank: u32, at: usize) -> Check {
        let withdrawn = self.actors[rank as usize].model.withdraw(at);
        if self.actors[rank as usize].model.receives[at].is_over {
            return Ok(());
        }
        let cancelled = self.world.cancel(self.actors[rank as usize].handles[at]);
        self.note(|| format!("rank {rank} cancels receive {at}: {cancelled}"));
        ensure!(
            cancelled == withdrawn,
            "rank {rank} cancels {:?}: {cancelled}",
            self.actors[rank as usize].model.receives[at]
        );
        Ok(())
    }

    /// Reports to the model what a rank has taken since the last call.
    fn hear(&mut self, rank: u32) -> Check {
        self.world.fabric().check()?;
        let taken = std::mem::take(&mut self.world.fabric().taken[rank as usize]);
        for packet in taken.into_iter().filter(|packet| is_matched(packet.envelope.kind)) {
            let from = packet.peer as usize;
            let number = self.arrived[rank as usize][from];
            let Some(is) = self.sent[from][rank as usize].get(number).copied() else {
                return Err(Violation(format!(
                    "rank {rank} takes message {number} of {from}, which is not sent"
                )));
            };
            self.arrived[rank as usize][from] += 1;
            let name = Name { source: packet.peer, number };
            let is_whole = !is_offer(packet.envelope.kind);
            self.note(|| format!("{name:?} of {} bytes has come to rank {rank}", is.len));
            self.actors[rank as usize].model.arrive(ModelMessage { name, is, is_whole });
        }
        if self.world.is_starved(rank) {
            self.count(Event::Starved);
        }
        Ok(())
    }

    /// Takes completions, and compares them with the model.
    fn take(&mut self, rank: u32, most: usize) -> Result<usize, Violation> {
        let taken = self.world.take_completions(rank, most);
        // A receive may have taken its message in this call.
        self.hear(rank)?;
        for done in &taken {
            self.note(|| format!("rank {rank} takes {done:?}"));
            if done.context >= SENDS { self.check_send(rank, done)? } else { self.check_receive(rank, done)? }
        }
        Ok(taken.len())
    }

    fn check_send(&mut self, rank: u32, done: &OperationCompletion) -> Check {
        let sends = &mut self.actors[rank as usize].sends;
        let at = sends.iter().position(|send| send.number == done.context);
        let Some(at) = at else {
            return Err(Violation(format!("rank {rank}: {done:?} is reported twice, or is no send")));
        };
        let QueuedSend { handle, is, .. } = sends.swap_remove(at);
        self.world.fabric().memory.end(handle.loan, |_| ())?;
        let status = done.outcome.map(|status| (status.peer, status.tag, status.len));
        ensure!(status == Ok((is.to, is.tag, is.len)), "rank {rank} has sent {is:?}: {done:?}");
        Ok(())
    }

    fn check_receive(&mut self, rank: u32, done: &OperationCompletion) -> Check {
        let at = done.context as usize;
        let actor = &mut self.actors[rank as usize];
        let Some(receive) = actor.model.receives.get_mut(at).filter(|receive| !receive.is_over) else {
            return Err(Violation(format!("rank {rank}: {done:?} comes after the end of its receive")));
        };
        if let MultiPlace::Message(_, offset) = done.place {
            let status = done.outcome.map_err(|error| Violation(format!("rank {rank}: {error}")))?;
            receive.report(offset, &status).map_err(|why| {
                Violation(format!("rank {rank}, {done:?} of buffer {at}: {why}; {receive:?}"))
            })?;
            self.count(Event::MultiPlaced);
            return Ok(());
        }
        receive
            .end(done.outcome.map(|status| status.len))
            .map_err(|why| Violation(format!("rank {rank}, {done:?} of receive {at}: {why}; {receive:?}")))?;
        let (handle, placed) = (actor.handles[at], receive.placed.clone());
        let wrong = self.world.fabric().memory.end(handle.loan, |bytes| {
            placed
                .iter()
                .find(|placed| {
                    let place = bytes.get(placed.offset..placed.offset + placed.message.is.len);
                    place.is_none_or(|bytes| first_difference(placed.message.is.key, bytes).is_some())
                })
                .copied()
        })?;
        ensure!(wrong.is_none(), "rank {rank}, receive {at}: the bytes of {wrong:?} are wrong");
        if matches!(done.place, MultiPlace::End(_)) {
            self.count(if done.outcome == Err(CompletionError::Cancelled) {
                Event::Cancelled
            } else {
                Event::MultiEnd
            });
        }
        Ok(())
    }

    /// Receives everything, and checks that nothing is left.
    pub(crate) fn finish(&mut self) -> Check {
        self.world.fabric().calm = true;
        let mut rests = false;
        for turn in 0.. {
            let mut moved = 0;
            for rank in 0..self.actors.len() as u32 {
                if !P::WAKES {
                    self.world.sweep(rank);
                }
                moved += self.world.progress(rank, true).packets;
                self.hear(rank)?;
                moved += self.take(rank, 7)?;
                if self.world.is_starved(rank) {
                    // Posted receives may have all the slots.
                    self.world.grow(rank);
                    self.world.feed(rank);
                }
                // What waits needs a receive, and withdrawn receives free the slots for it.
                if moved == 0 && self.actors[rank as usize].model.stored.is_empty() {
                    continue;
                }
                let any = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };
                if !self.actors[rank as usize].model.stored.is_empty() {
                    self.receive_into(rank, any, 1500)?;
                }
            }
            let horizon = self.world.fabric().horizon();
            self.world.fabric().now += horizon;
            let is_over = self.actors.iter().all(|actor| actor.sends.is_empty());
            // The last parts of a message may be under way although its send is complete.
            let rested = std::mem::replace(&mut rests, moved == 0 && is_over && self.is_received());
            if rests && rested {
                break;
            }
            if moved == 0 && turn % 20 == 19 {
                self.cancel_all()?;
            }
            ensure!(turn < RESTLESS, "not every operation is reported in the end: {:?}", self.actors);
        }
        self.cancel_all()?;
        for rank in 0..self.actors.len() as u32 {
            while self.take(rank, 7)? > 0 || self.world.is_starved(rank) {}
            let unreported =
                self.actors[rank as usize].model.receives.iter().find(|receive| !receive.is_over);
            ensure!(unreported.is_none(), "rank {rank} has no report of {unreported:?}");
            let stored = self.world.stored(rank);
            ensure!(stored == 0, "rank {rank} stores {stored} messages in the end");
            let lent = self.world.fabric().memory.count(rank);
            ensure!(lent == 0, "{lent} buffers of rank {rank} are lent in the end");
        }
        Ok(())
    }

    /// Returns whether each message has arrived and met its receive.
    fn is_received(&self) -> bool {
        let count = self.actors.len();
        (0..count).all(|to| {
            self.actors[to].model.stored.is_empty()
                && (0..count).all(|from| self.arrived[to][from] == self.sent[from][to].len())
        })
    }

    fn cancel_all(&mut self) -> Check {
        for rank in 0..self.actors.len() as u32 {
            for at in 0..self.actors[rank as usize].handles.len() {
                self.cancel_one(rank, at)?;
            }
        }
        Ok(())
    }
}
