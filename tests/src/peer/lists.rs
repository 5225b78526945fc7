//! `lists SEED`: messages with randomly scattered bytes on either side or both, compared with contiguous ones:
//! in every mode, in several contexts, expected, probed or unexpected, truncated, and to the rank itself.

use std::io::{IoSlice, IoSliceMut};

use nemesia::{Endpoint, Error, RecvOp, SendOp, Source, Status, Tag};

use super::{Outcome, barrier, ensure, open, tell};
use crate::content::{Random, filled, seed_of};
use crate::quick;

/// The largest message in bytes.
const MOST: u64 = 300 << 10;
/// The guard bytes before and after each segment of a buffer.
const GUARD: usize = 16;
const UNTOUCHED: u8 = 0xa5;
const BARRIER: u64 = 1 << 32;

pub(super) fn run(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let rounds = if quick() { 40 } else { 150 };
    for round in 0..rounds {
        exchange(&mut endpoint, (rank + 1) % size, (rank + size - 1) % size, &[seed, round])?;
        exchange(&mut endpoint, rank, rank, &[seed, round])?;
    }
    tell(&format!("rank {rank}: {rounds} rounds of lists"))?;
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}

/// How a message is sent and received. Sender and receiver draw the same plan.
struct Plan {
    content: u64,
    len: usize,
    room: usize,
    context: u16,
    tag: u64,
    synchronous: bool,
    immediate: Option<u64>,
    from: Pieces,
    to: Pieces,
    way: u64,
}

/// The pieces of a buffer, by their lengths. A list of one piece is passed as a list or as a slice.
struct Pieces(Vec<usize>);

impl Pieces {
    fn draw(random: &mut Random, len: usize) -> Self {
        let most = match random.below(5) {
            0 => return Self(vec![len]),
            1 if len < 5000 => 1,
            2 if len < 50_000 => 60,
            3 => 3000,
            _ => 50_000,
        };
        let (mut left, mut lens) = (len, vec![0]);
        while left > 0 {
            let piece = (random.below(most) + random.below(2)).min(left as u64) as usize;
            lens.push(piece);
            left -= piece;
        }
        Self(lens)
    }
}

impl Plan {
    /// Draws what `from` sends in a round.
    fn draw(from: usize, to: usize, facts: &[u64]) -> Self {
        let content = seed_of(&[facts[0], facts[1], from as u64, u64::from(from == to)]);
        let mut random = Random::new(content);
        let most = random.pick(&[60, 900, 9000, 70_000, MOST]);
        let len = random.below(most + 1) as usize;
        let room = match random.below(4) {
            0 => random.below(len as u64 + 1) as usize,
            1 => len + random.below(5000) as usize,
            _ => len,
        };
        Self {
            content,
            len,
            room,
            context: random.pick(&[0, 1, 7, u16::MAX - 2]),
            tag: random.below(1 << 20),
            synchronous: random.below(3) == 0,
            immediate: if random.below(3) == 0 { Some(random.below(u64::MAX)) } else { None },
            from: Pieces::draw(&mut random, len),
            to: Pieces::draw(&mut random, room),
            way: random.below(4),
        }
    }

    /// Describes the send. One piece is a list or a slice.
    fn send<'env>(&self, to: usize, slices: &'env [IoSlice<'env>]) -> SendOp<'env> {
        let op = match slices {
            [slice] if !self.synchronous => SendOp::new(to, self.tag, slice),
            slices => SendOp::list(to, self.tag, slices),
        };
        let op = op.context(self.context);
        let op = if self.synchronous { op.synchronous() } else { op };
        if let Some(immediate) = self.immediate { op.immediate(immediate) } else { op }
    }
}

/// Sends the planned message to one rank and receives from another at the same time.
fn exchange(endpoint: &mut Endpoint, to: usize, from: usize, facts: &[u64]) -> Outcome {
    let rank = endpoint.rank();
    let (ours, theirs) = (Plan::draw(rank, to, facts), Plan::draw(from, rank, facts));
    let bytes = filled(ours.content, ours.len);
    let mut rest = &bytes[..];
    let mut source = Vec::new();
    for len in &ours.from.0 {
        let (piece, after) = rest.split_at(*len);
        source.push(piece.to_vec());
        rest = after;
    }
    let mut room: Vec<Vec<u8>> = theirs.to.0.iter().map(|len| vec![UNTOUCHED; len + 2 * GUARD]).collect();
    let slices: Vec<IoSlice<'_>> = source.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rooms: Vec<IoSliceMut<'_>> = room.iter_mut().map(|piece| inside(piece)).collect();
    let received = transfer(endpoint, (to, &ours, &slices), (from, &theirs, &mut rooms))?;
    verify(&theirs, from, received, &room)
}

fn inside(piece: &mut [u8]) -> IoSliceMut<'_> {
    let end = piece.len() - GUARD;
    IoSliceMut::new(&mut piece[GUARD..end])
}

