//! The ledger and its senders against a reference model that keeps every packet and recomputes all sums after each
//! step.

mod growing;
mod held;
mod widening;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Account, Allowance, ArrivedBytes, CeilingError, Lack, Ledger, WINDOW};
use crate::shared::tests::cases;
use crate::store::{cost, split};

#[derive(Clone, Copy, Debug)]
enum FlowOp {
    /// A peer sends a packet of this cost, if it has credit.
    Send(usize, u32),
    /// The next packet of a peer arrives, to be stored or not.
    Arrive(usize, bool),
    /// The n-th stored packet of a peer is removed.
    Remove(usize, usize),
    /// A peer learns its total.
    Learn(usize),
    /// One regrant for a waiting peer.
    Regrant,
    /// The window of a peer is widened, if there is room.
    Widen(usize),
    /// Units for messages to this process itself.
    Reserve(u32),
    Release,
    Close(usize),
    /// The next process of a peer connects.
    Open(usize),
}

#[derive(Clone, Default)]
struct FlowPeer {
    allowance: Allowance,
    /// The total that the ledger returned last.
    published: u64,
    flying: VecDeque<u32>,
    arrived: u64,
    stored: Vec<u32>,
    closed: bool,
}

impl FlowPeer {
    fn stored(&self) -> u64 {
        self.stored.iter().map(|&cost| u64::from(cost)).sum()
    }

    fn window(&self) -> u64 {
        self.published - self.arrived
    }
}

#[derive(Clone)]
struct FlowTwin {
    ceiling: u32,
    packet: u32,
    ledger: Ledger,
    accounts: Vec<Account>,
    peers: Vec<FlowPeer>,
    ourselves: Vec<u32>,
}

impl FlowTwin {
    fn new(ceiling: u32, peers: u32, window: u32, packet: u32) -> Option<Self> {
        Self::with_own(ceiling, peers, window, packet, None)
    }

    fn with_own(ceiling: u32, peers: u32, window: u32, packet: u32, own: Option<u32>) -> Option<Self> {
        let ledger = Ledger::new(ceiling, peers, window, packet);
        assert_eq!(ledger.is_ok(), peers * packet <= ceiling);
        let (mut ledger, mut accounts) = (ledger.ok()?, vec![Account::default(); peers as usize]);
        if let Some(own) = own {
            ledger = ledger.with_own(own);
        }
        let ceiling = ceiling + own.unwrap_or(0);
        let mut open = |peer| {
            let published = ledger.open(&mut accounts, peer);
            assert_eq!(published, u64::from(ledger.reserve()));
            FlowPeer { allowance: Allowance::new(published), published, ..FlowPeer::default() }
        };
        let peers = (0..peers).map(&mut open).collect();
        let twin = Self { ceiling, packet, ledger, accounts, peers, ourselves: vec![] };
        twin.check();
        Some(twin)
    }

    fn apply(&mut self, op: FlowOp) {
        match op {
            FlowOp::Send(at, cost) => self.send(at, cost),
            FlowOp::Arrive(at, stored) => self.arrive(at, stored),
            FlowOp::Remove(at, which) => self.remove(at, which),
            FlowOp::Learn(at) => self.learn(at),
            FlowOp::Regrant => {
                let can = self.ledger.can_regrant();
                let regrant = self.ledger.next_regrant(&mut self.accounts);
                assert!(can || regrant.is_none());
                if let Some((peer, total)) = regrant {
                    self.publish(peer as usize, total);
                }
            }
            FlowOp::Widen(at) => {
                let spare = self.ledger.free();
                if let Some(total) = self.ledger.widen(&mut self.accounts, at as u32, spare) {
                    self.publish(at, total);
                }
            }
            FlowOp::Reserve(units) => {
                let free = self.ledger.free() + self.ledger.own_free;
                assert_eq!(self.ledger.try_reserve(units), units <= free);
                if units <= free {
                    self.ourselves.push(units);
                }
            }
            FlowOp::Release => {
                if let Some(units) = self.ourselves.pop() {
                    self.ledger.release(units);
                }
            }
            FlowOp::Close(at) => {
                let peer = &mut self.peers[at];
                peer.closed = true;
                peer.flying.clear();
                peer.published = peer.arrived;
                self.ledger.close(&mut self.accounts, at as u32);
            }
            FlowOp::Open(at) => {
                let (peer, published) =
                    (&mut self.peers[at], self.ledger.open(&mut self.accounts, at as u32));
                if std::mem::take(&mut peer.closed) {
                    assert_eq!(
                        published + peer.stored(),
                        u64::from(self.ledger.reserve()).max(peer.stored())
                    );
                    (peer.published, peer.arrived) = (published, 0);
                    peer.allowance = Allowance::new(published);
                }
                assert_eq!(published, peer.published);
            }
        }
        self.check();
    }

