//! Credits: the memory that a receiver grants a sender in advance, in units of the store.
//!
//! A packet that may have to be stored costs [`crate::store::cost`] credits. The receiver grants memory to each peer
//! before the peer uses it, and never grants more than it has. A sender without credit falls back to rendezvous, or
//! waits. Credits are dynamic and belong to the process; a static share for every connection would cost more the more
//! peers there are (paper 2, sections 2.3.2 and 2.3.3).
//!
//! All numbers on the wire are totals since the start, in 64 bits. Only the last of several totals must be sent, and a
//! lost or late one does no harm. With `granted`, `arrived` and `stored` units of each peer, these invariants hold:
//!
//! - The sum of `granted - arrived + stored` over all peers, plus all other reserves, is at most the ceiling.
//! - Each account has a *reserve* of its own. A peer without stored messages therefore has credit for at least half
//!   of its reserve, and for a largest packet. Other peers cannot use the reserve. There are at least as many reserves
//!   as accounts: in a world one for each peer ([`Ledger::new`]), else as many as the ceiling can pay
//!   ([`Ledger::growing`]). A closed account keeps its reserve until none of its units is stored.
//! - Messages to this process itself have a reserve as well, so that at least one can be announced, whatever was
//!   granted to peers.
//! - All other units form one *pool*. If an account falls below half of the *window*, it is refilled from the pool to
//!   the full window: first come, first served, but accounts that cannot send a largest packet come first. While some
//!   accounts wait for the pool, the others are refilled only from their reserves, and so return their pool units as
//!   their traffic continues. The pool is granted in pieces of a largest packet, so that a blocked sender is not
//!   woken for each unit. Only an account that cannot send such a packet gets less: the remainder when the pool runs
//!   out, and afterwards the minimum grant, an eighth of a largest packet.
//! - The window of an account is widened, up to eight times, if its peer has too little credit although its messages
//!   are received as they arrive ([`Ledger::widen`]). What the window lacks then is never waited for: an account waits
//!   for the usual window only.
//!
//! The receives of an RDMA connection are credits of another kind: [`posted`].
#![forbid(unsafe_code)]

mod allowance;
pub mod backing;
mod ceiling;
mod growing;
pub mod posted;
pub mod replies;
pub mod shares;
mod widening;

pub use allowance::Allowance;
pub use ceiling::CeilingError;

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::slab::NONE;
use crate::wire::PeerId;

/// Default window for full throughput: 4096 units, or 256 KiB.
pub const WINDOW: u32 = 4096;

/// The result of charging a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ArrivedBytes {
    /// The packet was charged.
    Fine,
    /// The packet was charged, and the peer must learn its new total.
    Regrant(u64),
    /// The peer exceeded its credit: a fault. Nothing was charged, and there may be no memory for the packet.
    Overdrawn,
}

/// The receiver's account of one peer. It is element [`PeerId`] of a slice, by itself or as a part of the peer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// When more units than this have arrived, the ledger must settle the account; at most `granted`.
    due: u64,
    /// Units that may arrive before that.
    ahead: u64,
    /// Total units granted.
    granted: u64,
    /// Units in the store.
    stored: u32,
    /// Units taken from the pool. Together with the reserve at least `granted - arrived + stored`; exactly that after
    /// each settlement.
    pooled: u32,
    /// Neighbours in the list of accounts that wait for the same amount.
    prev: u32,
    next: u32,
    open: bool,
    /// Whether the account has a reserve. A closed account keeps it while units are stored.
    reserved: bool,
    lacks: Lack,
    /// How many times the window is doubled.
    doublings: u8,
}

/// The amount for which an account waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lack {
    /// The account does not wait.
    #[default]
    Nothing,
    /// The account has credit for a largest packet, or would get it from its reserve, but not for half of the window.
    Window,
    /// The account has no credit for a largest packet, and perhaps no credit at all.
    Packet,
}

/// The accounts that wait for the same amount, first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WaitingPeer {
    first: u32,
    last: u32,
}

impl WaitingPeer {
    const NOBODY: Self = Self { first: NONE, last: NONE };

    const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Returns whether no other account waits.
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
            reserved: false,
            lacks: Lack::Nothing,
            doublings: 0,
        }
    }
}

