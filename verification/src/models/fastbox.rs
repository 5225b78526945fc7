//! Models of the fastbox: a sender and a receiver on a ring that wraps.

use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot, Word};
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
    run: |run| wrap(run, 4, 16, 3),
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

/// Messages of one word, on the critical path.
pub(super) const WORDS: Model = Model {
    name: "fastbox/words",
    structure: "fastbox (4 slots)",
    property: "the same for messages of a word, written and taken in one step",
    edges: &[Edge::FastboxPublish, Edge::FastboxAck],
    injected_faults: &[InjectedFault::AckBeforeRead],
    run: |run| wrap(run, 4, WORD, 3),
};

/// The length of a word in bytes. Messages of this length take the critical path, others do not.
const WORD: usize = size_of::<Word>();

/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;

/// Fills the ring except for one message. Then sender and receiver run together, and finally alone to the end.
fn wrap(run: &Run, slots: usize, len: usize, before: u8) {
    let early = run.injected_faults(InjectedFault::AckBeforeRead);
    let count = before + run.size(3, 4);
    run.explore(3, move || {
        let slots = several(slots, FastboxSlot::empty);
        let (ack, nowhere) = (Word64::new(0), Word64::new(0));
        let mut sending = FastboxSending { sender: FastboxSender::new(&slots, &ack), next: 1, len };
        for _ in 0..before {
            assert!(sending.push(), "a ring that is not full has room");
        }
        let mut taking = FastboxTaking::new(&slots, &ack, len);
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
}

impl FastboxSending<'_> {
    /// Sends the next message if there is room.
    pub(super) fn push(&mut self) -> bool {
        let (envelope, payload) = (envelope(self.next, self.len), bytes(self.next, self.len));
        let sequence = self.next.into();
        let word = Word::try_from(payload.as_slice());
        let pushed = word
            .is_ok_and(|word| self.sender.push_word(sequence, envelope.context, envelope.tag, word))
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
}

impl<'a> FastboxTaking<'a> {
    pub(super) fn new(slots: &'a [FastboxSlot], ack: &'a Word64, len: usize) -> Self {
        Self { receiver: FastboxReceiver::new(slots, ack), blunderer: None, next: 1, len }
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
        if packet.len == WORD {
            self.take_word();
            return true;
        }
        let mut payload = vec![0; packet.len];
        self.receiver.read(0, &mut payload);
        assert_whole(self.next, &packet.envelope, &payload);
        self.receiver.advance(packet.len);
        self.next += 1;
        true
    }

    /// Takes a word that is present, and checks it.
    fn take_word(&mut self) {
        let wanted = envelope(self.next, WORD);
        let taken = self.receiver.take_word(self.next.into(), wanted.context, |tag| tag == wanted.tag);
        let (tag, word, ended) = taken.expect("it was there");
        assert_whole(self.next, &Envelope { tag, ..wanted }, &word);
        if ended {
            self.receiver.end_run();
        }
        self.next += 1;
    }
}
