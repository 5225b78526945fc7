//! Credits: what a sender may send before anyone asks for it, in units of the store's memory.
//!
//! A packet that may have to be stored costs [`crate::store::cost`] credits. The receiver promises memory to each
//! peer before the peer uses it, and never promises what it has not got; a sender out of credit falls back to
//! rendezvous, or waits. Credits are dynamic and belong to the process, where a static share for every connection would
//! cost the more the more peers there are (paper 2, sections 2.3.2 and 2.3.3).
//!
//! All numbers that travel are totals since the beginning, in 64 bits: of several, only the last need be sent, and
//! one that is lost or comes late does no harm. With `granted`, `arrived` and `stored` units of each peer, what is always true:
//!
//! - the sum of `granted - arrived + stored` over all peers, and what is reserved besides, is at most the ceiling;
//! - each account has a *reserve* of its own, so a peer of which nothing is stored has at least half of that
//!   to send with, and a largest packet; what others send can't take it away, nor is it given away while the peer is gone;
//! - messages to ourselves have a reserve as well, so that one can at least be announced, whatever was promised to peers;
//! - all else is one *pool*, from which accounts are topped up to the full *window* when they fall below half of it, first
//!   come, first served, but those before all others that can't send a largest packet. While some wait for the pool, the others are topped up from their reserve only, and so give
//!   back what they have of it as their traffic goes on. The pool is given out in pieces of a largest packet, so that a
//!   held sender is not woken for each unit; only who can't send such a packet gets less: what is left when the pool runs
//!   out, and from then on an eighth of it.
//!
//! The receives of an RDMA connection are credits of another kind: [`posted`].
#![forbid(unsafe_code)]

use crate::port::PeerId;
use crate::slab::NONE;

pub mod posted;
pub mod replies;

/// The window that throughput asks for: 4096 units, or 256 KiB.
pub const WINDOW: u32 = 4096;

/// What came of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrived {
    /// It is booked.
    Fine,
    /// It is booked, and this is the peer's new total, for it to learn.
    Regrant(u64),
    /// The peer was not granted that: a fault. Nothing is booked, and there may be no room for it.
    Overdrawn,
}

/// The ceiling does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ceiling} units are too few for {peers} peers: {needed} are needed for a largest packet from each")]
pub struct CeilingError {
    /// Units there are.
    pub ceiling: u32,
    /// Peers to be served.
    pub peers: u32,
    /// Units that would suffice.
    pub needed: u64,
}

/// The receiver's side, for one peer. It lies in a slice of which it is element [`PeerId`], by itself or as part of what
/// else is known of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The ledger has to look when more units than this have arrived; at most `granted`.
    due: u64,
    /// Units that may arrive before that.
    ahead: u64,
    /// Units ever promised.
    granted: u64,
    /// Units in the store.
    stored: u32,
    /// Units taken from the pool. With the reserve, at least `granted - arrived + stored`; exactly that, after each look.
    pooled: u32,
    /// Neighbours among those that lack as much.
    prev: u32,
    next: u32,
    open: bool,
    lacks: Lack,
}

/// What an account waits for the pool for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lack {
    /// For nothing.
    #[default]
    Nothing,
    /// It has credit for a largest packet, or would have it from its reserve, but not for half of the window.
    Window,
    /// It can't send a largest packet, and perhaps nothing at all.
    Packet,
}

/// Accounts that lack as much, in the order they came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    first: u32,
    last: u32,
}

impl Waiting {
    const NOBODY: Self = Self { first: NONE, last: NONE };

    const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Whether nobody else waits.
    const fn is_only(&self, peer: PeerId) -> bool {
        self.is_empty() || self.first == peer && self.last == peer
    }
}

impl Default for Account {
    fn default() -> Self {
        Self {
            due: 0,
            ahead: 0,
            granted: 0,
            stored: 0,
            pooled: 0,
            prev: NONE,
            next: NONE,
            open: false,
            lacks: Lack::Nothing,
        }
    }
}

impl AsMut<Account> for Account {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Account {
    /// The critical path of [`Ledger::arrived`], for who has the account in hand. False: nothing is booked, ask the ledger.
    #[inline(always)]
    pub const fn try_arrive(&mut self, cost: u32, stored: bool) -> bool {
        let Some(ahead) = self.ahead.checked_sub(cost as u64) else { return false };
        self.ahead = ahead;
        if stored {
            self.stored += cost;
        }
        true
    }

    const fn set_due(&mut self, due: u64) {
        self.ahead = due - self.arrived();
        self.due = due;
    }

