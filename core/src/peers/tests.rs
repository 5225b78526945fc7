//! The table of peers, call by call. `cargo sim -- --peers` compares it with a twin.

use std::vec;
use std::vec::Vec;

use super::*;

type TestPeers = Peers<Vec<Slot<PeerSlot>>, Vec<List>, Vec<u32>>;

fn address(number: u8) -> PeerAddress {
    PeerAddress::padded(&[number, 1, 2]).unwrap()
}

/// Returns the table of the process with address 5.
fn table(slots: usize, connections: u32, strangers: bool) -> TestPeers {
    let slots = (0..slots).map(|_| Slot::default()).collect();
    let lent = (slots, vec![List::new(); 4], vec![0; connections as usize]);
    Peers::new(address(5), PeerLimits { connections, strangers, pinned: 0 }, lent, 99)
}

#[test]
fn an_address_is_one_peer_and_is_not_called_before_it_is_spoken_to() {
    let mut peers = table(4, 4, true);
    let peer = peers.connect(&address(7)).unwrap();
    assert_eq!(peers.connect(&address(7)), Ok(peer));
    assert_eq!((peers.len(), peers.connections(), peers.stage(peer)), (1, 0, Ok(PeerStage::Apart)));
    assert_eq!(peers.address_of(peer), Ok(&address(7)));
    assert_eq!(peers.speak(peer), Ok(Speaking::Call(0)));
    assert_eq!(peers.speak(peer), Ok(Speaking::Wait(0)));
    assert_eq!(peers.opened(peer), Some(0));
    assert_eq!(peers.speak(peer), Ok(Speaking::Ready(0)));
    assert_eq!((peers.peer_with(0), peers.peer_with(1)), (Some(peer), None));
    assert_eq!(peers.opened(peer), None, "it is open");
    assert_eq!(peers.connect(&address(5)), Err(PeerError::Itself));
}

#[test]
fn an_answer_to_an_abandoned_call_leaves_the_peer_apart() {
    let mut peers = table(4, 4, true);
    let (peer, number) = peers.admit(&address(3)).unwrap();
    assert_eq!(peers.ended(peer, PeerEnd::Lost), Some(number));
    peers.free_number(number);
    assert_eq!((peers.stage(peer), peers.connections()), (Ok(PeerStage::Apart), 0));
    assert_eq!(peers.speak(peer), Ok(Speaking::Call(0)));
}

#[test]
fn limits_are_named_and_strangers_leave_nothing_behind() {
    let mut peers = table(2, 1, true);
    let [one, two] = [1, 2].map(|number| peers.connect(&address(number)).unwrap());
    assert_eq!(peers.connect(&address(3)), Err(PeerError::Slots { slots: 2 }));
    assert_eq!(peers.speak(one), Ok(Speaking::Call(0)));
    assert_eq!(peers.speak(two), Err(PeerError::Connections { most: 1 }));
    assert_eq!(peers.admit(&address(8)), Err(CallRefusal::Full));
    assert_eq!(peers.admit(&address(2)), Err(CallRefusal::Full));
    assert_eq!(peers.admit(&address(5)), Err(CallRefusal::Itself));
    assert_eq!((peers.len(), peers.connections()), (2, 1));
    let mut closed = table(2, 2, false);
    assert_eq!(closed.admit(&address(1)), Err(CallRefusal::Unknown));
    assert!(closed.is_empty());
}

#[test]
fn a_slot_that_is_used_again_has_another_identifier() {
    let mut peers = table(1, 1, true);
    let first = peers.connect(&address(1)).unwrap();
    assert_eq!(peers.speak(first), Ok(Speaking::Call(0)));
    assert_eq!(peers.release(first), Err(PeerError::InUse));
    assert_eq!(peers.ended(first, PeerEnd::Refused), Some(0));
    assert_eq!(peers.speak(first), Err(PeerError::Ended(PeerEnd::Refused)));
    peers.free_number(0);
    assert_eq!(peers.release(first), Ok(()));
    let second = peers.connect(&address(2)).unwrap();
    assert!(second != first && PeerRef::from_bits(second.to_bits()) == second);
    assert_eq!((peers.speak(first), peers.release(first)), (Err(PeerError::Stale), Err(PeerError::Stale)));
    assert_eq!((peers.opened(first), peers.ended(first, PeerEnd::Lost)), (None, None));
    for bits in [0, 1, u64::MAX, 1 << 32, u64::from(u32::MAX)] {
        let _ = peers.speak(PeerRef::from_bits(bits));
        let _ = peers.release(PeerRef::from_bits(bits));
    }
}

