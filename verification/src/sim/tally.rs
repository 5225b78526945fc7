//! Counts of the events of a run. An event that never happened was not tested.

/// An event that a run must meet to prove anything about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Eager,
    /// An eager message with immediate data; one that its receiver acknowledges.
    Immediate,
    Acknowledged,
    Rts,
    Cts,
    Data,
    Fin,
    /// There was no room for a packet.
    NoRoom,
    /// The receiver granted credit.
    Grant,
    /// A single copy; a single copy that failed; a single copy that failed in the middle of a message.
    Pull,
    PullRefused,
    PullRefusedMidway,
    /// The runs of a message that is a list were read from its sender's table.
    Table,
    /// A sender-assisted copy was offered; the sender copied a part; a part failed; the receiver waited for a part.
    Assist,
    Push,
    PushRefused,
    AssistWait,
    /// An access to remote memory began whose end came later; or had to wait for others.
    Access,
    PutAccess,
    AccessBusy,
    /// A receive took its message when it was posted; or later.
    Unexpected,
    Expected,
    /// A part of a message arrived unasked; for a message that no receive had matched.
    Unasked,
    UnaskedStored,
    /// A blocking receive took its message without being posted.
    Bypass,
    /// The same, while other receives were posted.
    BypassBeside,
    /// The same, by function: for a word, for a message from a named source, for any message, and for any everywhere.
    BypassShort,
    BypassPacket,
    BypassNext,
    BypassStep,
    Probe,
    Truncated,
    Cancelled,
    /// A rank sent a message to itself.
    Own,
    /// Operations on another rank's region; notifications that were waited for; active messages.
    Put,
    Delivered,
    /// A put or get by remote memory access; a region that peers could access was withdrawn.
    DirectAccess,
    Withdrawn,
    Get,
    Atomic,
    Flush,
    Notified,
    Active,
    /// A buffer consisted of several segments.
    List,
    /// It began with a short segment, and the rest was one long segment.
    Header,
    /// A process died, or finished.
    Death,
    /// A rank was started again; a rank was readmitted by another.
    Restart,
    Readmission,
    /// A rank added another; it had to refuse it because messages of the former process were stored, or for want of
    /// memory; a number was kept for an outcome that named its former peer.
    Added,
    AddedLate,
    AddedMany,
    Met,
    TakenLate,
    /// A request ended because a peer was gone.
    PeerFailed,
    /// A request was refused because all slots were in use.
    NoSlot,
    /// A message had to wait for credit.
    Held,
    /// A message was placed into a buffer for many; such a buffer was used up; a message waited for a slot; a receive
    /// of the completion queue took its message at once; a process found nothing to do.
    MultiPlaced,
    MultiEnd,
    Starved,
    CompletedNext,
    Quiet,
    /// Shared memory: a packet was sent; a message was copied at once; a packet was found in a fastbox, in a cell by
    /// the queue or a scan, and in a cell by the fastbox; one with a prefix was taken at once; one was a part of a
    /// stream.
    SharedPacket,
    SharedCopied,
    SharedFastbox,
    SharedCell,
    SharedAnnounced,
    SharedPrefixed,
    SharedStreamed,
    /// Bytes were read past the caches, copied by the kernel in both directions, and copied through mappings in both
    /// directions; a sender-assisted copy was offered.
    SharedNonTemporal,
    SharedPull,
    SharedPush,
    SharedMappedGet,
    SharedMappedPut,
    SharedAssist,
    /// Channels: a packet with content was sent; a connection is ready; a packet had to wait for credit, or for room.
    ChannelPacket,
    ChannelUp,
    NoCredit,
    /// A packet waited for earlier packets of other rails.
    Early,
    /// A packet without content was sent; receives were added; receives were recalled.
    Update,
    Grown,
    Shrunk,
    /// Memory was lent because a peer was receive-starved; memory could not be registered.
    Lent,
    NotRegistered,
    /// A process died; a peer learned of it; a connection was refused.
    ChannelDeath,
    ChannelLost,
    ChannelRefused,
    /// A process disconnected a living peer that had not made all its connections.
    ChannelGivenUp,
    /// A process left in good order, and a peer learned of it; a request of a restarted process was held, and accepted.
    ChannelLeft,
    ChannelHeld,
    ChannelAccepted,
    /// A packet was sent over the placement.
    Placed,
    /// A packet was written into a ring; its header was cached; one was sent because the ring was full; a process has
    /// made its peers stop writing.
    RingWritten,
    RingCached,
    RingFull,
    RingQuiet,
    /// An access to a peer's memory has begun; a peer's last put reported the end; an access came too late, and a
    /// report came from a process to which the buffer was not exposed.
    Accessed,
    PutNotified,
    StaleAccess,
    FalseReport,
    /// Peers: one was called; one was refused at a limit; a stranger was refused; a connection ended in order; a slot
    /// was used again; a number was.
    PeerCall,
    PeerFull,
    PeerStranger,
    PeerLeft,
    PeerSlotAgain,
    PeerNumberAgain,
    /// Keys: a caller has accepted a proof; a connection is ready; a proof was wrong; a request was sent to another
    /// process; a request or an answer was sent again; a proof was sent back; a proof was invented.
    KeyProved,
    KeyUp,
    KeyWrong,
    KeyRelayed,
    KeyReplayed,
    KeyReflected,
    KeyForged,
    /// Cells: a message was sent; no cell was free; cells were left to a former peer; they were taken back when their
    /// time was over; a packet was read too late; no number was free; a number was used again; a process died.
    CellMessage,
    CellsFull,
    CellsLeft,
    CellsTaken,
    CellLate,
    /// A buffer of a peer was read, or was found to be its owner's again.
    CellBuffer,
    CellBufferLate,
    CellNumbersFull,
    CellNumberAgain,
    CellDeath,
    /// Virtual interfaces: a message, a write, a read and a fenced message were posted; a message waited for a receive
    /// of the other side; a process died.
    ViplMessage,
    ViplWrite,
    ViplRead,
    ViplFenced,
    ViplNoCredit,
    ViplDeath,
    /// Joints: a request was accepted, or refused; a connection was established at both ends; its end was learned; an
    /// owner ended one; a queue pair could not be joined; an attempt to connect failed, or came to its deadline; a
    /// request was reported again after its end; a datagram was lost, repeated, forged, or sent to a port that is dead;
    /// a port died.
    JoinAccepted,
    JoinRefused,
    JoinEstablished,
    JoinLost,
    JoinClosed,
    JoinFailed,
    JoinUnanswered,
    JoinExpired,
    JoinAgain,
    JoinDropped,
    JoinRepeated,
    JoinForged,
    JoinNowhere,
    JoinDeath,
    /// Links: a process spoke to a peer; a link was opened, refused, not reached, ended by a process; a process closed,
    /// told a rank that it had never met, died; a rank was started again, confirmed by the launcher, readmitted; a
    /// process was stopped; a connection broke; a direction was closed; a stranger connected; a door was full;
    /// datagrams were lost and repeated.
    LinkCalled,
    LinkOpened,
    LinkRefused,
    LinkUnreachable,
    LinkDisconnected,
    LinkClosed,
    LinkDeparture,
    LinkDeath,
    LinkStarted,
    LinkRestarted,
    LinkReadmitted,
    LinkStopped,
    LinkCut,
    LinkBlocked,
    LinkStranger,
    LinkDoorFull,
    LinkDropped,
    LinkRepeated,
}

