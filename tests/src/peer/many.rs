//! `many SEED`: every rank sends messages of all sizes to every other one, by the completion queue, and receives them
//! into buffers that each take one message after the other. The messages of each rank lie in the order sent.

use std::collections::BTreeMap;
use std::time::Duration;

use nemesia::{
    Completion, CompletionKind, Endpoint, Error, MultiReceiveOptions, Request, SendOp, Source, Tag,
};

use super::{Fault, Outcome, barrier, ensure, open, tell};
use crate::content::{Random, difference, filled, seed_of};
use crate::quick;

/// The bytes of a buffer, and the most of a message.
const BUFFER: usize = 200 << 10;
const MOST: u64 = 60 << 10;
/// The buffers that are posted at a time, and the most sends under way.
const POSTED: u64 = 2;
const SENDS: usize = 8;
/// The buffers that have ended and are kept.
const ENDED: usize = 50;
/// The numbers of sends begin here.
const SEND: u64 = 1 << 40;
const BARRIER: u64 = 1 << 33;
const EVER: Option<Duration> = Some(Duration::from_secs(120));

pub(super) fn run(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let (rank, size) = (endpoint.rank() as u64, endpoint.size() as u64);
    let each = if quick() { 150 } else { 600 };
    let mut state = Many::default();
    for _ in 0..POSTED {
        state.post(&mut endpoint)?;
    }
    barrier(&mut endpoint, BARRIER)?;
    let others: Vec<u64> = (0..size).filter(|other| *other != rank).collect();
    for number in 0..each {
        for &to in &others {
            let bytes = filled(seed_of(&[seed, rank, to, number]), len(&[seed, rank, to, number]));
            state.send(&mut endpoint, to, number, bytes)?;
        }
    }
    let count = others.len() as u64 * each;
    while !state.sends.is_empty() || (state.placed.len() as u64) < count {
        state.take(&mut endpoint)?;
    }
    for request in std::mem::take(&mut state.open).into_values() {
        endpoint.cancel(request);
    }
    state.is_over = true;
    while state.ended.len() < state.posted as usize {
        state.take(&mut endpoint)?;
    }
    state.check(seed, rank, each)?;
    tell(&format!("rank {rank}: {count} messages in {} buffers for many", state.posted))?;
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}

/// Two ranks send to each other in this way until one is killed. The other then has all buffers back, and every message
/// that came whole is right.
pub(super) fn crash(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let rank = endpoint.rank() as u64;
    let mut state = Many::default();
    for _ in 0..POSTED {
        state.post(&mut endpoint)?;
    }
    barrier(&mut endpoint, BARRIER)?;
    tell("at work")?;
    let (mut number, mut returned) = (0, 0);
    let failure = loop {
        let facts = [seed, rank, 1 - rank, number];
        let bytes = filled(seed_of(&facts), len(&facts));
        if let Err(failure) = state.send(&mut endpoint, 1 - rank, number, bytes) {
            break failure;
        }
        number += 1;
        if state.ended.len() > ENDED {
            returned += state.check_ended(seed, rank)?;
        }
    };
    state.is_over = true;
    while returned + state.ended.len() < state.posted as usize || !state.sends.is_empty() {
        match state.take(&mut endpoint) {
            Ok(()) | Err(Fault::Library(Error::PeerFailed { .. })) => {}
            other => return other,
        }
    }
    state.check_ended(seed, rank)?;
    ensure(state.placed.is_empty(), || format!("messages in buffers that never were: {:?}", state.placed))?;
    Err(failure)
}

/// Returns the length of a message.
fn len(facts: &[u64]) -> usize {
    let mut random = Random::new(seed_of(facts));
    let most = random.pick(&[8, 8, 100, 5000, MOST]);
    1 + random.below(most) as usize
}

/// One rank.
#[derive(Default)]
struct Many {
    posted: u64,
    open: BTreeMap<u64, Request>,
    /// The buffers that have ended, by number.
    ended: BTreeMap<u64, Vec<u8>>,
    /// Sender, number and length of each message, by buffer and offset.
    placed: BTreeMap<(u64, usize), (u64, u64, usize)>,
    /// The bytes of the sends under way.
    sends: BTreeMap<u64, Vec<u8>>,
    started: u64,
    is_over: bool,
}

impl Many {
    fn post(&mut self, endpoint: &mut Endpoint) -> Outcome {
        let options = MultiReceiveOptions::default().least(MOST as usize);
        let buffer = vec![0; BUFFER];
        let posted = endpoint.receive_many(
            self.posted,
            Source::Any,
            Tag::Masked { value: 0, ignore: u32::MAX.into() },
            buffer,
            options,
        );
        self.open.insert(self.posted, posted.map_err(|(error, _)| error)?);
        self.posted += 1;
        Ok(())
    }

