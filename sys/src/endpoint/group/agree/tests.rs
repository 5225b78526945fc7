//! Lies about the number of agreements.

use super::*;
use crate::Config;
use crate::endpoint::tests::world;

/// Returns the number of a process after these reports by the ranks that readmitted it, and the ranks that it
/// ignored.
fn settled(said: &[u64]) -> (u64, Vec<usize>) {
    let mut agreements = Agreements::default();
    for (rank, number) in said.iter().enumerate() {
        agreements.hear(rank, *number);
    }
    let before = agreements.number();
    let liars = agreements.settle();
    assert_eq!((agreements.next, agreements.settle()), (before, vec![]));
    assert!(liars.iter().all(|(rank, number)| said[*rank] == *number));
    (agreements.next, liars.into_iter().map(|(rank, _)| rank).collect())
}

#[test]
fn impossible_reports_are_ignored() {
    let none = vec![];
    assert_eq!(settled(&[]), (0, none.clone()));
    assert_eq!(settled(&[0, 0, 0]), (0, none.clone()));
    assert_eq!(settled(&[u64::MAX]), (0, vec![0]));
    assert_eq!(settled(&[MOST + 1, 5]), (5, vec![0]));
    // Ranks that readmitted the process earlier, or do not know the number, report less.
    assert_eq!(settled(&[5, 7, 0, 6]), (7, none.clone()));
    assert_eq!(settled(&[MOST, 0, 0]), (MOST, none.clone()));
    // One report is against two others.
    assert_eq!(settled(&[5, 5 + AHEAD, 5]), (5 + AHEAD, none.clone()));
    assert_eq!(settled(&[5, 6 + AHEAD, 5]), (5, vec![1]));
    assert_eq!(settled(&[1 << 40, 1 << 20, (1 << 20) + 1, 0]), ((1 << 20) + 1, vec![0]));
    // A report that is too small has no effect.
    assert_eq!(settled(&[1 << 20, 1, 1 << 20]), (1 << 20, none));
}

/// Lets each endpoint agree. Returns the results and the endpoints.
fn agree(all: Vec<Endpoint>) -> Vec<(Result<Agreed, Error>, Endpoint)> {
    let agree = |mut endpoint: Endpoint| std::thread::spawn(move || (endpoint.agree(u64::MAX), endpoint));
    let threads: Vec<_> = all.into_iter().map(agree).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_process_with_a_wrong_number_is_gone_and_no_rank_waits_for_it() {
    for wrong in 0..3 {
        for number in [3, 9] {
            let mut all = world(3, &Config::default());
            for endpoint in &mut all {
                endpoint.agreements.next = 5;
            }
            // A rank that lies reported this number when the process came back.
            all[wrong].agreements.hear((wrong + 1) % 3, number);
            all[wrong].agreements.next = 0;
            let ended = agree(all);
            for (rank, (agreed, endpoint)) in ended.iter().enumerate() {
                if rank == wrong {
                    // The others may have decided before this rank heard from all of them.
                    let gone = agreed.as_ref().map(|agreed| agreed.gone.len());
                    assert!(matches!(gone, Ok(2) | Err(Error::Excluded)), "{number} at {wrong}: {agreed:?}");
                    continue;
                }
                let agreed = agreed.as_ref().unwrap();
                assert_eq!(agreed.gone, [wrong], "{number} at {wrong}: of rank {rank}");
                // A rank that received the wrong number knows the reason. The others have seen the rank leave.
                let failure = endpoint.failure(wrong);
                let fault = Failure::Fault(PortFault::Agreement { number, due: 5 });
                let typed =
                    failure.is_none_or(|it| it == fault || matches!(it, Failure::Died | Failure::Finished));
                assert!(typed, "{number} at {wrong}: {failure:?} at {rank}");
            }
        }
    }
}

#[test]
fn a_peer_with_a_later_number_is_named() {
    let mut all = world(2, &Config::default());
    all[1].agreements.next = 7;
    let ended = agree(all);
    let fault = |number, due| Some(Failure::Fault(PortFault::Agreement { number, due }));
    let failures = [ended[0].1.failure(1), ended[1].1.failure(0)];
    assert_eq!(failures[0], fault(7, 0), "{failures:?}");
    for (rank, (agreed, _)) in ended.iter().enumerate() {
        assert_eq!(agreed.as_ref().unwrap().gone, [1 - rank]);
    }
}

#[test]
fn a_peer_that_reports_an_impossible_number_is_named() {
    let mut endpoints = world(2, &Config::default());
    let mut zero = endpoints.remove(0);
    zero.agreements.hear(1, u64::MAX);
    assert_eq!(zero.agree(5).unwrap(), Agreed { flags: 5, gone: vec![1] });
    let fault = PortFault::Agreement { number: u64::MAX, due: 0 };
    assert_eq!(zero.failure(1), Some(Failure::Fault(fault)));
}
