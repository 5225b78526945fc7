//! The table of peers that ships, against a twin that remembers everything: random operations of the layer above, in
//! any order, with few slots and connections. The machine of links decides what becomes of calls
//! ([`links`](super::links)).

use std::collections::BTreeSet;

use nemesia_core::peers::{
    CallRefusal, PeerAddress, PeerEnd, PeerError, PeerLimits, PeerRef, PeerSlot, PeerStage, Peers, Speaking,
};
use nemesia_core::slab::{List, Slot};

use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, ensure};

/// Addresses of other processes in a world.
const ADDRESSES: usize = 12;

/// A peer, as the twin knows it.
#[derive(Clone, Copy, Debug)]
struct TwinPeer {
    peer: PeerRef,
    address: PeerAddress,
    stage: PeerStage,
}

/// A table and its twin.
#[derive(Debug)]
pub(crate) struct PeersWorld {
    rng: Rng,
    table: Peers<Vec<Slot<PeerSlot>>, Vec<List>, Vec<u32>>,
    own: PeerAddress,
    limits: PeerLimits,
    slots: usize,
    /// The addresses of other processes. Those of pinned peers come first.
    addresses: Vec<PeerAddress>,
    twins: Vec<TwinPeer>,
    /// Identifiers that were released.
    released: Vec<PeerRef>,
    /// Numbers that are in use, and those among them whose connections have ended.
    numbers: BTreeSet<u32>,
    ended: Vec<u32>,
    /// Numbers that were ever used.
    used: BTreeSet<u32>,
    tally: Tally,
    trace: Trace,
    now: u64,
}

