//! Random mixes of all functions by which a receive can obtain its message, from one seed. Other receives are posted
//! meanwhile, and messages that no receive wants are stored. Each message must go to the receive that was posted first.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::receive_short;
use crate::engine::tests::world::{AMPLE, RequestHandle, World};
use crate::engine::{Bypass, CompletionError, Outcome, Status, Truncation};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::PeerId;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Loan};
use crate::shared::tests::{Rng, contents, portion};
use crate::wire::{Envelope, Kind};

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
    short: usize,
    packet: usize,
    next: usize,
    step: usize,
    posted: usize,
    finished: usize,
    truncated: usize,
    copied: usize,
    /// Bypassed receives beside posted receives, by function; see [`BypassRun::look`].
    beside_posted: [usize; 4],
    beside_stored: usize,
    /// Posted receives that got their message while another receive was bypassed.
    delivered: usize,
}

/// A receive that was posted and is not waited for.
#[derive(Debug)]
struct Outstanding {
    pattern: Pattern,
    room: usize,
    handle: RequestHandle,
}

struct BypassRun<'a> {
    seed: u64,
    rng: Rng,
    world: World<'a>,
    /// Messages that were not received yet, by sender, in order.
    sent: Vec<VecDeque<BypassSent>>,
    /// Receives in the order of posting, and the largest number of them.
    posted: Vec<Outstanding>,
    most_posted: usize,
    /// Sends of messages that a receive lacked.
    sends: Vec<RequestHandle>,
    found: &'a mut Found,
}

