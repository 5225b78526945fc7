//! Lies about how many agreements there were.

use super::*;
use crate::Config;
use crate::endpoint::tests::world;

/// The number of a process that was told this by those who readmitted it, and who is not believed.
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
fn what_cannot_be_is_not_believed() {
    let none = vec![];
    assert_eq!(settled(&[]), (0, none.clone()));
    assert_eq!(settled(&[0, 0, 0]), (0, none.clone()));
    assert_eq!(settled(&[u64::MAX]), (0, vec![0]));
    assert_eq!(settled(&[MOST + 1, 5]), (5, vec![0]));
    // Those that were earlier, or do not know, say less.
    assert_eq!(settled(&[5, 7, 0, 6]), (7, none.clone()));
    assert_eq!(settled(&[MOST, 0, 0]), (MOST, none.clone()));
    // One against two.
    assert_eq!(settled(&[5, 5 + AHEAD, 5]), (5 + AHEAD, none.clone()));
    assert_eq!(settled(&[5, 6 + AHEAD, 5]), (5, vec![1]));
    assert_eq!(settled(&[1 << 40, 1 << 20, (1 << 20) + 1, 0]), ((1 << 20) + 1, vec![0]));
    // One that says too little has no say.
    assert_eq!(settled(&[1 << 20, 1, 1 << 20]), (1 << 20, none));
}

/// Each agrees; what comes of it, and the endpoint.
fn agree(all: Vec<Endpoint>) -> Vec<(Result<Agreed, Error>, Endpoint)> {
    let agree = |mut endpoint: Endpoint| std::thread::spawn(move || (endpoint.agree(u64::MAX), endpoint));
    let threads: Vec<_> = all.into_iter().map(agree).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_process_that_got_a_wrong_number_is_gone_and_nobody_waits_for_it() {
    for wrong in 0..3 {
        for number in [3, 9] {
            let mut all = world(3, &Config::default());
            for endpoint in &mut all {
                endpoint.agreements.next = 5;
            }
            // What a liar has told it when it came back.
            all[wrong].agreements.hear((wrong + 1) % 3, number);
            all[wrong].agreements.next = 0;
            let ended = agree(all);
            for (rank, (agreed, endpoint)) in ended.iter().enumerate() {
                if rank == wrong {
                    // Others may have decided before it heard from them all.
                    let gone = agreed.as_ref().map(|agreed| agreed.gone.len());
                    assert!(matches!(gone, Ok(2) | Err(Error::Excluded)), "{number} at {wrong}: {agreed:?}");
                    continue;
                }
                let agreed = agreed.as_ref().unwrap();
                assert_eq!(agreed.gone, [wrong], "{number} at {wrong}: of rank {rank}");
                // Whoever heard it says why; the others have seen it leave.
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
fn a_peer_that_is_ahead_is_named() {
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
fn a_peer_that_says_what_cannot_be_is_named() {
    let mut endpoints = world(2, &Config::default());
    let mut zero = endpoints.remove(0);
    zero.agreements.hear(1, u64::MAX);
    assert_eq!(zero.agree(5).unwrap(), Agreed { flags: 5, gone: vec![1] });
    let fault = PortFault::Agreement { number: u64::MAX, due: 0 };
    assert_eq!(zero.failure(1), Some(Failure::Fault(fault)));
}
