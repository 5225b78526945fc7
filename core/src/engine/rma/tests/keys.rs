//! Keys that the application chooses, and regions that are exposed by address.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::{ALL, BYTES};
use crate::engine::rma::region::{ExposedRegion, Regions};
use crate::engine::rma::{Access, Addressing, ExposeError, Refusal, RegionId, RemoteKey};
use crate::engine::tests::world::{AMPLE, World};
use crate::engine::{CompletionError, StartError};
use crate::shared::tests::fabric::{Fabric, FabricRegion, tiny};
use crate::shared::tests::{Rng, portion};
use crate::slab::Slot;

#[test]
fn a_peer_uses_a_region_by_its_key_alone() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    world.expose(1, &memory, ALL, 0);
    let key = RemoteKey::new(1, 0);
    world.put(0, &key, 100, b"by key").unwrap();
    let get = world.get(0, &key, 100, 6).unwrap();
    world.settle();
    assert_eq!(world.good(get), b"by key");
    // Nothing is known of the region, so only its owner refuses.
    let beyond = world.get(0, &key, BYTES as u64 - 5, 6).unwrap();
    world.settle();
    let refused = |refusal| Err(CompletionError::Refused { peer: 1, refusal, count: 1 });
    assert_eq!(world.done(beyond).0, refused(Refusal::Bounds));
    assert_eq!(world.get(0, &key, u64::MAX, 2).err(), Some(StartError::Refused(Refusal::Bounds)));
}

#[test]
fn a_second_region_with_the_same_key_is_refused_until_the_first_is_unexposed() {
    let fabric = Fabric::new(tiny(2));
    let memories = [FabricRegion::new(BYTES), FabricRegion::new(BYTES)];
    let mut world = World::new(&fabric, AMPLE);
    let (first, key) = world.expose(1, &memories[0], ALL, 9);
    let again = |world: &mut World<'_>| {
        world.engine(1).expose(memories[1].exposed(), Access::Read, 9, Addressing::Offset)
    };
    assert_eq!(again(&mut world), Err(ExposeError::Key { key: 9 }));
    assert!(world.engine(1).unexpose(first) && !world.engine(1).is_exposed(9));
    memories[1].fill(&vec![5; BYTES]);
    let second = again(&mut world).unwrap();
    // The key names what is exposed now, with its rights.
    let get = world.get(0, &key, 0, 8).unwrap();
    world.settle();
    assert_eq!(world.good(get), [5; 8]);
    world.put(0, &key, 0, &[1; 8]).unwrap();
    let flush = world.flush(0, 1).unwrap();
    world.settle();
    let refused = CompletionError::Refused { peer: 1, refusal: Refusal::Access, count: 1 };
    assert_eq!(world.done(flush).0, Err(refused));
    assert!(!world.engine(1).unexpose(first) && world.engine(1).unexpose(second));
    assert_eq!(memories[0].copy(), vec![0; BYTES]);
}

#[test]
fn a_region_exposed_by_address_is_used_by_address() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let address = memory.exposed().address();
    let id = world.engine(1).expose(memory.exposed(), ALL, 9, Addressing::Address).unwrap();
    let known = world.engine(1).remote_key(id).unwrap();
    assert_eq!((known.base, known.len), (address, BYTES as u64));
    let blind = RemoteKey::new(1, 9);
    for (round, key) in (1..).zip([known, blind]) {
        // In several packets.
        let put = world.put(0, &key, address + 8, &[round; 600]).unwrap();
        let get = world.get(0, &key, address + 8, 600).unwrap();
        world.settle();
        world.good(put);
        assert_eq!(world.good(get), [round; 600]);
        assert_eq!(memory.copy()[7..609], [&[0][..], &[round; 600], &[0]].concat());
    }
    let outside = [(address - 1, 1), (address + BYTES as u64, 1), (0, 1), (8, 8)];
    for (offset, len) in outside {
        let known = world.get(0, &known, offset, len).err();
        assert_eq!(known, Some(StartError::Refused(Refusal::Bounds)), "{offset:#x}");
        let blind = world.get(0, &blind, offset, len).unwrap();
        world.settle();
        let refused = CompletionError::Refused { peer: 1, refusal: Refusal::Bounds, count: 1 };
        assert_eq!(world.done(blind).0, Err(refused), "{offset:#x}");
    }
    // In a region by offset, an address is outside.
    world.expose(1, &memory, ALL, 10);
    let get = world.get(0, &RemoteKey::new(1, 10), address, 8).unwrap();
    world.settle();
    assert!(matches!(world.done(get).0, Err(CompletionError::Refused { refusal: Refusal::Bounds, .. })));
}

/// The regions find what was exposed and not unexposed, and nothing else: with keys of few values, with growth, and
/// with stale identifiers.
#[test]
fn random_keys_are_found_as_in_a_map() {
    for seed in 0..portion(20) {
        let mut rng = Rng::new(seed);
        let slots: Vec<Slot<ExposedRegion>> = vec![];
        let mut regions = Regions::new(slots);
        let mut model = BTreeMap::<u64, RegionId>::new();
        let mut stale = vec![];
        for _ in 0..2000 {
            let key = rng.pick(&[1 << 60, 1, u64::MAX - 40]).wrapping_add(rng.below(40) as u64 * 8);
            match rng.below(10) {
                0..5 => {
                    let inserted = regions.insert(ExposedRegion { key, ..ExposedRegion::default() });
                    match inserted {
                        Ok(id) => assert_eq!(model.insert(key, id), None),
                        Err(ExposeError::Key { key: other }) => {
                            assert!(other == key && model.contains_key(&key));
                        }
                        Err(ExposeError::Full { capacity }) => {
                            assert_eq!((capacity, model.len()), (regions.capacity(), capacity));
                            regions.grow(1 + rng.below(7));
                        }
                    }
                }
                5..8 => {
                    let removed = model.remove(&key);
                    if let Some(id) = removed {
                        assert_eq!(regions.remove(id).map(|region| region.key), Some(key));
                        stale.push(id);
                    }
                }
                8 if !stale.is_empty() => {
                    let id = rng.pick(&stale);
                    assert!(regions.remove(id).is_none(), "a stale identifier");
                }
                _ => assert_eq!(regions.named(key).map(|region| region.key), model.get(&key).map(|_| key)),
            }
            assert_eq!(regions.used(), model.len());
        }
        for key in model.keys() {
            assert_eq!(regions.named(*key).map(|region| region.key), Some(*key));
        }
    }
}
