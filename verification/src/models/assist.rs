//! Models of a message that both sides copy.

use std::cell::RefCell;

use nemesia_core::port::{AssistedCopy, NextChunk, Part};
use nemesia_core::shared::assist::{AssistLine, AssistReceiver, AssistSender, Pieces};
use nemesia_core::sync::{Edge, PayloadMut};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, payload};

/// One message.
pub(super) const ONE: Model = Model {
    name: "assist/one",
    structure: "shared copy (2 pieces)",
    property: "every byte is written once, all before the receiver continues",
    edges: &[Edge::AssistClaim, Edge::AssistLeave],
    injected_faults: &[InjectedFault::LeaveBeforeWrite],
    run: |run| assist(run, 1, 2, 2, [1, 1]),
};

/// Two messages, one after the other.
pub(super) const TWO: Model = Model {
    name: "assist/two",
    structure: "shared copy (2 messages)",
    property: "the same, and no part of the first message is mistaken for one of the second",
    edges: &[Edge::AssistOpen, Edge::AssistClaim],
    injected_faults: &[],
    run: |run| assist(run, 2, 1, 1, [1, 1]),
};

/// The receiver takes larger pieces than the sender.
pub(super) const UNEVEN: Model = Model {
    name: "assist/uneven",
    structure: "shared copy (pieces of 2 and of 1)",
    property: "the same, for any piece sizes of the two sides",
    edges: &[Edge::AssistClaim],
    injected_faults: &[],
    run: |run| assist(run, 1, 3, 2, [2, 1]),
};

/// The number of polls and waits of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 2;

/// The bytes that a thread has written, for each message.
type Written = RefCell<Vec<u64>>;

struct AssistMemory {
    ours: AssistLine,
    theirs: AssistLine,
    /// The destination: byte `at` of a message goes to the message's address plus `at`.
    bytes: Vec<loom::cell::UnsafeCell<u8>>,
    count: u64,
}

impl AssistMemory {
    fn write(&self, address: u64, part: Part, written: &Written) {
        for at in address + part.start..address + part.end {
            let cells = PayloadMut::from_cells(&self.bytes);
            assert!(cells.write(at as usize, &[7]), "outside of the buffer");
            written.borrow_mut().push(at);
        }
    }

    /// Checks that all bytes of the message are present.
    fn check(&self, address: u64) {
        for at in address..address + self.count {
            let mut byte = [0];
            assert!(PayloadMut::from_cells(&self.bytes).as_read().read(at as usize, &mut byte));
            assert_eq!(byte, [7], "byte {at} is missing");
        }
    }

    /// Runs the receiver's next steps. Returns true when the message is complete.
    fn receive(
        &self,
        receiver: &mut AssistReceiver<'_>,
        address: u64,
        attempts: usize,
        written: &Written,
    ) -> bool {
        for _ in 0..attempts {
            loop {
                match receiver.next_chunk() {
                    NextChunk::Copy(part) => self.write(address, part, written),
                    NextChunk::Wait => break,
                    NextChunk::Done => {
                        self.check(address);
                        return true;
                    }
                }
            }
        }
        false
    }
}

fn assist(run: &Run, messages: u64, count: u64, preemptions: usize, pieces: [u32; 2]) {
    let [ours, its] = pieces.map(|bytes| Pieces::new(bytes, bytes));
    let early = run.injected_faults(InjectedFault::LeaveBeforeWrite);
    run.explore(preemptions, move || {
        let memory = AssistMemory {
            ours: AssistLine::empty(),
            theirs: AssistLine::empty(),
            bytes: payload((messages * count) as usize),
            count,
        };
        let mut receiver = AssistReceiver::new(&memory.ours, &memory.theirs);
        let mut assist_sender = AssistSender::new(&memory.theirs, &memory.ours);
        let (received, assisted) = (Written::default(), Written::default());
        let message = |number: u64| AssistedCopy {
            request: 50 + number,
            address: number * count,
            start: 0,
            end: count,
        };
        let first = || {
            for number in 0..messages {
                let assist = message(number);
                receiver.open(&assist, ours);
                if !memory.receive(&mut receiver, assist.address, ATTEMPTS, &received) {
                    return number;
                }
            }
            messages
        };
        let second = || {
            for _ in 0..ATTEMPTS {
                let Some(assist) = assist_sender.find() else { continue };
                let mut next = assist_sender.join(assist.end, its);
                while let Some(part) = next {
                    // A sender that may write knows the right message, never the other one.
                    assert_eq!((assist.request, assist.end), (50 + assist.address / count, count));
                    if early {
                        assist_sender.finish(part, true);
                    }
                    memory.write(assist.address, part, &assisted);
                    if !early {
                        assist_sender.finish(part, true);
                    }
                    next = assist_sender.claim();
                }
            }
        };
        let (done, ()) = both(first, second);
        // The sender has left by now; the receiver finishes the rest.
        for number in done..messages {
            if number > done {
                receiver.open(&message(number), ours);
            }
            let complete = memory.receive(&mut receiver, message(number).address, 1, &received);
            assert!(complete, "the sender has left, and the receiver waits");
        }
        let mut all = [received.into_inner(), assisted.into_inner()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..messages * count).collect::<Vec<_>>(), "each byte once");
    });
}
