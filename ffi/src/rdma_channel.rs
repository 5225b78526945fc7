//! The five functions of the RDMA Channel, declared in a header of their own: `nemesia_rdma_channel.h`.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use nemesia::bootstrap::Prefixed;
use nemesia::rdma_channel::ChannelGroup;
use nemesia::{ChannelDesign, PeerGroup, Segment};

use crate::boundary::{Out, c_texts, check_buffer, guard, guard_with_room, read_versioned, text, write_text};
use crate::config::{self, Config};
use crate::endpoint::{self, Endpoint};
use crate::exchange::{Exchange, Foreign, prefix_of};
use crate::group::known_group;
use crate::handle::{self, Kind, Object, Pinned, in_use, pin};
use crate::lent::Single;
use crate::list::{Iovec, check_list};
use crate::rank::rank_of;
use crate::status::{Fault, NEMESIA_ERR_PANIC, NEMESIA_ERR_RANK, NEMESIA_OK, NEMESIA_PENDING};
use crate::transfer::time_left;

/// The pipes of this process to all others of its process group.
#[derive(Debug)]
pub struct Channel {
    group: Single<ChannelGroup>,
    /// A panic went through the channel; it can only be finalized.
    poisoned: AtomicBool,
    among: Option<ChannelPeers>,
    /// Set by the first `nemesia_channel_init`, so that the texts stay where they are.
    warnings: OnceLock<Vec<CString>>,
}

/// The endpoint by which a group connects that was begun among peers.
#[derive(Debug)]
struct ChannelPeers {
    /// Checked at each use, as every handle.
    endpoint: AtomicPtr<Endpoint>,
    peers: PeerGroup,
}

impl Object for Channel {
    const KIND: Kind = Kind::Channel;
}

/// Finds the process group: the first of the five functions. The launcher describes the group (`mpiexec.hydra`,
/// `nemesia run`). Without a launcher, the group has one process. It succeeds once in a process.
///
/// - `config`: a configuration, or NULL for the settings of `nemesia_config_from_environment`. NEMESIA_CHANNEL_DESIGN
///   and the settings after it are those of the pipes; NEMESIA_LOCAL and NEMESIA_NET choose the ports.
/// - `out_channel`: the channel, written on success.
/// - `out_rank`, `out_size`, `out_has_parent`: the rank of this process, from 0; the number of processes; whether
///   another group has spawned this one, which is always false. Each may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _CONFIG, _BOOTSTRAP, _SYSTEM or _PANIC. Ownership: the caller
/// owns the channel and ends it with `nemesia_channel_finalize`. `config` is copied. Threads: any. One thread at a time
/// uses the channel, which may move between threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_init_process_group(
    config: *const Config,
    out_channel: *mut *mut Channel,
    out_rank: *mut i32,
    out_size: *mut i32,
    out_has_parent: *mut bool,
) -> i32 {
    let begin = |config: &nemesia::Config| Ok((ChannelGroup::begin(config)?, None));
    // SAFETY: the caller's pointers, null or valid.
    unsafe { publish(config, begin, out_channel, (out_rank, out_size, out_has_parent)) }
}

/// As `nemesia_channel_init_process_group`, through the caller's own exchange.
///
/// - `exchange`: see `nemesia_exchange`. The library calls its functions in this function and in
///   `nemesia_channel_init`, and does not use it after them. It must not be freed between the two.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _CONFIG, _BOOTSTRAP, _SYSTEM or _PANIC. Ownership, threads: as
/// for `nemesia_channel_init_process_group`. `exchange` is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_init_process_group_with(
    config: *const Config,
    exchange: *const Exchange,
    out_channel: *mut *mut Channel,
    out_rank: *mut i32,
    out_size: *mut i32,
    out_has_parent: *mut bool,
) -> i32 {
    let begin = |config: &nemesia::Config| {
        // SAFETY: the caller's pointer, null or valid.
        let exchange = unsafe { read_versioned(exchange) }?;
        // SAFETY: the caller's text, null or valid.
        let prefix = unsafe { prefix_of(&exchange) }?;
        // SAFETY: the caller's functions.
        let exchange = unsafe { Foreign::new(&exchange) }?;
        let exchange = Prefixed::new(&prefix, exchange).map_err(nemesia::Error::from)?;
        Ok((ChannelGroup::begin_with(config, Box::new(exchange))?, None))
    };
    // SAFETY: the caller's pointers, null or valid.
    unsafe { publish(config, begin, out_channel, (out_rank, out_size, out_has_parent)) }
}

