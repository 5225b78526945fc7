//! Models of the sleep word: no wake-up is lost.
//!
//! The futex wait is not modelled by blocking. A wake-up is lost exactly if, at the end, the sleeper has not
//! found the work and the sequence on which it would wait has not moved. Each model checks that at its end.

use nemesia_core::shared::fastbox::FastboxSlot;
use nemesia_core::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use nemesia_core::sync::{Edge, FenceMode, Word64};

use super::Model;
use super::fastbox::{FastboxSending, FastboxTaking};
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, several, three};

/// One sleep, one waker.
pub(super) const WAKE: Model = Model {
    name: "sleep/wake",
    structure: "sleep word, fastbox",
    property: "a sleeper that misses a message is woken for it",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce],
    run: |run| wake(run, 1),
};

/// Two sleeps, one waker of two messages: claims and wake-ups of the first sleep meet the second sleep.
pub(super) const TWICE: Model = Model {
    name: "sleep/twice",
    structure: "sleep word, fastbox",
    property: "the same when a sleep follows a sleep that found work",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce],
    run: |run| wake(run, 2),
};

/// One sleep, two wakers.
pub(super) const TWO_WAKERS: Model = Model {
    name: "sleep/two-wakers",
    structure: "sleep word",
    property: "of two wakers at most one calls the kernel; exactly one if the sleeper missed both",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce],
    run: two_wakers,
};

/// A sleep in an event loop, abandoned for a sleep on the futex.
pub(super) const EVENT: Model = Model {
    name: "sleep/event",
    structure: "sleep word",
    property: "a sleeper that changes its way to sleep, and misses the work, is woken in the new way",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce, InjectedFault::WakeAsBefore],
    run: event,
};

/// One sleep for two messages; two wakers with one message each.
pub(super) const COUNTED: Model = Model {
    name: "sleep/counted",
    structure: "sleep word",
    property: "a sleeper that lacks two messages, and misses the last of them, is woken",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce, InjectedFault::CountTaken],
    run: counted,
};

/// Sleeps for which the wakers execute the fence. The sleeper's word has asked for fences since before either
/// began.
pub(super) const ASKED: Model = Model {
    name: "sleep/asked",
    structure: "sleep word",
    property: "wakers that fence only on the word's request miss no sleeper, the first time and after a sleep",
    edges: &[Edge::Sleep],
    injected_faults: &[InjectedFault::CheckBeforeAnnounce, InjectedFault::AskTooLate],
    run: asked,
};

/// The same, if a second sleep follows a sleep that nothing ended, and a waker still sees the first.
pub(super) const ASKED_AGAIN: Model = Model {
    name: "sleep/asked-again",
    structure: "sleep word",
    property: "a waker whose fences are requested, and that comes when a sleep ends, does not miss the next",
    edges: &[Edge::Sleep],
    injected_faults: &[],
    run: asked_again,
};

/// A sender that sleeps until the fastbox has space, and a receiver that wakes it only if packets are left.
pub(super) const ROOM: Model = Model {
    name: "sleep/room",
    structure: "fastbox (4 slots)",
    property: "a sender that sleeps although there is space is woken",
    edges: &[Edge::Sleep],
    injected_faults: &[],
    run: room,
};

/// Bytes of a message.
const LEN: usize = 8;

/// Half of the ring was released. The receiver releases the other half, and finds nothing more, while the sender fills
/// the first half again, and sleeps.
fn room(run: &Run) {
    run.explore(3, move || {
        let (slots, ack) = (several(4, FastboxSlot::empty), Word64::new(0));
        let sender = nemesia_core::shared::fastbox::FastboxSender::new(&slots, &ack);
        let mut sending = FastboxSending { sender, next: 1, len: LEN, quick: false };
        let mut taking = FastboxTaking::new(&slots, &ack, LEN, false);
        while sending.push() {}
        while taking.next <= 2 {
            assert!(taking.take(), "a message that was sent is there");
        }
        let receiver = || {
            let mut has_woken = false;
            for _ in 0..2 {
                assert!(taking.take(), "a message that was sent is there");
                has_woken |= taking.must_wake_sender();
            }
            has_woken
        };
        let (sleeps, has_woken) = both(|| (0..3).any(|_| !sending.push_or_sleep()), receiver);
        assert!(!sleeps || has_woken || !sending.push(), "there is space, and the sender sleeps");
    });
}