#[test]
fn pinned_peers_keep_their_numbers_and_further_peers_have_larger_ones() {
    let slots = (0..5).map(|_| Slot::default()).collect();
    let limits = PeerLimits { connections: 2, strangers: true, pinned: 2 };
    let mut peers = TestPeers::new(address(5), limits, (slots, vec![List::new(); 4], vec![0; 2]), 99);
    let ranks = [3, 9].map(|name| peers.connect(&address(name)).unwrap());
    let further = peers.connect(&address(7)).unwrap();
    assert!(ranks.iter().all(|rank| peers.is_pinned(*rank)) && !peers.is_pinned(further));
    // Before there is place for their numbers, nothing is kept of further peers.
    assert_eq!(peers.speak(further), Err(PeerError::Connections { most: 0 }));
    peers.grow_numbers();
    assert_eq!(peers.speak(further), Ok(Speaking::Call(2)));
    assert_eq!(peers.speak(ranks[1]), Ok(Speaking::Call(1)));
    assert!(matches!(peers.admit(&address(11)), Ok((_, 3))));
    assert_eq!(peers.admit(&address(12)), Err(CallRefusal::Full));
    // A rank has its number although all connections of further peers are in use.
    assert_eq!(peers.admit(&address(3)), Ok((ranks[0], 0)));
    assert_eq!((peers.opened(ranks[0]), peers.connections()), (Some(0), 2));
    // The end of a rank is for ever, and leaves its number to no other peer.
    assert_eq!(peers.ended(ranks[0], PeerEnd::Lost), Some(0));
    peers.free_number(0);
    assert_eq!(peers.connections(), 2);
    assert_eq!(peers.connect(&address(3)), Ok(ranks[0]));
    assert_eq!(peers.stage(ranks[0]), Ok(PeerStage::Ended(PeerEnd::Lost)));
    assert_eq!(peers.release(ranks[0]), Err(PeerError::Pinned));
    assert_eq!(peers.admit(&address(3)), Err(CallRefusal::Unknown));
    assert_eq!(peers.stage(ranks[0]), Ok(PeerStage::Ended(PeerEnd::Lost)));
    assert_eq!(peers.ended(further, PeerEnd::Left), Some(2));
    peers.free_number(2);
    peers.release(further).unwrap();
    assert!(matches!(peers.admit(&address(12)), Ok((_, 2))));
}

#[test]
fn a_caller_whose_call_counts_for_the_links_is_admitted_with_one_number() {
    let mut peers = table(2, 1, true);
    let (peer, number) = peers.admit(&address(7)).unwrap();
    assert_eq!((number, peers.stage(peer)), (0, Ok(PeerStage::Answering(0))));
    // A later call of the same peer, and an own call that is abandoned, keep the number.
    assert_eq!(peers.admit(&address(7)), Ok((peer, 0)));
    assert_eq!(peers.admit(&address(8)), Err(CallRefusal::Full));
    assert_eq!(peers.admit(&address(5)), Err(CallRefusal::Itself));
    assert_eq!((peers.opened(peer), peers.opened(peer)), (Some(0), None));
    assert_eq!(peers.admit(&address(7)), Err(CallRefusal::Connected));
    assert_eq!(peers.ended(peer, PeerEnd::Left), Some(0));
    assert_eq!(peers.admit(&address(7)), Err(CallRefusal::Full), "its number is not free yet");
    peers.free_number(0);
    assert_eq!(peers.admit(&address(7)), Ok((peer, 0)));
    // Nothing has happened.
    assert_eq!(peers.ended(peer, PeerEnd::Lost), Some(0));
    assert_eq!(peers.stage(peer), Ok(PeerStage::Apart));
    let mut closed = table(2, 2, false);
    assert_eq!(closed.admit(&address(7)), Err(CallRefusal::Unknown));
}

#[test]
fn a_pinned_peer_takes_the_address_of_the_process_that_replaces_it() {
    let limits = PeerLimits { connections: 1, strangers: true, pinned: 1 };
    let slots: Vec<_> = std::iter::repeat_with(Slot::default).take(3).collect();
    let mut peers = Peers::new(address(5), limits, (slots, vec![List::new(); 4], vec![0; 2]), 1);
    let rank = peers.connect(&address(1)).unwrap();
    let further = peers.connect(&address(2)).unwrap();
    assert!(matches!(peers.speak(rank), Ok(Speaking::Call(0))));
    assert_eq!(peers.renew(rank, &address(3)), Err(PeerError::InUse), "it is being called");
    assert_eq!((peers.opened(rank), peers.ended(rank, PeerEnd::Lost)), (Some(0), Some(0)));
    assert_eq!(peers.renew(rank, &address(2)), Err(PeerError::InUse), "that of another peer");
    assert_eq!(peers.renew(rank, &address(5)), Err(PeerError::InUse), "that of this process");
    assert_eq!(peers.admit(&address(1)), Err(CallRefusal::Unknown), "the former process does not come back");
    peers.renew(rank, &address(3)).unwrap();
    assert_eq!((peers.peer_by(&address(1)), peers.peer_by(&address(3))), (None, Some(rank)));
    assert_eq!((peers.stage(rank), peers.address_of(rank)), (Ok(PeerStage::Apart), Ok(&address(3))));
    assert_eq!(peers.admit(&address(3)), Ok((rank, 0)));
    assert_eq!(peers.address_of(further), Ok(&address(2)));
}
