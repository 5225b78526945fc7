//! The ranks that obey the protocol: rank 0, which is attacked, and rank 1.

use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Instant;

use nemesia::bootstrap::Exchange;
use nemesia::{Access, Config, Endpoint, Error, Failure, Region, Request, Source, Tag};
use nemesia_core::payload::LentMemory;

use super::{HOSTILE, PATIENCE};
use crate::content::{difference, filled, seed_of};
use crate::memory_port::bench::Block;
use crate::memory_port::{Verdict, ensure};

/// The bytes of the messages of ranks 0 and 1: in one packet, in several, and by remote memory access.
const LENS: [usize; 4] = [0, 8, 3000, 70_000];
/// The bytes of the buffers that rank 0 offers. They end inside a page.
pub(super) const TRAP_BYTES: usize = 6000;
/// The number of bytes before and behind each of these buffers to which no rank has a right.
pub(super) const GUARD_BYTES: usize = 2 * PAGE;
/// The bytes of the messages that rank 0 sends to an attacker.
pub(super) const LONG: usize = TRAP_BYTES;
/// The tag of the messages between an attacker and rank 0.
pub(super) const TAG: u64 = 5;
/// The byte that an attacker writes where it may.
pub(super) const ALLOWED: u8 = 0x77;
/// The byte that an attacker writes where it may not.
pub(super) const FORBIDDEN: u8 = 0x66;
/// The place and the number of the bytes of a region that an attacker changes, as it may.
pub(super) const CHANGED: std::ops::Range<usize> = 16..24;
const PAGE: usize = 4096;
/// The tag of a message that never comes.
const NEVER: u64 = 99;

/// Returns the bytes that a bait has at first.
pub(super) fn content(rank: usize) -> Vec<u8> {
    let all = surroundings(rank);
    all.get(GUARD_BYTES..GUARD_BYTES + TRAP_BYTES).unwrap_or_default().to_vec()
}

/// Returns these bytes with those around them.
fn surroundings(rank: usize) -> Vec<u8> {
    filled(seed_of(&[rank as u64]), 2 * GUARD_BYTES + TRAP_BYTES)
}

/// What rank 0 has under way with an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bait {
    Nothing,
    /// A region. The attacker changes [`CHANGED`] before, if it may. It is unexposed when the attacker says so.
    Region(Access),
    /// The receive of a message of [`TRAP_BYTES`], which remains incomplete.
    Receive,
    /// The same, which completes: its bytes are [`ALLOWED`]. Rank 0 answers the attacker then.
    CompleteReceive,
    /// The send of a message of [`LONG`] bytes, when the attacker says so. At the next time its end is awaited.
    Send,
}

/// What rank 0 does about an attack, and what it must report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trap {
    pub(super) name: &'static str,
    pub(super) bait: Bait,
    /// The failure's text has one of these.
    pub(super) words: &'static [&'static str],
}

/// The channels between rank 0 and the attackers. Rank 0 says the key of a region, or 0.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) told: Receiver<()>,
    pub(super) tells: Sender<u64>,
}

/// Rank 0.
#[derive(Debug)]
pub(super) struct Victim {
    endpoint: Endpoint,
    signals: Signals,
    round: u64,
    /// The memory of the baits, freed after the endpoint.
    blocks: Vec<Block>,
}

/// The memory of a bait, and its use.
#[derive(Debug)]
struct Set {
    bait: Bait,
    base: NonNull<u8>,
    /// The bait with its surroundings, and their content.
    view: LentMemory,
    region: Option<Region>,
    request: Option<Request>,
}

/// Rank 1: exchanges messages with rank 0, as often as it does.
pub(super) fn stand_by(config: &Config, exchange: Box<dyn Exchange + Send>, attacks: u64) -> Verdict {
    let mut endpoint = Endpoint::open_with(config, exchange).map_err(|error| error.to_string())?;
    for round in 0..2 * attacks {
        converse(&mut endpoint, 0, round)?;
    }
    // Rank 0 may have closed its endpoint.
    let fails = |rank| endpoint.failure(rank).filter(|why| (rank, *why) != (0, Failure::Finished));
    let failed = (0..endpoint.size()).find_map(|rank| Some((rank, fails(rank)?)));
    ensure(failed.is_none(), || format!("rank 1 has lost a rank: {failed:?}"))?;
    endpoint.close().map_err(|error| error.to_string())
}