fn wake(run: &Run, messages: u8) {
    let early = run.injected_faults(InjectedFault::CheckBeforeAnnounce);
    run.explore(4, move || {
        let (slots, ack, word) = (several(4, FastboxSlot::empty), Word64::new(0), SleepWord::awake());
        let mut sending = FastboxSending {
            sender: nemesia_core::shared::fastbox::FastboxSender::new(&slots, &ack),
            next: 1,
            len: LEN,
            quick: true,
        };
        let mut taking = FastboxTaking::new(&slots, &ack, LEN, true);
        let sleeper = || {
            loop {
                let found = early && taking.take();
                let since = word.announce(Sleep::Futex);
                let found = if early { found } else { taking.take() };
                if !found || taking.next > messages {
                    return since;
                }
                word.unpark(Payer::Sleeper);
            }
        };
        let waker = || {
            let mut woken = 0;
            for _ in 0..messages {
                assert!(sending.push(), "the ring is not full");
                woken += u8::from(is_asleep(word.must_wake(FenceMode::Symmetric, WakeReason::Message)));
            }
            woken
        };
        let (since, _) = both(sleeper, waker);
        // Loom does not know that the flag's second rise follows a claim of its first rise in modification
        // order (the claim is atomic), and lets the waker read back its own claim. A second sleep that began
        // after that claim's bump is left out here: it equals a first sleep with another number.
        let claimed_before = since != 0;
        assert!(
            claimed_before || taking.next > messages || word.moved(since),
            "a message lies there, and the sleeper sleeps"
        );
    });
}

fn two_wakers(run: &Run) {
    let early = run.injected_faults(InjectedFault::CheckBeforeAnnounce);
    run.explore(3, move || {
        let (word, work) = (SleepWord::awake(), [Word64::new(0), Word64::new(0)]);
        let look = || work.iter().any(|work| work.load_relaxed() != 0);
        let sleeper = || {
            let found = early && look();
            let since = word.announce(Sleep::Futex);
            (since, if early { found } else { look() })
        };
        let waker = |work: &Word64| {
            work.store_relaxed(1);
            is_asleep(word.must_wake(FenceMode::Symmetric, WakeReason::Message))
        };
        let ((since, found), first, second) = three(sleeper, || waker(&work[0]), || waker(&work[1]));
        assert!(!(first && second), "both call the kernel for one sleep");
        assert_eq!(
            first || second,
            word.moved(since),
            "the thread that advances the sequence calls the kernel"
        );
        assert!(found || first || second, "work lies there, and the sleeper sleeps");
    });
}

fn event(run: &Run) {
    let early = run.injected_faults(InjectedFault::CheckBeforeAnnounce);
    let as_before = run.injected_faults(InjectedFault::WakeAsBefore);
    run.explore(3, move || {
        let (word, work) = (SleepWord::awake(), Word64::new(0));
        let look = || work.load_relaxed() != 0;
        let sleeper = || {
            word.announce(Sleep::Event);
            if look() {
                return None;
            }
            let found = early && look();
            let since = word.announce(Sleep::Futex);
            let found = if early { found } else { look() };
            (!found).then_some(since)
        };
        let waker = || {
            work.store_relaxed(1);
            match word.must_wake(FenceMode::Symmetric, WakeReason::Message) {
                Waking::Asleep(_) if as_before => Waking::Asleep(Sleep::Event),
                found => found,
            }
        };
        let (asleep, woken) = both(sleeper, waker);
        if let Some(since) = asleep {
            assert_eq!(woken, Waking::Asleep(Sleep::Futex), "work lies there, and the sleeper sleeps");
            assert!(word.moved(since), "the kernel lets it sleep");
        }
    });
}

