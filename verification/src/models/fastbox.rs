//! Models of the fastbox: a sender and a receiver on a ring that wraps.

use nemesia_core::port::SHORT_BYTES;
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::sync::{Edge, Word64};
use nemesia_core::wire::Envelope;

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, assert_whole, both, bytes, envelope, several};

/// Packets that fill one slot.
pub(super) const WRAP: Model = Model {
    name: "fastbox/wrap",
    structure: "fastbox (4 slots)",
    property: "each message once, whole, in order; no slot overwritten before it is released",
    edges: &[Edge::FastboxPublish, Edge::FastboxAck],
    injected_faults: &[InjectedFault::AckBeforeRead],
    run: |run| wrap_slowly(run, 4, 16, 3),
};

/// Packets that fill several slots; only the first slot's stamp is stored with Release.
pub(super) const SEVERAL_SLOTS: Model = Model {
    name: "fastbox/several-slots",
    structure: "fastbox (8 slots)",
    property: "the same for messages of two slots, whose second stamp is not ordered",
    edges: &[Edge::FastboxPublish, Edge::FastboxAck],
    injected_faults: &[InjectedFault::AckBeforeRead],
    run: |run| wrap(run, 8, 40, 3),
};

/// Short messages, whose two words overlap, on the critical path.
pub(super) const SHORT: Model = Model {
    name: "fastbox/short",
    structure: "fastbox (4 slots)",
    property: "the same for short messages, written and taken in one step",
    edges: &[Edge::FastboxPublish, Edge::FastboxAck],
    injected_faults: &[InjectedFault::AckBeforeRead],
    run: |run| wrap(run, 4, 12, 3),
};

/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;

/// As [`wrap`], without the critical path of short messages.
fn wrap_slowly(run: &Run, slots: usize, len: usize, before: u8) {
    wrap_by(run, (slots, len, before), false);
}

/// As [`wrap_by`]; short messages take the critical path.
fn wrap(run: &Run, slots: usize, len: usize, before: u8) {
    wrap_by(run, (slots, len, before), true);
}

/// Fills the ring except for one message. Then sender and receiver run together, and finally alone to the end.
fn wrap_by(run: &Run, (slots, len, before): (usize, usize, u8), quick: bool) {
    let early = run.injected_faults(InjectedFault::AckBeforeRead);
    let count = before + run.size(3, 4);
    run.explore(3, move || {
        let slots = several(slots, FastboxSlot::empty);
        let (ack, nowhere) = (Word64::new(0), Word64::new(0));
        let mut sending = FastboxSending { sender: FastboxSender::new(&slots, &ack), next: 1, len, quick };
        for _ in 0..before {
            assert!(sending.push(), "a ring that is not full has room");
        }
        let mut taking = FastboxTaking::new(&slots, &ack, len, quick);
        if early {
            taking = taking.that_acknowledges_early(&slots, &ack, &nowhere);
        }
        both(
            || (0..ATTEMPTS).for_each(|_| _ = sending.next <= count && sending.push()),
            || (0..ATTEMPTS).for_each(|_| _ = taking.take()),
        );
        while taking.next <= count {
            let sent = sending.next <= count && sending.push();
            assert!(taking.take() || sent, "message {} is lost, or there is no room for it", taking.next);
        }
        assert!(!taking.take(), "a message came twice");
    });
}

/// The sender, with the number of its next message.
pub(super) struct FastboxSending<'a> {
    pub(super) sender: FastboxSender<'a>,
    pub(super) next: u8,
    pub(super) len: usize,
    /// Whether messages take the critical path.
    pub(super) quick: bool,
}

impl FastboxSending<'_> {
    /// Sends the next message. The sender sleeps if there is no room.
    pub(super) fn push_or_sleep(&mut self) -> bool {
        let (envelope, payload) = (envelope(self.next, self.len), bytes(self.next, self.len));
        let sent = self.sender.push_or_sleep(self.next.into(), &envelope, &payload);
        let pushed = sent.expect("the receiver is honest");
        self.next += u8::from(pushed);
        pushed
    }

    /// Sends the next message if there is room.
    pub(super) fn push(&mut self) -> bool {
        let (envelope, payload) = (envelope(self.next, self.len), bytes(self.next, self.len));
        let sequence = self.next.into();
        let Envelope { context, tag, .. } = envelope;
        let quick = match (self.quick, self.len) {
            (false, _) => false,
            (true, ..=SHORT_BYTES) => self.sender.push_short(sequence, context, tag, &payload),
            (true, _) => self.sender.push_now(sequence, context, tag, &payload),
        };
        let pushed = quick
            // This call checks for room.
            || self.sender.push(sequence, &envelope, &payload).expect("the receiver is honest");
        self.next += u8::from(pushed);
        pushed
    }
}

/// The receiver, with the number of the next message.
pub(super) struct FastboxTaking<'a> {
    receiver: FastboxReceiver<'a>,
    /// Releases slots in place of the receiver, too early.
    blunderer: Option<FastboxReceiver<'a>>,
    pub(super) next: u8,
    len: usize,
    quick: bool,
    /// Whether the last message ended with a report of the position.
    has_reported: bool,
}

impl<'a> FastboxTaking<'a> {
    pub(super) fn new(slots: &'a [FastboxSlot], ack: &'a Word64, len: usize, quick: bool) -> Self {
        Self {
            receiver: FastboxReceiver::new(slots, ack),
            blunderer: None,
            next: 1,
            len,
            quick,
            has_reported: false,
        }
    }

    fn that_acknowledges_early(self, slots: &'a [FastboxSlot], ack: &'a Word64, nowhere: &'a Word64) -> Self {
        let blunderer = Some(FastboxReceiver::new(slots, ack));
        Self { receiver: FastboxReceiver::new(slots, nowhere), blunderer, ..self }
    }

    /// Takes the message at the head, if there is one, and checks it.
    pub(super) fn take(&mut self) -> bool {
        // The critical path and the general path alternate.
        let packet = if self.next.is_multiple_of(2) {
            self.receiver.due(self.next.into())
        } else {
            self.receiver.peek().expect("the sender is honest")
        };
        let Some(packet) = packet else { return false };
        assert_eq!(packet.sequence, u16::from(self.next), "lost, doubled or out of order");
        assert_eq!(packet.len, self.len);
        if let Some(blunderer) = &mut self.blunderer {
            blunderer.advance(packet.len);
        }
        if self.quick && packet.len <= SHORT_BYTES {
            self.take_short();
            return true;
        }
        let mut payload = vec![0; packet.len];
        self.receiver.read(packet.len, 0, &mut payload);
        assert_whole(self.next, &packet.envelope, &payload);
        self.has_reported = self.receiver.advance(packet.len);
        self.next += 1;
        true
    }

    /// After [`FastboxTaking::take`]: returns whether a sender that sleeps until there is space is to be woken. In a
    /// method of its own, because its fence would help models that have none.
    pub(super) fn must_wake_sender(&self) -> bool {
        self.has_reported && self.receiver.must_wake_sender()
    }

    /// Takes a short message that is present, and checks it.
    fn take_short(&mut self) {
        let wanted = envelope(self.next, self.len);
        let (sequence, room) = (self.next.into(), self.len);
        let taken = self.receiver.take_short(sequence, wanted.context, room, |tag| tag == wanted.tag);
        let (packet, ended) = taken.expect("it was there");
        let mut payload = vec![0; packet.len];
        packet.read(&mut payload);
        assert_whole(self.next, &Envelope { tag: packet.tag, ..wanted }, &payload);
        if ended {
            self.receiver.end_run();
        }
        self.next += 1;
    }
}
