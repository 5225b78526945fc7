//! Registered memory: the four functions of the standard, and those of the vendor header `vipl_nemesia.h`.

use std::ffi::{c_int, c_ulong, c_void};

use nemesia::internals::via::MemoryKind;

use crate::boundary::{call, give, handle, mem_attributes, number, require, take};
use crate::types::{CMemAttributes, Handle};

/// Registers memory of the program.
///
/// # Safety
/// The memory stays mapped, readable and writable until it is deregistered. The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRegisterMem(
    nic: Handle,
    address: *mut c_void,
    len: c_ulong,
    attributes: *const CMemAttributes,
    memory: *mut u32,
) -> i32 {
    call(|provider| {
        require(memory)?;
        // SAFETY: the caller's promise.
        let attributes = mem_attributes(&unsafe { take(attributes) }?);
        // SAFETY: the caller's promise.
        let registered = unsafe { provider.register(number(nic), address.cast(), len, attributes) }?;
        // SAFETY: the caller's promise.
        unsafe { give(memory, registered) }
    })
}

/// Deregisters memory of the program.
#[unsafe(no_mangle)]
pub extern "C" fn VipDeregisterMem(nic: Handle, address: *mut c_void, memory: u32) -> i32 {
    call(|provider| provider.deregister(number(nic), address.cast(), memory, false))
}

/// Returns the attributes of registered memory.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryMem(
    nic: Handle,
    address: *mut c_void,
    memory: u32,
    attributes: *mut CMemAttributes,
) -> i32 {
    call(|provider| {
        let found = provider.query_memory(number(nic), address.cast(), memory)?;
        let value = CMemAttributes {
            ptag: handle(found.ptag),
            rdma_write: found.rdma_write.into(),
            rdma_read: found.rdma_read.into(),
        };
        // SAFETY: the caller's promise.
        unsafe { give(attributes, value) }
    })
}

/// Changes the attributes of registered memory.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetMemAttributes(
    nic: Handle,
    address: *mut c_void,
    memory: u32,
    attributes: *const CMemAttributes,
) -> i32 {
    call(|provider| {
        // SAFETY: the caller's promise.
        let attributes = mem_attributes(&unsafe { take(attributes) }?);
        provider.set_memory(number(nic), address.cast(), memory, attributes)
    })
}

/// Allocates and registers memory: the program gets its address.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipAllocRegisterMem(
    nic: Handle,
    address: *mut *mut c_void,
    len: c_ulong,
    attributes: *const CMemAttributes,
    memory: *mut u32,
) -> i32 {
    call(|provider| {
        require(address)?;
        require(memory)?;
        // SAFETY: the caller's promise.
        let attributes = mem_attributes(&unsafe { take(attributes) }?);
        let (allocated, registered) = provider.allocate(number(nic), len, attributes)?;
        // SAFETY: the caller's promise.
        unsafe { give(address, allocated.cast()) }?;
        // SAFETY: the caller's promise.
        unsafe { give(memory, registered) }
    })
}

/// Deregisters and releases memory of `VipAllocRegisterMem`.
#[unsafe(no_mangle)]
pub extern "C" fn VipFreeRegisteredMem(nic: Handle, address: *mut c_void, memory: u32) -> i32 {
    call(|provider| provider.deregister(number(nic), address.cast(), memory, true))
}

/// Returns how other processes reach registered memory.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryMemKind(
    nic: Handle,
    address: *mut c_void,
    memory: u32,
    kind: *mut c_int,
) -> i32 {
    call(|provider| {
        let found = match provider.memory_kind(number(nic), address.cast(), memory)? {
            MemoryKind::Allocated => 0,
            MemoryKind::Shadow => 1,
            MemoryKind::ShadowReadThroughKernel => 2,
        };
        // SAFETY: the caller's promise.
        unsafe { give(kind, found) }
    })
}

/// Permits or forbids that other processes read registered memory of the program through the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn VipSetMemReadable(
    nic: Handle,
    address: *mut c_void,
    memory: u32,
    is_readable: c_int,
) -> i32 {
    call(|provider| provider.set_readable(number(nic), address.cast(), memory, is_readable != 0))
}
