//! Endpoints that open alone, and their peers.

use std::time::{Duration, Instant};

use nemesia::{Error, Meeting, PeerAddress, PeerEnd, PeerRef, PeerStage};

use crate::boundary::{Out, missing};
use crate::config::Config;
use crate::endpoint::{Endpoint, blocking_on, on, publish_opened};
use crate::lent::Lent;
use crate::rank::rank_of;
use crate::status::{Fault, NEMESIA_ERR_NO_PEER, NEMESIA_ERR_RANK, NEMESIA_ERR_TRUNCATED, NEMESIA_OK};
use crate::transfer::time_left;

/// The number of bytes of an address.
pub const NEMESIA_ADDRESS_BYTES: usize = 64;

/// A number that is never a peer, for the caller's own tables. 0 may be a peer.
pub const NEMESIA_NO_PEER: u64 = 0xffff_ffff_ffff_ffff;

/// There is no connection, and this process has not called.
pub const NEMESIA_STAGE_APART: u32 = 0;
/// This process has called the peer. Operations with it wait.
pub const NEMESIA_STAGE_CALLING: u32 = 1;
/// This process has answered a call of the peer, which has not confirmed the answer. Operations with it wait.
pub const NEMESIA_STAGE_ANSWERING: u32 = 2;
/// The connection exists.
pub const NEMESIA_STAGE_CONNECTED: u32 = 3;
/// The connection has ended: the process died, or its connection failed.
pub const NEMESIA_STAGE_LOST: u32 = 4;
/// The connection has ended: the peer disconnected, or closed its endpoint.
pub const NEMESIA_STAGE_LEFT: u32 = 5;
/// The connection has ended: this process disconnected.
pub const NEMESIA_STAGE_DISCONNECTED: u32 = 6;
/// There was no connection: the peer refused the call, or did not answer.
pub const NEMESIA_STAGE_REFUSED: u32 = 7;

const _: () = assert!(NEMESIA_ADDRESS_BYTES == nemesia::ADDRESS_BYTES);

/// Opens an endpoint alone: without a launcher, and without another process. It has an address, and no peers yet.
/// Processes that have its address connect with it (`nemesia_endpoint_connect`). A process may open several.
///
/// The endpoint has no world, so barriers and agreements of all ranks return NEMESIA_ERR_NO_WORLD; those of a group of
/// processes are `nemesia_endpoint_barrier_group` and its like. Its own rank is 0. A peer gets a rank with its
/// connection (`nemesia_endpoint_rank_of`). Each process chooses these numbers for itself, so they mean nothing to
/// others. `nemesia_endpoint_size` is larger than every rank that this endpoint has given to a peer. Receives from
/// NEMESIA_ANY_SOURCE outlive all peers, as with NEMESIA_ANY_SOURCE=outlive.
///
/// - `config`: a configuration, or NULL for the settings of `nemesia_config_from_environment`. See
///   NEMESIA_CONNECTIONS (the most connections at once) and NEMESIA_STRANGERS (whether others may call).
/// - `out_endpoint`: the endpoint, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _CONFIG, _SYSTEM or _PANIC. Ownership: the caller owns the
/// endpoint and ends it with `nemesia_endpoint_close`. `config` is copied. Threads: any. For the endpoint see
/// `nemesia_endpoint_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_alone(
    config: *const Config,
    out_endpoint: *mut *mut Endpoint,
) -> i32 {
    // SAFETY: the caller's pointer, null or valid.
    unsafe { publish_opened(config, out_endpoint, |config| Ok(nemesia::Endpoint::alone(config)?)) }
}

/// Writes the address of an endpoint. Other processes of this user on this machine connect by it, and over TCP all that
/// were given it, for which the endpoint listens from the first call of this function or of `nemesia_endpoint_connect`
/// on: keep it from processes that must not. If ranks connect at the start, or may be started again, processes on other
/// machines cannot connect by the address. The further peers of a rank have ranks from the world's size on. It is valid
/// until the endpoint is closed, and is never that of another endpoint. Its bytes may be copied and compared; they mean
/// nothing else.
///
/// - `endpoint`: an open endpoint.
/// - `out_address`: NEMESIA_ADDRESS_BYTES bytes, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_SYSTEM if the kernel refuses to listen; NEMESIA_ERR_ARGUMENT or _PANIC. Threads:
/// one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_address(endpoint: *mut Endpoint, out_address: *mut u8) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid for as many bytes as an address has.
        let out = unsafe { Out::required(out_address.cast::<[u8; NEMESIA_ADDRESS_BYTES]>(), "out_address") }?;
        out.write(*endpoint.address()?.bytes());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the peer with this address, at once and without any contact with it. A second call writes the same peer. If