impl AsMut<Account> for Account {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Account {
    /// The critical path of [`Ledger::arrived`], for a caller that has the account at hand. Returns `false` if nothing
    /// was charged: the caller asks the ledger.
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

    /// Returns the total units granted to the peer, which the peer must learn.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the total units that have arrived.
    pub const fn arrived(&self) -> u64 {
        self.due - self.ahead
    }

    /// Returns the units that the peer may still send.
    pub const fn window(&self) -> u32 {
        // The difference never exceeds the ceiling.
        (self.granted - self.arrived()) as u32
    }

    /// Returns the units of the peer in the store.
    pub const fn stored(&self) -> u32 {
        self.stored
    }

    /// Returns whether the account has a reserve: it is open, or units are stored.
    pub const fn has_reserve(&self) -> bool {
        self.reserved
    }

    /// Returns whether the account may return units to the pool as the peer's traffic continues.
    pub const fn may_return(&self) -> bool {
        self.pooled > 0 && self.window() > 0
    }

    /// Returns whether the account waits for the pool.
    pub const fn is_starved(&self) -> bool {
        !matches!(self.lacks, Lack::Nothing)
    }

    /// Returns the units that must be available for the account.
    const fn charge(&self) -> u32 {
        self.window() + self.stored
    }
}

/// The receiver's accounts for the whole process. Only one thread at a time may use it. Every call takes bounded time,
/// independent of the number of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Free units of the pool.
    free: u32,
    /// Reserve of each account, in units.
    reserve: u32,
    /// Window to which an account is refilled.
    window: u32,
    /// An account below this is refilled.
    low: u32,
    /// The widest window of an account so far.
    widest: u32,
    /// Cost of the largest packet. If an account has credit for one, the pool grants it no smaller pieces.
    packet: u32,
    /// Reserve for messages to this process itself, and its free part.
    own: u32,
    own_free: u32,
    /// Most accounts at the same time: as many as there are reserves, and as the caller has allowed.
    reserves: u32,
    most: u32,
    /// Reserves that no account has.
    unopened: u32,
    /// The waiting accounts: those without credit for a packet, and those below half of the window.
    packetless: WaitingPeer,
    windowless: WaitingPeer,
}

impl Ledger {
    /// Returns a ledger over `ceiling` units for up to `peers` peers, whose packets cost at most `packet` each.
    ///
    /// An account is refilled to `window` units (see [`WINDOW`]), to a quarter of the ceiling if that is less, and at
    /// least to a largest packet. Half of the ceiling, or the sum of the windows if less, is divided into reserves.
    ///
    /// # Errors
    /// The ceiling is too low for a largest packet from each peer.
    pub const fn new(ceiling: u32, peers: u32, window: u32, packet: u32) -> Result<Self, CeilingError> {
        // Every packet must cost something.
        let packet = larger(packet, 1);
        let needed = peers as u64 * packet as u64;
        if needed > ceiling as u64 {
            return Err(CeilingError::Units { ceiling, peers, needed });
        }
        let window = larger(smaller(window, ceiling / 4), packet);
        let reserve = match ceiling.checked_div(peers) {
            Some(share) => smaller(larger(smaller(share / 2, window), packet), share),
            None => 0,
        };
        Ok(Self::of(ceiling, (peers, peers), reserve, window, packet))
    }

    /// Returns a ledger with so many reserves, of so many that were asked for. All other units are the pool.
    const fn of(ceiling: u32, reserves: (u32, u32), reserve: u32, window: u32, packet: u32) -> Self {
        let (reserves, most) = reserves;
        Self {
            free: ceiling - reserves * reserve,
            reserve,
            window,
            low: larger(window / 2, packet),
            widest: window,
            packet,
            own: 0,
            own_free: 0,
            reserves,
            most,
            unopened: reserves,
            packetless: WaitingPeer::NOBODY,
            windowless: WaitingPeer::NOBODY,
        }
    }

    /// Returns the ledger with a reserve for messages to this process itself: `units` additional units, and from the
    /// pool as many as a peer's reserve, but at most an eighth.
    #[must_use]
    pub const fn with_own(mut self, units: u32) -> Self {
        let pooled = smaller(self.reserve, self.free / 8);
        self.free -= pooled;
        self.own = units + pooled;
        self.own_free = self.own;
        self
    }