/// As `nemesia_channel_init_process_group`, for processes that know each other's addresses: without a launcher. The
/// ranks are the positions in the group.
///
/// - `endpoint`: an endpoint with an address. `nemesia_channel_init` exchanges the addresses of the ports by it, and
///   connects it with all of the group. It stays open until then, and may be used for other purposes before and after.
/// - `count`: the number of processes.
/// - `group`: their addresses, NEMESIA_ADDRESS_BYTES bytes each, this process's included; none twice.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT if this process is not in `group`, or an address is there twice;
/// NEMESIA_ERR_CONNECTIONS, _NO_MEMORY or _ADDRESS, as `nemesia_endpoint_connect`; NEMESIA_ERR_HANDLE,
/// _CONFIG, _SYSTEM, _BUSY, _FORKED or _PANIC. Ownership, threads: as for `nemesia_channel_init_process_group`; all
/// addresses are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_init_process_group_among(
    config: *const Config,
    endpoint: *mut Endpoint,
    count: usize,
    group: *const u8,
    out_channel: *mut *mut Channel,
    out_rank: *mut i32,
    out_size: *mut i32,
    out_has_parent: *mut bool,
) -> i32 {
    let mut known = None;
    let read = |mut endpoint: crate::lent::Lent<'_>| {
        // SAFETY: the caller's array.
        known = Some(unsafe { known_group(&mut endpoint, count, group) }?);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    let status = unsafe { endpoint::blocking_on(endpoint, read) };
    let (NEMESIA_OK, Some(peers)) = (status, known) else { return status };
    let begin = |config: &nemesia::Config| {
        let group = ChannelGroup::begin_among(config, &peers)?;
        Ok((group, Some(ChannelPeers { endpoint: AtomicPtr::new(endpoint), peers })))
    };
    // SAFETY: the caller's pointers, null or valid.
    unsafe { publish(config, begin, out_channel, (out_rank, out_size, out_has_parent)) }
}

/// Begins a group, and writes its handle and its facts.
///
/// # Safety
/// The pointers are null, or valid for a write.
unsafe fn publish(
    config: *const Config,
    begin: impl FnOnce(&nemesia::Config) -> Result<(ChannelGroup, Option<ChannelPeers>), Fault>,
    out_channel: *mut *mut Channel,
    (out_rank, out_size, out_has_parent): (*mut i32, *mut i32, *mut bool),
) -> i32 {
    let work = || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::required(out_channel, "out_channel") }?;
        // SAFETY: the caller's promise, for each of them.
        let (rank, size) = unsafe { (Out::optional(out_rank), Out::optional(out_size)) };
        // SAFETY: the caller's promise.
        let has_parent = unsafe { Out::optional(out_has_parent) };
        let (config, _) = config::resolve(config)?;
        let (group, among) = begin(&config)?;
        rank.write(rank_of(group.rank()));
        size.write(rank_of(group.size()));
        has_parent.write(group.has_parent());
        let (group, poisoned) = (Single::new(group), AtomicBool::new(false));
        out.write(handle::insert(Channel { group, poisoned, among, warnings: OnceLock::new() })?);
        Ok(NEMESIA_OK)
    };
    guard_with_room(work)
}

