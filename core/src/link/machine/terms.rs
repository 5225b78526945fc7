//! What the machine of links and its owner say to each other.
#![forbid(unsafe_code)]

use core::time::Duration;

use crate::link::address::AddressFault;
use crate::link::offers::OfferList;
use crate::link::refusal::RefusalWords;
use crate::link::wire::{LinkAnswer, LinkCall, LinkService, RefusalCode};
use crate::peers::PeerAddress;

/// What carries the messages of a link until it is open, in the order in which they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CarrierKind {
    /// A Unix socket of one machine. The kernel says which process and user the other end is.
    #[default]
    HandOff,
    /// A TCP connection.
    Stream,
    /// Datagrams, which may be lost, repeated and overtaken.
    Datagram,
}

impl CarrierKind {
    pub(super) const ALL: [Self; 3] = [Self::HandOff, Self::Stream, Self::Datagram];
}

/// The identifier of a link. Stale identifiers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkRef {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The identifier of a carrier. Stale identifiers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CarrierRef {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The stage of a link: see the table of [`machine`](super).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkStage {
    /// There is nothing.
    #[default]
    Idle,
    /// A carrier is being reached, the challenge has not come, or the next attempt is due.
    Calling,
    /// The call was sent.
    Proving,
    /// A restarted rank waits to be readmitted.
    Held,
    /// The answer was sent.
    Answered,
    /// The answer is right. The path is being made, or the confirmation was sent.
    Confirmed,
    /// Packets pass.
    Open,
    /// This process has disconnected, and its last packets leave.
    Leaving,
    /// The link has ended, and the owner has not freed it.
    Ended,
}

/// The reason why a link, or a call, has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnding {
    /// Its process has ended.
    #[default]
    #[error("its process has ended")]
    Died,
    /// The peer closed its endpoint or disconnected.
    #[error("it disconnected")]
    Left,
    /// The peer ended its endpoint without having closed it.
    #[error("it ended without having closed its endpoint")]
    Dropped,
    /// This process disconnected, or closes its endpoint.
    #[error("this process disconnected from it")]
    Disconnected,
    /// The path, or the carrier of an open link, was lost.
    #[error("its connection failed")]
    Lost,
    /// One of the two processes refused.
    #[error("the connection was refused")]
    Refused(RefusalCode),
    /// The peer gave no sign of life within the limit.
    #[error("it did not answer within the limit")]
    Unreachable,
}

/// A process that says that it is the restarted one of a rank, and waits until it is readmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankClaim {
    /// The link.
    pub link: LinkRef,
    /// The rank.
    pub rank: u32,
    /// How often it says that the rank was started before.
    pub incarnation: u64,
    /// Its address.
    pub peer: PeerAddress,
    /// The launcher has confirmed it.
    pub is_sure: bool,
}

/// What the owner learns of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent<'a> {
    /// Packets may be sent.
    Opened,
    /// The link, or the call, has ended; with the words of a refusal. The owner calls `free` when nothing is left.
    Ended(LinkEnding, &'a str),
    /// A process says that it is the restarted process of this rank: its incarnation. The owner asks the launcher, and
    /// calls `restarted`.
    Restarted(u32, u64),
}

/// The reason why a link cannot be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The address is none.
    #[error("{0}")]
    Address(AddressFault),
    /// It is the address of this process.
    #[error("it is the address of this endpoint itself")]
    Itself,
    /// No carrier reaches the address.
    #[error("its address names no carrier that this process has")]
    NoCarrier,
    /// All places for links are in use.
    #[error("all {0} places for links are in use")]
    Links(usize),
    /// The link with this rank has ended.
    #[error("{0}")]
    Ended(LinkEnding),
    /// The endpoint closes.
    #[error("this endpoint closes")]
    Closing,
}

/// Why a carrier could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFault {
    /// Nothing listens there.
    Nothing,
    /// The network is lost, or this process lacks a descriptor: it may succeed later.
    Busy,
    /// The kernel of the other end has no room for the connection now: the process lives.
    Full,
}

/// What a process says about itself in calls and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkIntroduction {
    /// The number by which this process knows the peer.
    pub number: u32,
    /// Payload bytes of the largest packet.
    pub packet_bytes: u32,
    /// In an answer, a word of the service.
    pub word: u64,
    /// In an answer, the code of the chosen offer.
    pub chosen: u8,
}

/// A refusal of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRefusal {
    /// Why.
    pub code: RefusalCode,
    /// Whether the same call can succeed later.
    pub is_passing: bool,
    /// The own value and that of the peer.
    pub values: [u64; 2],
    /// The reason in words.
    pub words: RefusalWords,
}

