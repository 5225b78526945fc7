//! Each end of a connection in each stage.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;

const ASKER: JoinPlace = JoinPlace { number: 1, key: 0x8000_0001, lid: 1, gid: [1; 16] };
const CALLED: JoinPlace = JoinPlace { number: 2, key: 0x8000_0002, lid: 2, gid: [2; 16] };
/// The numbers of the two ends of the connection.
const A: u64 = 0xaaaa;
const B: u64 = 0xbbbb;
const OTHER: u64 = 0xcccc;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn private(text: &str) -> Private {
    Private::new(text.as_bytes()).unwrap()
}

fn asking() -> Joint {
    Joint::ask((ASKER, CALLED), A, [1; PAIR_BYTES], private("request"), ms(0))
}

/// Returns a requesting end that has sent its request, and the other end, which has heard the request.
fn requested() -> (Joint, Joint) {
    let mut asker = asking();
    let request = asker.due(ms(0)).unwrap();
    (asker, Joint::requested(CALLED, B, &request))
}

fn accepting() -> (Joint, Joint) {
    let (asker, mut called) = requested();
    called.accept([2; PAIR_BYTES], private("answer"), ms(1));
    (asker, called)
}

/// Returns two ends of which the requesting one has joined its queue pair, and the confirmation that it has sent.
fn joined() -> (Joint, Joint, JoinMessage) {
    let (mut asker, mut called) = accepting();
    let acceptance = called.due(ms(1)).unwrap();
    assert_eq!(asker.hear(&acceptance), (JoinStep::Join, None));
    let confirmation = asker.confirm();
    (asker, called, confirmation)
}

fn ready() -> (Joint, Joint) {
    let (asker, mut called, confirmation) = joined();
    assert_eq!(called.hear(&confirmation), (JoinStep::Establish, None));
    (asker, called)
}

/// Returns a datagram of the called end for the asker, or of the asker for the called end if `to` is its number.
fn datagram(kind: JoinKind, to: u64, from: u64) -> JoinMessage {
    let place = if from == A { ASKER } else { CALLED };
    JoinMessage { kind, place, to, from, pair: [9; PAIR_BYTES], private: Private::EMPTY }
}

fn over(mut joint: Joint) -> Joint {
    joint.end(ms(2));
    while joint.due(joint.next()).is_some() {}
    assert_eq!(joint.stage(), JoinStage::Over);
    joint
}

fn ended(mut joint: Joint) -> Joint {
    joint.end(ms(2));
    assert_eq!(joint.stage(), JoinStage::Ending);
    joint
}

/// Returns an end in each stage that it can be in, with the number of its peer.
fn every_stage() -> Vec<(Joint, u64)> {
    let mut refusing = requested().1;
    refusing.refuse(private("no"), ms(1));
    let mut not_joined = accepting();
    assert_eq!(not_joined.0.hear(&not_joined.1.due(ms(1)).unwrap()).0, JoinStep::Join);
    let askers =
        [asking(), ready().0, ended(asking()), ended(ready().0), ended(not_joined.0), over(asking())];
    let called = [requested().1, accepting().1, ready().1, refusing, ended(accepting().1), over(ready().1)];
    askers.into_iter().map(|joint| (joint, B)).chain(called.into_iter().map(|joint| (joint, A))).collect()
}

/// Returns the state of a joint, so that two can be compared.
fn state(joint: &Joint) -> String {
    format!("{joint:?}")
}

