//! Random mixes of multi-receive buffers, receives, withdrawals and sends, against a model: from one seed.

use std::collections::VecDeque;
use std::vec::Vec;

use super::{HERE, try_post};
use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom};
use crate::engine::{CompletionError, MultiPlace, MultiReceiveOptions, OperationCompletion, Status};
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::shared::tests::{Rng, contents};

/// A message: sender, tag, and the number that its bytes come from, which is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelMessage {
    from: PeerId,
    tag: u64,
    len: usize,
    salt: u64,
}

#[derive(Clone, Debug)]
struct ModelBuffer {
    pattern: Pattern,
    handle: RequestHandle,
    /// `None` for a plain receive.
    multi: Option<(usize, usize, usize)>,
    offset: usize,
    /// The messages with their offsets, and those that were reported.
    placed: Vec<(usize, ModelMessage)>,
    reported: usize,
    is_open: bool,
    is_withdrawn: bool,
}

impl ModelBuffer {
    fn matches(&self, message: &ModelMessage) -> bool {
        self.is_open && self.pattern.source.accepts(message.from) && self.pattern.accepts(message.tag)
    }

    /// Offers a message. Returns whether it is taken.
    fn offer(&mut self, message: ModelMessage) -> bool {
        let Some((len, align, least)) = self.multi else {
            self.is_open = false;
            self.placed.push((0, message));
            return true;
        };
        if message.len > len - self.offset {
            self.is_open = message.len > len;
            return false;
        }
        self.placed.push((self.offset, message));
        self.offset = (self.offset + message.len).next_multiple_of(align).min(len);
        self.is_open = len - self.offset >= least;
        true
    }
}

#[derive(Debug, Default)]
struct Model {
    /// In the order of posting; all that ever were.
    buffers: Vec<ModelBuffer>,
    stored: VecDeque<ModelMessage>,
}

impl Model {
    fn arrive(&mut self, message: ModelMessage) {
        let taken = self.buffers.iter_mut().any(|buffer| buffer.matches(&message) && buffer.offer(message));
        if !taken {
            self.stored.push_back(message);
        }
    }

    fn post(&mut self, buffer: ModelBuffer) {
        self.buffers.push(buffer);
        for message in core::mem::take(&mut self.stored) {
            self.arrive(message);
        }
    }
}

/// Counts of what has happened.
#[derive(Debug, Default)]
struct Met {
    placed: usize,
    starved: usize,
    ended: usize,
    passed: usize,
}

struct MultiRun<'a> {
    rng: Rng,
    world: World<'a>,
    model: Model,
    sends: Vec<RequestHandle>,
    salt: u64,
    met: Met,
}

