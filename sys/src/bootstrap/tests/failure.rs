//! What becomes of the other ranks when one fails.

use super::*;

#[test]
fn the_first_failure_ends_the_others() {
    let outcome = shell(3, "test $PMI_RANK = 2 && exit 5; exec sleep 300").run().unwrap();
    assert_eq!(outcome.first_failure, Some((2, ExitKind::Exited(5))), "{outcome}");
    assert_eq!(outcome.exit_code(), 5);
    for rank in [0, 1] {
        let expected = RankExit { kind: ExitKind::Signaled(libc::SIGTERM), ended_by_launcher: true };
        assert_eq!(outcome.ranks[rank], expected);
    }
    assert_eq!(outcome.to_string(), "rank 2 of 3 exited with code 5; the launcher ended 2");
}

/// It may have seen the cause, and print it after the rank that failed because of it has ended.
#[test]
fn a_rank_has_time_to_say_what_it_has_seen_when_another_fails() {
    let directory = scratch("words");
    let script = format!(
        "cd {d}; if [ $PMI_RANK = 1 ]; then trap 'date +%s%N >asked; exit 0' TERM; : >ready; \
         while :; do sleep 0.01; done; fi; until [ -e ready ]; do sleep 0.05; done; date +%s%N >failed; exit 3",
        d = directory.display()
    );
    let outcome = shell(2, &script).run().unwrap();
    let time = |name| std::fs::read_to_string(directory.join(name)).unwrap().trim().parse::<u128>().unwrap();
    let passed = time("asked").saturating_sub(time("failed"));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(outcome.first_failure, Some((0, ExitKind::Exited(3))), "{outcome}");
    assert!(passed >= 200_000_000, "{passed} ns");
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    // Rank 0 fails only after rank 1 has reported, through a pipe, that it ignores the signal.
    let directory = scratch("sigterm");
    let script = format!(
        "cd {d}; if [ $PMI_RANK = 1 ]; then trap '' TERM; : > ready; while :; do sleep 1; done; fi; \
         until [ -e ready ]; do sleep 0.05; done; exit 1",
        d = directory.display()
    );
    let outcome = shell(2, &script).run().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(outcome.first_failure, Some((0, ExitKind::Exited(1))), "{outcome}");
    assert_eq!(outcome.ranks[1].kind, ExitKind::Signaled(libc::SIGKILL));
}

#[test]
fn with_keep_going_the_others_finish() {
    let outcome = shell(3, "test $PMI_RANK != 1 || kill -SEGV $$").keep_going(true).run().unwrap();
    assert_eq!(outcome.first_failure, Some((1, ExitKind::Signaled(libc::SIGSEGV))), "{outcome}");
    assert_eq!(outcome.exit_code(), 128 + libc::SIGSEGV);
    assert!(outcome.to_string().contains("SIGSEGV"), "{outcome}");
    assert!(outcome.ranks[0].kind.is_success() && outcome.ranks[2].kind.is_success());
}