/// Chooses the design of the pipe to one process, before `nemesia_channel_init`. The other process chooses the same.
///
/// - `channel`: a channel that is not connected yet.
/// - `peer`: the rank of the other process.
/// - `design`: a value of NEMESIA_CHANNEL_DESIGN, such as "zero-copy".
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _RANK, _PEER, _THREADS or _PANIC. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_set_design(
    channel: *mut Channel,
    peer: i32,
    design: *const c_char,
) -> i32 {
    let work = |group: &mut ChannelGroup| {
        // SAFETY: the caller's text, null or valid.
        let name = unsafe { text(design, "design") }?;
        let design = ChannelDesign::named(name).ok_or_else(|| {
            let names = ChannelDesign::ALL.map(ChannelDesign::name).join(", ");
            Fault::argument(format!("design is {name:?}, and must be one of {names}"))
        })?;
        group.set_design(rank_in(group, peer)?, design)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's channel, or null.
    unsafe { on(channel, work) }
}

/// Connects: the second of the five functions. Collective. When it returns, every process can reach every other.
///
/// - `channel`: a channel.
///
/// Returns: NEMESIA_OK, also if it is connected already; NEMESIA_ERR_ARGUMENT, _HANDLE, _BOOTSTRAP, _SYSTEM, _PEER,
/// _FORKED, _THREADS or _PANIC; for a group among peers also NEMESIA_ERR_PEER_FAILED with its position, _TIMEOUT, and
/// the errors of `nemesia_endpoint_rank_of`. After an error the channel can only be finalized. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_init(channel: *mut Channel) -> i32 {
    let among = |pinned: &Channel| {
        let among = pinned.among.as_ref()?;
        Some((among.endpoint.load(Ordering::Relaxed), among.peers.clone()))
    };
    let pinned: Option<Pinned<Channel>> = pin(channel, "channel").ok();
    let among = pinned.as_ref().and_then(|pinned| among(pinned));
    let work = |group: &mut ChannelGroup| {
        let result = match among {
            None => group.connect().map(|()| NEMESIA_OK).map_err(Fault::from),
            Some((endpoint, peers)) => {
                let connect = |endpoint: &mut nemesia::Endpoint| {
                    group.connect_among(endpoint, &peers)?;
                    Ok(NEMESIA_OK)
                };
                // SAFETY: the caller's endpoint, or another pointer.
                Ok(unsafe { endpoint::on(endpoint, connect) })
            }
        };
        if let Some(pinned) = &pinned {
            pinned.warnings.get_or_init(|| c_texts(group.warnings()));
        }
        result
    };
    // SAFETY: the caller's channel, or null.
    unsafe { on(channel, work) }
}

/// Puts bytes from the beginning of a list of buffers into the pipe to a process: the third of the five functions. It
/// never waits.
///
/// - `channel`: a connected channel.
/// - `peer`: the rank of the other process.
/// - `list`, `count`: the buffers. The list of the next call begins after the bytes that were done: within a buffer, if
///   need be.
/// - `out_bytes`: the number of bytes that were done, from 0 to those of the list; written on success.
///
/// 0 bytes is a normal result: call again, with the same bytes. A put that can do nothing costs a few loads. The bytes
/// that are done belong to the caller again; they need not have arrived. Between two calls, the list and the
/// addresses of bytes that are not done may change. Only a buffer of at least NEMESIA_CHANNEL_ZERO_COPY_BYTES stays at
/// its address with its bytes until it is done, until this function returns an error for this peer, or until
/// `nemesia_channel_finalize` has returned: the zero-copy design does 0 bytes of it until the peer has read it.
///
/// Bytes that are done leave in this call, or in later calls of the channel. Those that have not left are lost if this
/// process dies. Those that have left arrive nevertheless, unless a network loses them. `nemesia_channel_finalize`
/// returns when all have left.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ENDED if the peer has finalized its channel, NEMESIA_ERR_PEER_FAILED if it died or
/// is not reachable, NEMESIA_ERR_PEER if it violated the protocol or the channel is not connected;
/// NEMESIA_ERR_ARGUMENT, _HANDLE, _RANK, _FORKED, _THREADS or _PANIC. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_put(
    channel: *mut Channel,
    peer: i32,
    list: *const Iovec,
    count: usize,
    out_bytes: *mut usize,
) -> i32 {
    let transfer = |group: &mut ChannelGroup, peer| {
        // SAFETY: the caller's promise; `Iovec` has the layout of `Segment`.
        unsafe { group.put_raw(peer, list.cast::<Segment>(), count) }
    };
    // SAFETY: the caller's pointers, null or valid.
    unsafe { move_bytes(channel, peer, (list, count), out_bytes, transfer) }
}