    /// Units ever promised to the peer: what it has to learn.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Units of all that has arrived.
    pub const fn arrived(&self) -> u64 {
        self.due - self.ahead
    }

    /// Units that the peer may still send.
    pub const fn window(&self) -> u32 {
        // Never more than the ceiling.
        (self.granted - self.arrived()) as u32
    }

    /// Units of the peer in the store.
    pub const fn stored(&self) -> u32 {
        self.stored
    }

    /// Whether it waits for the pool.
    pub const fn is_starved(&self) -> bool {
        !matches!(self.lacks, Lack::Nothing)
    }

    /// Units that have to be there for it.
    const fn charge(&self) -> u32 {
        self.window() + self.stored
    }
}

/// The receiver's side, for the process. Exclusive to one thread at a time; every call takes bounded time, whatever
/// the number of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Units of the pool that are nobody's.
    free: u32,
    /// Units that each account has to itself.
    reserve: u32,
    /// What an account is topped up to.
    window: u32,
    /// Below this an account is topped up.
    low: u32,
    /// What the largest packet costs. The pool is given out in no smaller pieces to who has the credit for one.
    packet: u32,
    /// Units that messages to ourselves have to themselves, and how many of those are free.
    own: u32,
    own_free: u32,
    /// Accounts not opened yet, for which there is a reserve.
    unopened: u32,
    /// The starved accounts: those that lack a packet, and those that lack a window.
    packetless: Waiting,
    windowless: Waiting,
}

impl Ledger {
    /// A ledger over `ceiling` units for up to `peers` peers, of whose packets none costs more than `packet`.
    ///
    /// An account is topped up to `window` units (see [`WINDOW`]), to a quarter of the ceiling if that is less, and to a
    /// largest packet at least. Half of the ceiling, or what fills the windows, is shared out as reserves.
    ///
    /// # Errors
    /// The ceiling does not suffice for a largest packet from each peer.
    pub const fn new(ceiling: u32, peers: u32, window: u32, packet: u32) -> Result<Self, CeilingError> {
        // Nothing is free of charge.
        let packet = larger(packet, 1);
        let needed = peers as u64 * packet as u64;
        if needed > ceiling as u64 {
            return Err(CeilingError { ceiling, peers, needed });
        }
        let window = larger(smaller(window, ceiling / 4), packet);
        let reserve = match ceiling.checked_div(peers) {
            Some(share) => smaller(larger(smaller(share / 2, window), packet), share),
            None => 0,
        };
        Ok(Self {
            free: ceiling - peers * reserve,
            reserve,
            window,
            low: larger(window / 2, packet),
            packet,
            own: 0,
            own_free: 0,
            unopened: peers,
            packetless: Waiting::NOBODY,
            windowless: Waiting::NOBODY,
        })
    }

    /// With a reserve for messages to ourselves: so many units that are there besides, and of the pool as many as a peer has,
    /// but at most an eighth.
    #[must_use]
    pub const fn with_own(mut self, units: u32) -> Self {
        let pooled = smaller(self.reserve, self.free / 8);
        self.free -= pooled;
        self.own = units + pooled;
        self.own_free = self.own;
        self
    }

    /// Units that each account has to itself.
    pub const fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Units that an account is topped up to.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Units of the pool that are nobody's.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Units that messages to ourselves have to themselves.
    pub const fn own_units(&self) -> u32 {
        self.own
    }

    /// The least that who lacks credit for a largest packet gets of the pool, once it has run out.
    const fn crumb(&self) -> u32 {
        larger(self.packet / 8, 1)
    }

