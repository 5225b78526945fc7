use super::*;
use crate::info::INJECT_BYTES;

fn sending(tag: u64) -> Sending {
    Sending { kind: Kind::Tagged, to: 7, tag, data: None, flags: 0, context: 9, is_silent: true }
}

/// Keeps messages of a size for a peer until there is no room. Returns how many there were.
fn fill(kept: &mut Kept, rank: usize, len: usize) -> usize {
    let bytes = vec![0x5a; len];
    (0..).find(|at| !kept.push(rank, &sending(*at), KeptBody::Bytes(&bytes))).unwrap_or(0) as usize
}

fn empty(kept: &mut Kept, rank: usize) {
    while kept.has(rank) {
        kept.pop(rank);
    }
}

#[test]
fn messages_come_out_as_they_went_in() {
    let mut kept = Kept::default();
    let lens: Vec<usize> = (0..500).map(|at| at * 7 % (INJECT_BYTES + 1)).collect();
    for (at, len) in lens.iter().enumerate() {
        let bytes: Vec<u8> = (0..*len).map(|byte| (byte + at) as u8).collect();
        let kind = if at % 2 == 0 { Kind::Plain } else { Kind::Tagged };
        let data = (at % 3 == 0).then_some(u64::MAX - at as u64);
        let flags = if at % 5 == 0 { DELIVERED } else { 0 };
        let it = Sending { kind, data, flags, ..sending(at as u64) };
        let body = if at % 7 == 0 { KeptBody::Operation(at as u64) } else { KeptBody::Bytes(&bytes) };
        assert!(kept.push(3, &it, body));
    }
    for (at, len) in lens.iter().enumerate() {
        let bytes: Vec<u8> = (0..*len).map(|byte| (byte + at) as u8).collect();
        let KeptMessage { it, body } = kept.first(3).unwrap();
        assert_eq!(it.tag, at as u64);
        assert_eq!(it.kind == Kind::Plain, at % 2 == 0);
        assert_eq!(it.data, (at % 3 == 0).then_some(u64::MAX - at as u64));
        assert_eq!(it.flags != 0, at % 5 == 0);
        let expected = if at % 7 == 0 { KeptBody::Operation(at as u64) } else { KeptBody::Bytes(&bytes) };
        assert_eq!(body, expected);
        kept.pop(3);
    }
    assert!(kept.first(3).is_none() && !kept.has(3));
    assert_eq!((kept.used, kept.chunks), (0, 0));
}

#[test]
fn one_silent_peer_keeps_100_000_messages_of_each_size_and_half_of_the_memory() {
    for len in [0, 8, 233, INJECT_BYTES] {
        let mut kept = Kept::default();
        let count = fill(&mut kept, 1, len);
        assert!(count >= 100_000, "{count} messages of {len} bytes");
        assert_eq!(kept.used, MOST_BYTES / 2);
        empty(&mut kept, 1);
        assert_eq!((kept.used, kept.chunks), (0, 0));
    }
}

#[test]
fn every_peer_gets_room_whatever_the_others_have_taken() {
    let mut kept = Kept::default();
    for rank in 0..1000 {
        assert!(fill(&mut kept, rank, INJECT_BYTES) > 0, "peer {rank}");
    }
    assert!(kept.used <= MOST_BYTES + 1000 * OWN_BYTES);
    (0..1000).for_each(|rank| empty(&mut kept, rank));
    assert_eq!((kept.used, kept.chunks), (0, 0));
}

#[test]
fn operations_are_kept_without_room_for_copies() {
    let mut kept = Kept::default();
    assert!(kept.take(0, MOST_BYTES / 2) && !kept.take(0, MOST_BYTES / 2));
    assert!(kept.take(1, MOST_BYTES / 4) && kept.take(2, MOST_BYTES / 8) && kept.take(3, MOST_BYTES / 8));
    assert!(kept.take(4, OWN_BYTES) && !kept.take(4, 1) && !kept.push(4, &sending(1), KeptBody::Bytes(&[])));
    for number in 0..10_000 {
        assert!(kept.push(4, &sending(1), KeptBody::Operation(number)));
    }
    empty(&mut kept, 4);
    kept.give_back(0, MOST_BYTES / 2);
    kept.give_back(4, OWN_BYTES);
    assert_eq!(kept.used, MOST_BYTES / 2);
}