#[test]
fn three_datagrams_make_a_connection() {
    let mut asker = asking();
    assert_eq!(
        (asker.stage(), asker.number(), asker.peer_number(), asker.peer()),
        (JoinStage::Asking, A, 0, &CALLED)
    );
    let request = asker.due(ms(0)).unwrap();
    let sent = JoinMessage {
        pair: [1; PAIR_BYTES],
        private: private("request"),
        ..datagram(JoinKind::Request, 0, A)
    };
    assert_eq!(request, sent);

    let mut called = Joint::requested(CALLED, B, &request);
    assert_eq!(
        (called.stage(), called.next(), called.due(ms(9999))),
        (JoinStage::Requested, Duration::MAX, None)
    );
    assert_eq!((called.number(), called.peer_number(), called.peer()), (B, A, &ASKER));
    called.accept([2; PAIR_BYTES], private("answer"), ms(3));
    let acceptance = called.due(ms(3)).unwrap();
    let sent =
        JoinMessage { pair: [2; PAIR_BYTES], private: private("answer"), ..datagram(JoinKind::Accept, A, B) };
    assert_eq!(acceptance, sent);

    assert_eq!(asker.hear(&acceptance), (JoinStep::Join, None));
    let confirmation = asker.confirm();
    assert_eq!(confirmation, JoinMessage { pair: [0; PAIR_BYTES], ..datagram(JoinKind::Confirm, B, A) });
    assert_eq!(called.hear(&confirmation), (JoinStep::Establish, None));
    for (joint, theirs) in [(&mut asker, B), (&mut called, A)] {
        assert_eq!(
            (joint.stage(), joint.peer_number(), joint.next()),
            (JoinStage::Ready, theirs, Duration::MAX)
        );
        assert_eq!(joint.due(Duration::MAX - ms(1000)), None);
    }
}

#[test]
fn a_refusal_reaches_the_asker_with_its_private_data() {
    let (mut asker, mut called) = requested();
    called.refuse(private("no"), ms(1));
    let refusal = called.due(ms(1)).unwrap();
    let sent =
        JoinMessage { pair: [0; PAIR_BYTES], private: private("no"), ..datagram(JoinKind::Refuse, A, B) };
    assert_eq!(refusal, sent);
    let (step, answer) = asker.hear(&refusal);
    assert_eq!((step, asker.stage()), (JoinStep::Fail(ConnectError::Refused), JoinStage::Over));
    // The answer is lost: the repeated refusal is answered again, and does not fail the asker again.
    assert_eq!(answer.map(|it| (it.kind, it.to)), Some((JoinKind::Ended, B)));
    let (step, again) = asker.hear(&refusal);
    assert_eq!((step, again), (JoinStep::Stay, unknown(&ASKER, &refusal)));
    assert_eq!(called.hear(&again.unwrap()), (JoinStep::Stay, None));
    assert_eq!(called.stage(), JoinStage::Over);
    // The answer to a copy comes late.
    assert_eq!(called.hear(&answer.unwrap()), (JoinStep::Stay, None));
}

#[test]
fn only_a_request_without_answer_is_accepted_or_refused() {
    for (joint, _) in every_stage() {
        if joint.stage() != JoinStage::Requested {
            let (mut accepted, mut refused) = (joint, joint);
            accepted.accept([7; PAIR_BYTES], private("late"), ms(5));
            refused.refuse(private("late"), ms(5));
            assert_eq!((state(&accepted), state(&refused)), (state(&joint), state(&joint)));
        }
    }
}

/// Ends one of two ends, and passes all datagrams. Returns what the other end is to do.
fn end_first((mut first, mut second): (Joint, Joint)) -> JoinStep {
    first.end(ms(5));
    let end = first.due(ms(5)).unwrap();
    assert_eq!((end.kind, end.private, end.pair), (JoinKind::End, Private::EMPTY, [0; PAIR_BYTES]));
    let (step, answer) = second.hear(&end);
    assert_eq!((first.hear(&answer.unwrap()), first.stage()), ((JoinStep::Stay, None), JoinStage::Over));
    assert_eq!((second.stage(), second.due(ms(9999))), (JoinStage::Over, None));
    // The end comes once more.
    assert_eq!(second.hear(&end), (JoinStep::Stay, unknown(second_place(&second), &end)));
    step
}

fn second_place(joint: &Joint) -> &'static JoinPlace {
    if joint.number() == A { &ASKER } else { &CALLED }
}

