//! The sleep word, one step at a time. Interleavings are the models' affair.

use crate::shared::sleep::{Sleep, SleepWord};
use crate::sync::FenceMode;

#[test]
fn sleeper_is_woken_once_by_whoever_comes_first() {
    for mode in [FenceMode::Asymmetric, FenceMode::Symmetric] {
        for how in [Sleep::Futex, Sleep::Event] {
            let word = SleepWord::awake();
            assert_eq!(word.must_wake(mode), None, "nobody sleeps");
            let sequence = word.announce(how);
            assert!(!word.moved(sequence));
            assert_eq!(word.must_wake(mode), Some(how));
            assert!(word.moved(sequence), "the kernel would let it sleep");
            assert_eq!(word.must_wake(mode), None, "a second wake");
        }
    }
}

#[test]
fn sleeper_is_woken_in_the_way_that_it_announced_last() {
    let word = SleepWord::awake();
    word.announce(Sleep::Event);
    word.announce(Sleep::Futex);
    assert_eq!(word.must_wake(FenceMode::Symmetric), Some(Sleep::Futex));
    assert_eq!(word.must_wake(FenceMode::Symmetric), None);
}

#[test]
fn sleeper_that_rose_by_itself_is_not_woken() {
    let word = SleepWord::awake();
    let sequence = word.announce(Sleep::Futex);
    word.rise();
    assert_eq!(word.must_wake(FenceMode::Symmetric), None);
    assert!(!word.moved(sequence));
}
