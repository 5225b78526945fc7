//! `restart TIMES`: ranks exchange messages and agree, round by round, while the last one is killed from
//! outside and started again `TIMES` times; the others readmit it and continue. `restart-impostor`: the last
//! rank, which was never restarted, claims that it and others were restarted.

use std::time::{Duration, Instant};

use nemesia::bootstrap::{Bootstrap, BootstrapError, Exchange, Member};
use nemesia::internals::os::HandoffConnection;
use nemesia::{Access, Config, Endpoint, Error, Failure, KEY_BYTES, Refusal, Region, RemoteKey, Source, Tag};
use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::offers::OfferList;
use nemesia_core::link::token::LinkToken;
use nemesia_core::link::wire::{LINK_VERSION, LinkBody, LinkCall, LinkMessage};

use super::impostor::{address, first_call, header, sealed_call, socket};
use super::{Arena, Fault, Outcome, broken, descriptors, ensure, open, tell};
use crate::content::{difference, filled, seed_of};

/// Sizes for a fastbox, a cell, an announced message, and a sender-assisted copy.
const SIZES: [usize; 4] = [8, 900, 20_000, 300_000];
/// Sent several times by each incarnation, and received once.
const SIGN: u64 = 1 << 40;
const ANYONE: u64 = 2 << 40;
const KEY: u64 = 3 << 40;
/// Which process of the mortal rank a survivor has met.
const MET: u64 = 4 << 40;
const BYTES: usize = 1 << 16;
/// The rounds of the last incarnation.
const ENOUGH: u64 = 8;

struct RestartPlace {
    endpoint: Endpoint,
    /// Dropped after the endpoint, which uses its buffers.
    arena: Arena,
    region: Region,
    mortal: usize,
    times: u64,
    /// The incarnation of the mortal rank that was met last; on the mortal rank, its own incarnation.
    generation: u64,
    /// The key of the mortal rank's region, and the key before it.
    keys: [Option<RemoteKey>; 2],
}

pub(super) fn run(times: u64) -> Outcome {
    let mut endpoint = open()?;
    let region = endpoint.allocate(BYTES, Access::ReadWrite)?;
    let mortal = endpoint.size() - 1;
    let generation = endpoint.incarnation();
    ensure(generation == 0 || endpoint.rank() == mortal, || format!("incarnation {generation}"))?;
    tell(&format!("open {generation}"))?;
    let arena = Arena::default();
    let mut place = RestartPlace { endpoint, arena, region, mortal, times, generation, keys: [None, None] };
    loop {
        place.hello()?;
        if place.rounds()? {
            return Ok(place.endpoint.close()?);
        }
        place.readmit()?;
    }
}

impl RestartPlace {
    fn is_mortal(&self) -> bool {
        self.endpoint.rank() == self.mortal
    }

    /// The mortal rank exchanges a first message with each of the others.
    fn hello(&mut self) -> Outcome {
        if self.is_mortal() {
            for other in 0..self.mortal {
                for _ in 0..3 {
                    self.endpoint.send(other, SIGN, &self.generation.to_le_bytes())?;
                }
                self.swap_keys(other)?;
            }
            return Ok(());
        }
        let hello = self.hello_to_mortal();
        tolerate(hello, self.mortal)?;
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let maps = maps.lines().filter(|line| line.contains("memfd:")).count();
        let (fds, page_tables) = descriptors()?;
        let fds = fds.len();
        // Those of dead processes are closed.
        let most = self.endpoint.size() - 1;
        ensure(page_tables <= most, || format!("{page_tables} page tables are open, of {most} peers"))?;
        tell(&format!("generation {}: {fds} descriptors, {maps} mappings", self.generation))
    }

    fn hello_to_mortal(&mut self) -> Outcome {
        let mut sign = [0; 8];
        self.endpoint.recv(Source::Rank(self.mortal), Tag::Exactly(SIGN), &mut sign)?;
        let sign = u64::from_le_bytes(sign);
        ensure(sign == self.generation, || format!("generation {}: a message of {sign}", self.generation))?;
        self.keys.swap(0, 1);
        self.keys[0] = Some(self.swap_keys(self.mortal)?);
        self.remote()
    }

