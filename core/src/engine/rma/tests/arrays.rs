//! Fetch and accumulate of arrays: in many packets, refused in the middle, and with a peer that fails.

use super::{ALL, BYTES};
use crate::engine::rma::{Datatype, Reduction, Refusal};
use crate::engine::tests::world::{AMPLE, World};
use crate::engine::{CompletionError, Failure, RequestId, StartError};
use crate::shared::tests::fabric::{Fabric, FabricRegion, tiny};

use std::vec::Vec;

#[test]
fn arrays_are_fetched_and_accumulated_beyond_the_window() {
    const SUM: (Datatype, Reduction) = (Datatype::U32, Reduction::Sum);
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 77);
    let values = |scale: u32| (0..1000).flat_map(|n: u32| (n * scale).to_le_bytes()).collect::<Vec<u8>>();
    for rank in [0, 1] {
        memory.fill(&values(1));
        let handle = world.fetch_accumulate(rank, (&key, 0), SUM, &values(2), 4000).unwrap();
        world.settle();
        assert_eq!(world.good(handle), values(1));
        assert_eq!(memory.copy()[..4000], values(3));
        // An atomic read of all values needs no operands.
        let nothing = (Datatype::U32, Reduction::Nothing);
        let handle = world.fetch_accumulate(rank, (&key, 0), nothing, &[], 4000).unwrap();
        world.settle();
        assert_eq!(world.good(handle), values(3));
        let none = world.fetch_accumulate(rank, (&key, 8), SUM, &[], 0).unwrap();
        assert_eq!(none.id, RequestId::SENT);
        world.good(none);
        let refused = |refusal| Some(StartError::Refused(refusal));
        assert_eq!(world.fetch_accumulate(rank, (&key, 0), SUM, &[0; 8], 4).err(), refused(Refusal::Bounds));
        let odd = world.fetch_accumulate(rank, (&key, 0), (Datatype::F64, Reduction::Sum), &[0; 12], 12);
        assert_eq!(odd.err(), refused(Refusal::Alignment));
    }
    world.assert_empty(&[0, 1], "fetch and accumulate");
}

#[test]
fn array_that_is_refused_in_the_middle_ends_and_other_requests_continue() {
    let sum = (Datatype::U64, Reduction::Sum);
    let refused = |refusal| Err(CompletionError::Refused { peer: 1, refusal, count: 1 });
    for turns in [0, 1, 2] {
        let fabric = Fabric::new(tiny(2));
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (id, key) = world.expose(1, &memory, ALL, 77);
        let whole = world.fetch_accumulate(0, (&key, 0), sum, &[1; 2400], 2400).unwrap();
        let short = world.fetch_accumulate(0, (&key, 0), sum, &[1; 48], 48).unwrap();
        for _ in 0..turns {
            world.engine(1).progress();
            world.engine(0).progress();
        }
        world.engine(1).unexpose(id);
        let (_, other) = world.expose(1, &memory, ALL, 78);
        let fetch = world.fetch(0, (&other, 3000), Datatype::U64, Reduction::Sum, 1).unwrap();
        let flush = world.flush(0, 1).unwrap();
        world.settle();
        assert_eq!(world.done(whole).0, refused(Refusal::Key), "{turns}");
        assert_eq!(world.done(short).0, refused(Refusal::Key), "{turns}");
        world.good(fetch);
        world.good(flush);
        assert_eq!((world.engine(0).failure(1), world.engine(1).failure(0)), (None, None));
        world.assert_empty(&[0, 1], "refused");
    }
}

#[test]
fn array_of_a_peer_that_departs_ends_with_its_failure() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 77);
    let sum = (Datatype::U64, Reduction::Sum);
    let handle = world.fetch_accumulate(0, (&key, 0), sum, &[1; 2400], 2400).unwrap();
    world.engine(1).progress();
    world.engine(0).depart(1, Failure::Died);
    assert!(world.test(handle).is_none(), "its replies may still arrive");
    while !world.engine(0).drain(1) {}
    assert_eq!(world.engine(0).failure(1), None, "the replies are valid");
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.done(handle).0, Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died }));
    world.assert_empty(&[0], "departed");
}