/// Exchanges messages of all sizes with the other honest rank.
fn converse(endpoint: &mut Endpoint, other: usize, round: u64) -> Verdict {
    for len in LENS {
        let seed = |rank: usize| seed_of(&[rank as u64, round, len as u64]);
        let (mine, mut got) = (filled(seed(endpoint.rank()), len), vec![0xaa; len]);
        let from = (Source::Rank(other), Tag::Exactly(round));
        let met = if endpoint.rank() < other {
            endpoint.send(other, round, &mine).and_then(|()| endpoint.recv(from.0, from.1, &mut got))
        } else {
            let received = endpoint.recv(from.0, from.1, &mut got);
            received.and_then(|status| endpoint.send(other, round, &mine).map(|()| status))
        };
        let status = met.map_err(|error| format!("round {round}, {len} bytes: {error}"))?;
        let wrong = difference(seed(other), &got);
        ensure(wrong.is_none() && status.len == len, || {
            format!("round {round}: {} of {len} bytes, wrong at {wrong:?}", status.len)
        })?;
    }
    Ok(())
}

impl Victim {
    pub(super) fn open(
        config: &Config,
        exchange: Box<dyn Exchange + Send>,
        signals: Signals,
    ) -> Result<Self, String> {
        let endpoint = Endpoint::open_with(config, exchange).map_err(|error| error.to_string())?;
        Ok(Self { endpoint, signals, round: 0, blocks: Vec::new() })
    }

    /// Suffers one attack of each hostile rank.
    pub(super) fn fall_for_all(mut self, traps: &[Trap]) -> Verdict {
        for (rank, trap) in (HOSTILE..).zip(traps) {
            self.fall_for(rank, trap).map_err(|why| format!("{}: {why}", trap.name))?;
        }
        self.tell(0)?;
        self.endpoint.close().map_err(|error| error.to_string())
    }

    fn fall_for(&mut self, rank: usize, trap: &Trap) -> Verdict {
        let mut set = self.set(rank, trap.bait)?;
        let key = set.region.map(|region| self.endpoint.remote_key(region));
        let key = key.transpose().map_err(|error| error.to_string())?;
        self.tell(key.map_or(0, |key| key.key()))?;
        self.converse()?;
        self.lose(rank, &mut set)?;
        self.check_failures(rank, trap.words)?;
        self.check(rank, &mut set)?;
        self.converse()
    }

    fn tell(&self, word: u64) -> Verdict {
        self.signals.tells.send(word).map_err(|_| "the attackers have ended".to_owned())
    }

    fn converse(&mut self) -> Verdict {
        self.round += 1;
        converse(&mut self.endpoint, 1, self.round - 1)
    }

    /// Makes the memory of a bait, and offers it.
    fn set(&mut self, rank: usize, bait: Bait) -> Result<Set, String> {
        let len = 2 * GUARD_BYTES + TRAP_BYTES;
        let block = Block::new(len);
        let (view, own) = block.lent(len);
        self.blocks.push(block);
        let base = own.part(GUARD_BYTES as u64, TRAP_BYTES as u64).ok_or("a short block")?;
        ensure(view.write(0, &surroundings(rank)), || "a short block".into())?;
        let mut set = Set { bait, base, view, region: None, request: None };
        let source = (Source::Rank(rank), Tag::Exactly(TAG));
        // SAFETY: the block is freed after the endpoint. It is used only by way of `LentMemory`.
        let set_up = unsafe {
            match bait {
                Bait::Nothing | Bait::Send => Ok(()),
                Bait::Region(access) => self
                    .endpoint
                    .expose(base.as_ptr(), TRAP_BYTES, access)
                    .map(|region| set.region = Some(region)),
                Bait::Receive | Bait::CompleteReceive => self
                    .endpoint
                    .irecv(source.0, source.1, base.as_ptr(), TRAP_BYTES)
                    .map(|request| set.request = Some(request)),
            }
        };
        set_up.map_err(|error| error.to_string())?;
        Ok(set)
    }

