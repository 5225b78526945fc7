//! The storage of links and carriers, which the owner lends.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::time::Duration;

use super::terms::{CarrierKind, LinkEnding, LinkStage};
use crate::link::bytes::LinkBytes;
use crate::link::proof::{LinkSession, NO_CHALLENGE};
use crate::link::wire::{LinkService, RefusalCode};
use crate::peers::{ADDRESS_BYTES, PeerAddress};
use crate::slab::{List, NONE, Slot};
use crate::wire::hello::{Challenge, Proof};

/// The storage that the owner lends.
pub trait LinkStorage {
    /// The links.
    type Links: BorrowMut<[Slot<LinkSlot>]>;
    /// The hash buckets that find links by address: at least one.
    type Buckets: BorrowMut<[List]>;
    /// The carriers.
    type Carriers: BorrowMut<[Slot<CarrierSlot>]>;
    /// The ranks of the world.
    type Ranks: BorrowMut<[RankSlot]>;
}

/// A link. Private to the machine; public only so that the owner can lend its storage.
#[derive(Clone, Debug)]
pub struct LinkSlot {
    pub(super) peer: PeerAddress,
    pub(super) service: LinkService,
    pub(super) instance: u32,
    /// The rank of the peer, or [`NONE`].
    pub(super) rank: u32,
    /// The incarnation of a restarted rank that waits to be readmitted.
    pub(super) incarnation: u64,
    pub(super) stage: LinkStage,
    pub(super) end: LinkEnding,
    /// Whether packets of this process wait for the link.
    pub(super) is_wanted: bool,
    /// The numbers of both ends.
    pub(super) ours: u64,
    pub(super) theirs: u64,
    /// The carrier of the attempt or the link, and that of a call which waits: parked or held.
    pub(super) carrier: u32,
    pub(super) waiting: u32,
    /// The number of the own call, and of the last call of the peer that has no meaning any more.
    pub(super) call: u64,
    pub(super) heard: u64,
    pub(super) proof: Proof,
    pub(super) session: LinkSession,
    pub(super) route: CarrierKind,
    /// Whether the confirmation was sent.
    pub(super) is_joined: bool,
    /// The last passing refusal of the present attempts.
    pub(super) refused: Option<RefusalCode>,
    /// Whether the last attempt has failed for want of something in this process.
    pub(super) is_short: bool,
    pub(super) holds: u8,
    /// When the stage ends, when a message is repeated or the next attempt begins, and the pauses before.
    pub(super) limit: Duration,
    pub(super) next: Duration,
    pub(super) pause: Duration,
    pub(super) repeat: Duration,
    /// When the stage began.
    pub(super) since: Duration,
    /// The message that is repeated, or sent again when its question is repeated.
    pub(super) sent: LinkBytes,
}

impl LinkSlot {
    /// Returns whether this process wants the link whatever the peer does: packets wait, or the peer is a rank.
    pub(super) const fn is_needed(&self) -> bool {
        self.is_wanted || self.rank != NONE
    }
}

impl Default for LinkSlot {
    fn default() -> Self {
        Self {
            peer: PeerAddress::from_bytes([0; ADDRESS_BYTES]),
            service: LinkService::Engine,
            instance: 0,
            rank: NONE,
            incarnation: 0,
            stage: LinkStage::Idle,
            end: LinkEnding::default(),
            is_wanted: false,
            ours: 0,
            theirs: 0,
            carrier: NONE,
            waiting: NONE,
            call: 0,
            heard: 0,
            proof: Proof::default(),
            session: LinkSession::default(),
            route: CarrierKind::default(),
            is_joined: false,
            refused: None,
            is_short: false,
            holds: 0,
            limit: Duration::MAX,
            next: Duration::MAX,
            pause: Duration::ZERO,
            repeat: Duration::ZERO,
            since: Duration::ZERO,
            sent: LinkBytes::EMPTY,
        }
    }
}

/// What a carrier is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CarrierRole {
    /// It was accepted, and its call has not come; no byte of it has.
    #[default]
    Silent,
    /// The same, and some bytes have come.
    Partial,
    /// It belongs to the own attempt, or to the link.
    Bound,
    /// It carries a call that waits.
    Waiting,
}

/// A carrier. Private to the machine; public only so that the owner can lend its storage.
#[derive(Clone, Debug)]
pub struct CarrierSlot {
    pub(super) kind: CarrierKind,
    pub(super) role: CarrierRole,
    /// The link, or [`NONE`].
    pub(super) link: u32,
    pub(super) since: Duration,
    pub(super) is_reached: bool,
    pub(super) challenge: Challenge,
    /// The call that it carries, and the number of that call.
    pub(super) message: LinkBytes,
    pub(super) call: u64,
}

impl Default for CarrierSlot {
    fn default() -> Self {
        Self {
            kind: CarrierKind::default(),
            role: CarrierRole::default(),
            link: NONE,
            since: Duration::ZERO,
            is_reached: false,
            challenge: NO_CHALLENGE,
            message: LinkBytes::EMPTY,
            call: 0,
        }
    }
}

/// A rank of the world.
#[derive(Clone, Copy, Debug)]
pub struct RankSlot {
    pub(super) address: PeerAddress,
    pub(super) incarnation: u64,
    /// The link of the process that says that it is the restarted one, or [`NONE`]; and whether the launcher says so.
    pub(super) next: u32,
    pub(super) is_sure: bool,
}

impl RankSlot {
    /// Returns a rank whose process has this address, and was started so often before.
    pub const fn new(address: PeerAddress, incarnation: u64) -> Self {
        Self { address, incarnation, next: NONE, is_sure: false }
    }
}