    fn send(&mut self, at: usize, cost: u32) {
        let peer = &mut self.peers[at];
        let flying: u32 = peer.flying.iter().sum();
        if !peer.closed {
            // The sender knows at most the published total, so it never exceeds it.
            assert!(peer.allowance.left() + u64::from(flying) <= peer.window());
        }
        assert_eq!(peer.allowance.may(cost), u64::from(cost) <= peer.allowance.left());
        if peer.allowance.may(cost) && !peer.closed {
            peer.allowance.spend(cost);
            peer.flying.push_back(cost);
        }
    }

    fn arrive(&mut self, at: usize, stored: bool) {
        self.overdraw(at);
        let Some(cost) = self.peers[at].flying.pop_front() else { return };
        let arrived = self.ledger.arrived(&mut self.accounts, at as u32, cost, stored);
        let peer = &mut self.peers[at];
        peer.arrived += u64::from(cost);
        if stored {
            peer.stored.push(cost);
        }
        match arrived {
            ArrivedBytes::Fine => {}
            ArrivedBytes::Regrant(total) => self.publish(at, total),
            ArrivedBytes::Overdrawn => panic!("an honest peer is faulted"),
        }
    }

    /// Checks that one unit more than the credit is a fault without any effect, and that the credit itself is accepted.
    fn overdraw(&self, at: usize) {
        let Self { mut ledger, mut accounts, .. } = self.clone();
        let window = self.peers[at].window() as u32;
        for cost in [window + 1, window + self.packet, u32::MAX] {
            for stored in [false, true] {
                let arrived = ledger.arrived(&mut accounts, at as u32, cost, stored);
                assert_eq!(arrived, ArrivedBytes::Overdrawn, "{cost} of {window}");
            }
        }
        assert_eq!((&ledger, &accounts), (&self.ledger, &self.accounts));
        let arrived = ledger.arrived(&mut accounts, at as u32, window, true);
        assert_ne!(arrived, ArrivedBytes::Overdrawn);
    }

    fn remove(&mut self, at: usize, which: usize) {
        let stored = &mut self.peers[at].stored;
        if stored.is_empty() {
            return;
        }
        let units = stored.swap_remove(which % stored.len());
        if let Some(total) = self.ledger.removed(&mut self.accounts, at as u32, units) {
            self.publish(at, total);
        }
    }

    fn publish(&mut self, at: usize, total: u64) {
        let peer = &mut self.peers[at];
        assert!(!peer.closed && total > peer.published, "a regrant without new credit");
        peer.published = total;
    }

    fn learn(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if !peer.closed {
            let more = peer.published > peer.allowance.limit();
            assert_eq!(peer.allowance.raise(peer.published), more);
            assert!(!peer.allowance.raise(peer.published) && !peer.allowance.raise(0));
        }
    }

    fn check(&self) {
        let Self { ledger, .. } = self;
        let (reserve, packet) = (u64::from(ledger.reserve()), u64::from(self.packet));
        let mut held = self.ourselves.iter().map(|&units| u64::from(units)).sum::<u64>();
        let mut booked = held + u64::from(ledger.free()) + u64::from(ledger.own_free);
        assert!(
            held + u64::from(ledger.own_free) >= u64::from(ledger.own),
            "the reserve was granted to a peer"
        );
        for (peer, account) in self.peers.iter().zip(&self.accounts) {
            assert_eq!(account.granted(), peer.published);
            assert_eq!(u64::from(account.window()), peer.window());
            assert_eq!(u64::from(account.stored()), peer.stored());
            assert!(peer.window() <= u64::from(ledger.window_of(account)));
            assert!(ledger.window_of(account) <= ledger.widest());
            let charge = peer.window() + peer.stored();
            assert!(charge <= reserve + u64::from(account.pooled), "credit without memory");
            held += charge;
            booked += reserve + u64::from(account.pooled);
            if peer.closed {
                assert!(peer.window() == 0 && !account.is_starved());
                continue;
            }
            assert!(charge >= reserve || peer.window() >= packet, "credit refused below the reserve");
            if peer.stored.is_empty() {
                assert!(peer.window() >= packet.max(reserve / 2), "nothing is stored, but the peer is held");
            }
        }
        assert!(held <= u64::from(self.ceiling), "the credit exceeds the ceiling");
        assert_eq!(booked, u64::from(self.ceiling), "units were lost or created");
        self.check_starved();
    }