    /// Opens the account of a peer, or opens it again for its next process, with totals that begin anew. Returns the peer's
    /// first total: the reserve, less what is still stored of the process before; or, when it is open or there are no more
    /// to open, what it has been granted before.
    pub fn open<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId) -> u64 {
        let Some(account) = account(accounts, peer) else { return 0 };
        if !account.open && self.unopened > 0 {
            self.unopened -= 1;
            account.open = true;
            (account.due, account.ahead, account.granted) = (0, 0, 0);
            account.granted = self.own(account).into();
            account.set_due(self.due(account));
        }
        account.granted
    }

    /// A packet has come. Asked before it is stored; if it is booked as stored, there is room for it.
    #[inline(always)]
    pub fn arrived<T>(&mut self, accounts: &mut [T], peer: PeerId, cost: u32, stored: bool) -> Arrived
    where
        T: AsMut<Account>,
    {
        if let Some(account) = account(accounts, peer)
            && account.try_arrive(cost, stored)
        {
            return Arrived::Fine;
        }
        self.arrived_due(accounts, peer, cost, stored)
    }

    #[cold]
    #[inline(never)]
    fn arrived_due<T>(&mut self, accounts: &mut [T], peer: PeerId, cost: u32, stored: bool) -> Arrived
    where
        T: AsMut<Account>,
    {
        let Some(account) = account(accounts, peer) else { return Arrived::Overdrawn };
        if cost > account.window() {
            return Arrived::Overdrawn;
        }
        (account.due, account.ahead) = (account.arrived() + u64::from(cost), 0);
        account.stored += if stored { cost } else { 0 };
        self.settle(accounts, peer, false, 1).map_or(Arrived::Fine, Arrived::Regrant)
    }

    /// Units of a peer, open or closed, are out of the store. Returns its new total, if there is one.
    /// What it leaves to others comes from [`Ledger::next_regrant`].
    pub fn removed<T: AsMut<Account>>(
        &mut self,
        accounts: &mut [T],
        peer: PeerId,
        units: u32,
    ) -> Option<u64> {
        let account = account(accounts, peer)?;
        debug_assert!(units <= account.stored);
        account.stored = account.stored.saturating_sub(units);
        self.settle(accounts, peer, false, self.crumb())
    }

    /// Whether [`Ledger::next_regrant`] may have something.
    #[inline(always)]
    pub const fn can_regrant(&self) -> bool {
        !self.packetless.is_empty() && self.free >= self.crumb()
            || !self.windowless.is_empty() && self.free >= self.packet
    }

    /// The next of the starved peers for which there is something in the pool now, and its new total. Worth a call after
    /// each other one that made room, until there is none.
    pub fn next_regrant<T: AsMut<Account>>(&mut self, accounts: &mut [T]) -> Option<(PeerId, u64)> {
        if !self.can_regrant() {
            return None;
        }
        // Who lacks a packet has something of whatever is left; one that lacks less is not before it.
        let peer = if self.packetless.is_empty() { self.windowless.first } else { self.packetless.first };
        self.unlink(accounts, peer);
        Some((peer, self.settle(accounts, peer, true, self.crumb())?))
    }

    /// The peer is gone, and nothing more of it will be taken: the promise is void. What is stored of it stays charged
    /// until [`Ledger::removed`]; what it had of the pool goes back there. Its reserve is kept: it may come back.
    pub fn close<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId) {
        self.unlink(accounts, peer);
        let Some(account) = account(accounts, peer) else { return };
        if core::mem::take(&mut account.open) {
            account.granted = account.arrived();
            account.set_due(account.granted);
            self.unopened += 1;
            let pooled = account.stored.saturating_sub(self.reserve);
            self.free += account.pooled - pooled;
            account.pooled = pooled;
        }
    }

    /// Takes units for what comes from no peer: messages to ourselves. False when their reserve and the pool have too few.
    pub const fn try_reserve(&mut self, units: u32) -> bool {
        let own = smaller(units, self.own_free);
        match self.free.checked_sub(units - own) {
            Some(free) => {
                self.free = free;
                self.own_free -= own;
                true
            }
            None => false,
        }
    }

    /// Gives back what [`Ledger::try_reserve`] took, at once or in parts.
    pub const fn release(&mut self, units: u32) {
        let own = smaller(units, self.own - self.own_free);
        self.own_free += own;
        self.free += units - own;
    }

    /// Looks at an account: takes back what it needs no more, tops it up, and notes whether it starves. `served`: it is
    /// its turn to use the pool. `crumb`: the least of the pool that is worth telling who has no credit for a packet.
    fn settle<T: AsMut<Account>>(
        &mut self,
        accounts: &mut [T],
        peer: PeerId,
        served: bool,
        crumb: u32,
    ) -> Option<u64> {
        let alone = self.packetless.is_only(peer) && self.windowless.is_only(peer);
        let account = account(accounts, peer)?;
        let pooled = account.charge().saturating_sub(self.reserve);
        self.free += account.pooled - pooled;
        account.pooled = pooled;
        if !account.open {
            return None;
        }
        let grant = self.top_up(account, served || alone, crumb);
        account.set_due(self.due(account));
        let granted = account.granted;
        let lacks = match account.window() {
            window if window >= self.low => Lack::Nothing,
            window if window + self.own(account) < self.packet => Lack::Packet,
            _ => Lack::Window,
        };
        if lacks != account.lacks {
            self.unlink(accounts, peer);
            self.link(accounts, peer, lacks);
        }
        grant.then_some(granted)
    }

    /// What is granted from the pool is at least a largest packet, or, when the window is shorter than that, a crumb. What is
    /// granted from the reserve alone at least doubles the window, or the window is shorter than such a packet: there are no
    /// trickles.
    fn top_up(&mut self, account: &mut Account, pool: bool, crumb: u32) -> bool {
        let window = account.window();
        if window >= self.low {
            return false;
        }
        let own = self.own(account);
        let wanted = self.window - window - own;
        let least = if window + own < self.packet { smaller(crumb, self.packet) } else { self.packet };
        let pooled = if pool && self.free >= least { smaller(wanted, self.free) } else { 0 };
        if pooled == 0 && (own == 0 || own <= window && window >= self.packet) {
            return false;
        }
        self.free -= pooled;
        account.pooled += pooled;
        account.granted += u64::from(own + pooled);
        true
    }

    /// Units that the reserve still has for the window.
    fn own(&self, account: &Account) -> u32 {
        smaller(self.reserve.saturating_sub(account.charge()), self.window - account.window())
    }

    /// When to look again: when the window falls below half of it, of what it is with the reserve if it could not
    /// be filled; and before it gets too short for a largest packet.
    fn due(&self, account: &Account) -> u64 {
        let window = account.window();
        let half = (window + self.own(account)) / 2;
        let low = if window >= self.low { self.low } else { smaller(larger(half, self.packet), window) };
        account.granted - u64::from(low)
    }

    /// Appends an account to those that lack as much.
    fn link<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId, lacks: Lack) {
        let Some(account) = account(accounts, peer) else { return };
        account.lacks = lacks;
        let Some(waiting) = self.waiting(lacks) else { return };
        (account.prev, account.next) = (waiting.last, NONE);
        match neighbour(accounts, waiting.last) {
            Some(last) => last.next = peer,
            None => waiting.first = peer,
        }
        waiting.last = peer;
    }

    fn unlink<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId) {
        let Some(account) = account(accounts, peer) else { return };
        let (prev, next) = (account.prev, account.next);
        let Some(waiting) = self.waiting(core::mem::take(&mut account.lacks)) else { return };
        match neighbour(accounts, prev) {
            Some(before) => before.next = next,
            None => waiting.first = next,
        }
        match neighbour(accounts, next) {
            Some(after) => after.prev = prev,
            None => waiting.last = prev,
        }
    }

    /// Those that lack this.
    const fn waiting(&mut self, lacks: Lack) -> Option<&mut Waiting> {
        match lacks {
            Lack::Nothing => None,
            Lack::Window => Some(&mut self.windowless),
            Lack::Packet => Some(&mut self.packetless),
        }
    }
}

