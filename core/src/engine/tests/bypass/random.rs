//! Random mixes of all functions by which a receive can obtain its message, from one seed.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, RequestHandle, World};
use crate::engine::{Bypass, CompletionError, Outcome, Status, Truncation};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::PeerId;
use crate::shared::layout::Geometry;
use crate::shared::tests::fabric::Fabric;
use crate::shared::tests::{Rng, contents, portion};

/// The receiving rank; the others send.
const HERE: PeerId = 0;

/// A message that was sent.
#[derive(Clone, Debug)]
struct BypassSent {
    context: u16,
    tag: u64,
    bytes: Vec<u8>,
}

/// Counts of the functions that obtained a message.
#[derive(Debug, Default)]
struct Found {
    word: usize,
    packet: usize,
    next: usize,
    step: usize,
    posted: usize,
    finished: usize,
    truncated: usize,
    copied: usize,
}

struct BypassRun<'a> {
    seed: u64,
    rng: Rng,
    world: World<'a>,
    /// Messages that were not received yet, by sender, in order.
    sent: Vec<VecDeque<BypassSent>>,
    found: &'a mut Found,
}

impl BypassRun<'_> {
    fn send(&mut self, from: PeerId) {
        let lens = [0, 1, 7, 8, 8, 8, 9, 16, 17, 88, 89, 200, 255, 256, self.rng.below(257)];
        let len = self.rng.pick(&lens);
        let (context, tag) = (self.rng.below(2) as u16, self.rng.below(2) as u64 | 4);
        let bytes = contents(self.rng.next(), len);
        let (loan, buf) = self.world.lender.send(from, bytes.clone());
        let engine = &mut self.world.engines[from as usize];
        // The message waits until `progress` sends it.
        engine.progress();
        let id = engine.isend(HERE, context, tag, buf).unwrap();
        self.sent[from as usize].push_back(BypassSent { context, tag, bytes });
        // The message is eager, so it leaves as soon as there is space.
        self.pend(RequestHandle { rank: from, id, loan });
    }

    /// Receives messages until a send has left.
    fn pend(&mut self, send: RequestHandle) {
        while self.world.test(send).is_none() {
            self.receive();
            self.world.engine(send.rank).progress();
        }
    }

    /// Returns a pattern that matches one of the next messages of a sender. If the pattern names the sender,
    /// it matches no other message.
    fn pattern(&mut self, from: PeerId) -> Pattern {
        let queue = &self.sent[from as usize];
        let at = self.rng.pick(&[0, 0, 0, 1, 2]);
        let BypassSent { context, tag, .. } = queue.get(at).unwrap_or(&queue[0]);
        let ignore = self.rng.pick(&[0, 0, 0, 1, u64::MAX]);
        let named = ignore == 0 || self.rng.one_in(2);
        let source = if named { Source::Rank(from) } else { Source::Any };
        Pattern { source, context: *context, tag: *tag ^ (ignore & self.rng.next()), ignore }
    }

    fn receive(&mut self) {
        let full: Vec<PeerId> =
            (1..self.sent.len() as PeerId).filter(|&it| !self.sent[it as usize].is_empty()).collect();
        if full.is_empty() {
            return;
        }
        let pattern = {
            let from = self.rng.pick(&full);
            self.pattern(from)
        };
        let room = self.rng.pick(&[0, 7, 8, 8, 9, 100, 256, 256, 256, 300]);
        let (loan, mut buf) = self.world.lender.receive(HERE, room);
        let (outcome, bytes) = if self.rng.one_in(3) {
            let id = self.world.engine(HERE).irecv(pattern, &mut buf).unwrap();
            self.found.posted += 1;
            self.finish(RequestHandle { rank: HERE, id, loan })
        } else {
            loop {
                if !self.world.engine(HERE).can_bypass(&pattern) {
                    // Another message is stored or queued before it.
                    let id = self.world.engine(HERE).irecv(pattern, &mut buf).unwrap();
                    break self.finish(RequestHandle { rank: HERE, id, loan });
                }
                if let Some(done) = self.look(&pattern, &mut buf, room) {
                    break (done, self.world.lender.end(loan));
                }
                self.move_on();
            }
        };
        self.check(&pattern, room, outcome, &bytes);
    }

    /// Lets the senders make progress.
    fn move_on(&mut self) {
        for engine in &mut self.world.engines[1..] {
            engine.progress();
        }
    }

    fn finish(&mut self, handle: RequestHandle) -> (Outcome, Vec<u8>) {
        for _ in 0..10_000 {
            let done = match self.rng.one_in(2) {
                true => self.world.try_finish(handle).inspect(|_| self.found.finished += 1),
                false => self.world.test(handle),
            };
            if let Some(done) = done {
                return done;
            }
            if self.rng.one_in(2) {
                self.world.engine(HERE).step();
            }
            self.move_on();
        }
        panic!("seed {}: {handle:?} is not complete", self.seed);
    }

    fn look(&mut self, pattern: &Pattern, buf: &mut RecvBuf, room: usize) -> Option<Outcome> {
        let protocol_number = self.rng.below(5);
        let Self { world, found, .. } = self;
        let engine = &mut world.engines[HERE as usize];
        match protocol_number {
            0 => {
                let word = buf.whole(0, usize::MAX).and_then(<[u8]>::first_chunk_mut)?;
                let status = engine.receive_word(pattern, word)?;
                found.word += 1;
                Some(Ok(status))
            }
            1 => {
                let len = engine.receive_packet(pattern, buf)?;
                let Source::Rank(peer) = pattern.source else { panic!("the pattern names no rank") };
                assert_eq!(pattern.ignore, 0);
                assert!(len <= room);
                found.packet += 1;
                Some(Ok(Status { peer, tag: pattern.tag, len }))
            }
            2 => engine.receive_next(pattern, buf).inspect(|_| found.next += 1),
            _ => match engine.receive_step(pattern, buf) {
                Bypass::Done(outcome) => {
                    found.step += 1;
                    Some(outcome)
                }
                Bypass::Idle | Bypass::Busy => None,
                step => panic!("{step:?}"),
            },
        }
    }

    /// Checks that the message is the first of its sender that the pattern matches, and that its bytes are
    /// complete or truncated to the buffer.
    fn check(&mut self, pattern: &Pattern, room: usize, outcome: Outcome, bytes: &[u8]) {
        let (status, message) = match outcome {
            Ok(status) => (status, status.len as u64),
            Err(CompletionError::Truncated(Truncation { status, message })) => (status, message),
            Err(completion_error) => panic!("seed {}: {completion_error}", self.seed),
        };
        let queue = &mut self.sent[status.peer as usize];
        let is_it = |sent: &BypassSent| sent.context == pattern.context && pattern.accepts(sent.tag);
        let at = queue.iter().position(is_it).unwrap();
        let sent = queue.remove(at).unwrap();
        assert!(pattern.source.accepts(status.peer), "seed {}", self.seed);
        assert_eq!((status.tag, message), (sent.tag, sent.bytes.len() as u64), "seed {}", self.seed);
        assert_eq!(outcome.is_ok(), sent.bytes.len() <= room, "seed {}", self.seed);
        self.found.truncated += usize::from(outcome.is_err());
        let len = sent.bytes.len().min(room);
        assert_eq!((status.len, &bytes[..len]), (len, &sent.bytes[..len]), "seed {}", self.seed);
        assert!(bytes[len..].iter().all(|&byte| byte == 0xee) || len < 8, "seed {}", self.seed);
    }
}

