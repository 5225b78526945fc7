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
        // SAFETY: the bytes stay in the map, unchanged, until the completion was taken, or the process ends.
        unsafe {
            let op = SendOp::from_raw(to as usize, number, base, len);
            endpoint.with_completion(context).isend_op(op)?;
        }
        Ok(())
    }

    fn take(&mut self, endpoint: &mut Endpoint) -> Outcome {
        let mut some = [Completion::default(); 16];
        let count = endpoint.wait_completions(&mut some, EVER)?;
        ensure(count > 0, || "no completion".into())?;
        for done in &some[..count] {
            match done.kind {
                CompletionKind::Send => {
                    done.result()?;
                    ensure(self.sends.remove(&done.context).is_some(), || format!("{done:?}: sent twice"))?;
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
                    match done.result() {
                        Err(Error::Cancelled) if self.is_over => {}
                        result => drop(result?),
                    }
                    let buffer = endpoint.take_buffer(done).unwrap_or_default();
                    self.ended.insert(done.context, buffer);
                    self.open.remove(&done.context);
                    if !self.is_over {
                        self.post(endpoint)?;
                    }
                }
                kind => return Err(Fault::Broken(format!("a completion of the kind {kind:?}"))),
            }
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
            let facts = [seed, from, rank, number];
            let bytes = self.ended.get(&buffer).and_then(|bytes| bytes.get(offset..offset + len));
            let is_right = len == self::len(&facts)
                && bytes.is_some_and(|bytes| difference(seed_of(&facts), bytes).is_none());
            ensure(is_right, || format!("the {len} bytes of message {number} of rank {from} are wrong"))?;
        }
        ensure(next.values().all(|at| *at == each), || format!("{next:?} messages have come"))
    }
}