    /// Makes progress until the rank has failed, and does what the attacker asks for.
    fn lose(&mut self, rank: usize, set: &mut Set) -> Verdict {
        let begun = Instant::now();
        while self.endpoint.failure(rank).is_none() {
            match self.signals.told.try_recv() {
                Ok(()) => self.go_on(rank, set)?,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err("the attackers have ended".into()),
            }
            self.endpoint.progress();
            std::thread::yield_now();
            ensure(begun.elapsed() < PATIENCE, || format!("rank {rank} does not fail"))?;
        }
        Ok(())
    }

    /// The next step of a bait.
    fn go_on(&mut self, rank: usize, set: &mut Set) -> Verdict {
        match set.bait {
            Bait::Nothing | Bait::Receive => return Err("nothing is to follow".into()),
            Bait::Region(_) => {
                let region = set.region.take().ok_or("unexposed twice")?;
                self.endpoint.unexpose(region).map_err(|error| error.to_string())?;
            }
            Bait::CompleteReceive => {
                let request = set.request.take().ok_or("received twice")?;
                let status = self.endpoint.wait(request).map_err(|error| error.to_string())?;
                ensure(status.len == TRAP_BYTES, || format!("{status:?}"))?;
            }
            Bait::Send if set.request.is_some() => {
                let sent = set.request.take().map(|request| self.endpoint.wait(request)).transpose();
                sent.map_err(|error| error.to_string())?;
            }
            Bait::Send => {
                // SAFETY: as in `set`.
                let sent = unsafe { self.endpoint.isend(rank, TAG, set.base.as_ptr(), LONG) };
                set.request = Some(sent.map_err(|error| error.to_string())?);
            }
        }
        self.tell(0)
    }

    /// Checks that this rank has failed as it should, that the error names it, and that the ranks that have not
    /// attacked yet have not failed.
    fn check_failures(&mut self, rank: usize, words: &[&str]) -> Verdict {
        let never = (Source::Rank(rank), Tag::Exactly(NEVER));
        let error = match self.endpoint.recv(never.0, never.1, &mut []) {
            Err(error @ Error::PeerFailed { rank: failed, failure: Failure::Fault(_), .. })
                if failed == rank =>
            {
                error.to_string()
            }
            other => return Err(format!("{other:?} instead of a fault of rank {rank}")),
        };
        let is_named =
            error.contains(&format!("rank {rank}")) && words.iter().any(|word| error.contains(word));
        ensure(is_named, || format!("{error:?} has none of {words:?}"))?;
        for other in 0..self.endpoint.size() {
            let (failure, wanted) = (self.endpoint.failure(other), (HOSTILE..=rank).contains(&other));
            ensure(failure.is_some() == wanted, || format!("rank {other}, beside {rank}: {failure:?}"))?;
        }
        Ok(())
    }

    /// Checks that the operations of a bait have ended, and that its memory has what it should.
    fn check(&mut self, rank: usize, set: &mut Set) -> Verdict {
        if let Some(request) = set.request.take() {
            let ended = self.endpoint.wait(request);
            let has_failed = matches!(ended, Err(Error::PeerFailed { rank: failed, .. }) if failed == rank);
            // The attacker may have taken all of a message that was sent.
            ensure(has_failed || set.bait == Bait::Send && ended.is_ok(), || {
                format!("an operation with rank {rank} has ended with {ended:?}")
            })?;
        }
        if let Some(region) = set.region.take() {
            self.endpoint.unexpose(region).map_err(|error| error.to_string())?;
        }
        let mut wanted = surroundings(rank);
        let bait = &mut wanted[GUARD_BYTES..][..TRAP_BYTES];
        match set.bait {
            Bait::Region(Access::Write | Access::ReadWrite) => bait[CHANGED].fill(ALLOWED),
            Bait::CompleteReceive => bait.fill(ALLOWED),
            _ => {}
        }
        let mut found = vec![0; wanted.len()];
        ensure(set.view.read(0, &mut found), || "a short block".into())?;
        let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        ensure(at.is_none(), || {
            format!("byte {at:?} of memory has changed; the bait has {TRAP_BYTES} from {GUARD_BYTES} on")
        })
    }
}
