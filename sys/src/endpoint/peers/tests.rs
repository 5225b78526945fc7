use std::thread;
use std::time::Duration;

use nemesia_core::peers::PeerError;

use super::*;
use crate::{Config, Source, Tag};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn alone() -> Endpoint {
    Endpoint::alone(&Config::default()).unwrap()
}

/// Receives a message of 8 bytes with this tag from anyone.
fn receive(endpoint: &mut Endpoint, tag: u64) -> (usize, u64) {
    let mut buf = [0; 8];
    let status = endpoint.recv(Source::Any, Tag::Exactly(tag), &mut buf).unwrap();
    (status.rank, u64::from_le_bytes(buf))
}

#[test]
fn two_processes_connect_by_address_and_answer_each_other() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = alone();
        let peer = two.connect(&address).unwrap();
        assert_eq!(two.connect(&address).unwrap(), peer);
        assert_eq!((two.size(), two.stage_of(peer).unwrap()), (1, PeerStage::Apart));
        let rank = two.rank_of(peer).unwrap();
        assert_eq!(two.rank_of(peer).unwrap(), rank);
        two.send(rank, 1, &7_u64.to_le_bytes()).unwrap();
        assert_eq!(receive(&mut two, 2), (rank, 8));
        two.close().unwrap();
    });
    let (from, value) = receive(&mut one, 1);
    assert_eq!(value, 7);
    let peer = one.peer_of(from).unwrap();
    assert_eq!(one.rank_of(peer).unwrap(), from);
    one.send(from, 2, &8_u64.to_le_bytes()).unwrap();
    other.join().unwrap();
    one.close().unwrap();
}

#[test]
fn an_endpoint_of_a_world_has_no_address_and_a_lone_one_no_world() {
    let mut world = crate::testing::world(1, |mut endpoint| {
        let address = *alone().address().unwrap();
        assert!(matches!(endpoint.address(), Err(Error::NoAddress)));
        assert!(matches!(endpoint.connect(&address), Err(Error::NoAddress)));
    })
    .unwrap();
    world.pop().unwrap();
    let mut lone = alone();
    let own = *lone.address().unwrap();
    assert!(matches!(lone.connect(&own), Err(Error::NoPeer(PeerError::Itself))));
    let foreign = PeerAddress::from_bytes([1; 64]);
    let error = lone.connect(&foreign).unwrap_err();
    assert!(matches!(&error, Error::Address { problem } if problem.contains("version 257")), "{error}");
    assert!(matches!(lone.barrier(), Err(Error::NoWorld)));
    assert!(matches!(lone.agree(1), Err(Error::NoWorld)));
    lone.send(0, 3, b"to itself").unwrap();
    let mut buf = [0; 9];
    assert_eq!(lone.recv(Source::Rank(0), Tag::Any, &mut buf).unwrap().len, 9);
    lone.close().unwrap();
}
