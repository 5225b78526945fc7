//! The structures of `vipl.h`. Their sizes and offsets are those that existing programs were compiled with.

use std::ffi::{c_char, c_int, c_ulong, c_ushort, c_void};

/// The pointer that stands for an object.
pub(crate) type Handle = *mut c_void;

/// `VIP_VI_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CViAttributes {
    pub(crate) reliability: c_ushort,
    pub(crate) max_transfer: c_ulong,
    pub(crate) qos: *mut c_void,
    pub(crate) ptag: Handle,
    pub(crate) rdma_write: c_int,
    pub(crate) rdma_read: c_int,
}

/// `VIP_MEM_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CMemAttributes {
    pub(crate) ptag: Handle,
    pub(crate) rdma_write: c_int,
    pub(crate) rdma_read: c_int,
}

/// `VIP_NIC_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CNicAttributes {
    pub(crate) name: [c_char; 64],
    pub(crate) hardware_version: c_ulong,
    pub(crate) provider_version: c_ulong,
    pub(crate) address_len: u16,
    pub(crate) address: *const u8,
    pub(crate) thread_safe: c_int,
    pub(crate) max_discriminator_len: u16,
    pub(crate) max_register_bytes: c_ulong,
    pub(crate) max_register_regions: c_ulong,
    pub(crate) max_register_block_bytes: c_ulong,
    pub(crate) max_vi: c_ulong,
    pub(crate) max_descriptors_per_queue: c_ulong,
    pub(crate) max_segments_per_desc: c_ulong,
    pub(crate) max_cq: c_ulong,
    pub(crate) max_cq_entries: c_ulong,
    pub(crate) max_transfer_size: c_ulong,
    pub(crate) native_mtu: c_ulong,
    pub(crate) max_ptags: c_ulong,
    pub(crate) reliability_levels: c_ushort,
    pub(crate) rdma_read_levels: c_ushort,
}

/// `VIP_NET_ADDRESS`: the host's bytes follow, then those of the discriminator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CNetAddress {
    pub(crate) host_len: u16,
    pub(crate) discriminator_len: u16,
    pub(crate) bytes: [u8; 0],
}

/// `VIP_AUTODISCOVERY_LIST`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CAutodiscovery {
    pub(crate) hops: c_ulong,
    pub(crate) addresses: *mut CNetAddress,
    pub(crate) count: c_ulong,
}

#[cfg(test)]
mod tests {
    use memoffset::offset_of;
    use nemesia::internals::via::AsyncReport;

    use super::*;

    #[test]
    fn sizes_and_offsets_are_those_of_existing_programs() {
        assert_eq!((size_of::<CViAttributes>(), size_of::<CMemAttributes>()), (40, 16));
        assert_eq!((size_of::<CNicAttributes>(), size_of::<AsyncReport>()), (200, 48));
        assert_eq!(size_of::<CNetAddress>(), 4);
        let attributes = (offset_of!(CViAttributes, max_transfer), offset_of!(CViAttributes, rdma_read));
        assert_eq!(attributes, (8, 36));
        let nic = [
            offset_of!(CNicAttributes, address_len),
            offset_of!(CNicAttributes, address),
            offset_of!(CNicAttributes, max_discriminator_len),
            offset_of!(CNicAttributes, reliability_levels),
        ];
        assert_eq!(nic, [80, 88, 100, 192]);
        assert_eq!((offset_of!(AsyncReport, operation), offset_of!(AsyncReport, error)), (32, 44));
    }
}