    /// Sends a key to another rank, and receives its key.
    fn swap_keys(&mut self, other: usize) -> Outcome<RemoteKey> {
        let key = self.endpoint.remote_key(self.region)?.to_bytes();
        self.endpoint.send(other, KEY, &key)?;
        let mut key = [0; KEY_BYTES];
        self.endpoint.recv(Source::Rank(other), Tag::Exactly(KEY), &mut key)?;
        RemoteKey::from_bytes(other, &key).ok_or_else(|| Fault::Broken("not a key".into()))
    }

    /// Checks that the memory of the present process can be used and that of the former process cannot.
    fn remote(&mut self) -> Outcome {
        let (rank, mortal) = (self.endpoint.rank(), self.mortal);
        if let Some(old) = self.keys[1].take() {
            self.endpoint.put(&old, 0, b"of yesterday")?;
            match self.endpoint.flush(mortal) {
                Err(Error::Refused { refusal: Refusal::Key, .. }) => {}
                other => {
                    return other.map_err(Fault::from).and_then(|()| broken("an old key opens something"));
                }
            }
        }
        let Some(key) = self.keys[0] else { return broken("no key") };
        let at = (rank * 4096) as u64;
        let bytes = filled(seed_of(&[rank as u64, self.generation]), 3000);
        self.endpoint.put(&key, at, &bytes)?;
        self.endpoint.flush(mortal)?;
        let mut back = vec![0; 3000];
        self.endpoint.get(&key, at, &mut back)?;
        self.endpoint.flush(mortal)?;
        ensure(back == bytes, || "memory of the new process holds something else".into())
    }