    /// Returns the reserve of each account, in units.
    pub const fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Returns the units to which an account is refilled.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Returns the free units of the pool.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Takes the free units out of the pool: those whose memory is not committed yet ([`backing`]).
    pub const fn take_pool(&mut self) -> u32 {
        core::mem::replace(&mut self.free, 0)
    }

    /// Adds units to the pool. [`Ledger::next_regrant`] distributes them.
    pub const fn add_to_pool(&mut self, units: u32) {
        self.free += units;
    }

    /// Returns the reserve for messages to this process itself, in units.
    pub const fn own_units(&self) -> u32 {
        self.own
    }

    /// Returns the minimum grant: the least that an account without credit for a largest packet gets from the pool
    /// after it has run out.
    const fn minimum_grant(&self) -> u32 {
        larger(self.packet / 8, 1)
    }

    /// Opens the account of a peer, or reopens it for the peer's next process, with totals that start anew. Returns the
    /// peer's first total: the reserve, minus the units still stored from the former process. If the account is open or
    /// no further account can be opened, returns the current total.
    pub fn open<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId) -> u64 {
        let Some(account) = account(accounts, peer) else { return 0 };
        let is_open = account.open;
        #[cfg(nemesia_injected_fault)]
        let is_open = is_open && !injected(InjectedFault::OpenTwice);
        if !is_open && (account.reserved || self.unopened > 0) {
            let is_taken = !account.reserved;
            #[cfg(nemesia_injected_fault)]
            let is_taken = is_taken && !injected(InjectedFault::ForgetReserve);
            self.unopened -= u32::from(is_taken);
            (account.open, account.reserved) = (true, true);
            (account.due, account.ahead, account.granted, account.doublings) = (0, 0, 0, 0);
            account.granted = self.own(account).into();
            account.set_due(self.due(account));
        }
        account.granted
    }

    /// Charges an arrived packet. The caller asks before it stores the packet; if the packet was charged as stored,
    /// there is memory for it.
    #[inline(always)]
    pub fn arrived<T>(&mut self, accounts: &mut [T], peer: PeerId, cost: u32, stored: bool) -> ArrivedBytes
    where
        T: AsMut<Account>,
    {
        if let Some(account) = account(accounts, peer)
            && account.try_arrive(cost, stored)
        {
            return ArrivedBytes::Fine;
        }
        self.arrived_due(accounts, peer, cost, stored)
    }

    #[cold]
    #[inline(never)]
    fn arrived_due<T>(&mut self, accounts: &mut [T], peer: PeerId, cost: u32, stored: bool) -> ArrivedBytes
    where
        T: AsMut<Account>,
    {
        let Some(account) = account(accounts, peer) else { return ArrivedBytes::Overdrawn };
        if cost > account.window() {
            return ArrivedBytes::Overdrawn;
        }
        (account.due, account.ahead) = (account.arrived() + u64::from(cost), 0);
        account.stored += if stored { cost } else { 0 };
        self.settle(accounts, peer, false, 1).map_or(ArrivedBytes::Fine, ArrivedBytes::Regrant)
    }

    /// Records that units of a peer, open or closed, have left the store. Returns the peer's new total if it has
    /// changed. [`Ledger::next_regrant`] distributes the remaining units to others.
    pub fn removed<T: AsMut<Account>>(
        &mut self,
        accounts: &mut [T],
        peer: PeerId,
        units: u32,
    ) -> Option<u64> {
        let account = account(accounts, peer)?;
        debug_assert!(units <= account.stored);
        account.stored = account.stored.saturating_sub(units);
        self.settle(accounts, peer, false, self.minimum_grant())
    }

    /// Returns whether [`Ledger::next_regrant`] may have a result.
    #[inline(always)]
    pub const fn can_regrant(&self) -> bool {
        !self.packetless.is_empty() && self.free >= self.minimum_grant()
            || !self.windowless.is_empty() && self.free >= self.packet
    }

    /// Refills the next waiting peer for which the pool has units now, and returns its new total. After each call that
    /// freed units, the caller repeats this call until it returns `None`.
    pub fn next_regrant<T: AsMut<Account>>(&mut self, accounts: &mut [T]) -> Option<(PeerId, u64)> {
        if !self.can_regrant() {
            return None;
        }
        // An account without credit for a packet gets a part of any remainder, and comes before an account that waits
        // for its window.
        let peer = if self.packetless.is_empty() { self.windowless.first } else { self.packetless.first };
        self.unlink(accounts, peer);
        Some((peer, self.settle(accounts, peer, true, self.minimum_grant())?))
    }

    /// Closes the account of a failed peer: its grant is void. Its stored units stay charged until [`Ledger::removed`],
    /// and its pool units return to the pool. Its reserve is free for the next account that is opened, once none of its
    /// units is stored.
    pub fn close<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId) {
        self.unlink(accounts, peer);
        let Some(account) = account(accounts, peer) else { return };
        if core::mem::take(&mut account.open) {
            account.granted = account.arrived();
            account.set_due(account.granted);
            let pooled = account.stored.saturating_sub(self.reserve);
            self.free += account.pooled - pooled;
            account.pooled = pooled;
            self.release_reserve(account);
        }
    }

    /// Takes units for messages to this process itself. Returns `false` if their reserve and the pool have too few.
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

    /// Returns units that [`Ledger::try_reserve`] took, at once or in parts.
    pub const fn release(&mut self, units: u32) {
        let own = smaller(units, self.own - self.own_free);
        self.own_free += own;
        self.free += units - own;
    }

    /// Settles an account: takes back pool units that it no longer needs, refills it, and lists it if it must wait.
    /// `served`: the account comes first in the list and may use the pool. `minimum_grant`: the minimum grant for an
    /// account without credit for a packet.
    fn settle<T: AsMut<Account>>(
        &mut self,
        accounts: &mut [T],
        peer: PeerId,
        served: bool,
        minimum_grant: u32,
    ) -> Option<u64> {
        let alone = self.packetless.is_only(peer) && self.windowless.is_only(peer);
        let account = account(accounts, peer)?;
        let pooled = account.charge().saturating_sub(self.reserve);
        self.free += account.pooled - pooled;
        account.pooled = pooled;
        if !account.open {
            self.release_reserve(account);
            return None;
        }
        let grant = self.top_up(account, served || alone, minimum_grant);
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

    /// Refills an account. A grant from the pool is at least a largest packet or, if the window is shorter than that,
    /// the minimum grant. A grant from the reserve alone at least doubles the window, unless the window is shorter than
    /// a largest packet. This avoids many tiny grants.
    fn top_up(&mut self, account: &mut Account, pool: bool, minimum_grant: u32) -> bool {
        let window = account.window();
        if window >= self.low_of(account) {
            return false;
        }
        let own = self.own(account);
        let wanted = self.window_of(account) - window - own;
        let least =
            if window + own < self.packet { smaller(minimum_grant, self.packet) } else { self.packet };
        let pooled = if pool && self.free >= least { smaller(wanted, self.free) } else { 0 };
        if pooled == 0 && (own == 0 || own <= window && window >= self.packet) {
            return false;
        }
        self.free -= pooled;
        account.pooled += pooled;
        account.granted += u64::from(own + pooled);
        true
    }

    /// Returns the units of the reserve that are available for the window.
    fn own(&self, account: &Account) -> u32 {
        smaller(self.reserve.saturating_sub(account.charge()), self.window_of(account) - account.window())
    }

    /// Returns the total at which the account must be settled again: when the window falls below half of the full
    /// window, wide or usual, or half of its possible size with the reserve if it could not be filled; and before it
    /// gets too short for a largest packet.
    fn due(&self, account: &Account) -> u64 {
        let (window, wide) = (account.window(), self.low_of(account));
        let half = (window + self.own(account)) / 2;
        let low = match window {
            _ if window >= wide => wide,
            _ if window >= self.low => self.low,
            _ => smaller(larger(half, self.packet), window),
        };
        account.granted - u64::from(low)
    }

    /// Appends an account to the list of those that wait for the same amount.
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

    /// Returns the list of the accounts that wait for this amount.
    const fn waiting(&mut self, lacks: Lack) -> Option<&mut WaitingPeer> {
        match lacks {
            Lack::Nothing => None,
            Lack::Window => Some(&mut self.windowless),
            Lack::Packet => Some(&mut self.packetless),
        }
    }
}

#[inline(always)]
fn account<T: AsMut<Account>>(accounts: &mut [T], peer: PeerId) -> Option<&mut Account> {
    accounts.get_mut(peer as usize).map(AsMut::as_mut)
}

/// Returns the account with this number; `NONE` has none, whatever the length of the slice.
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