#[test]
fn the_other_end_learns_of_an_end_in_every_stage() {
    let swap = |(a, b): (Joint, Joint)| (b, a);
    let fail = JoinStep::Fail(ConnectError::Unreachable);
    assert_eq!(end_first(requested()), fail);
    assert_eq!(end_first(swap(requested())), fail);
    assert_eq!(end_first(accepting()), fail);
    assert_eq!(end_first(swap(accepting())), fail);
    let (asker, called, _) = joined();
    assert_eq!(end_first((asker, called)), fail);
    assert_eq!(end_first((called, asker)), JoinStep::Lose);
    assert_eq!(end_first(ready()), JoinStep::Lose);
    assert_eq!(end_first(swap(ready())), JoinStep::Lose);
    let (asker, mut refusing) = requested();
    refusing.refuse(private("no"), ms(1));
    assert_eq!(end_first((asker, refusing)), JoinStep::Stay);
}

#[test]
fn two_ends_that_end_at_the_same_time_are_both_over() {
    let (mut asker, mut called) = ready();
    asker.end(ms(5));
    called.end(ms(5));
    let (of_asker, of_called) = (asker.due(ms(5)).unwrap(), called.due(ms(5)).unwrap());
    let (step, answer) = asker.hear(&of_called);
    assert_eq!(
        (step, asker.stage(), answer.unwrap().kind),
        (JoinStep::Stay, JoinStage::Over, JoinKind::Ended)
    );
    assert_eq!((called.hear(&of_asker).0, called.stage()), (JoinStep::Stay, JoinStage::Over));
}

#[test]
fn an_end_in_a_final_stage_changes_nothing() {
    for (joint, _) in every_stage() {
        if matches!(joint.stage(), JoinStage::Refusing | JoinStage::Ending | JoinStage::Over) {
            let mut twice = joint;
            twice.end(ms(77));
            assert_eq!(state(&twice), state(&joint));
        }
    }
}

#[test]
fn an_asker_that_has_ended_answers_an_acceptance_with_the_end() {
    let (mut asker, mut called) = accepting();
    asker.end(ms(2));
    let acceptance = called.due(ms(2)).unwrap();
    let (step, answer) = asker.hear(&acceptance);
    assert_eq!(
        (step, answer),
        (JoinStep::Stay, Some(JoinMessage { pair: [0; PAIR_BYTES], ..datagram(JoinKind::End, B, A) }))
    );
    assert_eq!(called.hear(&answer.unwrap()).0, JoinStep::Fail(ConnectError::Unreachable));
    // A refusal has crossed the end: both are over.
    let (mut asker, mut called) = requested();
    called.refuse(private("no"), ms(1));
    asker.end(ms(2));
    let (step, answer) = asker.hear(&called.due(ms(2)).unwrap());
    assert_eq!((step, asker.stage()), (JoinStep::Stay, JoinStage::Over));
    assert_eq!((called.hear(&answer.unwrap()), called.stage()), ((JoinStep::Stay, None), JoinStage::Over));
}

#[test]
fn an_early_end_that_overtakes_the_request_ends_the_late_request_too() {
    let mut asker = asking();
    let request = asker.due(ms(0)).unwrap();
    asker.end(ms(1));
    let end = asker.due(ms(1)).unwrap();
    assert_eq!((end.to, end.from), (0, A));
    // The called port has no joint yet.
    let answer = unknown(&CALLED, &end).unwrap();
    assert_eq!(answer, JoinMessage { pair: [0; PAIR_BYTES], ..datagram(JoinKind::Ended, A, 0) });
    assert_eq!((asker.hear(&answer), asker.stage()), ((JoinStep::Stay, None), JoinStage::Over));
    let mut called = Joint::requested(CALLED, B, &request);
    called.accept([2; PAIR_BYTES], Private::EMPTY, ms(9));
    let acceptance = called.due(ms(9)).unwrap();
    for answer in [asker.hear(&acceptance).1.unwrap(), unknown(&ASKER, &acceptance).unwrap()] {
        let mut called = called;
        assert_eq!(called.hear(&answer).0, JoinStep::Fail(ConnectError::Unreachable));
    }
}