    /// Exchanges rounds of messages until the mortal rank is gone (returns false), or has taken part long
    /// enough.
    fn rounds(&mut self) -> Outcome<bool> {
        let last = self.is_mortal() && self.generation == self.times;
        for round in 0.. {
            let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
            for step in 0..size {
                // In pairs: the sum of their ranks is `step` modulo `size`.
                let other = (size + step - rank) % size;
                let len = SIZES[(round as usize + step) % SIZES.len()];
                let met = self.meet(other, round, len);
                if self.is_mortal() || other != self.mortal { met? } else { tolerate(met, other)? }
            }
            let done = !self.is_mortal() || last && round >= ENOUGH;
            let agreed = self.endpoint.agree(if done { u64::MAX } else { 0 })?;
            if !agreed.gone.is_empty() {
                let why: Vec<_> = agreed.gone.iter().map(|rank| self.endpoint.failure(*rank)).collect();
                ensure(agreed.gone == [self.mortal], || format!("{agreed:?}: {why:?}"))?;
                return Ok(false);
            }
            if agreed.flags != 0 {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn meet(&mut self, other: usize, round: u64, len: usize) -> Outcome {
        let rank = self.endpoint.rank();
        if other == rank {
            return Ok(());
        }
        match_up(&mut self.endpoint, other, round, len)
    }

    /// Checks that the last messages of the mortal rank can be received, and that it is not readmitted before
    /// it is there.
    fn readmit(&mut self) -> Outcome {
        let mortal = self.mortal;
        self.endpoint.acknowledge_failures();
        if self.generation.is_multiple_of(2) {
            let mut sign = [0; 8];
            let heard = self.endpoint.recv(Source::Rank(mortal), Tag::Exactly(SIGN), &mut sign);
            ensure(heard.is_err() || u64::from_le_bytes(sign) == self.generation, || format!("{sign:?}"))?;
        }
        let anyone = self.arena.irecv(&mut self.endpoint, Source::Any, Tag::Exactly(ANYONE), 8)?;
        match self.endpoint.send(mortal, 0, b"to a dead rank") {
            Err(Error::PeerFailed { rank, .. }) if rank == mortal => {}
            other => return broken(format!("a send to a rank that is gone: {other:?}")),
        }
        self.readmit_next()?;
        match self.endpoint.readmit(mortal) {
            Err(Error::NotRestarted { .. }) => {}
            // It has died again meanwhile, and its successor is there.
            Ok(()) => self.generation = self.later_generation()?,
            other => return broken(format!("readmitted twice: {other:?}")),
        }
        let failure = self.endpoint.failure(mortal);
        ensure(matches!(failure, None | Some(Failure::Died)), || format!("still failed: {failure:?}"))?;
        tell(&format!("readmitted {}", self.generation))?;
        // It was posted before, and stays posted, unless the next process has died as well.
        let died = |error: &Error| matches!(error, Error::PeerFailed { rank, .. } if *rank == mortal);
        match self.endpoint.test(anyone) {
            Err(error) if died(&error) => {}
            posted => {
                ensure(posted?.is_none() && self.endpoint.cancel(anyone), || "lost".into())?;
                let ended = self.endpoint.test(anyone);
                ensure(matches!(ended, Err(Error::Cancelled)), || format!("{ended:?}"))?;
            }
        }
        self.meet_the_same()
    }

    /// Readmits the next process of the mortal rank.
    fn readmit_next(&mut self) -> Outcome {
        let mortal = self.mortal;
        loop {
            let there = self.endpoint.wait_restarted(Some(Duration::from_secs(60)))?;
            ensure(there == [mortal], || format!("{there:?} were restarted"))?;
            match self.endpoint.readmit(mortal) {
                // It died before it was readmitted.
                Err(Error::NotRestarted { .. }) => {}
                readmitted => break readmitted?,
            }
        }
        self.generation = self.later_generation()?;
        Ok(())
    }

    /// Returns which process of the mortal rank was readmitted. A process that died before is never met.
    fn later_generation(&self) -> Outcome<u64> {
        let known = self.endpoint.incarnation_of(self.mortal).unwrap_or_default();
        ensure(known > self.generation, || format!("{known} after {}", self.generation))?;
        Ok(known)
    }

    /// Readmits further processes of the mortal rank, until all survivors have met the same one: a process may have
    /// died when only some of them had readmitted it. The others would wait for it for ever.
    fn meet_the_same(&mut self) -> Outcome {
        let rank = self.endpoint.rank();
        loop {
            let (mut least, mut most) = (self.generation, self.generation);
            for other in (0..self.mortal).filter(|other| *other != rank) {
                self.endpoint.send(other, MET, &self.generation.to_le_bytes())?;
                let mut met = [0; 8];
                self.endpoint.recv(Source::Rank(other), Tag::Exactly(MET), &mut met)?;
                let met = u64::from_le_bytes(met);
                (least, most) = (least.min(met), most.max(met));
            }
            if least == most {
                return Ok(());
            }
            if self.generation < most {
                self.readmit_next()?;
            }
        }
    }
}

/// `restart-two TIMES`: as `restart`, with the last two ranks of four killed at once. Rank 0 tells a restarted
/// rank which rank it must itself readmit.
pub(super) fn two(times: u64) -> Outcome {
    let mut endpoint = open()?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mut generation = endpoint.incarnation();
    if generation > 0 {
        let mut word = [0; 8];
        endpoint.recv(Source::Rank(0), Tag::Exactly(SIGN), &mut word)?;
        generation = u64::from_le_bytes(word);
        take_back(&mut endpoint, size - 1)?;
        take_back(&mut endpoint, size - 2)?;
    }
    loop {
        tell(&format!("generation {generation}:"))?;
        let mut agreed = endpoint.agree(u64::MAX)?;
        for round in 0.. {
            if !agreed.gone.is_empty() {
                break;
            }
            for step in 0..size {
                let other = (size + step - rank) % size;
                let met = match_up(&mut endpoint, other, round, SIZES[round as usize % SIZES.len()]);
                if other + 2 < size || other == rank { met? } else { tolerate(met, other)? }
            }
            let done = generation == times && round >= ENOUGH;
            agreed = endpoint.agree(if done { u64::MAX } else { 0 })?;
            if agreed.flags != 0 && agreed.gone.is_empty() {
                return Ok(endpoint.close()?);
            }
        }
        generation += 1;
        // Both were killed, but perhaps only one death has been noticed.
        for gone in size - 2..size {
            take_back(&mut endpoint, gone)?;
            if rank == 0 {
                endpoint.send(gone, SIGN, &generation.to_le_bytes())?;
            }
        }
    }
}

/// Readmits a rank that was killed. If this process came back after that rank, it is readmitted by that rank.
fn take_back(endpoint: &mut Endpoint, gone: usize) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    while endpoint.rank() != gone && !endpoint.restarted()?.contains(&gone) {
        if endpoint.incarnation() > 0 && endpoint.failure(gone).is_none() && !endpoint.is_awaiting(gone) {
            return Ok(());
        }
        endpoint.progress();
        ensure(Instant::now() < deadline, || format!("rank {gone} does not come back"))?;
    }
    if endpoint.rank() == gone { Ok(()) } else { Ok(endpoint.readmit(gone)?) }
}

/// Exchanges a message with another rank.
fn match_up(endpoint: &mut Endpoint, other: usize, round: u64, len: usize) -> Outcome {
    let rank = endpoint.rank();
    let facts = |rank: usize| seed_of(&[rank as u64, round, len as u64]);
    let (out, mut buf) = (filled(facts(rank), len), vec![0; len]);
    let (from, into) = (&out, &mut buf);
    endpoint.scope(|scope| {
        let receive = scope.irecv(Source::Rank(other), Tag::Exactly(round), into)?;
        let send = scope.isend(other, round, from)?;
        scope.wait(receive)?;
        scope.wait(send).map(drop)
    })?;
    let wrong = difference(facts(other), &buf);
    ensure(wrong.is_none(), || format!("round {round}, from {other}: wrong at byte {wrong:?}"))
}

/// The mortal rank may be gone.
fn tolerate(done: Outcome, mortal: usize) -> Outcome {
    match done {
        Err(Fault::Library(Error::PeerFailed { rank, .. })) if rank == mortal => Ok(()),
        done => done,
    }
}

/// An exchange that records the addresses of the others.
#[derive(Debug)]
struct Eavesdropper {
    exchange: Bootstrap,
    heard: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

/// Opens the endpoint of this process, and returns it with what the others have published. `None`: this process was
/// started again, and must never join.
pub(super) fn eavesdrop() -> Outcome<Option<(Endpoint, Vec<String>)>> {
    let exchange = Bootstrap::from_env().map_err(Error::from)?;
    if exchange.incarnation() > 0 {
        return Ok(None);
    }
    let heard = std::sync::Arc::default();
    let eavesdropper = Eavesdropper { exchange, heard: std::sync::Arc::clone(&heard) };
    let config = Config::from_env().map_err(Error::from)?;
    let endpoint = Endpoint::open_with(&config, Box::new(eavesdropper))?;
    let heard = heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    Ok(Some((endpoint, heard)))
}

impl Exchange for Eavesdropper {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn size(&self) -> usize {
        self.exchange.size()
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.exchange.put(key, value)
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        let value = self.exchange.get(key)?;
        self.heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(value.clone());
        Ok(value)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.exchange.barrier()
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.exchange.finalize()
    }

    fn incarnation(&self) -> u64 {
        self.exchange.incarnation()
    }

    fn restarts(&self) -> bool {
        self.exchange.restarts()
    }

    fn join(&mut self, address: &str) -> Result<std::num::NonZeroU64, BootstrapError> {
        self.exchange.join(address)
    }

    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        self.exchange.member(rank)
    }
}

pub(super) const WORD: u64 = 7;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Rank 2, the impostor, calls rank 0 and claims to be the next process of living ranks; then of rank 1, which
/// has died and whose next process has not joined.
pub(super) fn impostor() -> Outcome {
    let Some((mut endpoint, heard)) = eavesdrop()? else { return never_join() };
    match endpoint.rank() {
        0 => called(endpoint),
        1 => die_when_told(&mut endpoint),
        _ => {
            let called = heard.first().and_then(|card| address(card));
            let called = called.ok_or_else(|| Fault::Broken(format!("no address in {heard:?}")))?;
            let held = [(1, 1), (1, 9)].map(|(rank, incarnation)| claim(&called, rank, incarnation));
            refused(&claim(&called, 1, 1)?, "a later process")?;
            for rank in [0, 7] {
                refused(&claim(&called, rank, 1)?, "no such rank")?;
            }
            refused(&claim(&called, 2, 0)?, "a later process")?;
            // Sends nothing at all.
            let _silent = HandoffConnection::connect(&socket(&called.token), Instant::now() + PATIENCE);
            endpoint.send(0, WORD, &[])?;
            endpoint.recv(Source::Rank(0), Tag::Exactly(WORD), &mut [])?;
            let [former, latest] = held;
            refused(&latest?, UNKNOWN)?;
            ensure(is_closed(&former?), || "the former claim is kept".into())?;
            refused(&claim(&called, 1, 1)?, UNKNOWN)?;
            refused(&claim(&called, 1, 9)?, UNKNOWN)?;
            endpoint.send(0, WORD, &[])?;
            Ok(endpoint.close()?)
        }
    }
}

/// The launcher has started this process, but it never joins.
pub(super) fn never_join() -> Outcome {
    std::thread::sleep(PATIENCE);
    broken("this process was not ended")
}

pub(super) fn die_when_told(endpoint: &mut Endpoint) -> Outcome {
    endpoint.recv(Source::Rank(0), Tag::Exactly(WORD), &mut [])?;
    std::process::abort();
}

/// Rank 0: the launcher starts no rank again, whatever rank 2 claims.
pub(super) fn called(mut endpoint: Endpoint) -> Outcome {
    endpoint.recv(Source::Rank(2), Tag::Exactly(WORD), &mut [])?;
    ensure(endpoint.restarted()?.is_empty(), || "a living rank was restarted".into())?;
    ensure(endpoint.survivors().len() == 3, || "a rank was lost".into())?;
    endpoint.send(1, WORD, &[])?;
    match endpoint.recv(Source::Rank(1), Tag::Any, &mut []) {
        Err(Error::PeerFailed { rank: 1, .. }) => {}
        other => return broken(format!("rank 1 has died: {other:?}")),
    }
    endpoint.send(2, WORD, &[])?;
    while endpoint.in_context(0).iprobe(Source::Rank(2), Tag::Exactly(WORD))?.is_none() {
        // Connection requests that arrive meanwhile are refused.
        let there = endpoint.restarted()?;
        ensure(there.is_empty(), || format!("{there:?} were restarted"))?;
    }
    endpoint.recv(Source::Rank(2), Tag::Exactly(WORD), &mut [])?;
    match endpoint.readmit(1) {
        Err(Error::NotRestarted { rank: 1 }) => {}
        other => return broken(format!("a readmission without a process: {other:?}")),
    }
    tell("refused all")?;
    Ok(endpoint.close()?)
}

/// What a process hears that the launcher has not started.
const UNKNOWN: &str = "the launcher does not know this process";

/// Calls the process with this address, and claims to be the next process of a rank.
fn claim(called: &LinkAddress, rank: u32, incarnation: u64) -> Outcome<HandoffConnection> {
    let deadline = Instant::now() + PATIENCE;
    let connection = HandoffConnection::connect(&socket(&called.token), deadline).map_err(Error::from)?;
    let (pid, token) = (std::process::id(), LinkToken::from_bytes([rank as u8 ^ incarnation as u8; 16]));
    let own = LinkAddress { pid, token, ..*called }.encode();
    let call = LinkCall { incarnation, instance: rank + 1, ..first_call(&OfferList::EMPTY) };
    let message = sealed_call(header("", 0), &own, &called.encode(), call);
    connection.send(message.get(), &[], deadline).map_err(Error::from)?;
    Ok(connection)
}

/// Expects a refusal with these words, perhaps after the message that the call is held.
fn refused(connection: &HandoffConnection, wanted: &str) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut bytes = [0; 512];
        let (len, _) = connection.recv(&mut bytes, 2, deadline).map_err(Error::from)?;
        match LinkMessage::decode(&bytes[..len], LINK_VERSION).map(|message| message.body) {
            Ok(LinkBody::Hold) => {}
            Ok(LinkBody::Refuse(refuse)) if refuse.text.get().contains(wanted) => return Ok(()),
            other => return broken(format!("{wanted:?}: {other:?}")),
        }
    }
}

/// Returns whether the other end has closed a connection, which has nothing but that the call is held.
fn is_closed(connection: &HandoffConnection) -> bool {
    let (mut bytes, deadline) = ([0; 512], Instant::now() + PATIENCE);
    while let Ok((len, _)) = connection.recv(&mut bytes, 2, deadline) {
        let message = LinkMessage::decode(&bytes[..len], LINK_VERSION);
        if !matches!(message.map(|message| message.body), Ok(LinkBody::Hold)) {
            return false;
        }
    }
    Instant::now() < deadline
}