/// The sender's side, for one peer: what it may send to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Units that may still be sent.
    left: u64,
    /// Units ever promised by the peer.
    limit: u64,
}

impl Allowance {
    /// With the peer's first total.
    pub const fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    /// Whether a packet of this cost may be sent.
    #[inline(always)]
    pub const fn may(&self, cost: u32) -> bool {
        cost as u64 <= self.left
    }

    /// A packet that may be sent is sent.
    #[inline(always)]
    pub const fn spend(&mut self, cost: u32) {
        debug_assert!(self.may(cost));
        self.left -= cost as u64;
    }

    /// The peer has published a total. True: it is more than before, so what waits may go on.
    ///
    /// A total is not trusted. A smaller one is old or a lie, and changes nothing: what was promised was promised. One
    /// that no peer can keep is believed: no size, index or loop depends on it, and a peer that faults us for what we
    /// then send loses its own connection only.
    #[inline(always)]
    pub const fn raise(&mut self, limit: u64) -> bool {
        let more = limit > self.limit;
        if more {
            self.left += limit - self.limit;
            self.limit = limit;
        }
        more
    }

    /// Units of all that was sent.
    pub const fn spent(&self) -> u64 {
        self.limit - self.left
    }

    /// Units ever promised by the peer, as far as we have looked.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Units that may still be sent.
    pub const fn left(&self) -> u64 {
        self.left
    }
}

#[inline(always)]
fn account<T: AsMut<Account>>(accounts: &mut [T], peer: PeerId) -> Option<&mut Account> {
    accounts.get_mut(peer as usize).map(AsMut::as_mut)
}

/// The account of that number; `NONE` has none, however long the slice.
fn neighbour<T: AsMut<Account>>(accounts: &mut [T], at: u32) -> Option<&mut Account> {
    if at == NONE { None } else { account(accounts, at) }
}

const fn smaller(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

const fn larger(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests;