impl BypassRun<'_> {
    fn send(&mut self, from: PeerId) {
        let (context, tag) = (self.rng.below(2) as u16, self.rng.below(4) as u64 | 4);
        let send = self.start_send(from, context, tag);
        // The message is eager, so it leaves as soon as there is space.
        self.pend(send);
    }

    fn start_send(&mut self, from: PeerId, context: u16, tag: u64) -> RequestHandle {
        let lens = [0, 1, 7, 8, 8, 8, 9, 16, 17, 88, 89, 200, 255, 256, self.rng.below(257)];
        let len = self.rng.pick(&lens);
        let bytes = contents(self.rng.next(), len);
        let (loan, buf) = self.world.lender.send(from, bytes.clone());
        let engine = &mut self.world.engines[from as usize];
        // The message waits until `progress` sends it.
        engine.progress();
        let id = engine.isend(HERE, context, tag, buf).unwrap();
        self.sent[from as usize].push_back(BypassSent { context, tag, bytes });
        RequestHandle { rank: from, id, loan }
    }

    /// Posts a receive that is not waited for.
    fn post(&mut self) {
        if self.posted.len() >= self.most_posted {
            return;
        }
        let source = match self.rng.one_in(3) {
            true => Source::Any,
            false => Source::Rank(1 + self.rng.below(self.sent.len() - 1) as PeerId),
        };
        let (context, tag) = (self.rng.below(2) as u16, self.rng.below(4) as u64 | 4);
        let ignore = self.rng.pick(&[0, 0, 0, 0, 1, 2, 3, u64::MAX]);
        let room = self.rng.pick(&[0, 8, 8, 100, 256]);
        let pattern = Pattern { source, context, tag, ignore };
        let (loan, mut buf) = self.world.lender.receive(HERE, room);
        let id = self.world.engine(HERE).irecv(pattern, &mut buf).unwrap();
        self.posted.push(Outstanding { pattern, room, handle: RequestHandle { rank: HERE, id, loan } });
    }

    /// Checks the posted receives that are complete, in the order of posting. Returns how many they were.
    fn sweep(&mut self) -> usize {
        let mut swept = 0;
        let mut at = 0;
        while let Some(&Outstanding { pattern, room, handle }) = self.posted.get(at) {
            match self.world.test(handle) {
                Some((outcome, bytes)) => {
                    self.posted.remove(at);
                    self.check((&pattern, room), at, outcome, &bytes);
                    swept += 1;
                }
                None => at += 1,
            }
        }
        let world = &mut self.world;
        self.sends.retain(|&send| world.test(send).is_none());
        swept
    }

    /// Sends a message for a receive if all that it matches went to others.
    fn supply(&mut self, pattern: &Pattern) {
        let is_for = |sent: &BypassSent| sent.context == pattern.context && pattern.accepts(sent.tag);
        let mut froms = (1..self.sent.len() as PeerId).filter(|&from| pattern.source.accepts(from));
        if froms.clone().any(|from| self.sent[from as usize].iter().any(is_for)) {
            return;
        }
        let tag = pattern.tag ^ (pattern.ignore & self.rng.next());
        let send = self.start_send(froms.next().unwrap(), pattern.context, tag);
        self.sends.push(send);
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
        self.sweep();
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
        let (outcome, bytes, rivals) = if self.rng.one_in(3) {
            self.found.posted += 1;
            self.receive_posted(&pattern, (loan, &mut buf))
        } else {
            loop {
                if !self.world.engine(HERE).can_bypass(&pattern) {
                    // Another message is stored or queued before it, or a receive is posted before it.
                    break self.receive_posted(&pattern, (loan, &mut buf));
                }
                let done = self.look(&pattern, &mut buf, room);
                self.found.delivered += self.sweep();
                if let Some(done) = done {
                    break (done, self.world.lender.end(loan), self.posted.len());
                }
                self.supply(&pattern);
                self.move_on();
            }
        };
        self.check((&pattern, room), rivals, outcome, &bytes);
    }

    /// Posts a receive and waits for it. Returns its result, and how many of the receives that are still posted were
    /// posted before it.
    fn receive_posted(
        &mut self,
        pattern: &Pattern,
        (loan, buf): (Loan, &mut RecvBuf),
    ) -> (Outcome, Vec<u8>, usize) {
        let id = self.world.engine(HERE).irecv(*pattern, buf).unwrap();
        let handle = RequestHandle { rank: HERE, id, loan };
        let (outcome, bytes) = self.finish(pattern, handle);
        (outcome, bytes, self.posted.len())
    }

    /// Withdraws the receives that no message matched.
    fn withdraw_posted(&mut self) {
        self.sweep();
        for Outstanding { handle, .. } in self.posted.split_off(0) {
            assert!(self.world.engine(HERE).cancel(handle.id), "seed {}", self.seed);
            assert_eq!(self.world.done(handle).0, Err(CompletionError::Cancelled), "seed {}", self.seed);
        }
    }

    /// Lets the senders make progress.
    fn move_on(&mut self) {
        for engine in &mut self.world.engines[1..] {
            engine.progress();
        }
    }

    fn finish(&mut self, pattern: &Pattern, handle: RequestHandle) -> (Outcome, Vec<u8>) {
        for _ in 0..10_000 {
            self.sweep();
            let done = match self.rng.one_in(2) {
                true => self.world.try_finish(handle).inspect(|_| self.found.finished += 1),
                false => self.world.test(handle),
            };
            if let Some(done) = done {
                return done;
            }
            if self.rng.one_in(2) {
                self.world.engine(HERE).step();
                // The step may have taken the message for another receive.
                self.sweep();
            }
            self.supply(pattern);
            self.move_on();
        }
        panic!("seed {}: {handle:?} is not complete", self.seed);
    }

    fn look(&mut self, pattern: &Pattern, buf: &mut RecvBuf, room: usize) -> Option<Outcome> {
        let protocol_number = self.rng.below(5);
        let Self { world, found, .. } = self;
        let engine = &mut world.engines[HERE as usize];
        let (stored, posted) = (engine.unexpected_messages(), !self.posted.is_empty());
        let done = match protocol_number {
            0 => {
                let status = receive_short(engine, pattern, buf.whole(0, usize::MAX)?);
                status.map(Ok).inspect(|_| found.short += 1)
            }
            1 => {
                let len = engine.receive_packet(pattern, buf);
                len.map(|len| {
                    let Source::Rank(peer) = pattern.source else { panic!("the pattern names no rank") };
                    assert_eq!(pattern.ignore, 0);
                    assert!(len <= room);
                    found.packet += 1;
                    Ok(Status { peer, tag: pattern.tag, len, immediate: None })
                })
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
        };
        if done.is_some() {
            found.beside_posted[protocol_number.min(3)] += usize::from(posted);
            found.beside_stored += usize::from(stored > 0);
        }
        done
    }

    /// Checks that the message is the first of its sender that the pattern matches, that none of the first `rivals`
    /// posted receives matches it, and that its bytes are complete or truncated to the buffer.
    fn check(&mut self, (pattern, room): (&Pattern, usize), rivals: usize, outcome: Outcome, bytes: &[u8]) {
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
        let envelope = Envelope { kind: Kind::Eager, context: sent.context, tag: sent.tag, total: message };
        let robbed = self.posted[..rivals].iter().find(|it| it.pattern.matches(status.peer, &envelope));
        assert!(robbed.is_none(), "seed {}: {pattern:?} got {envelope:?} of {robbed:?}", self.seed);
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
    let geometry = WorldShape {
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
    let most_posted = rng.pick(&[0, 2, 8, 50]);
    let sent = vec![VecDeque::new(); peers];
    let mut run = BypassRun { seed, rng, world, sent, posted: vec![], most_posted, sends: vec![], found };
    for _ in 0..300 {
        let from = 1 + run.rng.below(peers - 1) as PeerId;
        match run.rng.below(6) {
            0..=1 => run.send(from),
            2 => run.post(),
            _ => run.receive(),
        }
    }
    while run.sent.iter().any(|queue| !queue.is_empty()) {
        run.receive();
    }
    run.withdraw_posted();
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
    let Found { short, packet, next, step, posted, finished, truncated, copied, .. } = found;
    let Found { beside_posted, beside_stored, delivered, .. } = found;
    for count in [short, packet, next, step, posted, finished, truncated, copied, beside_stored] {
        assert!(count as u64 > seeds, "{found:?}");
    }
    // These are rarer: a run of few seeds, as under a sanitizer, has fewer than one for each seed.
    for count in [&beside_posted[..], &[delivered]].concat() {
        assert!(count as u64 > seeds / 8, "{found:?}");
    }
}