/// its connection had ended, the peer can be spoken to again, unless it is a rank of this world. The connection begins
/// with `nemesia_endpoint_rank_of`.
///
/// - `endpoint`: an endpoint that has an address.
/// - `address`: NEMESIA_ADDRESS_BYTES bytes from `nemesia_endpoint_address` of another endpoint. Any bytes are safe.
/// - `out_peer`: the peer, written on success. Any number is safe where a peer is expected, and one that was released
///   never becomes another peer.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ADDRESS if these are not the bytes of an address, or it is that of this endpoint,
/// or one of another machine and one of both takes no part in the network; NEMESIA_ERR_CONNECTIONS if there are too
/// many peers; NEMESIA_ERR_ARGUMENT or _PANIC. Ownership: the address is copied. `nemesia_endpoint_disconnect` releases
/// the peer. Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_connect(
    endpoint: *mut Endpoint,
    address: *const u8,
    out_peer: *mut u64,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_peer, "out_peer") }?;
        if address.is_null() {
            return Err(missing("address"));
        }
        // SAFETY: the caller's pointer to as many bytes as an address has.
        out.write(endpoint.connect(&unsafe { address_at(address) })?.to_bits());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the rank by which all other functions name a peer. If there is no connection, this begins one, and takes the
/// memory for its messages. It does not wait: operations with the peer may be started at once, and wait until the
/// connection is made. If it cannot be made within NEMESIA_TIMEOUT_SECONDS, they fail with NEMESIA_ERR_PEER_FAILED.
///
/// The rank is the same until the peer's connection has ended, and then for as long as messages that had come are not
/// received. Afterwards it may become the rank of another peer.
///
/// - `endpoint`: an endpoint that has an address.
/// - `peer`: the peer.
/// - `out_rank`: written on success: from 1, or from the size of the world for a further peer.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_ENDED if the peer's connection has ended and no message of it waits: `nemesia_endpoint_connect`
///   permits another connection;
/// - NEMESIA_ERR_NO_PEER if the peer was released, or never existed;
/// - NEMESIA_ERR_CONNECTIONS if there are NEMESIA_CONNECTIONS connections;
/// - NEMESIA_ERR_NO_MEMORY if there is no memory for its messages;
/// - NEMESIA_ERR_SYSTEM, _ARGUMENT or _PANIC.
///
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_rank_of(
    endpoint: *mut Endpoint,
    peer: u64,
    out_rank: *mut i32,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_rank, "out_rank") }?;
        out.write(rank_of(endpoint.rank_of(PeerRef::from_bits(peer))?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the peer that other functions name by this rank: for instance the sender of a message.
///
/// A peer that has called this process, and was not given to `nemesia_endpoint_connect`, is released once its
/// connection has ended and its messages are received.
///
/// - `endpoint`: an endpoint that has an address.
/// - `rank`: the rank.
/// - `out_peer`: the peer, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_NO_PEER if no peer has this rank, which includes that of this process;
/// NEMESIA_ERR_RANK if it is negative; NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_peer_of(
    endpoint: *mut Endpoint,
    rank: i32,
    out_peer: *mut u64,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_peer, "out_peer") }?;
        endpoint.address()?;
        let Ok(number) = usize::try_from(rank) else {
            return Err(Fault::new(NEMESIA_ERR_RANK, format!("rank {rank} does not exist")));
        };
        let peer = endpoint.peer_of(number);
        let peer =
            peer.ok_or_else(|| Fault::new(NEMESIA_ERR_NO_PEER, format!("no peer has the rank {rank}")))?;
        out.write(peer.to_bits());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the address of a peer.