/// What became of the path of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathResult {
    /// The path of the offer with this code is up; with the reason why it is not a better one.
    Up(u8, &'static str),
    /// It takes time: the owner calls `path` later.
    Pending,
    /// No path can be made, or in strict mode not the best one. If the refusal is passing, the peer is called again.
    Failed(LinkRefusal),
}

/// The limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct LinkLimits {
    /// The time without a sign of the peer after which a call ends (`NEMESIA_TIMEOUT`).
    pub patience: Duration,
    /// The time for a connection without proof, and the same if all places are in use.
    pub unproved: Duration,
    /// See `unproved`.
    pub unproved_full: Duration,
    /// Most connections without proof, of each kind of carrier.
    pub most_unproved: u32,
    /// Most calls that are proved and not decided, or answered and not confirmed.
    pub most_undecided: u32,
    /// The time for a call that waits for the end of a former link; and that of an answer whose place is needed.
    pub held: Duration,
    /// The time for the last packets and the goodbye.
    pub leaving: Duration,
    /// The pause before the next attempt: first and longest.
    pub pause: [Duration; 2],
    /// The time between two sendings of a datagram: first and longest; and that of a call that is held.
    pub repeat: [Duration; 2],
    /// See `repeat`.
    pub repeat_held: Duration,
    /// How often *hold* begins the limit of a call to a further peer anew.
    pub most_holds: u8,
}

impl LinkLimits {
    /// Returns the limits with this patience.
    pub const fn new(patience: Duration) -> Self {
        Self {
            patience,
            unproved: Duration::from_secs(5),
            unproved_full: Duration::from_millis(200),
            most_unproved: 256,
            most_undecided: 256,
            held: Duration::from_secs(5),
            leaving: Duration::from_secs(5),
            pause: [Duration::from_millis(1), Duration::from_millis(100)],
            repeat: [Duration::from_millis(5), Duration::from_millis(400)],
            repeat_held: Duration::from_secs(1),
            most_holds: 2,
        }
    }
}

/// What the machine asks of the process. Each call returns at once.
pub trait LinkOwner {
    /// Returns a random number.
    fn random(&mut self) -> u64;

    /// Begins to reach a peer: later the owner calls `reached` or `failed`. Datagrams need no connection: the call says
    /// where the messages of this carrier go.
    fn dial(&mut self, carrier: CarrierRef, kind: CarrierKind, peer: &PeerAddress);

    /// Sends a message, with the descriptors of call and answer over hand-off. Returns false if the other end reads no
    /// more.
    fn send(&mut self, carrier: CarrierRef, message: &[u8]) -> bool;

    /// Sends a datagram to the author of the datagram that is being handled.
    fn respond(&mut self, message: &[u8]);

    /// Closes a carrier after what was sent. Nothing of it is read any more.
    fn close(&mut self, carrier: CarrierRef);

    /// Ends the reading side of a hand-off, so that later messages of the peer fail. Returns whether a message of
    /// before waits unread.
    fn withdraw(&mut self, carrier: CarrierRef) -> bool;

    /// Returns whether a message comes from where this address says: the process and user of the kernel, or the IP, or
    /// GID and LID. `None`: the datagram that is being handled.
    fn is_from(&mut self, carrier: Option<CarrierRef>, peer: &PeerAddress) -> bool;

    /// Decides whether a process may call that this one does not know.
    ///
    /// # Errors
    /// The refusal.
    fn admit(&mut self, peer: &PeerAddress, service: LinkService) -> Result<(), LinkRefusal>;

    /// Makes what this process offers in a call over this carrier. `None` for want of a resource.
    fn make(
        &mut self,
        link: LinkRef,
        carrier: (CarrierRef, CarrierKind),
        offers: &mut OfferList,
    ) -> Option<LinkIntroduction>;

    /// Decides about a proved call that has come over this carrier, and makes what this process offers in the answer:
    /// ready to receive.
    ///
    /// # Errors
    /// The refusal. A passing one if resources are missing.
    fn grant(
        &mut self,
        link: LinkRef,
        carrier: CarrierRef,
        peer: &PeerAddress,
        call: &LinkCall<'_>,
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal>;

    /// Makes the path of an answer.
    fn join(&mut self, link: LinkRef, answer: &LinkAnswer<'_>) -> PathResult;

    /// The caller has chosen the offer with this code: the others can be freed.
    fn settle(&mut self, link: LinkRef, chosen: u8);

    /// Frees what `make` and `grant` made.
    fn unmake(&mut self, link: LinkRef);

    /// Learns of a link.
    fn report(&mut self, link: LinkRef, event: LinkEvent<'_>);
}
