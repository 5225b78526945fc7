//! Calls while a process lacks descriptors.

use super::*;
use crate::os::{ShmError, wait_ready};

/// Runs this part of a test in a process of its own, which may take all its descriptors.
fn in_another_process(test: &str, body: impl FnOnce()) {
    if testing::is_child() { body() } else { testing::run_again(test, || Ok(())) }
}

fn may_sleep(process: &CallingProcess) {
    let is_readable = wait_ready(process.terms.watch.as_fd(), libc::POLLIN, Instant::now()).unwrap();
    assert!(!is_readable, "the process cannot sleep");
}

#[test]
fn a_process_without_descriptors_may_sleep_and_hears_its_callers_later() {
    const NAME: &str =
        concat!(module_path!(), "::a_process_without_descriptors_may_sleep_and_hears_its_callers_later");
    in_another_process(NAME, || {
        let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
        let _caller = send_call(&one, &two, |_| ());
        let taken = testing::take_descriptors();
        two.attend();
        may_sleep(&two);
        let report = two.calls.next_shortage().unwrap();
        assert!(report.contains("ulimit -n") && two.calls.next_shortage().is_none(), "{report}");
        drop(taken);
        while two.answered() == 0 {
            two.attend();
        }
        let _caller = send_call(&one, &two, |said| said.call = 2);
        assert!(wait_ready(two.terms.watch.as_fd(), libc::POLLIN, Instant::now() + PATIENCE).unwrap());
    });
}

#[test]
fn a_call_waits_while_its_process_has_no_descriptors() {
    const NAME: &str = concat!(module_path!(), "::a_call_waits_while_its_process_has_no_descriptors");
    in_another_process(NAME, || {
        let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
        let taken = testing::take_descriptors();
        one.speak(&two);
        for _ in 0..10 {
            one.attend();
            assert!(one.outcome().is_none());
        }
        let report = one.calls.next_shortage().unwrap();
        assert!(report.contains("ulimit -n"), "{report}");
        drop(taken);
        let opened = until_outcome(&mut [&mut one, &mut two]);
        assert!(matches!(opened, CallOutcome::Opened(_)), "{opened:?}");
    });
}

#[test]
fn a_call_waits_while_the_segments_cannot_be_mapped() {
    const NAME: &str = concat!(module_path!(), "::a_call_waits_while_the_segments_cannot_be_mapped");
    in_another_process(NAME, || {
        // Those of a process have more than the addresses that are left.
        let geometry = Geometry { cell_bytes: 1 << 18, ..GEOMETRY };
        let [mut one, mut two] = [(); 2].map(|()| CallingProcess::sized(&[], geometry, None));
        one.speak(&two);
        let taken = testing::take_addresses();
        let mut report = None;
        while report.is_none() {
            one.attend();
            two.attend();
            assert!(one.outcome().is_none());
            report = two.calls.next_shortage();
        }
        drop(taken);
        let opened = until_outcome_of(&mut one, &mut two);
        assert!(matches!(opened, CallOutcome::Opened(_)), "{opened:?}");
    });
}

/// Lets both processes act until the first one has an outcome.
fn until_outcome_of(one: &mut CallingProcess, two: &mut CallingProcess) -> CallOutcome {
    loop {
        two.attend();
        one.attend();
        if let Some(outcome) = one.outcome() {
            return outcome;
        }
    }
}

#[test]
fn an_answer_is_received_when_there_is_room_for_its_descriptors() {
    const NAME: &str =
        concat!(module_path!(), "::an_answer_is_received_when_there_is_room_for_its_descriptors");
    in_another_process(NAME, || {
        let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
        answer(&mut one, &mut two);
        let taken = testing::take_descriptors();
        for _ in 0..10 {
            one.attend();
            assert!(one.outcome().is_none());
        }
        assert!(one.calls.next_shortage().unwrap().contains("ulimit -n"));
        may_sleep(&one);
        drop(taken);
        let opened = until_outcome(&mut [&mut one]);
        assert!(matches!(opened, CallOutcome::Opened(_)), "{opened:?}");
    });
}