///
/// - `endpoint`: an endpoint that has an address.
/// - `peer`: the peer.
/// - `out_address`: NEMESIA_ADDRESS_BYTES bytes, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_NO_PEER if the peer was released, or never existed; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_address_of(
    endpoint: *mut Endpoint,
    peer: u64,
    out_address: *mut u8,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid for as many bytes as an address has.
        let out = unsafe { Out::required(out_address.cast::<[u8; NEMESIA_ADDRESS_BYTES]>(), "out_address") }?;
        out.write(*endpoint.address_of(PeerRef::from_bits(peer))?.bytes());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the stage of the connection with a peer, as far as this process knows it. Makes no progress.
///
/// - `endpoint`: an endpoint that has an address.
/// - `peer`: the peer.
/// - `out_stage`: NEMESIA_STAGE_APART, _CALLING, _ANSWERING or _CONNECTED; or, if the connection has ended,
///   NEMESIA_STAGE_LOST, _LEFT, _DISCONNECTED or _REFUSED. Written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_NO_PEER if the peer was released, or never existed; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_stage_of(
    endpoint: *mut Endpoint,
    peer: u64,
    out_stage: *mut u32,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_stage, "out_stage") }?;
        out.write(match endpoint.stage_of(PeerRef::from_bits(peer))? {
            PeerStage::Apart => NEMESIA_STAGE_APART,
            PeerStage::Calling(_) => NEMESIA_STAGE_CALLING,
            PeerStage::Answering(_) => NEMESIA_STAGE_ANSWERING,
            PeerStage::Connected(_) => NEMESIA_STAGE_CONNECTED,
            PeerStage::Ended(PeerEnd::Lost) => NEMESIA_STAGE_LOST,
            PeerStage::Ended(PeerEnd::Left) => NEMESIA_STAGE_LEFT,
            PeerStage::Ended(PeerEnd::Disconnected) => NEMESIA_STAGE_DISCONNECTED,
            PeerStage::Ended(PeerEnd::Refused) => NEMESIA_STAGE_REFUSED,
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Waits until the connection with a peer is made. Begins it if necessary.
///
/// - `endpoint`: an endpoint that has an address.
/// - `peer`: the peer.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_rank`: as of `nemesia_endpoint_rank_of`, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_rank_of`; NEMESIA_ERR_PEER_FAILED if the peer refused, died or left meanwhile;
/// NEMESIA_ERR_TIMEOUT: the call is still under way. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait_connected(
    endpoint: *mut Endpoint,
    peer: u64,
    timeout_ns: i64,
    out_rank: *mut i32,
) -> i32 {
    let work = |endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_rank) };
        out.write(rank_of(wait_connected(endpoint, PeerRef::from_bits(peer), time_left(timeout_ns))?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Ends the connection with a peer and releases its place. The peer sees NEMESIA_FAILURE_FINISHED. Does not wait.
///
/// Operations under way with the peer fail with NEMESIA_ERR_PEER_FAILED. Messages whose sends have completed still
/// arrive if the peer reads them within 5 s, and if this process does not need its cells for others before: so wait for
/// an answer to what must arrive. Its messages that were not received are dropped.
///
/// - `endpoint`: an endpoint that has an address.
/// - `peer`: the peer. Every later use of this number returns NEMESIA_ERR_NO_PEER.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_NO_PEER if the peer was released before, never existed, or is a rank of this world;
/// NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_disconnect(endpoint: *mut Endpoint, peer: u64) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        endpoint.disconnect(PeerRef::from_bits(peer))?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Meets another group of processes: what MPI calls spawn, connect and accept. Collective: every process of `group`
/// calls this function with the same group and `number`, and so do all processes of the other group, one of the two
/// with `address` NULL. Only the first process of each group speaks with the other group, and only its `address`
/// counts.
///
/// A group is a list of addresses in an order that all of its processes know. The first process of a group speaks with
/// the other group once all ranks of its world that are in its own have begun to meet. The processes of the other group
/// are known afterwards (`nemesia_endpoint_connect` returns their peers), but not connected. Meetings at one address at
/// the same time are told apart by their numbers. A call that comes before the other group accepts waits for it. If a
/// process of either group dies meanwhile, the others may meet nevertheless.
///
/// - `endpoint`: an endpoint that has an address.
/// - `count`: the number of processes of the own group, at most 65536.
/// - `group`: their addresses, NEMESIA_ADDRESS_BYTES bytes each, this process's included; none twice.
/// - `address`: the address of the first process of the group that is called; NULL to accept the group that calls.
/// - `number`: the number of the meeting.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit.
/// - `capacity`: the number of addresses for which `out_group` has room.
/// - `out_count`: the number of processes of the other group, written on success and with NEMESIA_ERR_TRUNCATED.
/// - `out_group`: their addresses in order, as many as there is room for; written as `out_count`.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_TRUNCATED: the groups have met, but `out_group` has no room for all addresses;
/// - NEMESIA_ERR_TIMEOUT: the other group has not come; a call is withdrawn;
/// - NEMESIA_ERR_PEER: the first process of either group refuses or gives up, as when a process is in both groups;
/// - NEMESIA_ERR_PEER_FAILED: the first process of this group, or the one that is called, is gone;
/// - NEMESIA_ERR_ARGUMENT: this process is not in `group`, or an address is there twice;
/// - as `nemesia_endpoint_connect`.
///
/// Ownership: all addresses are copied. Threads: one at a time; other threads wait until the meeting has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_meet(
    endpoint: *mut Endpoint,
    count: usize,
    group: *const u8,
    address: *const u8,
    number: u32,
    timeout_ns: i64,
    capacity: usize,
    out_count: *mut usize,
    out_group: *mut u8,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointers, null or valid.
        let out = unsafe { Out::required(out_count, "out_count") }?;
        if group.is_null() || out_group.is_null() && capacity > 0 {
            return Err(missing(if group.is_null() { "group" } else { "out_group" }));
        }
        // SAFETY: the caller's array has `count` addresses; bytes have no alignment.
        let read = |at: usize| unsafe { address_at(group.add(at * NEMESIA_ADDRESS_BYTES)) };
        let addresses: Vec<_> = (0..count).map(read).collect();
        let meeting = match address.is_null() {
            true => Meeting::Accept,
            // SAFETY: the caller's pointer to as many bytes as an address has.
            false => Meeting::Call(unsafe { address_at(address) }),
        };
        let own = endpoint.group(&addresses)?;
        let met = endpoint.meet(&own, meeting, number, time_left(timeout_ns))?;
        let bytes = met.addresses().iter().take(capacity).flat_map(|address| *address.bytes());
        for (at, byte) in bytes.enumerate() {
            // SAFETY: the caller's array has room for `capacity` addresses.
            unsafe { out_group.add(at).write(byte) };
        }
        out.write(met.size());
        if met.size() > capacity {
            let text =
                format!("the other group has {} processes, but there is room for {capacity}", met.size());
            return Err(Fault::new(NEMESIA_ERR_TRUNCATED, text));
        }
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Reads an address.
///
/// # Safety
/// `bytes` points to as many bytes as an address has.
pub(crate) unsafe fn address_at(bytes: *const u8) -> PeerAddress {
    // SAFETY: the caller's promise; bytes have no alignment.
    PeerAddress::from_bytes(unsafe { bytes.cast::<[u8; NEMESIA_ADDRESS_BYTES]>().read() })
}

/// As [`nemesia::Endpoint::wait_connected`]. Several threads that share the endpoint go on meanwhile.
fn wait_connected(mut endpoint: Lent<'_>, peer: PeerRef, limit: Option<Duration>) -> Result<usize, Error> {
    if let Lent::One(endpoint) = endpoint {
        return endpoint.wait_connected(peer, limit);
    }
    let start = Instant::now();
    let rank = endpoint.with(|endpoint| endpoint.rank_of(peer))?;
    loop {
        let connected = endpoint.with(|endpoint| match endpoint.failure(rank) {
            Some(failure) => Err(endpoint.with_reason(Error::PeerFailed { rank, failure, reason: None })),
            None => Ok(matches!(endpoint.stage_of(peer)?, PeerStage::Connected(_))),
        })?;
        if connected {
            return Ok(rank);
        }
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        if !endpoint.wait_progress(left)? && left == Some(Duration::ZERO) {
            return Err(Error::Timeout(limit.unwrap_or_default()));
        }
    }
}
