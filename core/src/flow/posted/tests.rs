use super::*;
use crate::flow::shares::SharedPool;

fn ends(receives: u32) -> [Credits; 2] {
    let mut ends = [Credits::new(receives), Credits::new(receives)];
    ends.iter_mut().for_each(|end| end.open(receives).unwrap());
    ends
}

/// Passes a packet from one end to the other, which processes it at once.
fn pass(ends: &mut [Credits; 2], from: usize) {
    let stamp = ends[from].stamp();
    ends[from].sent();
    let to = &mut ends[1 - from];
    to.arrive().unwrap();
    to.hear(stamp).unwrap();
    if to.release() == Next::Post {
        to.posted();
    }
}

#[test]
fn the_reserve_is_for_updates_only() {
    let mut ends = ends(3);
    pass(&mut ends, 0);
    assert!(ends[0].can_send() && !ends[1].can_update());
    pass(&mut ends, 0);
    assert!(!ends[0].can_send() && ends[0].left() == 1 && !ends[0].can_update());
    assert!(ends[1].can_update());
    pass(&mut ends, 1);
    assert_eq!(ends[0].left(), 3);
    // It took one credit of the other end, which alone is not worth an update.
    assert!(!ends[0].can_update() && ends[1].left() == 2);
}

#[test]
fn totals_wrap_around() {
    let mut ends = ends(4);
    for turn in 0..100 {
        for from in [0, 1] {
            assert!(ends[from].can_send(), "turn {turn}");
            pass(&mut ends, from);
        }
    }
    assert!(ends[0].stamp().posted < FIRST);
}

#[test]
fn packets_sent_without_credit_are_detected() {
    let mut end = Credits::new(3);
    for _ in 0..3 {
        end.arrive().unwrap();
        assert_eq!(end.release(), Next::Post);
        end.posted();
    }
    // There are receives, but the peer cannot know of them.
    assert_eq!(end.arrive(), Err(Overdrawn));
    end.sent = end.sent.wrapping_sub(1);
    end.sent();
    assert_eq!(end.arrive(), Ok(()));
}

#[test]
fn impossible_totals_change_nothing() {
    let [mut end, _] = ends(5);
    let before = end.clone();
    let Stamp { posted, target } = Stamp { posted: FIRST.wrapping_add(5), target: 5 };
    for (posted, target) in [
        (posted.wrapping_sub(1), target),
        (posted.wrapping_add(MOST), target),
        (posted, LEAST - 1),
        (posted, MOST + 1),
    ] {
        assert!(end.hear(Stamp { posted, target }).is_err(), "{posted} {target}");
        assert_eq!(end, before);
    }
    assert_eq!(end.hear(Stamp { posted: posted.wrapping_add(1), target }), Ok(true));
    for receives in [0, LEAST - 1, MOST + 1] {
        assert!(Credits::new(3).open(receives).is_err(), "{receives}");
    }
}

#[test]
fn reports_that_were_overtaken_change_nothing() {
    let first = FIRST.wrapping_add(5);
    let report = |more: u32| Stamp { posted: first.wrapping_add(more), target: 5 };
    for hear in [Credits::hear_late, Credits::hear_beside] {
        let [mut end, _] = ends(5);
        assert_eq!((hear(&mut end, report(2)), hear(&mut end, report(4))), (Ok(true), Ok(true)));
        let before = end.clone();
        for older in [4, 3, 2, 0, u32::MAX] {
            assert_eq!(hear(&mut end, report(older)), Ok(false), "{older}");
            assert_eq!(end, before);
        }
        assert!(hear(&mut end, report(4 + MOST)).is_err());
        assert_eq!(end, before);
    }
}

#[test]
fn a_receive_starved_peer_gets_more_and_an_idle_one_returns_them() {
    let mut ends = ends(3);
    pass(&mut ends, 0);
    assert!(!ends[1].is_dry());
    pass(&mut ends, 0);
    assert!(ends[1].is_dry());
    assert_eq!((ends[1].wanted(100), ends[1].wanted(4), ends[1].wanted(3)), (3, 1, 0));
    (0..3).for_each(|_| ends[1].grown());
    assert!(ends[1].can_update());
    pass(&mut ends, 1);
    assert_eq!((ends[0].left(), ends[1].size()), (6, 6));

    assert!(ends[1].shrink() && !ends[1].shrink() && ends[1].is_recalling());
    pass(&mut ends, 1);
    assert!(!ends[1].is_recalling());
    while ends[0].has_surplus() {
        pass(&mut ends, 0);
    }
    assert_eq!((ends[0].left(), ends[1].size(), ends[1].unreturned()), (3, 3, 0));
}

#[test]
fn buffers_reserved_for_one_are_not_given_to_another() {
    let mut pool = SharedPool::new();
    pool.add(5);
    assert!(pool.reserve(3) && !pool.reserve(3) && pool.spare() == 2);
    assert!(pool.take(false) && pool.take(false) && !pool.take(false));
    assert!(pool.take(true) && pool.take(true) && pool.take(true) && !pool.take(true));
    (0..3).for_each(|_| pool.put(true));
    assert!(pool.spare() == 0 && pool.is_sound());
    pool.unreserve(3);
    pool.put(false);
    assert_eq!((pool.free(), pool.spare()), (4, 4));
}

/// Lets connections take all buffers that they can, one after the other. Returns the shared buffers that each
/// has taken, and the buffers that are left.
fn greedy(connections: usize, spare: u32, absent: u32, all: u32) -> (std::vec::Vec<u32>, u32) {
    let mut pool = SharedPool::new();
    pool.add(spare);
    let mut extra = std::vec![0; connections];
    for at in 0..connections {
        // The first takes as much as it can before the second starts.
        for other in (0..=at).cycle().take(1000) {
            if pool.may_grow(extra[other], absent, all) && pool.take(false) {
                extra[other] += 1;
            }
        }
    }
    (extra, pool.spare())
}

#[test]
fn each_connection_gets_a_share_whatever_the_others_take() {
    for spare in 0..200 {
        for connections in 1..6 {
            let (extra, left) = greedy(connections, spare, 0, 0);
            // The first gets half, the second half of the rest, and so on.
            for (at, extra) in extra.iter().enumerate() {
                let least = spare >> (at + 1);
                assert!(*extra >= least, "{extra} of {spare} for connection {at}, instead of {least}");
            }
            assert!(left >= spare >> connections, "{left} of {spare} left by {connections}");
        }
    }
}

#[test]
fn initial_receives_of_absent_connections_are_kept_up_to_half_of_all() {
    for (absent, kept) in [(0, 0), (10, 10), (50, 50), (80, 50), (u32::MAX, 50)] {
        let (extra, left) = greedy(4, 90, absent, 100);
        assert!(left >= kept && extra[0] == (90 - kept) / 2, "{absent} absent: {extra:?}, {left} left");
    }
}