    fn send(&mut self, endpoint: &mut Endpoint, to: u64, number: u64, bytes: Vec<u8>) -> Outcome {
        while self.sends.len() >= SENDS {
            self.take(endpoint)?;
        }
        let context = SEND + self.started;
        self.started += 1;
        let (base, len) = (bytes.as_ptr(), bytes.len());
        // Kept before the send may panic.
        self.sends.insert(context, bytes);
        loop {
            // SAFETY: the bytes stay in the map, unchanged, until the completion was taken, or the process ends.
            let started = unsafe {
                let op = SendOp::from_raw(to as usize, number, base, len);
                endpoint.with_completion(context).isend_op(op)
            };
            match started {
                Ok(_) => return Ok(()),
                // Completions that were not taken have the requests: a burst of messages came.
                Err(Error::Requests { .. }) => self.take(endpoint)?,
                Err(error) => {
                    self.sends.remove(&context);
                    return Err(error.into());
                }
            }
        }
    }

    fn take(&mut self, endpoint: &mut Endpoint) -> Outcome {
        let mut some = [Completion::default(); 16];
        let count = endpoint.wait_completions(&mut some, EVER)?;
        ensure(count > 0, || "no completion".into())?;
        // All of them are taken, whatever has failed.
        let failed = some[..count].iter().filter_map(|done| self.record(endpoint, done).err());
        failed.last().map_or(Ok(()), Err)
    }

    fn record(&mut self, endpoint: &mut Endpoint, done: &Completion) -> Outcome {
        match done.kind {
            CompletionKind::Send => {
                ensure(self.sends.remove(&done.context).is_some(), || format!("{done:?}: sent twice"))?;
                done.result()?;
            }
            CompletionKind::MultiReceive => {
                let status = done.result()?;
                let place = (done.context, done.offset());
                let is = (status.rank as u64, status.tag, status.len);
                ensure(self.placed.insert(place, is).is_none(), || format!("{place:?} is used twice"))?;
                let seen = endpoint.received(done).map(<[u8]>::len);
                ensure(seen == Some(status.len), || format!("{seen:?} bytes of {done:?}"))?;
            }
            CompletionKind::MultiReceiveEnd => {
                let buffer = endpoint.take_buffer(done).unwrap_or_default();
                self.ended.insert(done.context, buffer);
                self.open.remove(&done.context);
                match done.result() {
                    Err(Error::Cancelled) if self.is_over => {}
                    result => drop(result?),
                }
                if !self.is_over {
                    self.post(endpoint)?;
                }
            }
            kind => return Err(Fault::Broken(format!("a completion of the kind {kind:?}"))),
        }
        Ok(())
    }

    /// Checks the order and the contents of the messages.
    fn check(&self, seed: u64, rank: u64, each: u64) -> Outcome {
        let mut next = BTreeMap::new();
        let mut free = (0, 0);
        for (&(buffer, offset), &(from, number, len)) in &self.placed {
            let at = next.entry(from).or_insert(0);
            ensure(*at == number, || format!("message {number} of rank {from} lies where {at} must"))?;
            *at += 1;
            free = if free.0 == buffer { free } else { (buffer, 0) };
            ensure(offset == free.1, || format!("a message lies at {offset} instead of {}", free.1))?;
            free.1 = (offset + len).next_multiple_of(8);
            self.check_bytes([seed, from, rank, number], (buffer, offset, len))?;
        }
        ensure(next.values().all(|at| *at == each), || format!("{next:?} messages have come"))
    }
    /// Checks the messages that have come whole into buffers that have ended, and drops them. Others may be missing
    /// among them, with the end of their sender. Returns the number of buffers.
    fn check_ended(&mut self, seed: u64, rank: u64) -> Outcome<usize> {
        let (mut least, mut free) = (0, (0, 0));
        for (&(buffer, offset), &(from, number, len)) in &self.placed {
            if !self.ended.contains_key(&buffer) {
                continue;
            }
            free = if free.0 == buffer { free } else { (buffer, 0) };
            let is_behind = number >= least && offset >= free.1;
            ensure(is_behind, || format!("message {number} of rank {from} lies at {offset}"))?;
            (least, free.1) = (number + 1, offset + len);
            self.check_bytes([seed, from, rank, number], (buffer, offset, len))?;
        }
        self.placed.retain(|(buffer, _), _| !self.ended.contains_key(buffer));
        Ok(std::mem::take(&mut self.ended).len())
    }

    fn check_bytes(&self, facts: [u64; 4], (buffer, offset, len): (u64, usize, usize)) -> Outcome {
        let bytes = self.ended.get(&buffer).and_then(|bytes| bytes.get(offset..offset + len));
        let is_right = len == self::len(&facts)
            && bytes.is_some_and(|bytes| difference(seed_of(&facts), bytes).is_none());
        let [_, from, _, number] = facts;
        ensure(is_right, || format!("the {len} bytes of message {number} of rank {from} are wrong"))
    }
}