#[test]
fn a_shortage_in_a_world_names_a_limit_that_suffices() {
    let error = ShmError::system("a test", std::io::Error::from_raw_os_error(libc::EMFILE));
    let mut shortage = Shortage::among(23);
    shortage.record(&error);
    let text = shortage.present().unwrap().to_owned();
    let limit: u64 = text.split("(now ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    assert!(text.ends_with(&format!(": {} suffice for 23 peers", limit + 3 * 23 + 16)), "{text}");
    assert_eq!(shortage.next_report(), Some(text));
}

/// A final refusal would end the peer for good.
#[test]
fn a_call_waits_or_is_refused_for_now_while_the_callee_has_no_descriptors() {
    const NAME: &str =
        concat!(module_path!(), "::a_call_waits_or_is_refused_for_now_while_the_callee_has_no_descriptors");
    in_another_process(NAME, || {
        let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
        let (caller, (message, link)) = (dial(&two), call_of(&one, &two, |_| ()));
        while two.calls.links.unproved()[0] == 0 {
            two.calls.accept(&mut two.terms);
        }
        let mut taken = testing::take_descriptors();
        let descriptors = one.ours.descriptors(&link);
        caller.send(&message, &descriptors, Instant::now()).unwrap();
        two.attend();
        assert_eq!((two.answered(), two.calls.links.unproved()[0]), (0, 1));
        may_sleep(&two);
        assert!(two.calls.next_shortage().unwrap().contains("ulimit -n"));
        // As many as the call brings, and none for the segment of the answer.
        taken.truncate(taken.len() - descriptors.len());
        while !caller.has_disconnected() {
            two.attend();
        }
        let refused = refusal(&caller);
        assert!(refused.contains("ulimit -n") && two.answered() == 0, "{refused}");
    });
}

/// Both processes of a pair may lack descriptors: then each refuses the other's call for now and makes one, for ever.
#[test]
fn a_shortage_that_lasts_ends_calls_with_the_remedy() {
    const NAME: &str = concat!(module_path!(), "::a_shortage_that_lasts_ends_calls_with_the_remedy");
    in_another_process(NAME, || {
        let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
        let _taken = testing::take_descriptors();
        two.speak(&one);
        two.attend();
        assert!(two.outcome().is_none(), "it may pass");
        let limit = Duration::from_secs(two.world.config.timeout_seconds.into());
        two.calls.desk.shortage.expire(limit);
        let ended = until_outcome(&mut [&mut two]);
        assert!(
            matches!(&ended, CallOutcome::Ended(LinkEnding::Refused(_), why) if why.contains("ulimit -n")),
            "{ended:?}"
        );
    });
}

#[test]
fn a_connection_that_is_made_ends_a_shortage() {
    let error = ShmError::system("a test", std::io::Error::from_raw_os_error(libc::EMFILE));
    let mut shortage = Shortage::among(1);
    shortage.record(&error);
    shortage.expire(PATIENCE);
    assert!(shortage.lasting(PATIENCE).is_some() && shortage.lasting(3 * PATIENCE).is_none());
    shortage.end();
    assert_eq!((shortage.present(), shortage.lasting(Duration::ZERO)), (None, None));
    shortage.record(&error);
    assert_eq!(shortage.lasting(PATIENCE), None);
}

/// A container may forbid the system call that waits for the answer.
#[test]
fn a_call_whose_answer_the_kernel_keeps_back_ends_with_its_words() {
    const NAME: &str =
        concat!(module_path!(), "::a_call_whose_answer_the_kernel_keeps_back_ends_with_its_words");
    in_another_process(NAME, || {
        let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
        answer(&mut one, &mut two);
        testing::refuse_call(libc::SYS_recvmsg);
        let CallOutcome::Ended(_, words) = until_outcome_of(&mut one, &mut two) else { panic!("no end") };
        assert!(words.contains("Operation not permitted"), "{words}");
    });
}