/// Every event with its name.
const EVENTS: [(Event, &str); 160] = [
    (Event::Eager, "eager"),
    (Event::Immediate, "immediate"),
    (Event::Acknowledged, "acknowledged"),
    (Event::Rts, "RTS"),
    (Event::Cts, "CTS"),
    (Event::Data, "data"),
    (Event::Fin, "FIN"),
    (Event::NoRoom, "no room"),
    (Event::Grant, "grants"),
    (Event::Pull, "pulled"),
    (Event::PullRefused, "pull refused"),
    (Event::PullRefusedMidway, "midway"),
    (Event::Table, "tables"),
    (Event::Assist, "shared"),
    (Event::Push, "pushed"),
    (Event::PushRefused, "push refused"),
    (Event::AssistWait, "waited for"),
    (Event::Access, "accesses"),
    (Event::PutAccess, "put accesses"),
    (Event::AccessBusy, "busy"),
    (Event::Unexpected, "unexpected"),
    (Event::Expected, "expected"),
    (Event::Unasked, "unasked parts"),
    (Event::UnaskedStored, "stored"),
    (Event::Bypass, "bypassed"),
    (Event::BypassBeside, "bypassed beside"),
    (Event::BypassShort, "as a word"),
    (Event::BypassPacket, "as a packet"),
    (Event::BypassNext, "as the next"),
    (Event::BypassStep, "in a step"),
    (Event::Probe, "probed"),
    (Event::Truncated, "truncated"),
    (Event::Cancelled, "cancelled"),
    (Event::Own, "to itself"),
    (Event::Put, "put"),
    (Event::Delivered, "delivered"),
    (Event::DirectAccess, "direct"),
    (Event::Withdrawn, "withdrawn"),
    (Event::Get, "got"),
    (Event::Atomic, "fetched"),
    (Event::Flush, "flushed"),
    (Event::Notified, "notified"),
    (Event::Active, "handled"),
    (Event::List, "scattered"),
    (Event::Header, "with headers"),
    (Event::Death, "deaths"),
    (Event::Restart, "restarts"),
    (Event::Readmission, "readmitted"),
    (Event::Added, "added"),
    (Event::AddedLate, "added too early"),
    (Event::AddedMany, "too many"),
    (Event::Met, "met on demand"),
    (Event::TakenLate, "outcomes taken late"),
    (Event::PeerFailed, "peer failed"),
    (Event::NoSlot, "no slot"),
    (Event::Held, "held"),
    (Event::MultiPlaced, "in buffers for many"),
    (Event::MultiEnd, "used up"),
    (Event::Starved, "starved"),
    (Event::CompletedNext, "completed at once"),
    (Event::Quiet, "nothing to do"),
    (Event::SharedPacket, "shared memory: packets"),
    (Event::SharedCopied, "copied at once"),
    (Event::SharedFastbox, "in fastboxes"),
    (Event::SharedCell, "in cells"),
    (Event::SharedAnnounced, "announced"),
    (Event::SharedPrefixed, "with prefixes"),
    (Event::SharedStreamed, "streamed"),
    (Event::SharedNonTemporal, "past the caches"),
    (Event::SharedPull, "by the kernel"),
    (Event::SharedPush, "to receivers"),
    (Event::SharedMappedGet, "mapped"),
    (Event::SharedMappedPut, "mapped for writing"),
    (Event::SharedAssist, "assisted"),
    (Event::ChannelPacket, "channel: packets"),
    (Event::ChannelUp, "connections"),
    (Event::NoCredit, "no credit"),
    (Event::Early, "early"),
    (Event::Update, "updates"),
    (Event::Grown, "grown"),
    (Event::Shrunk, "called back"),
    (Event::Lent, "lent"),
    (Event::NotRegistered, "not registered"),
    (Event::ChannelDeath, "deaths"),
    (Event::ChannelLost, "lost"),
    (Event::ChannelRefused, "refused"),
    (Event::ChannelGivenUp, "given up"),
    (Event::ChannelLeft, "left"),
    (Event::ChannelHeld, "requests held"),
    (Event::ChannelAccepted, "accepted"),
    (Event::Placed, "by placement"),
    (Event::RingWritten, "in rings"),
    (Event::RingCached, "with cached headers"),
    (Event::RingFull, "rings full"),
    (Event::RingQuiet, "rings quiet"),
    (Event::Accessed, "accesses"),
    (Event::PutNotified, "notified"),
    (Event::StaleAccess, "too late"),
    (Event::FalseReport, "false reports"),
    (Event::PeerCall, "peers: calls"),
    (Event::PeerFull, "at a limit"),
    (Event::PeerStranger, "strangers refused"),
    (Event::PeerLeft, "disconnected"),
    (Event::PeerSlotAgain, "slots again"),
    (Event::PeerNumberAgain, "numbers again"),
    (Event::KeyProved, "keys: proved"),
    (Event::KeyUp, "connections"),
    (Event::KeyWrong, "wrong"),
    (Event::KeyRelayed, "relayed"),
    (Event::KeyReplayed, "replayed"),
    (Event::KeyReflected, "reflected"),
    (Event::KeyForged, "forged"),
    (Event::CellMessage, "cells: messages"),
    (Event::CellsFull, "no cell"),
    (Event::CellsLeft, "left"),
    (Event::CellsTaken, "taken back"),
    (Event::CellLate, "read too late"),
    (Event::CellBuffer, "buffers read"),
    (Event::CellBufferLate, "buffers read too late"),
    (Event::CellNumbersFull, "no number"),
    (Event::CellNumberAgain, "numbers again"),
    (Event::CellDeath, "deaths"),
    (Event::ViplMessage, "interfaces: messages"),
    (Event::ViplWrite, "writes"),
    (Event::ViplRead, "reads"),
    (Event::ViplFenced, "fenced"),
    (Event::ViplNoCredit, "no credit"),
    (Event::ViplDeath, "deaths"),
    (Event::JoinAccepted, "joints: accepted"),
    (Event::JoinRefused, "refused"),
    (Event::JoinEstablished, "established"),
    (Event::JoinLost, "ended by the peer"),
    (Event::JoinClosed, "ended"),
    (Event::JoinFailed, "not joined"),
    (Event::JoinUnanswered, "failed"),
    (Event::JoinExpired, "expired"),
    (Event::JoinAgain, "requested again"),
    (Event::JoinDropped, "datagrams lost"),
    (Event::JoinRepeated, "repeated"),
    (Event::JoinForged, "forged"),
    (Event::JoinNowhere, "to dead ports"),
    (Event::JoinDeath, "deaths"),
    (Event::LinkCalled, "links: spoken to"),
    (Event::LinkOpened, "opened"),
    (Event::LinkRefused, "refused"),
    (Event::LinkUnreachable, "unreachable"),
    (Event::LinkDisconnected, "disconnected"),
    (Event::LinkClosed, "closed"),
    (Event::LinkDeparture, "departures"),
    (Event::LinkDeath, "deaths"),
    (Event::LinkStarted, "ranks started"),
    (Event::LinkRestarted, "confirmed"),
    (Event::LinkReadmitted, "readmitted"),
    (Event::LinkStopped, "stopped"),
    (Event::LinkCut, "connections cut"),
    (Event::LinkBlocked, "directions closed"),
    (Event::LinkStranger, "strangers"),
    (Event::LinkDoorFull, "door full"),
    (Event::LinkDropped, "datagrams lost"),
    (Event::LinkRepeated, "repeated"),
];

/// The count of each event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally([u64; EVENTS.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; EVENTS.len()])
    }
}

impl Tally {
    pub(crate) const fn count(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Counts an event several times at once.
    pub(crate) const fn add_to(&mut self, event: Event, more: u64) {
        self.0[event as usize] += more;
    }

    /// Adds the counts of another run.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Returns the names of the events that never happened.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let never = EVENTS.into_iter().filter(|(event, _)| self.0[*event as usize] == 0);
        never.map(|(_, name)| name).collect()
    }

    /// Formats all counts in a few lines.
    pub(crate) fn table(&self) -> String {
        let words: Vec<_> =
            EVENTS.iter().map(|(event, name)| format!("{name} {}", self.0[*event as usize])).collect();
        words.chunks(8).map(|words| words.join(", ") + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_place() {
        for (at, (event, _)) in EVENTS.into_iter().enumerate() {
            assert_eq!(event as usize, at);
        }
        let (mut one, mut two) = (Tally::default(), Tally::default());
        EVENTS.into_iter().skip(1).for_each(|(event, _)| one.count(event));
        two.add(&one);
        assert_eq!((two.missing(), one.missing().len()), (vec!["eager"], 1));
    }
}
