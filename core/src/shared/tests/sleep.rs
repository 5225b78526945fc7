//! The sleep word, one step at a time. The models cover interleavings.

use crate::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use crate::sync::FenceMode;

#[test]
fn sleeper_is_woken_once_by_the_first_waker() {
    for mode in [FenceMode::Asymmetric, FenceMode::Symmetric] {
        for how in [Sleep::Futex, Sleep::Event] {
            let word = SleepWord::awake();
            assert_eq!(word.must_wake(mode, WakeReason::Other), Waking::Awake, "no process sleeps");
            let sequence = word.announce(how);
            assert!(!word.moved(sequence));
            assert_eq!(word.must_wake(mode, WakeReason::Message), Waking::Asleep(how));
            assert!(word.moved(sequence), "the kernel would let it sleep");
            assert_eq!(word.must_wake(mode, WakeReason::Other), Waking::Awake, "a second wake");
        }
    }
}

#[test]
fn sleeper_is_woken_in_the_way_that_it_announced_last() {
    let word = SleepWord::awake();
    word.announce(Sleep::Event);
    word.announce(Sleep::Futex);
    assert_eq!(word.must_wake(FenceMode::Symmetric, WakeReason::Other), Waking::Asleep(Sleep::Futex));
    assert_eq!(word.must_wake(FenceMode::Symmetric, WakeReason::Other), Waking::Awake);
}

#[test]
fn sleeper_that_woke_by_itself_is_not_woken() {
    let word = SleepWord::awake();
    let sequence = word.announce(Sleep::Futex);
    word.unpark(Payer::Sleeper);
    assert_eq!(word.must_wake(FenceMode::Symmetric, WakeReason::Other), Waking::Awake);
    assert!(!word.moved(sequence));
}

#[test]
fn sleeper_that_needs_several_messages_is_woken_by_the_last_and_by_any_other_reason() {
    let word = SleepWord::awake();
    let wake = |wake_reason| word.must_wake(FenceMode::Symmetric, wake_reason);
    for how in [Sleep::Futex, Sleep::Event] {
        let sequence = word.announce_for(how, 3, Payer::Sleeper);
        assert_eq!([wake(WakeReason::Message), wake(WakeReason::Message)], [Waking::Counted; 2]);
        assert!(!word.moved(sequence), "the sleeper was woken");
        assert_eq!(wake(WakeReason::Message), Waking::Asleep(how));
        assert_eq!(wake(WakeReason::Message), Waking::Awake);
        let sequence = word.announce_for(how, 3, Payer::Sleeper);
        assert_eq!(
            [wake(WakeReason::Message), wake(WakeReason::Other)],
            [Waking::Counted, Waking::Asleep(how)]
        );
        assert!(word.moved(sequence));
        // Zero messages count as one, and the number is limited.
        for lacks in [0, 1] {
            word.announce_for(how, lacks, Payer::Wakers);
            assert_eq!(wake(WakeReason::Message), Waking::Asleep(how));
        }
        word.announce_for(how, u32::MAX, Payer::Wakers);
        assert_eq!(
            [wake(WakeReason::Message), wake(WakeReason::Other)],
            [Waking::Counted, Waking::Asleep(how)]
        );
    }
}

#[test]
fn request_for_fences_outlives_the_sleep_and_wakes_no_process() {
    for mode in [FenceMode::Asymmetric, FenceMode::Symmetric] {
        let word = SleepWord::awake();
        for (how, lacks) in [(Sleep::Futex, 1), (Sleep::Event, 1), (Sleep::Futex, 2)] {
            let sequence = word.announce_for(how, lacks, Payer::Wakers);
            assert!(word.is_asleep(mode) && !word.moved(sequence));
            for _ in 1..lacks {
                assert_eq!(word.must_wake(mode, WakeReason::Message), Waking::Counted);
            }
            assert_eq!(word.must_wake(mode, WakeReason::Message), Waking::Asleep(how));
            assert!(word.is_asleep(mode), "a waker must read the flag again");
            let sequence = word.announce_for(how, lacks, Payer::Wakers);
            word.unpark(Payer::Wakers);
            for wake_reason in [WakeReason::Message, WakeReason::Other] {
                assert_eq!(word.must_wake(mode, wake_reason), Waking::Awake, "the process is awake");
            }
            assert!(!word.moved(sequence));
        }
        word.unpark(Payer::Sleeper);
        assert!(!word.is_asleep(mode), "the request was withdrawn");
    }
}