#[test]
fn lost_datagrams_are_sent_again() {
    let mut asker = asking();
    let lost = asker.due(ms(0)).unwrap();
    assert_eq!(asker.due(FIRST_WAIT - ms(1)), None);
    let request = asker.due(FIRST_WAIT).unwrap();
    assert_eq!(request, lost);
    let mut called = Joint::requested(CALLED, B, &request);
    called.accept([2; PAIR_BYTES], private("answer"), ms(10));
    let lost = called.due(ms(10)).unwrap();
    // A repeated request is answered at once.
    assert_eq!(called.hear(&asker.due(ms(100)).unwrap()), (JoinStep::Stay, Some(lost)));
    let acceptance = called.due(ms(100)).unwrap();
    assert_eq!((acceptance, asker.hear(&acceptance)), (lost, (JoinStep::Join, None)));
    let lost = asker.confirm();
    // The acceptance is repeated until a confirmation arrives. Only the first one establishes.
    let acceptance = called.due(ms(200)).unwrap();
    let (step, confirmation) = asker.hear(&acceptance);
    assert_eq!((step, confirmation), (JoinStep::Stay, Some(lost)));
    assert_eq!(called.hear(&lost), (JoinStep::Establish, None));
    assert_eq!(called.hear(&lost), (JoinStep::Stay, None));
    // A repeated request comes last.
    assert_eq!(called.hear(&request), (JoinStep::Stay, None));
    assert_eq!((asker.stage(), called.stage()), (JoinStage::Ready, JoinStage::Ready));
}

#[test]
fn repeated_datagrams_change_nothing() {
    let (mut asker, mut called) = requested();
    let request = asking().due(ms(0)).unwrap();
    let before = state(&called);
    assert_eq!(called.hear(&request), (JoinStep::Stay, None));
    assert_eq!(state(&called), before);
    called.refuse(private("no"), ms(1));
    let refusal = called.due(ms(1));
    assert_eq!(called.hear(&request), (JoinStep::Stay, refusal));
    asker.end(ms(1));
    let end = asker.due(ms(1));
    let mut ending = ended(accepting().1);
    assert_eq!(ending.hear(&request).1.map(|it| it.kind), Some(JoinKind::End));
    assert_eq!(end.map(|it| it.kind), Some(JoinKind::End));
}

#[test]
fn a_confirmation_for_an_end_that_is_over_ends_the_asker() {
    let (mut asker, called, confirmation) = joined();
    let mut called = over(called);
    let (step, answer) = called.hear(&confirmation);
    assert_eq!((step, answer), (JoinStep::Stay, unknown(&CALLED, &confirmation)));
    assert_eq!(asker.hear(&answer.unwrap()).0, JoinStep::Lose);
}

#[test]
fn every_datagram_in_every_stage_fits_the_stage() {
    for (joint, peer) in every_stage() {
        let stage = joint.stage();
        let is_up = stage == JoinStage::Ready;
        let is_final = matches!(stage, JoinStage::Refusing | JoinStage::Ending | JoinStage::Over);
        for kind in JoinKind::ALL {
            for (to, from) in
                [(joint.number(), peer), (0, peer), (joint.number(), OTHER), (joint.number(), 0), (0, 0)]
            {
                if from == 0 && kind != JoinKind::Ended {
                    continue;
                }
                let (mut heard, at) = (joint, format!("{stage:?} hears {kind:?} to {to:x} from {from:x}"));
                let (step, answer) = heard.hear(&datagram(kind, to, from));
                let fits = match step {
                    JoinStep::Stay => true,
                    JoinStep::Join => stage == JoinStage::Asking && kind == JoinKind::Accept,
                    JoinStep::Establish => stage == JoinStage::Accepting && kind == JoinKind::Confirm,
                    JoinStep::Fail(_) => !is_up && !is_final,
                    JoinStep::Lose => is_up && kind == JoinKind::End,
                };
                assert!(fits, "{at}: {step:?}");
                assert!(
                    !matches!(step, JoinStep::Join | JoinStep::Establish) || to == joint.number(),
                    "{at}"
                );
                let is_over = heard.stage() == JoinStage::Over;
                assert!(!matches!(step, JoinStep::Fail(_) | JoinStep::Lose) || is_over, "{at}");
                assert!(stage != JoinStage::Over || is_over, "{at}");
                assert!(!is_over || heard.due(Duration::from_secs(99)).is_none(), "{at}");
                // An answer to an answer is none, and each names its receiver.
                assert!(
                    answer.is_none_or(|answer| answer.to == from && kind != JoinKind::Ended),
                    "{at}: {answer:?}"
                );
                // A second copy neither fails, loses nor joins.
                if step != JoinStep::Join {
                    assert_eq!(heard.hear(&datagram(kind, to, from)).0, JoinStep::Stay, "{at}, again");
                }
            }
        }
    }
}