    fn check_starved(&self) {
        for (waiting, lacks) in
            [(self.ledger.packetless, Lack::Packet), (self.ledger.windowless, Lack::Window)]
        {
            let (mut at, mut before, mut count) = (waiting.first, super::NONE, 0);
            while at != super::NONE {
                let account = &self.accounts[at as usize];
                assert!(account.lacks == lacks && account.prev == before);
                (before, at, count) = (at, account.next, count + 1);
            }
            assert_eq!(waiting.last, before);
            assert_eq!(self.accounts.iter().filter(|account| account.lacks == lacks).count(), count);
        }
    }

    fn drain(&mut self) {
        // Each call takes at least a minimum grant from the pool, or moves the peer to the end of the list for good.
        let most = self.ledger.free() / self.ledger.minimum_grant() + self.peers.len() as u32;
        for _ in 0..most {
            self.apply(FlowOp::Regrant);
        }
        let needy = |account: &Account| account.is_starved() && account.window() < self.packet;
        assert!(!self.ledger.can_regrant() || !self.accounts.iter().any(needy), "units are unused");
    }

    /// Receives everything, and checks that every window is then full.
    fn finish(&mut self) {
        for at in 0..self.peers.len() {
            while !self.peers[at].flying.is_empty() {
                self.apply(FlowOp::Arrive(at, false));
            }
            while !self.peers[at].stored.is_empty() {
                self.apply(FlowOp::Remove(at, 0));
            }
        }
        while !self.ourselves.is_empty() {
            self.apply(FlowOp::Release);
        }
        self.drain();
        let open = || self.peers.iter().zip(&self.accounts).filter(|(peer, _)| !peer.closed);
        let (low, window) = (u64::from(self.ledger.low), self.ledger.window());
        // The reserves of failed peers and of this process itself are not given to others.
        let (gone, reserve) = ((self.peers.len() - open().count()) as u32, self.ledger.reserve());
        let windows = open().map(|(_, account)| self.ledger.window_of(account)).sum::<u32>();
        let roomy = windows + self.packet + gone * reserve + self.ledger.own <= self.ceiling;
        for (peer, account) in open() {
            assert!(!roomy || !account.is_starved());
            let untouched = peer.published == u64::from(self.ledger.reserve());
            assert!(!roomy || untouched || peer.window() >= low, "{} of {window}", peer.window());
            assert!(peer.window() <= u64::from(self.ledger.window_of(account)));
        }
    }
}

fn op() -> impl Strategy<Value = FlowOp> {
    let at = 0..5usize;
    prop_oneof![
        60 => (at.clone(), 1..20u32).prop_map(|(at, cost)| FlowOp::Send(at, cost)),
        50 => (at.clone(), any::<bool>()).prop_map(|(at, stored)| FlowOp::Arrive(at, stored)),
        30 => (at.clone(), any::<usize>()).prop_map(|(at, which)| FlowOp::Remove(at, which)),
        40 => at.clone().prop_map(FlowOp::Learn),
        20 => Just(FlowOp::Regrant),
        4 => at.clone().prop_map(FlowOp::Widen),
        6 => (0..60u32).prop_map(FlowOp::Reserve),
        6 => Just(FlowOp::Release),
        1 => at.clone().prop_map(FlowOp::Close),
        2 => at.prop_map(FlowOp::Open),
    ]
}

