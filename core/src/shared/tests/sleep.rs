//! The sleep word, one step at a time. Interleavings are the models' affair.

use crate::shared::sleep::SleepWord;
use crate::sync::FenceMode;

#[test]
fn sleeper_is_woken_once_by_whoever_comes_first() {
    for mode in [FenceMode::Asymmetric, FenceMode::Symmetric] {
        let word = SleepWord::awake();
        assert!(!word.must_wake(mode), "nobody sleeps");
        let sequence = word.announce();
        assert!(!word.moved(sequence));
        assert!(word.must_wake(mode));
        assert!(word.moved(sequence), "the kernel would let it sleep");
        assert!(!word.must_wake(mode), "a second wake");
    }
}

#[test]
fn sleeper_that_rose_by_itself_is_not_woken() {
    let word = SleepWord::awake();
    let sequence = word.announce();
    word.rise();
    assert!(!word.must_wake(FenceMode::Symmetric));
    assert!(!word.moved(sequence));
}