impl PeersWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Self {
        let address = |rng: &mut Rng| {
            let mut bytes = [0; 64];
            bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = rng.next().to_le_bytes());
            PeerAddress::from_bytes(bytes)
        };
        let own = address(&mut rng);
        let addresses: Vec<_> = (0..ADDRESSES).map(|_| address(&mut rng)).collect();
        let pinned = if rng.one_in(2) { 1 + rng.below(4) } else { 0 };
        let connections = 1 + rng.below(5) as u32;
        let limits = PeerLimits { connections, strangers: !rng.one_in(4), pinned: pinned as u32 };
        let slots = pinned + 1 + rng.below(8);
        // One number more than the limit, which is what counts.
        let numbers = vec![0; pinned + connections as usize + 1];
        let places = (0..slots).map(|_| Slot::default()).collect();
        let buckets = vec![List::new(); 1 << rng.below(4)];
        let mut table = Peers::new(own, limits, (places, buckets, numbers), rng.next());
        let join = |address: &PeerAddress| {
            let peer = table.connect(address).ok()?;
            Some(TwinPeer { peer, address: *address, stage: PeerStage::Apart })
        };
        let twins = addresses[..pinned].iter().filter_map(join).collect();
        Self {
            rng,
            table,
            own,
            limits,
            slots,
            addresses,
            twins,
            released: Vec::new(),
            numbers: BTreeSet::new(),
            ended: Vec::new(),
            used: BTreeSet::new(),
            tally: Tally::default(),
            trace,
            now: 0,
        }
    }

    /// Makes one random step.
    pub(crate) fn step(&mut self) -> Check {
        self.now += 1;
        match self.rng.below(100) {
            0..15 => self.connect(),
            15..35 => self.speak(),
            35..55 => self.admit(),
            55..70 => self.open(),
            70..85 => self.end(),
            85..92 => self.free_number(),
            92..96 => self.release(),
            96..98 => self.renew(),
            _ => self.use_released(),
        }?;
        self.check()
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        self.trace.note(self.now, what);
    }

    fn count_if(&mut self, is_so: bool, event: Event) {
        if is_so {
            self.tally.count(event);
        }
    }

    fn find(&self, address: &PeerAddress) -> Option<usize> {
        self.twins.iter().position(|twin| twin.address == *address)
    }

    fn is_pinned(&self, at: usize) -> bool {
        self.twins[at].peer.index() < self.limits.pinned
    }

    /// Returns an address: sometimes that of the process itself.
    fn any_address(&mut self) -> PeerAddress {
        if self.rng.one_in(20) { self.own } else { self.rng.pick(&self.addresses) }
    }

    fn any_peer(&mut self) -> Option<usize> {
        (!self.twins.is_empty()).then(|| self.rng.below(self.twins.len()))
    }

    /// Returns whether the next further peer can have a number.
    fn has_number(&self) -> bool {
        self.further_numbers() < self.limits.connections as usize
    }

    fn further_numbers(&self) -> usize {
        self.numbers.iter().filter(|number| **number >= self.limits.pinned).count()
    }

    /// A new peer is in the table.
    fn meet(&mut self, peer: PeerRef, address: PeerAddress) -> Check {
        let is_known = self.twins.iter().any(|twin| twin.peer == peer) || self.released.contains(&peer);
        ensure!(!is_known, "a new peer has the identifier {peer:?} of another one");
        let is_again = self.released.iter().any(|old| old.index() == peer.index());
        self.count_if(is_again, Event::PeerSlotAgain);
        self.twins.push(TwinPeer { peer, address, stage: PeerStage::Apart });
        Ok(())
    }

    /// A peer has this number from now on.
    fn take(&mut self, at: usize, number: u32) -> Check {
        let pinned = self.limits.pinned;
        if self.is_pinned(at) {
            ensure!(number == self.twins[at].peer.index(), "a pinned peer has number {number}");
        } else {
            ensure!(number >= pinned, "a further peer has the number {number} of a pinned one");
            ensure!(!self.numbers.contains(&number), "number {number} is in use");
            self.count_if(self.used.contains(&number), Event::PeerNumberAgain);
        }
        self.numbers.insert(number);
        self.used.insert(number);
        Ok(())
    }

    fn connect(&mut self) -> Check {
        let address = self.any_address();
        let (found, known) = (self.table.connect(&address), self.find(&address));
        self.note(|| format!("connect: {found:?}, known as {known:?}"));
        match (found, known) {
            (Err(PeerError::Itself), None) if address == self.own => Ok(()),
            (Err(PeerError::Slots { .. }), None) if self.twins.len() == self.slots => {
                self.tally.count(Event::PeerFull);
                Ok(())
            }
            (Ok(peer), None) if address != self.own => self.meet(peer, address),
            (Ok(peer), Some(at)) if peer == self.twins[at].peer => {
                if matches!(self.twins[at].stage, PeerStage::Ended(_)) && !self.is_pinned(at) {
                    self.twins[at].stage = PeerStage::Apart;
                }
                Ok(())
            }
            (found, known) => broken(format!("an address is {found:?}, and known as {known:?}")),
        }
    }

    fn speak(&mut self) -> Check {
        let Some(at) = self.any_peer() else { return Ok(()) };
        let TwinPeer { peer, stage, .. } = self.twins[at];
        let may_call = self.is_pinned(at) || self.has_number();
        let spoken = self.table.speak(peer);
        self.note(|| format!("speak to {peer:?}, {stage:?}: {spoken:?}"));
        match (stage, spoken) {
            (PeerStage::Connected(number), Ok(Speaking::Ready(it))) if it == number => Ok(()),
            (PeerStage::Calling(number) | PeerStage::Answering(number), Ok(Speaking::Wait(it)))
                if it == number =>
            {
                Ok(())
            }
            (PeerStage::Ended(end), Err(PeerError::Ended(it))) if it == end => Ok(()),
            (PeerStage::Apart, Ok(Speaking::Call(number))) if may_call => {
                self.tally.count(Event::PeerCall);
                self.take(at, number)?;
                self.twins[at].stage = PeerStage::Calling(number);
                Ok(())
            }
            (PeerStage::Apart, Err(PeerError::Connections { .. })) if !may_call => {
                self.tally.count(Event::PeerFull);
                Ok(())
            }
            (stage, spoken) => broken(format!("a peer that is {stage:?} is spoken to: {spoken:?}")),
        }
    }

    /// A process calls whose call counts.
    fn admit(&mut self) -> Check {
        let address = self.any_address();
        let known = self.find(&address);
        let expected = self.refusal(&address, known);
        let admitted = self.table.admit(&address);
        self.note(|| format!("admit, known as {known:?}: {admitted:?}"));
        match (admitted, expected) {
            (Err(refusal), Some(expected)) if refusal == expected => {
                self.count_if(refusal == CallRefusal::Full, Event::PeerFull);
                self.count_if(refusal == CallRefusal::Unknown, Event::PeerStranger);
                // A stranger that had a place and no number is known from now on.
                if let (None, Some(peer)) = (known, self.table.peer_by(&address)) {
                    self.meet(peer, address)?;
                }
                Ok(())
            }
            (Ok((peer, number)), None) => {
                let at = match known {
                    Some(at) => at,
                    None => {
                        self.meet(peer, address)?;
                        self.twins.len() - 1
                    }
                };
                ensure!(self.twins[at].peer == peer, "another peer is admitted: {peer:?}");
                match self.twins[at].stage.number() {
                    Some(kept) => ensure!(kept == number, "a caller has number {number}, not {kept}"),
                    None => self.take(at, number)?,
                }
                self.twins[at].stage = PeerStage::Answering(number);
                Ok(())
            }
            (admitted, expected) => broken(format!("a caller is {admitted:?} instead of {expected:?}")),
        }
    }

    /// Returns why a caller must be refused.
    fn refusal(&self, address: &PeerAddress, known: Option<usize>) -> Option<CallRefusal> {
        let is_full = !self.has_number();
        let Some(at) = known else {
            return match () {
                () if *address == self.own => Some(CallRefusal::Itself),
                () if !self.limits.strangers => Some(CallRefusal::Unknown),
                () if is_full || self.twins.len() == self.slots => Some(CallRefusal::Full),
                () => None,
            };
        };
        match self.twins[at].stage {
            PeerStage::Connected(_) => Some(CallRefusal::Connected),
            PeerStage::Ended(_) if self.is_pinned(at) => Some(CallRefusal::Unknown),
            PeerStage::Calling(_) | PeerStage::Answering(_) => None,
            PeerStage::Apart | PeerStage::Ended(_) => {
                (is_full && !self.is_pinned(at)).then_some(CallRefusal::Full)
            }
        }
    }

    fn open(&mut self) -> Check {
        let Some(at) = self.any_peer() else { return Ok(()) };
        let TwinPeer { peer, stage, .. } = self.twins[at];
        let expected = match stage {
            PeerStage::Calling(number) | PeerStage::Answering(number) => Some(number),
            _ => None,
        };
        let opened = self.table.opened(peer);
        self.note(|| format!("{peer:?} is open: {opened:?}"));
        ensure!(opened == expected, "the link with a peer that is {stage:?} is open: {opened:?}");
        if let Some(number) = opened {
            self.twins[at].stage = PeerStage::Connected(number);
        }
        Ok(())
    }

    fn end(&mut self) -> Check {
        let Some(at) = self.any_peer() else { return Ok(()) };
        let TwinPeer { peer, stage, .. } = self.twins[at];
        let end = self.rng.pick(&[PeerEnd::Lost, PeerEnd::Left, PeerEnd::Disconnected, PeerEnd::Refused]);
        let ended = self.table.ended(peer, end);
        self.note(|| format!("{peer:?} ends, {end:?}: {ended:?}"));
        ensure!(ended == stage.number(), "the end of a peer that is {stage:?}: {ended:?}");
        let Some(number) = ended else { return Ok(()) };
        self.count_if(end == PeerEnd::Left, Event::PeerLeft);
        self.twins[at].stage = match (stage, end) {
            // Nothing has happened: the caller has abandoned it.
            (PeerStage::Answering(_), PeerEnd::Lost) => PeerStage::Apart,
            _ => PeerStage::Ended(end),
        };
        if number < self.limits.pinned {
            self.numbers.remove(&number);
        } else {
            self.ended.push(number);
        }
        Ok(())
    }

    fn free_number(&mut self) -> Check {
        if !self.ended.is_empty() {
            let at = self.rng.below(self.ended.len());
            let number = self.ended.swap_remove(at);
            self.note(|| format!("number {number} is free"));
            self.table.free_number(number);
            self.numbers.remove(&number);
        }
        Ok(())
    }

    fn release(&mut self) -> Check {
        let Some(at) = self.any_peer() else { return Ok(()) };
        let TwinPeer { peer, stage, .. } = self.twins[at];
        let expected = match stage.number() {
            _ if self.is_pinned(at) => Err(PeerError::Pinned),
            Some(_) => Err(PeerError::InUse),
            None => Ok(()),
        };
        let released = self.table.release(peer);
        self.note(|| format!("release {peer:?}: {released:?}"));
        ensure!(released == expected, "a peer that is {stage:?} is released: {released:?}");
        if released.is_ok() {
            self.twins.swap_remove(at);
            self.released.push(peer);
        }
        Ok(())
    }

    /// A pinned peer gets the address of the process that replaces it.
    fn renew(&mut self) -> Check {
        let pinned: Vec<_> = (0..self.twins.len()).filter(|at| self.is_pinned(*at)).collect();
        if pinned.is_empty() {
            return Ok(());
        }
        let (at, address) = (self.rng.pick(&pinned), self.any_address());
        let TwinPeer { peer, stage, .. } = self.twins[at];
        let is_taken = address == self.own || self.find(&address).is_some_and(|other| other != at);
        let expected = if is_taken || stage.number().is_some() { Err(PeerError::InUse) } else { Ok(()) };
        let renewed = self.table.renew(peer, &address);
        self.note(|| format!("renew {peer:?}: {renewed:?}"));
        ensure!(renewed == expected, "a peer that is {stage:?} is renewed: {renewed:?}");
        if renewed.is_ok() {
            (self.twins[at].address, self.twins[at].stage) = (address, PeerStage::Apart);
        }
        Ok(())
    }

    /// A released identifier names nothing.
    fn use_released(&mut self) -> Check {
        if self.released.is_empty() {
            return Ok(());
        }
        let peer = self.rng.pick(&self.released);
        let spoken = self.table.speak(peer);
        ensure!(spoken == Err(PeerError::Stale), "a released peer is spoken to: {spoken:?}");
        let found = (self.table.stage(peer), self.table.release(peer), self.table.opened(peer));
        let nothing = (Err(PeerError::Stale), Err(PeerError::Stale), None);
        ensure!(found == nothing, "a released identifier names a peer: {found:?}");
        Ok(())
    }

    /// Compares all that can be asked of the table with the twin.
    fn check(&self) -> Check {
        let Self { table, twins, .. } = self;
        ensure!(table.len() == twins.len(), "{} peers instead of {}", table.len(), twins.len());
        let (connections, numbers) = (table.connections() as usize, self.further_numbers());
        ensure!(connections == numbers, "{connections} connections instead of {numbers}");
        for TwinPeer { peer, address, stage } in twins {
            ensure!(table.stage(*peer) == Ok(*stage), "{:?} instead of {stage:?}", table.stage(*peer));
            ensure!(table.address_of(*peer) == Ok(address), "{peer:?} has another address");
            ensure!(table.peer_by(address) == Some(*peer), "the address of {peer:?} names another peer");
            if let Some(number) = stage.number() {
                let named = table.peer_with(number);
                ensure!(named == Some(*peer), "number {number} names {named:?} instead of {peer:?}");
            }
        }
        Ok(())
    }

    /// Frees everything, and checks that nothing is left.
    pub(crate) fn finish(&mut self) -> Check {
        for at in 0..self.twins.len() {
            if let Some(number) = self.table.ended(self.twins[at].peer, PeerEnd::Left)
                && number >= self.limits.pinned
            {
                self.ended.push(number);
            }
        }
        self.ended.drain(..).for_each(|number| self.table.free_number(number));
        ensure!(self.table.connections() == 0, "{} numbers are lost", self.table.connections());
        Ok(())
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (self.tally, self.trace.take())
    }
}

fn broken(what: String) -> Check {
    Err(crate::violation::Violation(what))
}
