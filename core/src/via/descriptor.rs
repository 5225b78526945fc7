//! Descriptors (paper 2, sections 1.3.1 and 1.4.3): four kinds, with gather and scatter lists.
//!
//! A descriptor is 64 bytes of the program's memory: a control segment of 32 bytes, and two segments of 16 bytes, after
//! which more may follow. The layer above copies the bytes once, and everything here works on that copy: a program that
//! changes a posted descriptor affects nothing but its own reading of it.
//!
//! | offset | bytes | control segment |
//! |---|---|---|
//! | 0 | 8 | next, which belongs to the program |
//! | 8 | 4 | handle of the memory of next |
//! | 12 | 2 | number of segments, the address segment included |
//! | 14 | 2 | control: operation, immediate, fence |
//! | 16 | 4 | reserved |
//! | 20 | 4 | immediate data |
//! | 24 | 4 | length |
//! | 28 | 4 | status |
//!
//! A segment is an address (8), a handle (4) and a length (4). The first segment of an RDMA operation is the remote
//! address, whose last word is reserved.
#![forbid(unsafe_code)]

use super::codes::STATUS_FORMAT;

/// Bytes of a descriptor with at most two segments.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Bytes of the control segment.
pub const CONTROL_BYTES: usize = 32;
/// Bytes of one segment.
pub const SEGMENT_BYTES: usize = 16;
/// Most segments of a descriptor, the address segment of an RDMA operation included.
pub const MOST_SEGMENTS: usize = 252;

/// The bits of the control word that select the operation.
pub const CONTROL_OPERATION: u16 = 3;
/// The descriptor has immediate data.
pub const CONTROL_IMMEDIATE: u16 = 4;
/// The descriptor waits for all earlier ones of its queue.
pub const CONTROL_FENCE: u16 = 8;
/// Bits that must be zero.
pub const CONTROL_RESERVED: u16 = 0xfff0;

/// The operation of a descriptor in a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViaOperation {
    /// A message.
    #[default]
    Send,
    /// A write to the memory of the other side.
    RdmaWrite,
    /// A read from the memory of the other side.
    RdmaRead,
}

/// A range of registered memory: in a gather or scatter list, or the remote range of an RDMA operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViaSegment {
    /// The virtual address in the process that registered the memory.
    pub address: u64,
    /// The handle of the memory, of the process that registered it.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
}

impl ViaSegment {
    /// Returns the segment in these bytes.
    #[inline(always)]
    pub fn decode(bytes: &[u8; SEGMENT_BYTES]) -> Self {
        let word = u128::from_le_bytes(*bytes);
        Self { address: word as u64, handle: (word >> 64) as u32, length: (word >> 96) as u32 }
    }

    /// Returns the bytes of the segment.
    pub fn encode(self) -> [u8; SEGMENT_BYTES] {
        let high = u128::from(self.handle) << 64 | u128::from(self.length) << 96;
        (u128::from(self.address) | high).to_le_bytes()
    }
}

/// The local copy of a descriptor's control segment, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViaDescriptor {
    /// The operation; receives have [`ViaOperation::Send`].
    pub operation: ViaOperation,
    /// The immediate data, if there are any.
    pub immediate: Option<u32>,
    /// Whether the descriptor waits for all earlier ones of its queue.
    pub fence: bool,
    /// The remote range of an RDMA operation; its length is that of the local segments.
    pub remote: ViaSegment,
    /// The number of local segments.
    pub segments: u16,
    /// [`STATUS_FORMAT`] if the format is invalid; the descriptor then has no segments.
    pub fault: u32,
}

/// Returns the number of segments that follow the control segment, at most [`MOST_SEGMENTS`].
pub fn segment_count(control: &[u8; CONTROL_BYTES]) -> usize {
    usize::from(u16::from_le_bytes([control[12], control[13]])).min(MOST_SEGMENTS)
}