type Received = Result<Status, Error>;

fn transfer<'env>(
    endpoint: &mut Endpoint,
    (to, ours, slices): (usize, &Plan, &'env [IoSlice<'env>]),
    (from, theirs, rooms): (usize, &Plan, &'env mut [IoSliceMut<'_>]),
) -> Result<Received, Error> {
    let (source, tag) = (Source::Rank(from), Tag::Exactly(theirs.tag));
    endpoint.scope(move |scope| {
        let (mut rooms, mut early) = (Some(rooms), None);
        if theirs.way == 0
            && let Some(rooms) = rooms.take()
        {
            early = Some(scope.irecv_op(RecvOp::list(source, tag, rooms).context(theirs.context))?);
        }
        let send = scope.isend_op(ours.send(to, slices))?;
        if theirs.way == 1 {
            // After the probe it is certainly unexpected.
            let status = scope.in_context(theirs.context).probe(source, tag)?;
            assert_eq!((status.rank, status.tag, status.len), (from, theirs.tag, theirs.len));
            assert_eq!(status.immediate, theirs.immediate);
        }
        let receive = match (early, rooms) {
            (Some(early), _) => early,
            (None, Some([room])) => scope.in_context(theirs.context).irecv(source, tag, room)?,
            (None, Some(rooms)) => {
                scope.irecv_op(RecvOp::list(source, tag, rooms).context(theirs.context))?
            }
            (None, None) => return Err(Error::Stale),
        };
        let received = scope.wait(receive);
        scope.wait(send)?;
        Ok(received)
    })
}

fn verify(plan: &Plan, from: usize, received: Received, room: &[Vec<u8>]) -> Outcome {
    let moved = plan.len.min(plan.room);
    let what = || format!("{} bytes from rank {from} into {} in {} pieces", plan.len, plan.room, room.len());
    let status = match received {
        Ok(Status { rank, len, immediate, .. }) if moved == plan.len => {
            len == moved && rank == from && immediate == plan.immediate
        }
        Err(Error::Truncated(cut)) if moved < plan.len => {
            let right = cut.message == plan.len as u64 && cut.status.len == moved;
            right && cut.status.immediate == plan.immediate
        }
        other => return ensure(false, || format!("{}: {other:?}", what())),
    };
    ensure(status, || format!("{}: a wrong status", what()))?;
    let beside = |piece: &Vec<u8>| [&piece[..GUARD], &piece[piece.len() - GUARD..]].concat();
    let untouched = room.iter().all(|piece| beside(piece).iter().all(|byte| *byte == UNTOUCHED));
    ensure(untouched, || format!("{}: bytes beside a piece were written", what()))?;
    let got: Vec<u8> = room.iter().flat_map(|piece| &piece[GUARD..piece.len() - GUARD]).copied().collect();
    let mut wanted = filled(plan.content, plan.len);
    wanted.resize(plan.room.max(plan.len), UNTOUCHED);
    wanted.truncate(moved);
    wanted.resize(plan.room, UNTOUCHED);
    let at = wanted.iter().zip(&got).position(|(wanted, got)| wanted != got);
    ensure(at.is_none() && got.len() == wanted.len(), || format!("{}: wrong at byte {at:?}", what()))
}
