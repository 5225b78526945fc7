//! Buffers that peers map, and descriptions of them from peers that lie.

use nemesia_core::shared::port::Host;
use nemesia_core::wire::mappable::MappableBytes;

use crate::Config;
use crate::endpoint::tests::{pair, world};
use crate::endpoint::{Access, Endpoint, Source, Tag};
use crate::shm::Kernel;

fn kernel(endpoint: &mut Endpoint) -> &mut Kernel {
    endpoint.engine.port_mut().local_mut().host_mut()
}

/// Returns the description of bytes of this endpoint, as its peers get it.
fn described(endpoint: &mut Endpoint, bytes: &[u8]) -> Option<MappableBytes> {
    kernel(endpoint).mappable(bytes.as_ptr() as u64, bytes.len())
}

#[test]
fn forged_descriptions_of_messages_give_no_bytes_and_take_bounded_memory() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut buffer = one.allocate_buffer(100_000).unwrap();
    buffer.fill(7);
    let Some(honest) = described(&mut one, &buffer[10..50]) else {
        crate::os::testing::skipped("buffers can't be mapped here");
        return;
    };
    assert_eq!(described(&mut one, &[0; 10]), None, "memory that was not allocated is not described");
    let mut to = [0; 40];
    let before = to;
    let forged = (0..5000_u64).flat_map(|number| {
        let odd = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        [
            MappableBytes { key: honest.key ^ odd, ..honest },
            MappableBytes { share: honest.share + 1 + number as u32, ..honest },
            MappableBytes { len: honest.len + 1 + (odd >> 20), ..honest },
            MappableBytes { writable: true, key: honest.key ^ number, ..honest },
        ]
    });
    for bytes in forged.step_by(7) {
        assert!(!kernel(&mut zero).get_mapped(1, &bytes, 0, &mut to), "{bytes:?}");
        assert!(!kernel(&mut zero).put_mapped(1, &bytes, 0, &[9; 40]), "{bytes:?}");
    }
    // The description is true, but the bytes are not all in the buffer.
    for (offset, at) in [(99_961, 0), (honest.offset, 99_951), (honest.len, 0), (honest.offset, u64::MAX)] {
        let bytes = MappableBytes { offset, ..honest };
        assert!(!kernel(&mut zero).get_mapped(1, &bytes, at, &mut to), "{offset} {at}");
    }
    for peer in [0, 2, u32::MAX] {
        assert!(!kernel(&mut zero).get_mapped(peer, &honest, 0, &mut to), "rank {peer}");
    }
    assert_eq!(to, before);
    let (mapped, refused) = kernel(&mut zero).regions.known();
    assert!(mapped <= 1 && refused <= 3 * 64, "{mapped} mappings and {refused} refusals are remembered");
    assert!(kernel(&mut zero).get_mapped(1, &honest, 0, &mut to) && to == [7; 40]);
    assert!(!kernel(&mut zero).put_mapped(1, &honest, 0, &[9; 40]), "a buffer is lent for reading only");
    assert!(buffer.iter().all(|byte| *byte == 7));
}

#[test]
fn a_buffer_that_was_dropped_is_not_read_through_an_old_mapping() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut to = [0; 8];
    for turn in 1..=20 {
        let mut buffer = one.allocate_buffer(8).unwrap();
        buffer.fill(turn);
        let Some(bytes) = described(&mut one, &buffer) else {
            crate::os::testing::skipped("buffers can't be mapped here");
            return;
        };
        assert!(kernel(&mut zero).get_mapped(1, &bytes, 0, &mut to) && to == [turn; 8]);
        drop(buffer);
        assert!(!kernel(&mut zero).get_mapped(1, &bytes, 0, &mut to), "turn {turn}");
    }
    let (mapped, _) = kernel(&mut zero).regions.known();
    assert!(mapped <= 1, "{mapped} buffers that were dropped are still mapped");
}

#[test]
fn buffers_are_ordinary_memory_that_outlives_its_endpoint() {
    let mut endpoint = world(1, &Config::default()).pop().unwrap();
    assert!(endpoint.allocate_buffer(usize::MAX).is_err());
    let empty = endpoint.allocate_buffer(0).unwrap();
    assert!(empty.is_empty());
    let mut buffer = endpoint.allocate_buffer(5000).unwrap();
    assert!(buffer.len() == 5000 && buffer.iter().all(|byte| *byte == 0));
    drop(endpoint);
    let thread = std::thread::spawn(move || {
        buffer.fill(3);
        buffer
    });
    let buffer = thread.join().unwrap();
    assert!(buffer.iter().all(|byte| *byte == 3));
}

#[test]
fn a_region_in_use_is_freed_after_its_message() {
    let (mut zero, mut one) = pair(&Config::default());
    let region = zero.allocate(100_000, Access::ReadWrite).unwrap();
    let (base, len) = zero.region_memory(region).unwrap();
    // SAFETY: the region's memory lives until the message is complete, and nothing else uses it.
    let receive = unsafe { zero.irecv(Source::Rank(1), Tag::Any, base, len) }.unwrap();
    zero.unexpose(region).unwrap();
    assert_eq!(zero.retired.len(), 1, "a posted receive uses the memory");
    let other = std::thread::spawn(move || {
        one.send(0, 1, &[5; 100_000]).unwrap();
        one
    });
    assert_eq!(zero.wait(receive).unwrap().len, len);
    drop(zero.allocate_buffer(8).unwrap());
    assert!(zero.retired.is_empty(), "the memory is freed when it is not used any more");
    drop(other.join().unwrap());
}