fn run(seed: u64, found: &mut Found) {
    let mut rng = Rng::new(seed);
    let geometry = Geometry {
        peers: rng.pick(&[2, 3]),
        cells: rng.pick(&[4, 16, 64]),
        cell_bytes: 256,
        fastbox_slots: rng.pick(&[4, 16, 64]),
    };
    let fabric = if rng.one_in(8) { Fabric::queueing(geometry) } else { Fabric::new(geometry) };
    let mut world = World::new(&fabric, AMPLE);
    if rng.one_in(3) {
        world.lender.scatter(seed);
    }
    let peers = geometry.peers as usize;
    let mut run = BypassRun { seed, rng, world, sent: vec![VecDeque::new(); peers], found };
    for _ in 0..300 {
        let from = 1 + run.rng.below(peers - 1) as PeerId;
        match run.rng.below(5) {
            0..=1 => run.send(from),
            _ => run.receive(),
        }
    }
    while run.sent.iter().any(|queue| !queue.is_empty()) {
        run.receive();
    }
    run.found.copied += (1..peers).map(|at| run.world.engines[at].port_mut().copied).sum::<usize>();
    let all: Vec<PeerId> = (0..geometry.peers).collect();
    run.world.assert_empty(&all, &std::format!("seed {seed}"));
    for from in 1..geometry.peers {
        let sent = run.world.engine(from).peer_counters(HERE).unwrap();
        let received = run.world.engine(HERE).peer_counters(from).unwrap();
        assert_eq!(sent.eager_sent, received.eager_received, "seed {seed}");
        assert_eq!(sent.eager_sent_bytes, received.eager_received_bytes, "seed {seed}");
        assert_eq!(sent.credit_spent, received.credit_used, "seed {seed}");
        let matched = received.matched_posted + received.matched_bypass + received.unexpected;
        assert_eq!(matched, sent.eager_sent, "seed {seed}");
    }
}

#[test]
fn every_receive_function_finds_the_next_message() {
    let mut found = Found::default();
    let seeds = portion(300);
    (0..seeds).for_each(|seed| run(seed, &mut found));
    let Found { word, packet, next, step, posted, finished, truncated, copied } = found;
    for count in [word, packet, next, step, posted, finished, truncated, copied] {
        assert!(count as u64 > seeds, "{found:?}");
    }
}