/// Gets bytes from the pipe from a process into a list of buffers, from its beginning: the fourth of the five
/// functions. It never waits.
///
/// - `channel`: a connected channel.
/// - `peer`: the rank of the other process.
/// - `list`, `count`: the buffers. The list of the next call begins after the bytes that were done: within a buffer, if
///   need be.
/// - `out_bytes`: the number of bytes that were done, from 0 to those of the list; written on success.
///
/// 0 bytes is a normal result: call again. Bytes that arrived before the peer was lost are still done. Between two
/// calls, the list and the addresses of bytes that are not done may change. Only a buffer of at least
/// NEMESIA_CHANNEL_ZERO_COPY_BYTES stays at its address, and nothing else uses its bytes, until it is done, until this
/// function returns an error for this peer, or until `nemesia_channel_finalize` has returned: the zero-copy design does
/// 0 bytes of it until the port has placed them.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ENDED if the peer has finalized its channel and all its bytes were done,
/// NEMESIA_ERR_PEER_FAILED if it died or is not reachable and all its bytes that arrived were done, NEMESIA_ERR_PEER if
/// it violated the protocol or the channel is not connected; NEMESIA_ERR_ARGUMENT, _HANDLE, _RANK, _FORKED, _THREADS or
/// _PANIC. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_get(
    channel: *mut Channel,
    peer: i32,
    list: *const Iovec,
    count: usize,
    out_bytes: *mut usize,
) -> i32 {
    let transfer = |group: &mut ChannelGroup, peer| {
        // SAFETY: the caller's promise; `Iovec` has the layout of `Segment`.
        unsafe { group.get_raw(peer, list.cast::<Segment>(), count) }
    };
    // SAFETY: the caller's pointers, null or valid.
    unsafe { move_bytes(channel, peer, (list, count), out_bytes, transfer) }
}

/// Waits until a pipe has bytes to get, or has ended and a get reports that, and names the process. The processes take
/// turns. One call replaces a get from each process. It makes progress with all pipes meanwhile.
///
/// - `channel`: a connected channel.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one look.
/// - `out_peer`: the rank of the process, written if the function returns NEMESIA_OK.
///
/// A get from that process may nevertheless do 0 bytes, as when a part of a put has arrived. This process sleeps while
/// there is nothing to do. It polls instead if an RDMA device reaches a process: bytes in memory wake nobody.
///
/// Returns: NEMESIA_OK; NEMESIA_PENDING after the limit, or if gets have reported the ends of all pipes;
/// NEMESIA_ERR_PEER if the channel is not connected; NEMESIA_ERR_ARGUMENT, _HANDLE, _FORKED, _THREADS or _PANIC.
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_wait(
    channel: *mut Channel,
    timeout_ns: i64,
    out_peer: *mut i32,
) -> i32 {
    let work = |group: &mut ChannelGroup| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_peer, "out_peer") }?;
        let Some(rank) = group.wait(time_left(timeout_ns))? else { return Ok(NEMESIA_PENDING) };
        out.write(rank_of(rank));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's channel, or null.
    unsafe { on(channel, work) }
}

/// Waits until the bytes that were put have left, announces the end to each peer, disconnects, and frees the channel:
/// the last of the five functions. A peer can still get the bytes; then its gets, and all of its puts, return
/// NEMESIA_ERR_ENDED. The processes call this in any order, and none waits for another to call it. But bytes over a
/// network leave only while their receiver makes progress, and what a peer puts afterwards is lost: an MPI enters a
/// barrier before.
///
/// - `channel`: the channel, also in case of an error, except NEMESIA_ERR_THREADS, _ARGUMENT and _HANDLE.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT if bytes did not leave within NEMESIA_TIMEOUT, and are lost;
/// NEMESIA_ERR_BOOTSTRAP, _FORKED, _ARGUMENT, _HANDLE, _THREADS or _PANIC. Ownership: takes the channel. All buffers
/// belong to the caller afterwards. Threads: any; no other thread may use the channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_finalize(channel: *mut Channel) -> i32 {
    let work = || {
        let pinned = pin(channel, "channel")?;
        if pinned.group.is_busy() {
            return Err(in_use("channel"));
        }
        let Channel { group, poisoned, .. } = *pinned.take("channel")?;
        if poisoned.into_inner() {
            drop(group);
            return Err(poison());
        }
        group.into_inner().finalize()?;
        Ok(NEMESIA_OK)
    };
    guard_with_room(work)
}