impl MultiRun<'_> {
    fn pattern(&mut self) -> Pattern {
        let source = match self.rng.below(3) {
            0 => Source::Any,
            _ => Source::Rank(1 + self.rng.below(2) as PeerId),
        };
        let ignore = if self.rng.below(3) == 0 { u64::MAX } else { 0 };
        Pattern { source, context: 0, tag: self.rng.below(2) as u64, ignore }
    }

    fn post(&mut self) {
        let pattern = self.pattern();
        let len = [0, 40, 200, 1000, 6000][self.rng.below(5)];
        let align = 1 << self.rng.below(7);
        let least = [1, 1, 30, 100][self.rng.below(4)];
        let options = MultiReceiveOptions::default().least(least).align(align).unwrap();
        if let Ok(handle) = try_post(&mut self.world, self.model.buffers.len() as u64, pattern, len, options)
        {
            self.add(pattern, handle, Some((len, align, least)), len >= least);
        }
    }

    fn receive(&mut self) {
        let pattern = self.pattern();
        if let Ok(handle) = self.world.irecv(HERE, pattern, 6000) {
            self.add(pattern, handle, None, true);
        }
    }

    fn add(
        &mut self,
        pattern: Pattern,
        handle: RequestHandle,
        multi: Option<(usize, usize, usize)>,
        is_open: bool,
    ) {
        self.model.post(ModelBuffer {
            pattern,
            handle,
            multi,
            offset: 0,
            placed: Vec::new(),
            reported: 0,
            is_open,
            is_withdrawn: false,
        });
    }

    fn send(&mut self) {
        let (from, tag) = (1 + self.rng.below(2) as PeerId, self.rng.below(2) as u64);
        let len = [0, 1, 8, 39, 100, 250, 300, 2000][self.rng.below(8)];
        self.salt += 1;
        let message = ModelMessage { from, tag, len, salt: self.salt };
        self.sends.push(self.world.isend(from, HERE, tag, contents(self.salt, len)));
        self.model.arrive(message);
    }

    fn cancel(&mut self) {
        if self.model.buffers.is_empty() {
            return;
        }
        let at = self.rng.below(self.model.buffers.len());
        let buffer = &mut self.model.buffers[at];
        let id = buffer.handle.id;
        if buffer.is_open {
            (buffer.is_open, buffer.is_withdrawn) = (false, true);
            assert!(self.world.engine(HERE).cancel(id), "buffer {at}");
        } else {
            assert!(!self.world.engine(HERE).cancel(id), "buffer {at}");
        }
    }

    /// Takes some completions and compares them with the model.
    fn take(&mut self, most: usize) -> usize {
        let mut some = std::vec![OperationCompletion::default(); most];
        self.met.starved += usize::from(self.world.engine(HERE).is_starved());
        let count = self.world.engine(HERE).take_completions(&mut some);
        for done in &some[..count] {
            let at = done.context as usize;
            let buffer = &mut self.model.buffers[at];
            match done.place {
                MultiPlace::Message(id, offset) => {
                    let Status { peer, tag, len, .. } = done.outcome.unwrap();
                    let is_it = |(place, it): &&(usize, ModelMessage)| {
                        (*place, it.from, it.tag, it.len) == (offset, peer, tag, len)
                    };
                    assert!(buffer.placed.iter().any(|it| is_it(&it)), "buffer {at}: {done:?}, {buffer:?}");
                    buffer.reported += 1;
                    assert_eq!(id, buffer.handle.id);
                    self.met.placed += 1;
                }
                MultiPlace::End(id) => {
                    assert_eq!((id, buffer.is_open), (buffer.handle.id, false), "buffer {at}");
                    assert_eq!(buffer.reported, buffer.placed.len(), "the end of buffer {at} is the last");
                    let end = buffer.placed.last().map_or(0, |(at, message)| at + message.len);
                    match buffer.is_withdrawn {
                        true => assert_eq!(done.outcome, Err(CompletionError::Cancelled)),
                        false => assert_eq!(done.outcome.unwrap().len, end),
                    }
                    self.met.ended += 1;
                    let bytes = self.world.lender.end(buffer.handle.loan);
                    for (at, message) in &buffer.placed {
                        assert_eq!(bytes[*at..at + message.len], contents(message.salt, message.len));
                    }
                }
                MultiPlace::None => panic!("{done:?}"),
            }
        }
        count
    }

    /// Tests plain receives.
    fn test(&mut self) {
        for at in 0..self.model.buffers.len() {
            let buffer = &self.model.buffers[at];
            if buffer.multi.is_some() || buffer.is_open || buffer.reported > 0 {
                continue;
            }
            let Some((outcome, bytes)) = self.world.test(buffer.handle) else { continue };
            match buffer.placed.first() {
                Some((_, ModelMessage { len, salt, .. })) => {
                    assert_eq!((outcome.unwrap().len, &bytes[..*len]), (*len, &contents(*salt, *len)[..]));
                }
                None => assert_eq!(outcome, Err(CompletionError::Cancelled)),
            }
            self.model.buffers[at].reported = 1;
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..10 => self.send(),
            10..13 => self.post(),
            13 | 14 => self.receive(),
            15 => self.cancel(),
            16 => self.test(),
            _ => {
                let most = 1 + self.rng.below(4);
                self.take(most);
            }
        }
        self.world.settle();
        let world = &mut self.world;
        self.sends.retain(|sent| world.test(*sent).is_none());
    }

    fn finish(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            if self.world.engine(HERE).is_starved() {
                // Posted receives may have all the slots.
                self.world.engine(HERE).grow_requests(8);
                self.world.engine(HERE).feed();
            }
            let count = self.take(5);
            self.test();
            self.world.settle();
            idle = if count == 0 { idle + 1 } else { 0 };
        }
        assert!(!self.world.engine(HERE).is_starved());
        self.met.passed += self.model.stored.len();
        assert_eq!(self.world.engine(HERE).store.len(), self.model.stored.len());
        for at in 0..self.model.buffers.len() {
            let buffer = &mut self.model.buffers[at];
            let is_over = !buffer.is_open;
            let wanted = if buffer.multi.is_some() { buffer.placed.len() } else { usize::from(is_over) };
            assert_eq!(buffer.reported, wanted, "buffer {at}: {buffer:?}");
            let handle = buffer.handle;
            if buffer.is_open {
                (buffer.is_open, buffer.is_withdrawn) = (false, true);
                assert!(self.world.engine(HERE).cancel(handle.id));
            }
        }
        self.test();
        while self.take(5) > 0 {}
        let multis = self.model.buffers.iter().filter(|buffer| buffer.multi.is_some()).count();
        assert_eq!(self.met.ended, multis);
        assert_eq!(self.world.engine(HERE).requests.used(), 0);
    }
}

#[test]
fn random_mixes_place_every_message_as_the_model_does() {
    let mut all = Met::default();
    for seed in 0..200 {
        let reading = if seed % 2 == 0 { Reading::Never } else { Reading::Always };
        let fabric = Fabric::reading(tiny(3), reading, 1);
        let requests = [6, 20, 512][seed as usize % 3];
        let room = WorldRoom { requests, ..AMPLE };
        let world = World::new(&fabric, room);
        let mut run = MultiRun {
            rng: Rng::new(seed),
            world,
            model: Model::default(),
            sends: Vec::new(),
            salt: 1000 * seed,
            met: Met::default(),
        };
        for _ in 0..120 {
            if run.sends.len() < 4 {
                run.step();
            } else {
                run.take(2);
                run.receive();
                run.world.settle();
                let world = &mut run.world;
                run.sends.retain(|sent| world.test(*sent).is_none());
                run.test();
            }
        }
        run.finish();
        let Met { placed, starved, ended, passed } = run.met;
        all.placed += placed;
        all.starved += starved;
        all.ended += ended;
        all.passed += passed;
    }
    assert!(all.placed > 1500 && all.starved > 50 && all.ended > 250 && all.passed > 50, "{all:?}");
}
