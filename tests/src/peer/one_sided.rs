//! `one-sided SEED OWN`: all one-sided operations by all ranks of a world. If OWN is 0, Nemesia allocates the
//! memory; else it is the process's own.
//!
//! `one-sided-crash SEED`: two ranks use each other's memory for ever.

use nemesia::{
    Access, Addressing, Comparison, CompleteAt, Endpoint, Error, ExposeOptions, KEY_BYTES, Path,
    PeerCounters, Reduction, Refusal, Region, RemoteKey, Source, Tag,
};

use super::{Fault, Outcome, barrier, broken, ensure, open, tell};
use crate::content::{Random, difference, filled, seed_of};

const BARRIER: u64 = 1 << 32;
const KEYS: u64 = 2 << 32;
/// The bytes of each rank's region.
const BYTES: usize = 1 << 20;
/// The values that all ranks use lie at the end.
const COUNTER: u64 = BYTES as u64 - 64;
const LOCK: u64 = BYTES as u64 - 56;
const GUARDED: u64 = BYTES as u64 - 48;
const SUM: u64 = BYTES as u64 - 40;
/// An array of counters that takes several packets.
const TICKETS: u64 = BYTES as u64 - 1024;
const TICKET_COUNT: usize = 40;

/// The repetitions of each kind of operation, for each rank.
fn rounds() -> u64 {
    if crate::quick() { 40 } else { 200 }
}

/// A rank, its region, and the keys of all.
struct KeyPlace {
    endpoint: Endpoint,
    region: Region,
    keys: Vec<RemoteKey>,
    seed: u64,
    barriers: u64,
}

pub(super) fn run(seed: u64, own: bool) -> Outcome {
    let mut place = KeyPlace::open(seed, own)?;
    place.path(own)?;
    place.paths_of_bytes()?;
    place.counters()?;
    place.tickets()?;
    place.locked()?;
    place.notified()?;
    place.flood()?;
    place.refusals()?;
    place.own_memory()?;
    place.chosen_key()?;
    place.barrier()?;
    let rank = place.endpoint.rank();
    tell(&format!("rank {rank}: one-sided operations on {} ranks", place.keys.len()))?;
    Ok(place.endpoint.close()?)
}

impl KeyPlace {
    fn open(seed: u64, own: bool) -> Outcome<Self> {
        let mut endpoint = open()?;
        let region = if own {
            let memory = vec![0_u64; BYTES / 8].leak();
            // SAFETY: the bytes live for ever, and nothing else uses them.
            unsafe { endpoint.expose(memory.as_mut_ptr().cast(), BYTES, Access::ReadWrite) }?
        } else {
            endpoint.allocate(BYTES, Access::ReadWrite)?
        };
        let keys = exchange(&mut endpoint, region, KEYS)?;
        Ok(Self { endpoint, region, keys, seed, barriers: BARRIER })
    }