/// Writes how each process is reached: a line with the port, the design and the reason.
///
/// - `channel`: a channel.
/// - `bytes`: the size of `out_text`.
/// - `out_text`: lines of text, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: the length of the whole text without its terminator; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if `out_text` is too small: the part that fits is written, terminated,
/// and `out_len` is written; NEMESIA_ERR_ARGUMENT, _HANDLE, _THREADS or _PANIC. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_explain(
    channel: *mut Channel,
    bytes: usize,
    out_text: *mut c_char,
    out_len: *mut usize,
) -> i32 {
    let work = |group: &mut ChannelGroup| {
        let text = group.explain();
        // SAFETY: the caller's buffer of this size.
        unsafe { write_text(&text, bytes, out_text, out_len, "out_text") }
    };
    // SAFETY: the caller's channel, or null.
    unsafe { on(channel, work) }
}

/// Returns a warning, about a setting that could not be applied: for example, a port that was refused, or flags that
/// are not polled because the port does not place in order. There are none before `nemesia_channel_init`.
///
/// - `channel`: a channel.
/// - `index`: from 0; increment it until NULL is returned.
///
/// Returns: one line of text; NULL if there is no warning with this index or the handle is invalid. Ownership: the text
/// is the channel's and is valid until it is finalized. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_channel_warning(channel: *mut Channel, index: usize) -> *const c_char {
    let Ok(channel) = pin::<Channel>(channel, "channel") else { return ptr::null() };
    let warning = channel.warnings.get().and_then(|warnings| warnings.get(index));
    warning.map_or(ptr::null(), |warning| warning.as_ptr())
}

/// Checks rank and list, then puts or gets by `transfer`, and writes the number of bytes that were done.
///
/// # Safety
/// The pointers are null or valid: `list` for `count` runs.
#[inline(always)]
unsafe fn move_bytes(
    channel: *mut Channel,
    peer: i32,
    (list, count): (*const Iovec, usize),
    out_bytes: *mut usize,
    transfer: impl FnOnce(&mut ChannelGroup, usize) -> Result<usize, nemesia::Error>,
) -> i32 {
    let work = |group: &mut ChannelGroup| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_bytes, "out_bytes") }?;
        let peer = rank_in(group, peer)?;
        check_buffer(list, count, "list")?;
        // SAFETY: the caller has `count` runs there.
        unsafe { check_list(list, count) }?;
        out.write(transfer(group, peer)?);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's channel, or null.
    unsafe { on(channel, work) }
}

/// Runs `work` on a channel. Checks the channel first, and poisons it if `work` panics.
///
/// # Safety
/// If `channel` is a channel, no other thread uses it meanwhile.
#[inline]
unsafe fn on(channel: *mut Channel, work: impl FnOnce(&mut ChannelGroup) -> Result<i32, Fault>) -> i32 {
    let pinned: Pinned<Channel> = match pin(channel, "channel") {
        Ok(pinned) => pinned,
        Err(fault) => return fault.report(),
    };
    let run = || {
        if pinned.poisoned.load(Ordering::Relaxed) {
            return Err(poison());
        }
        // SAFETY: the caller's promise.
        unsafe { pinned.group.lend(work) }?
    };
    guard(run, || pinned.poisoned.store(true, Ordering::Relaxed))
}

#[cold]
fn poison() -> Fault {
    Fault::new(
        NEMESIA_ERR_PANIC,
        "an earlier call on the channel had an internal error: finalize the channel",
    )
}

/// Checks that a rank of the caller's exists.
#[inline]
fn rank_in(group: &ChannelGroup, rank: i32) -> Result<usize, Fault> {
    let exists = usize::try_from(rank).ok().filter(|rank| *rank < group.size());
    exists.ok_or_else(|| {
        let text = format!("rank {rank} does not exist: this group has ranks 0 to {}", group.size() - 1);
        Fault::new(NEMESIA_ERR_RANK, text)
    })
}