fn counted(run: &Run) {
    let early = run.injected_faults(InjectedFault::CheckBeforeAnnounce);
    let stale = run.injected_faults(InjectedFault::CountTaken);
    run.explore(3, move || {
        let (word, work) = (SleepWord::awake(), [Word64::new(0), Word64::new(0)]);
        let look = || work.iter().filter(|work| work.load_relaxed() != 0).count() as u32;
        let sleeper = || {
            let mut taken = if early { look() } else { 0 };
            loop {
                let since = word.announce_for(Sleep::Futex, 2 - taken, Payer::Sleeper);
                let found = if early { taken } else { look() };
                if found == 2 {
                    return None;
                }
                if found == taken || stale {
                    return Some(since);
                }
                taken = found;
            }
        };
        let waker = |work: &Word64| {
            work.store_relaxed(1);
            is_asleep(word.must_wake(FenceMode::Symmetric, WakeReason::Message))
        };
        let (asleep, first, second) = three(sleeper, || waker(&work[0]), || waker(&work[1]));
        if let Some(since) = asleep {
            assert!(first || second, "both messages lie there, and the sleeper sleeps");
            assert!(word.moved(since), "the kernel lets it sleep");
        }
    });
}

fn asked(run: &Run) {
    let early = run.injected_faults(InjectedFault::CheckBeforeAnnounce);
    let late = run.injected_faults(InjectedFault::AskTooLate);
    run.explore(3, move || {
        let (word, work) = (SleepWord::awake(), [Word64::new(0), Word64::new(0)]);
        // All threads know of a request that was made before the last barrier.
        word.unpark(if late { Payer::Sleeper } else { Payer::Wakers });
        let look = || work.iter().any(|work| work.load_relaxed() != 0);
        let sleeper = || {
            let found = early && look();
            let since = word.announce_for(Sleep::Futex, 1, Payer::Wakers);
            let found = if early { found } else { look() };
            if found {
                word.unpark(Payer::Wakers);
            }
            (!found).then_some(since)
        };
        // The sleeper executes no barrier, and the waker no fence except the one that the word asks for.
        let waker = |work: &Word64| {
            work.store_relaxed(1);
            is_asleep(word.must_wake(FenceMode::Asymmetric, WakeReason::Message))
        };
        let (asleep, first, second) = three(sleeper, || waker(&work[0]), || waker(&work[1]));
        assert!(!(first && second), "both call the kernel for one sleep");
        if let Some(since) = asleep {
            assert!(first || second, "work lies there, and the sleeper sleeps");
            assert!(word.moved(since), "the kernel lets it sleep");
        }
    });
}

fn asked_again(run: &Run) {
    run.explore(3, move || {
        let (word, work) = (SleepWord::awake(), Word64::new(0));
        word.unpark(Payer::Wakers);
        let look = || work.load_relaxed() != 0;
        let sleeper = || {
            word.announce_for(Sleep::Futex, 1, Payer::Wakers);
            if look() {
                return None;
            }
            // The sleep has reached its time limit.
            word.unpark(Payer::Wakers);
            let since = word.announce_for(Sleep::Futex, 1, Payer::Wakers);
            (!look()).then_some(since)
        };
        let waker = || {
            work.store_relaxed(1);
            is_asleep(word.must_wake(FenceMode::Asymmetric, WakeReason::Message))
        };
        let (asleep, woken) = both(sleeper, waker);
        if let Some(since) = asleep {
            assert!(woken || word.moved(since), "work lies there, and the sleeper sleeps");
        }
    });
}

fn is_asleep(found: Waking) -> bool {
    matches!(found, Waking::Asleep(_))
}
