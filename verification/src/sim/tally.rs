//! What a run has met, counted: what never happened was not tested.

/// Something that a run must meet to prove anything about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Eager,
    Rts,
    Cts,
    Data,
    Fin,
    /// There was no room for a packet.
    NoRoom,
    /// A grant of credit.
    Grant,
    /// A single copy; one that could not be made; and one in the middle of a message.
    Pull,
    PullRefused,
    PullRefusedMidway,
    /// A copy that both sides may make; the sender's part of it; a part that could not be made; one that was waited for.
    Share,
    Push,
    PushRefused,
    ShareWait,
    /// A receive got its message when it was posted; and later.
    Unexpected,
    Expected,
    /// A blocking receive got its message without being posted.
    Bypass,
    Probe,
    Truncated,
    Cancelled,
    /// A message to its own sender.
    Own,
    /// Operations on another rank's region; notifications that were waited for; active messages.
    Put,
    Get,
    Atomic,
    Flush,
    Notified,
    Active,
    /// A buffer in several runs.
    List,
    /// A process died, or finished.
    Death,
    /// A rank was started again; and readmitted by another.
    Restart,
    Readmission,
    /// A request ended as somebody was gone.
    PeerFailed,
    /// A request was refused as all slots were in use.
    NoSlot,
    /// A message could not leave for want of credit.
    Held,
    /// Channels: a packet with content was sent; a connection is ready; a packet had to wait for credit, or for room.
    ChannelPacket,
    ChannelUp,
    NoCredit,
    /// Packets wait for earlier ones of other rails.
    Early,
    /// Packets without content; receives that were added, and called back.
    Update,
    Grown,
    Shrunk,
    /// Memory was lent when a peer ran dry; and could not be registered.
    Lent,
    NotRegistered,
    /// A process died; another one was told; a connection did not come about.
    ChannelDeath,
    ChannelLost,
    ChannelRefused,
}

/// Every event, with its name.
const EVENTS: [(Event, &str); 46] = [
    (Event::Eager, "eager"),
    (Event::Rts, "RTS"),
    (Event::Cts, "CTS"),
    (Event::Data, "data"),
    (Event::Fin, "FIN"),
    (Event::NoRoom, "no room"),
    (Event::Grant, "grants"),
    (Event::Pull, "pulled"),
    (Event::PullRefused, "pull refused"),
    (Event::PullRefusedMidway, "midway"),
    (Event::Share, "shared"),
    (Event::Push, "pushed"),
    (Event::PushRefused, "push refused"),
    (Event::ShareWait, "waited for"),
    (Event::Unexpected, "unexpected"),
    (Event::Expected, "expected"),
    (Event::Bypass, "bypassed"),
    (Event::Probe, "probed"),
    (Event::Truncated, "truncated"),
    (Event::Cancelled, "cancelled"),
    (Event::Own, "to itself"),
    (Event::Put, "put"),
    (Event::Get, "got"),
    (Event::Atomic, "fetched"),
    (Event::Flush, "flushed"),
    (Event::Notified, "notified"),
    (Event::Active, "handled"),
    (Event::List, "scattered"),
    (Event::Death, "deaths"),
    (Event::Restart, "restarts"),
    (Event::Readmission, "readmitted"),
    (Event::PeerFailed, "peer failed"),
    (Event::NoSlot, "no slot"),
    (Event::Held, "held"),
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
];

/// How often each event happened.
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

    /// So often at once.
    pub(crate) const fn add_to(&mut self, event: Event, more: u64) {
        self.0[event as usize] += more;
    }

    /// Adds what another run has met.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// What never happened.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let never = EVENTS.into_iter().filter(|(event, _)| self.0[*event as usize] == 0);
        never.map(|(_, name)| name).collect()
    }

    /// All counts, in a few lines.
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