/// Adapts an operation to a world of `peers` peers and packets of at most `packet` units.
fn fitted(op: FlowOp, peers: usize, packet: u32) -> FlowOp {
    match op {
        FlowOp::Send(at, cost) => FlowOp::Send(at % peers, (cost - 1) % packet + 1),
        FlowOp::Arrive(at, stored) => FlowOp::Arrive(at % peers, stored),
        FlowOp::Remove(at, which) => FlowOp::Remove(at % peers, which),
        FlowOp::Learn(at) => FlowOp::Learn(at % peers),
        FlowOp::Widen(at) => FlowOp::Widen(at % peers),
        FlowOp::Close(at) => FlowOp::Close(at % peers),
        FlowOp::Open(at) => FlowOp::Open(at % peers),
        op => op,
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn grants_are_backed_by_memory(
        ceiling in 0..400u32, peers in 1..6u32, window in 0..200u32, packet in 1..20u32,
        own in prop::option::of(0..5u32), ops in prop::collection::vec(op(), 0..400),
    ) {
        if let Some(mut twin) = FlowTwin::with_own(ceiling, peers, window, packet, own) {
            for op in ops {
                twin.apply(fitted(op, peers as usize, packet));
            }
            twin.finish();
        }
    }
}

/// Every sequence of five relevant operations, in the smallest worlds.
#[test]
fn grants_are_backed_by_memory_in_every_short_history() {
    fn explore(twin: &FlowTwin, depth: usize, seen: &mut usize) {
        *seen += 1;
        twin.clone().finish();
        if depth == 0 {
            return;
        }
        for peer in 0..2 {
            let taken = [FlowOp::Arrive(peer, false), FlowOp::Arrive(peer, true), FlowOp::Remove(peer, 0)];
            for op in taken.into_iter().chain([FlowOp::Close(peer), FlowOp::Open(peer)]) {
                let mut twin = twin.clone();
                twin.apply(FlowOp::Learn(peer));
                twin.apply(FlowOp::Send(peer, if depth.is_multiple_of(2) { twin.packet } else { 1 }));
                twin.apply(op);
                explore(&twin, depth - 1, seen);
            }
        }
        let mut twin = twin.clone();
        twin.apply(FlowOp::Regrant);
        explore(&twin, depth - 1, seen);
    }
    for (ceiling, window, packet) in [(2, 2, 1), (4, 1, 1), (6, 4, 1), (9, 8, 2), (13, 8, 3), (40, 8, 1)] {
        let (twin, mut seen) = (FlowTwin::new(ceiling, 2, window, packet).unwrap(), 0);
        explore(&twin, 4, &mut seen);
        assert_eq!(seen, 1 + 11 + 121 + 1331 + 14641);
    }
}

/// One peer sends all the time and has taken the pool; another still gets its share.
#[test]
fn waiting_peer_gets_the_units_that_a_busy_one_returns() {
    let mut twin = FlowTwin::new(400, 8, 100, 1).unwrap();
    let (reserve, window) = (twin.ledger.reserve(), u64::from(twin.ledger.window()));
    assert_eq!((reserve, window, twin.ledger.free()), (25, 100, 200));
    let consume = |twin: &mut FlowTwin, at, count| {
        for _ in 0..count {
            twin.apply(FlowOp::Learn(at));
            twin.apply(FlowOp::Send(at, 1));
            twin.apply(FlowOp::Arrive(at, false));
        }
    };
    for at in 0..3 {
        consume(&mut twin, at, 14);
    }
    assert_eq!(twin.ledger.free(), 0);
    consume(&mut twin, 3, 100);
    assert!(twin.accounts[3].is_starved() && twin.peers[3].window() <= 25);
    consume(&mut twin, 0, 80);
    assert!(twin.ledger.can_regrant());
    twin.drain();
    assert!(twin.peers[3].window() > 50, "{}", twin.peers[3].window());
    assert!(twin.accounts[0].is_starved(), "now the other peer waits");
    // Both continue, and each gets its share.
    let mut turns = [0; 2];
    for round in 0..1000 {
        for (turn, at) in turns.iter_mut().zip([0, 3]) {
            consume(&mut twin, at, 1 + round % 3);
            twin.drain();
            *turn += usize::from(twin.peers[at].window() > 50);
        }
    }
    assert!(turns.iter().all(|&turn| turn > 100), "{turns:?}");
}

/// A million messages of one byte from one peer, all within its credit, none requested.
#[test]
fn million_messages_are_within_credit() {
    const COUNT: u64 = 1_000_000;
    let units = split(64 << 20).0 as u32;
    let mut ledger = Ledger::new(units, 3, WINDOW, cost(8192)).unwrap();
    let mut accounts = vec![Account::default(); 4];
    let mut allowance = Allowance::new(ledger.open(&mut accounts, 1));
    assert_eq!((ledger.reserve(), ledger.window()), (WINDOW, WINDOW));
    let mut regrants = 0;
    for _ in 0..COUNT {
        assert!(allowance.may(cost(1)));
        allowance.spend(cost(1));
        match ledger.arrived(&mut accounts, 1, cost(1), true) {
            ArrivedBytes::Fine => {}
            ArrivedBytes::Regrant(total) => regrants += u64::from(allowance.raise(total)),
            ArrivedBytes::Overdrawn => panic!("within credit"),
        }
    }
    assert!(regrants <= COUNT / 2048 + 16, "{regrants}");
    assert_eq!(accounts[1].stored(), 1_000_000);
    for _ in 0..COUNT {
        if let Some(total) = ledger.removed(&mut accounts, 1, cost(1)) {
            regrants += u64::from(allowance.raise(total));
        }
    }
    assert!(regrants <= COUNT / 2048 + 64, "{regrants}: trickles");
    assert!(accounts[1].window() >= WINDOW / 2 && allowance.left() == u64::from(accounts[1].window()));
}

#[test]
fn window_is_refilled_when_it_falls_below_half() {
    let mut ledger = Ledger::new(1 << 20, 4, WINDOW, cost(8192)).unwrap();
    let mut accounts = vec![Account::default(); 4];
    let mut total = ledger.open(&mut accounts, 2);
    for _ in 0..10 {
        // Only the critical path, down to the last unit of the upper half.
        assert!(accounts[2].try_arrive(WINDOW / 2 - 1, false) && accounts[2].try_arrive(1, false));
        assert!(!accounts[2].clone().try_arrive(1, false));
        total += u64::from(WINDOW / 2 + 1);
        assert_eq!(ledger.arrived(&mut accounts, 2, 1, false), ArrivedBytes::Regrant(total));
    }
}

#[test]
fn credit_is_not_granted_in_tiny_pieces() {
    let mut ledger = Ledger::new(400, 1, 100, 40).unwrap();
    let mut accounts = vec![Account::default(); 1];
    assert_eq!((ledger.open(&mut accounts, 0), ledger.reserve(), ledger.free()), (100, 100, 300));
    assert!(ledger.try_reserve(300));
    for _ in 0..100 {
        assert_eq!(ledger.arrived(&mut accounts, 0, 1, true), ArrivedBytes::Fine);
    }
    assert!(accounts[0].is_starved());
    // Less than an eighth of a largest packet stays in the pool. The window grows unit by unit up to a largest packet,
    // and then by doubling.
    ledger.release(4);
    assert!(!ledger.can_regrant());
    let totals: Vec<u64> = (0..100).filter_map(|_| ledger.removed(&mut accounts, 0, 1)).collect();
    let by_unit = (101..=140).chain([181]);
    assert_eq!(totals, by_unit.collect::<Vec<_>>());
    assert_eq!((accounts[0].window(), accounts[0].is_starved()), (81, false));
}

/// A peer that fills the store gets every unit, although the last units are fewer than a largest packet needs. It is
/// notified of freed units only in larger pieces.
#[test]
fn last_units_are_not_left_unused() {
    const PACKET: u32 = 137;
    for ceiling in [1024, 2000, 4096, 4097, 4096 + 136] {
        let mut ledger = Ledger::new(ceiling, 1, WINDOW, PACKET).unwrap();
        let mut accounts = vec![Account::default(); 1];
        let mut allowance = Allowance::new(ledger.open(&mut accounts, 0));
        let mut stored = 0;
        while allowance.may(1) {
            allowance.spend(1);
            stored += 1;
            if let ArrivedBytes::Regrant(total) = ledger.arrived(&mut accounts, 0, 1, true) {
                allowance.raise(total);
            }
        }
        assert_eq!((stored, ledger.free()), (ceiling, 0));
        let (mut reported, taken) = (0, ceiling - ledger.reserve());
        for _ in 0..taken {
            if let Some(total) = ledger.removed(&mut accounts, 0, 1) {
                // The sender uses the credit at once.
                assert!(allowance.raise(total));
                reported += 1;
                while allowance.may(1) {
                    allowance.spend(1);
                    let _ = ledger.arrived(&mut accounts, 0, 1, true);
                }
            }
        }
        assert!(reported <= taken / (PACKET / 8) + 1, "{reported} grants for {taken} units");
    }
}

/// The pool is granted to peers; a message to this process itself still finds memory.
#[test]
fn messages_to_self_have_a_reserve() {
    let mut ledger = Ledger::new(400, 1, 400, 10).unwrap().with_own(1);
    let mut accounts = vec![Account::default(); 1];
    let mut granted = ledger.open(&mut accounts, 0);
    let mut arrived = 0;
    while arrived < granted {
        arrived += 1;
        if let ArrivedBytes::Regrant(total) = ledger.arrived(&mut accounts, 0, 1, true) {
            granted = total;
        }
    }
    // 100 units belong to the peer; an eighth of the rest, plus one, is reserved for this process itself.
    assert_eq!((ledger.free(), granted), (0, 363));
    assert!(
        !ledger.try_reserve(39) && ledger.try_reserve(37) && ledger.try_reserve(1) && !ledger.try_reserve(1)
    );
    ledger.release(20);
    assert!(ledger.free() == 0 && !ledger.can_regrant(), "the reserve is free again");
    assert_eq!(ledger.removed(&mut accounts, 0, 3), Some(366));
    ledger.release(6);
    assert_eq!((ledger.free(), ledger.own_free), (0, 26));
}

#[test]
fn account_is_small_and_unopened_ones_have_nothing() {
    assert!(size_of::<Account>() <= 48 && size_of::<Allowance>() == 16);
    let mut ledger = Ledger::new(100, 2, 10, 2).unwrap();
    let mut accounts = vec![Account::default(); 4];
    for peer in [0, 3, 4, u32::MAX] {
        assert_eq!(ledger.arrived(&mut accounts, peer, 1, true), ArrivedBytes::Overdrawn);
        assert_eq!(ledger.removed(&mut accounts, peer, 0), None);
        ledger.close(&mut accounts, peer);
    }
    assert_eq!([1, 1, 2, 3, 9].map(|peer| ledger.open(&mut accounts, peer)), [10, 10, 10, 0, 0]);
    assert_eq!(ledger.free(), 80);
}

#[test]
fn ledger_of_a_world_without_peers_is_all_pool() {
    let mut ledger = Ledger::new(7, 0, WINDOW, 100).unwrap();
    assert!(ledger.try_reserve(7) && !ledger.try_reserve(1));
    ledger.release(7);
    assert_eq!(ledger.free(), 7);
}

#[test]
fn ceiling_that_cannot_serve_all_is_refused() {
    let error = CeilingError::Units { ceiling: 99, peers: 10, needed: 100 };
    assert_eq!(Ledger::new(99, 10, WINDOW, 10), Err(error));
    let exact = Ledger::new(100, 10, WINDOW, 10).unwrap();
    assert_eq!((exact.reserve(), exact.window(), exact.free()), (10, 25, 0));
    assert!(Ledger::new(u32::MAX, u32::MAX, u32::MAX, u32::MAX).is_err());
    assert_eq!(Ledger::new(u32::MAX, 1, u32::MAX, u32::MAX).unwrap().reserve(), u32::MAX);
}

#[test]
fn absurd_totals_of_a_peer_are_harmless() {
    let mut allowance = Allowance::default();
    assert!(allowance.may(0) && !allowance.may(1));
    assert!(allowance.raise(3) && !allowance.raise(3) && !allowance.raise(2));
    allowance.spend(3);
    assert!(!allowance.may(1));
    assert!(allowance.raise(u64::MAX));
    for _ in 0..100 {
        assert!(allowance.may(u32::MAX));
        allowance.spend(u32::MAX);
    }
    assert!(!allowance.raise(0));
    assert_eq!(allowance.left(), u64::MAX - 3 - 100 * u64::from(u32::MAX));
}