#[test]
fn datagrams_of_other_connections_change_nothing() {
    for (joint, peer) in every_stage() {
        let knows_peer = joint.peer_number() != 0;
        for kind in JoinKind::ALL {
            for (to, from) in [(OTHER, peer), (OTHER, OTHER), (0, OTHER), (joint.number(), OTHER)] {
                let is_first = to == joint.number() && (!knows_peer || kind == JoinKind::Ended);
                if is_first || joint.stage() == JoinStage::Over {
                    continue;
                }
                let mut heard = joint;
                assert_eq!(heard.hear(&datagram(kind, to, from)), (JoinStep::Stay, None), "{kind:?}");
                assert_eq!(state(&heard), state(&joint), "{kind:?}");
            }
        }
    }
}

#[test]
fn only_requests_and_ends_may_leave_out_the_number_of_their_receiver() {
    for kind in [JoinKind::Accept, JoinKind::Confirm, JoinKind::Refuse, JoinKind::Ended] {
        assert_eq!(unknown(&CALLED, &datagram(kind, 0, A)), None);
        for (joint, peer) in every_stage() {
            let mut heard = joint;
            assert_eq!(heard.hear(&datagram(kind, 0, peer)), (JoinStep::Stay, None), "{kind:?}");
            assert_eq!(state(&heard), state(&joint), "{kind:?}");
        }
    }
    // An end repeats itself until its peer answers. An answer without a number is not the answer of a peer.
    let mut ending = ended(asking());
    assert_eq!(ending.hear(&datagram(JoinKind::Ended, 0, 0)), (JoinStep::Stay, None));
    assert_eq!(ending.stage(), JoinStage::Ending);
}

#[test]
fn a_port_without_joint_answers_so_that_the_peer_stops() {
    let answers =
        [None, Some(JoinKind::End), Some(JoinKind::End), Some(JoinKind::Ended), Some(JoinKind::Ended), None];
    for (kind, expected) in JoinKind::ALL.into_iter().zip(answers) {
        let answer = unknown(&CALLED, &datagram(kind, B, A));
        assert_eq!(answer.map(|it| it.kind), expected, "{kind:?}");
        assert!(answer.is_none_or(|it| (it.to, it.from, it.place) == (A, B, CALLED)));
    }
}

#[test]
fn refusals_and_ends_stop() {
    let mut refusing = requested().1;
    refusing.refuse(private("no"), ms(2));
    for mut joint in [ended(asking()), ended(ready().0), ended(ready().1), refusing] {
        let (mut now, mut sent) = (ms(2), 0);
        while joint.stage() != JoinStage::Over {
            now = joint.next();
            assert!(joint.due(now).is_some() && now < Duration::from_secs(3));
            sent += 1;
        }
        assert_eq!(
            (sent, joint.next(), joint.due(now + ms(9999))),
            (UNANSWERED_SENDINGS, Duration::MAX, None)
        );
        assert!(now > ms(2000), "{now:?}");
    }
}

#[test]
fn the_time_between_two_sendings_doubles_up_to_a_limit() {
    for mut joint in [asking(), accepting().1] {
        let (mut now, mut wait) = (joint.next(), FIRST_WAIT);
        for _ in 0..30 {
            assert!(joint.due(now).is_some());
            assert_eq!(joint.next(), now + wait);
            assert_eq!(joint.due(now + wait - ms(1)), None);
            (now, wait) = (now + wait, (2 * wait).min(MOST_WAIT));
        }
        assert_eq!(wait, MOST_WAIT);
        // A new stage begins with the shortest time.
        joint.end(now);
        assert!(joint.due(now).is_some());
        assert_eq!(joint.next(), now + FIRST_WAIT);
    }
}