impl ViaDescriptor {
    /// Returns the descriptor of a send queue or of a receive queue. `first` is the first segment, if there is one.
    #[inline(always)]
    pub fn decode(control: &[u8; CONTROL_BYTES], first: Option<ViaSegment>, is_receive: bool) -> Self {
        let count = u16::from_le_bytes([control[12], control[13]]);
        let bits = u16::from_le_bytes([control[14], control[15]]);
        let immediate = u32::from_le_bytes([control[20], control[21], control[22], control[23]]);
        let operation = match bits & CONTROL_OPERATION {
            0 => Some(ViaOperation::Send),
            1 if !is_receive => Some(ViaOperation::RdmaWrite),
            2 if !is_receive => Some(ViaOperation::RdmaRead),
            _ => None,
        };
        let mut descriptor = Self {
            immediate: (bits & CONTROL_IMMEDIATE != 0).then_some(immediate),
            fence: bits & CONTROL_FENCE != 0,
            segments: count,
            ..Self::default()
        };
        let is_valid = bits & CONTROL_RESERVED == 0 && usize::from(count) <= MOST_SEGMENTS;
        let (Some(operation), true) = (operation, is_valid) else {
            return Self { segments: 0, fault: STATUS_FORMAT, ..descriptor };
        };
        descriptor.operation = operation;
        if is_receive {
            descriptor.immediate = None;
        }
        if operation != ViaOperation::Send {
            // An RDMA operation without its remote address, or a read with immediate data, has no meaning.
            let (Some(remote), false) =
                (first, operation == ViaOperation::RdmaRead && descriptor.immediate.is_some())
            else {
                return Self { segments: 0, fault: STATUS_FORMAT, ..descriptor };
            };
            descriptor.remote = ViaSegment { length: 0, ..remote };
            descriptor.segments = count.saturating_sub(1);
        }
        descriptor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(count: u16, bits: u16, immediate: u32) -> [u8; CONTROL_BYTES] {
        let mut control = [0xaa; CONTROL_BYTES];
        control[12..14].copy_from_slice(&count.to_le_bytes());
        control[14..16].copy_from_slice(&bits.to_le_bytes());
        control[20..24].copy_from_slice(&immediate.to_le_bytes());
        control
    }

    const REMOTE: ViaSegment = ViaSegment { address: 7 << 40, handle: 5, length: 99 };

    #[test]
    fn operation_immediate_and_fence_are_read_from_the_control_word() {
        let send =
            ViaDescriptor::decode(&control(2, CONTROL_IMMEDIATE | CONTROL_FENCE, 9), Some(REMOTE), false);
        let expected = ViaDescriptor { immediate: Some(9), fence: true, segments: 2, ..Default::default() };
        assert_eq!(send, expected);
        let write = ViaDescriptor::decode(&control(3, 1, 9), Some(REMOTE), false);
        assert_eq!((write.operation, write.segments), (ViaOperation::RdmaWrite, 2));
        assert_eq!(write.remote, ViaSegment { length: 0, ..REMOTE });
        assert_eq!(write.immediate, None);
        assert_eq!(
            ViaDescriptor::decode(&control(1, 2, 0), Some(REMOTE), false).operation,
            ViaOperation::RdmaRead
        );
    }

    #[test]
    fn each_malformed_control_word_is_a_format_error() {
        let fault = |count, bits, first| ViaDescriptor::decode(&control(count, bits, 0), first, false).fault;
        for bits in [3, 0x10, 0x8000, 2 | CONTROL_IMMEDIATE] {
            assert_eq!(fault(1, bits, Some(REMOTE)), STATUS_FORMAT, "{bits:#x}");
        }
        assert_eq!(fault(MOST_SEGMENTS as u16, 0, Some(REMOTE)), 0);
        assert_eq!(fault(MOST_SEGMENTS as u16 + 1, 0, Some(REMOTE)), STATUS_FORMAT);
        assert_eq!(fault(0, 1, None), STATUS_FORMAT, "no remote address");
        for bits in [1, 2] {
            let receive = ViaDescriptor::decode(&control(1, bits, 0), Some(REMOTE), true);
            assert_eq!(receive.fault, STATUS_FORMAT, "no receive is an RDMA operation");
        }
    }

    #[test]
    fn a_segment_is_encoded_as_it_is_decoded() {
        assert_eq!(ViaSegment::decode(&REMOTE.encode()), REMOTE);
        assert_eq!(REMOTE.encode()[8..], [5, 0, 0, 0, 99, 0, 0, 0]);
        assert_eq!(segment_count(&control(3, 0, 0)), 3);
        assert_eq!(segment_count(&control(u16::MAX, 0, 0)), MOST_SEGMENTS);
    }
}
