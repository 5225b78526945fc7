//! Connections.

use std::ffi::c_ulong;

use nemesia::internals::via::Provider;
use nemesia_core::via::ViaError;

use crate::boundary::{address, c_attributes, call, give, give_address, handle, number, require};
use crate::types::{CNetAddress, CViAttributes, Handle};

/// The address of this process.
fn own(provider: &Provider) -> [u8; 4] {
    provider.address()
}

/// Waits for the request of a client.
///
/// # Safety
/// The pointers are null or valid; the remote address has room for a host and a discriminator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectWait(
    nic: Handle,
    local: *const CNetAddress,
    limit: c_ulong,
    remote: *mut CNetAddress,
    attributes: *mut CViAttributes,
    connection: *mut Handle,
) -> i32 {
    call(|provider| {
        require(connection)?;
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, own(provider)) }?;
        let (found, from, theirs) = provider.connect_wait(number(nic), local, limit)?;
        // SAFETY: the caller's promise.
        unsafe { give_address(remote, &from) };
        if !attributes.is_null() {
            // SAFETY: not null, so valid.
            unsafe { attributes.write(c_attributes(&theirs)) };
        }
        // SAFETY: the caller's promise.
        unsafe { give(connection, handle(found)) }
    })
}

/// Accepts the request of a client.
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectAccept(connection: Handle, vi: Handle) -> i32 {
    call(|provider| provider.connect_accept(number(connection), number(vi)))
}

/// Rejects the request of a client.
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectReject(connection: Handle) -> i32 {
    call(|provider| provider.connect_reject(number(connection)))
}

/// Connects a VI to one of a server.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    local: *const CNetAddress,
    remote: *const CNetAddress,
    limit: c_ulong,
    attributes: *mut CViAttributes,
) -> i32 {
    call(|provider| {
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, own(provider)) }?;
        // SAFETY: the caller's promise.
        let remote = unsafe { address(remote, own(provider)) }?;
        let theirs = provider.connect_request(number(vi), local, remote, limit)?;
        if !attributes.is_null() {
            // SAFETY: not null, so valid.
            unsafe { attributes.write(c_attributes(&theirs)) };
        }
        Ok(())
    })
}

/// Disconnects a VI.
#[unsafe(no_mangle)]
pub extern "C" fn VipDisconnect(vi: Handle) -> i32 {
    call(|provider| provider.disconnect(number(vi)))
}

/// Begins to connect a VI to one of a peer.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerRequest(
    vi: Handle,
    local: *const CNetAddress,
    remote: *const CNetAddress,
    limit: c_ulong,
) -> i32 {
    call(|provider| {
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, own(provider)) }?;
        // SAFETY: the caller's promise.
        let remote = unsafe { address(remote, own(provider)) }?;
        provider.peer_request(number(vi), local, remote, limit)
    })
}

/// Passes the attributes of a peer's VI to the program.
///
/// # Safety
/// The pointer is null or valid.
unsafe fn peer(
    attributes: *mut CViAttributes,
    found: impl FnOnce(&Provider) -> Result<nemesia_core::via::ViAttributes, ViaError>,
) -> i32 {
    call(|provider| {
        let theirs = found(provider)?;
        if !attributes.is_null() {
            // SAFETY: not null, so valid.
            unsafe { attributes.write(c_attributes(&theirs)) };
        }
        Ok(())
    })
}

/// Returns whether a peer is connected.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerDone(vi: Handle, attributes: *mut CViAttributes) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { peer(attributes, |provider| provider.peer_done(number(vi))) }
}

/// Waits until a peer is connected, or the request has failed.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerWait(vi: Handle, attributes: *mut CViAttributes) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { peer(attributes, |provider| provider.peer_wait(number(vi))) }
}