    /// Checks the path of operations: those on the process's own memory always go in packets.
    fn path(&mut self, own: bool) -> Outcome {
        for key in self.keys.clone() {
            match self.endpoint.path(&key) {
                Path::Own => ensure(key.rank() == self.endpoint.rank(), || "not its own".into())?,
                Path::Direct => ensure(!own, || "memory of another process was mapped".into())?,
                Path::Packets { why } => tell(&format!("packets: {why}"))?,
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Outcome {
        self.barriers += 1;
        barrier(&mut self.endpoint, self.barriers)
    }

    /// Checks puts and gets, and reports by the counters how many of their bytes travelled in packets.
    fn paths_of_bytes(&mut self) -> Outcome {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let next = (rank + 1) % size;
        let before = self.endpoint.peer_counters(next);
        self.bytes()?;
        let Some((before, after)) = before.zip(self.endpoint.peer_counters(next)) else {
            return broken("there are no counters");
        };
        let moved = |of: fn(&PeerCounters) -> u64| of(&after) - of(&before);
        tell(&format!(
            "rank {rank} put into and got from rank {next}: {} bytes, {} directly, {} in packets",
            moved(|it| it.put_bytes + it.get_bytes),
            moved(|it| it.direct_bytes),
            moved(|it| it.rma_sent_bytes + it.rma_reply_received_bytes)
        ))
    }

    /// Every rank writes into the next rank's memory and reads it back, in sizes around every limit.
    fn bytes(&mut self) -> Outcome {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let key = self.keys[(rank + 1) % size];
        let before = (rank + size - 1) % size;
        let sizes =
            [0, 1, 8, 23, 24, 25, 863, 864, 865, 1000, 32_743, 32_744, 32_745, 65_536, 300_000, 900_001];
        for (at, len) in sizes.into_iter().enumerate() {
            let content = |from: usize| seed_of(&[self.seed, from as u64, at as u64]);
            let (out, offset) = (filled(content(rank), len), (at * 1000) as u64);
            self.endpoint.put(&key, offset, &out)?;
            self.endpoint.flush((rank + 1) % size)?;
            let mut back = vec![0; len];
            self.endpoint.get(&key, offset, &mut back)?;
            ensure(back == out, || format!("put and got back {len} bytes, and they differ"))?;
            self.barrier()?;
            self.endpoint.read_region(self.region, offset as usize, &mut back)?;
            let content = seed_of(&[self.seed, before as u64, at as u64]);
            if let Some(wrong) = difference(content, &back) {
                return broken(format!("{len} bytes put by rank {before}: wrong at byte {wrong}"));
            }
            self.barrier()?;
        }
        Ok(())
    }

    /// All ranks count at every rank: no increment is lost, and no number is returned twice.
    fn counters(&mut self) -> Outcome {
        let size = self.endpoint.size() as u64;
        let zeros = [0; 64];
        self.endpoint.write_region(self.region, COUNTER as usize, &zeros)?;
        self.barrier()?;
        let mut given = Vec::new();
        for round in 0..rounds() {
            for key in self.keys.clone() {
                let old: u64 = self.endpoint.fetch_add(&key, COUNTER, 1)?;
                if key.rank() == 0 {
                    given.push(old);
                }
                self.endpoint.accumulate(&key, SUM, Reduction::Sum, &[0.5_f64, round as f64])?;
            }
        }
        self.endpoint.flush_all()?;
        ensure(given.is_sorted_by(|one, next| one < next), || "a number was given twice".into())?;
        self.barrier()?;
        let counted: u64 = self.value(COUNTER)?;
        ensure(counted == size * rounds(), || format!("{counted} counted"))?;
        let key = self.keys[self.endpoint.rank()];
        let sum: f64 = self.endpoint.fetch(&key, SUM, Reduction::Nothing, 0.0)?;
        let other: f64 = self.endpoint.fetch(&key, SUM + 8, Reduction::Nothing, 0.0)?;
        let count = size * rounds();
        let (halves, numbers) = (count as f64 / 2.0, (count * (rounds() - 1)) as f64 / 2.0);
        ensure((sum, other) == (halves, numbers), || format!("{sum} and {other} accumulated"))
    }

    /// The same for an array of counters, each by itself.
    fn tickets(&mut self) -> Outcome {
        let size = self.endpoint.size() as u64;
        self.endpoint.write_region(self.region, TICKETS as usize, &[0; 8 * TICKET_COUNT])?;
        self.barrier()?;
        let mut given = [None; TICKET_COUNT];
        let mut old = [0_u64; TICKET_COUNT];
        for _ in 0..rounds() {
            for key in self.keys.clone() {
                let one = [1; TICKET_COUNT];
                self.endpoint.fetch_accumulate(&key, TICKETS, Reduction::Sum, &one, &mut old)?;
                for (given, old) in given.iter_mut().zip(old).filter(|_| key.rank() == 0) {
                    ensure(*given < Some(old), || format!("{old} was given after {given:?}"))?;
                    *given = Some(old);
                }
            }
        }
        self.barrier()?;
        for key in self.keys.clone() {
            self.endpoint.fetch_accumulate(&key, TICKETS, Reduction::Nothing, &[], &mut old)?;
            ensure(old == [size * rounds(); TICKET_COUNT], || format!("{old:?} were given"))?;
        }
        self.barrier()
    }

    fn value(&mut self, at: u64) -> Outcome<u64> {
        let mut bytes = [0; 8];
        self.endpoint.read_region(self.region, at as usize, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A lock by compare-and-swap protects a counter that is read and written separately.
    fn locked(&mut self) -> Outcome {
        let (me, size) = (self.endpoint.rank() as i64 + 1, self.endpoint.size() as u64);
        let key = self.keys[0];
        for _ in 0..rounds() / 4 {
            while self.endpoint.compare_swap(&key, LOCK, 0_i64, me)? != 0 {}
            let mut bytes = [0; 8];
            self.endpoint.get(&key, GUARDED, &mut bytes)?;
            let next = u64::from_le_bytes(bytes) + 1;
            self.endpoint.put(&key, GUARDED, &next.to_le_bytes())?;
            self.endpoint.flush(0)?;
            let held: i64 = self.endpoint.swap(&key, LOCK, 0)?;
            ensure(held == me, || format!("the lock was {held}'s and not {me}'s"))?;
        }
        self.barrier()?;
        if me == 1 {
            let counted = self.value(GUARDED)?;
            ensure(counted == size * (rounds() / 4), || format!("{counted} counted under the lock"))?;
        }
        self.barrier()
    }

    /// Bytes go round the ranks. Only the notification informs a rank that they have arrived.
    fn notified(&mut self) -> Outcome {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let key = self.keys[(rank + 1) % size];
        let before = (rank + size - 1) % size;
        let start = self.endpoint.notifications(self.region)?;
        self.barrier()?;
        let mut random = Random::new(self.seed);
        for round in 1..=rounds() {
            let len = random.pick(&[0, 8, 1000, 70_000]);
            let content = |from: usize| seed_of(&[self.seed, from as u64, round]);
            // The places alternate: the next rank may be as many rounds behind as there are other ranks.
            let at = (round % (size as u64 + 1)) * 100_000;
            self.endpoint.put_notify(&key, at, &filled(content(rank), len))?;
            self.endpoint.wait_notified(self.region, start + round)?;
            let mut buf = vec![0; len];
            self.endpoint.read_region(self.region, at as usize, &mut buf)?;
            if let Some(wrong) = difference(content(before), &buf) {
                return broken(format!("round {round}: {len} bytes, wrong at byte {wrong}"));
            }
        }
        self.barrier()
    }

    /// Every rank reads from every rank, far more at once than the window allows.
    fn flood(&mut self) -> Outcome {
        let rank = self.endpoint.rank();
        let content = filled(seed_of(&[self.seed, rank as u64]), 100_000);
        self.endpoint.write_region(self.region, 0, &content)?;
        self.barrier()?;
        let keys = self.keys.clone();
        let mut bufs = vec![vec![0; 20_000]; 300];
        let buffers = bufs.iter_mut();
        self.endpoint.scope(move |scope| {
            for (number, buf) in buffers.enumerate() {
                scope.iget(&keys[number % keys.len()], (number * 200) as u64, buf)?;
            }
            Ok(())
        })?;
        for (number, buf) in bufs.iter().enumerate() {
            let from = number % self.keys.len();
            let whole = filled(seed_of(&[self.seed, from as u64]), 100_000);
            ensure(*buf == whole[number * 200..][..20_000], || format!("get {number}: wrong bytes"))?;
        }
        self.barrier()
    }

    /// A forbidden operation is refused, by the key or by the target, and everything else goes on.
    fn refusals(&mut self) -> Outcome {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let next = (rank + 1) % size;
        let scratch = self.endpoint.allocate(4096, Access::Read)?;
        let keys = exchange(&mut self.endpoint, scratch, KEYS + 1)?;
        let refused = |outcome: Result<(), Error>, wanted: Refusal, what: &str| match outcome {
            Err(Error::Refused { rank, refusal, .. }) if rank == next && refusal == wanted => Ok(()),
            other => broken(format!("{what}: {other:?}")),
        };
        let key = keys[next];
        refused(self.endpoint.put(&key, 0, &[1]), Refusal::Access, "a put into what can be read")?;
        refused(self.endpoint.get(&key, 4090, &mut [0; 8]), Refusal::Bounds, "a get beyond the end")?;
        // A key that claims more than it grants.
        let mut bytes = key.to_bytes();
        bytes[2] = 3;
        let forged = RemoteKey::from_bytes(next, &bytes).ok_or_else(|| Fault::Broken("no key".into()))?;
        if next == rank {
            refused(self.endpoint.put(&forged, 0, &[1]), Refusal::Access, "a forged key")?;
        } else {
            self.endpoint.put(&forged, 0, &[1])?;
            refused(self.endpoint.flush(next), Refusal::Access, "a forged key")?;
        }
        self.endpoint.flush(next)?;
        self.barrier()?;
        self.endpoint.unexpose(scratch)?;
        let again = self.endpoint.unexpose(scratch);
        ensure(matches!(again, Err(Error::Region)), || format!("unexposed twice: {again:?}"))?;
        self.barrier()?;
        refused(self.endpoint.get(&key, 0, &mut [0; 8]), Refusal::Key, "a get from what is unexposed")?;
        self.barrier()
    }

    /// Exposes the process's own memory at an odd address.
    fn own_memory(&mut self) -> Outcome {
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let mut memory = vec![0_u8; 3 << 20];
        let base = memory.as_mut_ptr();
        // SAFETY: the bytes live until the region is unexposed, and nothing reads them before.
        let region = unsafe { self.endpoint.expose(base.wrapping_add(3), (3 << 20) - 3, Access::ReadWrite) }?;
        let keys = exchange(&mut self.endpoint, region, KEYS + 2)?;
        let seed = self.seed;
        let content = |from: usize| filled(seed_of(&[seed, from as u64, 77]), (3 << 20) - 3);
        self.endpoint.put(&keys[(rank + 1) % size], 0, &content(rank))?;
        self.endpoint.flush_all()?;
        let odd: Result<u64, _> = self.endpoint.fetch_add(&keys[(rank + 1) % size], 0, 1);
        ensure(matches!(odd, Err(Error::Refused { refusal: Refusal::Alignment, .. })), || {
            format!("{odd:?}")
        })?;
        self.barrier()?;
        self.endpoint.unexpose(region)?;
        ensure(memory[3..] == content((rank + size - 1) % size), || "3 MiB put: wrong bytes".into())?;
        ensure(memory[..3] == [0; 3], || "bytes before the region were written".into())
    }
}

impl KeyPlace {
    /// Uses regions whose keys the ranks have agreed on, by offset and by address, with operations that are complete
    /// at their target: a message that follows proves it.
    fn chosen_key(&mut self) -> Outcome {
        const LEN: usize = 50_000;
        let (rank, size) = (self.endpoint.rank(), self.endpoint.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let memory: &'static mut [u64] = vec![0; LEN / 8].leak();
        let base = memory.as_mut_ptr().cast();
        let addressing = if rank.is_multiple_of(2) { Addressing::Offset } else { Addressing::Address };
        let options = ExposeOptions { key: Some(7), addressing };
        // SAFETY: the bytes live for ever, and nothing else uses them.
        let region = unsafe { self.endpoint.expose_as(base, LEN, Access::ReadWrite, options) }?;
        // SAFETY: the same; it is refused.
        let again = unsafe { self.endpoint.expose_as(base, LEN, Access::ReadWrite, options) };
        ensure(matches!(again, Err(Error::KeyInUse { key: 7 })), || format!("one key twice: {again:?}"))?;
        let first = self.endpoint.remote_key(region)?.base();
        self.endpoint.send(previous, KEYS + 3, &first.to_le_bytes())?;
        let mut its = [0; 8];
        self.endpoint.recv(Source::Rank(next), Tag::Exactly(KEYS + 3), &mut its)?;
        let (key, its) = (RemoteKey::new(next, 7), u64::from_le_bytes(its));
        for round in 0..20 {
            let content = |from: usize| filled(seed_of(&[self.seed, from as u64, round]), LEN - 8);
            let bytes = content(rank);
            self.endpoint.put_as(&key, its, &bytes, false, CompleteAt::Target)?;
            let old: u8 = self.endpoint.swap_if(&key, its + LEN as u64 - 8, Comparison::LessOrEqual, 0, 9)?;
            ensure(old == if round == 0 { 0 } else { 9 }, || format!("round {round}: {old}"))?;
            self.endpoint.send(next, KEYS + 4, &[])?;
            self.endpoint.recv(Source::Rank(previous), Tag::Exactly(KEYS + 4), &mut [])?;
            let mut seen = vec![0; LEN - 8];
            self.endpoint.read_region(region, 0, &mut seen)?;
            ensure(seen == content(previous), || format!("round {round}: the bytes are not there"))?;
            self.barrier()?;
        }
        let guess = self.endpoint.put_as(&RemoteKey::new(next, 8), its, &[1], false, CompleteAt::Target);
        let refused = matches!(guess, Err(Error::Refused { refusal: Refusal::Key, count: 1, .. }));
        ensure(refused, || format!("a guessed key: {guess:?}"))?;
        self.barrier()?;
        Ok(self.endpoint.unexpose(region)?)
    }
}

/// Sends the key of a region to every rank, and receives theirs.
fn exchange(endpoint: &mut Endpoint, region: Region, tag: u64) -> Outcome<Vec<RemoteKey>> {
    let key = endpoint.remote_key(region)?.to_bytes();
    for to in 0..endpoint.size() {
        endpoint.send(to, tag, &key)?;
    }
    let mut keys = Vec::new();
    for from in 0..endpoint.size() {
        let mut bytes = [0; KEY_BYTES];
        endpoint.recv(Source::Rank(from), Tag::Exactly(tag), &mut bytes)?;
        keys.push(RemoteKey::from_bytes(from, &bytes).ok_or_else(|| Fault::Broken("not a key".into()))?);
    }
    Ok(keys)
}

/// Ends only by an error.
pub(super) fn crash(seed: u64) -> Outcome {
    let mut place = KeyPlace::open(seed, seed.is_multiple_of(2))?;
    let partner = place.endpoint.rank() ^ 1;
    let (key, mut random) = (place.keys[partner], Random::new(seed));
    place.endpoint.set_handler(1, |message| {
        // A reply that finds no room does not matter here.
        let _ = message.reply(2, &[], message.payload().to_vec().as_slice());
    });
    place.endpoint.set_handler(2, |_| {});
    place.barrier()?;
    tell("at work")?;
    let mut buf = vec![0; 300_000];
    loop {
        let len = random.pick(&[0, 8, 700, 5000, 40_000, 300_000]);
        match random.below(6) {
            0 => place.endpoint.get(&key, 0, &mut buf[..len])?,
            1 => place.endpoint.put(&key, 0, &buf[..len])?,
            2 => place.endpoint.flush_all()?,
            3 => drop(place.endpoint.fetch_add(&key, COUNTER, 1_u64)?),
            4 => place.endpoint.send_active(partner, 1, &[], &buf[..len.min(5000)])?,
            _ => {
                let keys = [key; 40];
                place.endpoint.scope(|scope| {
                    for (key, part) in keys.iter().zip(buf.chunks_mut(5000)) {
                        scope.iget(key, 0, part)?;
                    }
                    Ok(())
                })?;
            }
        }
    }
}
