//! The program that `tests/instructions` counts: `provider-instructions LIBRARY MODE COUNT BYTES` passes messages
//! between two endpoints of the provider in this process. It calls the built library as MPIs do: by the functions of
//! the objects that `fi_prov_ini` leads to, so that libfabric is not needed. Each counted call stands in a
//! `counted_...` function; everything else is outside.
//!
//! | mode | the sender's call |
//! |---|---|
//! | `inject` | `fi_tinjectdata`, as MPICH sends its short messages |
//! | `send` | `fi_tsend`, and the read of its completion |
//! | `window` | as `send`, for 64 messages at a time |
//!
//! In all modes `fi_trecv` comes first. A read finds the message, or up to 16 of a window, and one more finds nothing.

#[path = "../src/bindings.rs"]
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, missing_debug_implementations)]
#[allow(dead_code, unreachable_pub, unused_qualifications, clippy::all, clippy::undocumented_unsafe_blocks)]
#[allow(unsafe_op_in_unsafe_fn)]
mod bindings;

use std::ffi::{CStr, CString, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};

use bindings::{self as fi, fi_cq_tagged_entry, fi_provider, fid, fid_av, fid_cq, fid_domain, fid_ep};

const TAG: u64 = 7;
const DATA: u64 = 11;
/// The completions that a read asks for, as MPICH does.
const ENTRIES: usize = 16;
const MOST: usize = 8192;
/// The messages of a window.
const WINDOW: usize = 64;
const CAPS: u64 = fi::FI_MSG as u64
    | fi::FI_TAGGED as u64
    | fi::FI_RMA as u64
    | fi::FI_ATOMIC as u64
    | fi::FI_MULTI_RECV as u64
    | fi::FI_DIRECTED_RECV;

type Failed = Box<dyn std::error::Error>;
type Entries = [fi_cq_tagged_entry; ENTRIES];

/// The objects of one process.
struct Side {
    queue: *mut fid_cq,
    endpoint: *mut fid_ep,
    vector: *mut fid_av,
    /// The number of the other side's address.
    peer: u64,
}

/// `fi_tinjectdata`. As the following functions, it is called by a counted function, or outside of them.
#[inline(always)]
fn inject(side: &Side, bytes: &[u8]) -> isize {
    // SAFETY: the objects are open, and their functions are those of the provider.
    unsafe {
        let call = (*(*side.endpoint).tagged).injectdata.unwrap_unchecked();
        call(side.endpoint, bytes.as_ptr().cast(), bytes.len(), DATA, side.peer, TAG)
    }
}

#[inline(always)]
fn post(side: &Side, to: &mut [u8], context: &mut u64) -> isize {
    let (context, len): (*mut u64, usize) = (context, to.len());
    // SAFETY: as above; the buffer is used no more until the completion was read.
    unsafe {
        let call = (*(*side.endpoint).tagged).recv.unwrap_unchecked();
        call(side.endpoint, to.as_mut_ptr().cast(), len, null_mut(), side.peer, TAG, 0, context.cast())
    }
}

#[inline(always)]
fn read(side: &Side, to: &mut Entries) -> isize {
    // SAFETY: as above; there is room for so many entries.
    unsafe { ((*(*side.queue).ops).read.unwrap_unchecked())(side.queue, to.as_mut_ptr().cast(), ENTRIES) }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_send(side: &Side, bytes: &'static [u8], context: Option<&mut u64>) -> isize {
    let Some(context) = context else { return inject(side, bytes) };
    let (context, len): (*mut u64, usize) = (context, bytes.len());
    // SAFETY: as above; the bytes are constant.
    unsafe {
        let call = (*(*side.endpoint).tagged).send.unwrap_unchecked();
        call(side.endpoint, bytes.as_ptr().cast(), len, null_mut(), side.peer, TAG, context.cast())
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_post(side: &Side, to: &mut [u8], context: &mut u64) -> isize {
    post(side, to, context)
}

/// The reads differ in an instruction, or the linker would keep only one of them.
#[inline(never)]
#[unsafe(no_mangle)]
fn counted_arrival(side: &Side, to: &mut Entries) -> isize {
    black_box(1);
    read(side, to)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_sent(side: &Side, to: &mut Entries) -> isize {
    black_box(2);
    read(side, to)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_idle(side: &Side, to: &mut Entries) -> isize {
    black_box(3);
    read(side, to)
}

/// Fails if a call has returned an error.
fn check(what: &str, returned: impl Into<i64>) -> Result<(), Failed> {
    match returned.into() {
        0 => Ok(()),
        number => Err(format!("{what} returned {number}").into()),
    }
}

/// Loads the provider.
fn load(path: &str) -> Result<*mut fi_provider, Failed> {
    let path = CString::new(path)?;
    // SAFETY: a terminated string; the library has no constructors that need more.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: the message of the error just now.
        return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into());
    }
    // SAFETY: the library stays open.
    let symbol = unsafe { libc::dlsym(library, c"fi_prov_ini".as_ptr()) };
    if symbol.is_null() {
        return Err("the library has no fi_prov_ini".into());
    }
    // SAFETY: the function has this type.
    let initialise: extern "C" fn() -> *mut fi_provider = unsafe { std::mem::transmute(symbol) };
    Ok(initialise())
}

/// Opens a side, as MPICH does.
///
/// # Safety
/// The provider is that of [`load`]. All of its functions are there.
unsafe fn open(provider: *mut fi_provider) -> Result<Side, Failed> {
    let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut::<fid_domain>());
    let (mut vector, mut queue, mut endpoint) = (null_mut(), null_mut::<fid_cq>(), null_mut::<fid_ep>());
    // SAFETY: all structures are valid if they are zero.
    let (mut hints, tx, rx, threads, mut of_queue, mut of_vector) =
        unsafe { std::mem::zeroed::<Attributes>() };
    let op_flags = u64::from(fi::FI_COMPLETION);
    let mut tx = fi::fi_tx_attr { op_flags: op_flags | u64::from(fi::FI_DELIVERY_COMPLETE), ..tx };
    let mut rx = fi::fi_rx_attr { op_flags, ..rx };
    let mut threads = fi::fi_domain_attr { threading: fi::FI_THREAD_DOMAIN, ..threads };
    (hints.caps, hints.tx_attr, hints.rx_attr) = (CAPS, &raw mut tx, &raw mut rx);
    hints.domain_attr = &raw mut threads;
    of_queue.format = fi::FI_CQ_FORMAT_TAGGED;
    let selective = u64::from(fi::FI_SEND) | u64::from(fi::FI_RECV) | fi::FI_SELECTIVE_COMPLETION;
    // SAFETY: the caller's promise; what a call returns is valid if it has succeeded.
    unsafe {
        let call = (*provider).getinfo.ok_or("no getinfo")?;
        check(
            "fi_getinfo",
            call(fi::FI_MAJOR_VERSION << 16 | 17, null(), null(), 0, &raw const hints, &raw mut info),
        )?;
        let call = (*provider).fabric.ok_or("no fabric")?;
        check("fi_fabric", call((*info).fabric_attr, &raw mut fabric, null_mut()))?;
        let call = (*(*fabric).ops).domain.ok_or("no domain")?;
        check("fi_domain", call(fabric, info, &raw mut domain, null_mut()))?;
        let ops = &*(*domain).ops;
        let call = ops.av_open.ok_or("no av_open")?;
        check("fi_av_open", call(domain, &raw mut of_vector, &raw mut vector, null_mut()))?;
        let call = ops.cq_open.ok_or("no cq_open")?;
        check("fi_cq_open", call(domain, &raw mut of_queue, &raw mut queue, null_mut()))?;
        let call = ops.endpoint.ok_or("no endpoint")?;
        check("fi_endpoint", call(domain, info, &raw mut endpoint, null_mut()))?;
        let (own, call) = (&raw mut (*endpoint).fid, (*(*endpoint).fid.ops).bind.ok_or("no bind")?);
        check("fi_ep_bind of the queue", call(own, &raw mut (*queue).fid, selective))?;
        check("fi_ep_bind of the vector", call(own, (&raw mut *vector).cast::<fid>(), 0))?;
        let call = (*(*own).ops).control.ok_or("no control")?;
        check("fi_enable", call(own, fi::FI_ENABLE as i32, null_mut()))?;
    }
    Ok(Side { queue, endpoint, vector, peer: 0 })
}

type Attributes =
    (fi::fi_info, fi::fi_tx_attr, fi::fi_rx_attr, fi::fi_domain_attr, fi::fi_cq_attr, fi::fi_av_attr);

/// Gives a side the address of the other one.
fn introduce(side: &mut Side, other: &Side) -> Result<(), Failed> {
    let (mut address, mut len) = ([0_u8; 64], 64);
    // SAFETY: the objects are open, and the functions of the provider are there; there is room for the address.
    unsafe {
        let call = (*(*other.endpoint).cm).getname.ok_or("no getname")?;
        let own = &raw mut (*other.endpoint).fid;
        check("fi_getname", call(own, address.as_mut_ptr().cast(), &raw mut len))?;
        let call = (*(*side.vector).ops).insert.ok_or("no insert")?;
        let from: *const c_void = address.as_ptr().cast();
        match call(side.vector, from, 1, &raw mut side.peer, 0, null_mut()) {
            1 => Ok(()),
            other => Err(format!("fi_av_insert returned {other}").into()),
        }
    }
}

/// Passes a message that makes the connection, for which both sides make progress. Nothing is counted.
fn connect(zero: &Side, one: &Side) -> Result<(), Failed> {
    let (mut byte, mut context) = ([0], 0);
    // SAFETY: entries are valid if they are zero.
    let mut entries: Entries = unsafe { std::mem::zeroed() };
    check("fi_trecv", post(one, &mut byte, &mut context) as i64)?;
    check("fi_tinjectdata", inject(zero, &[1]) as i64)?;
    loop {
        match read(one, &mut entries) {
            1 => return Ok(()),
            found if found == -(fi::FI_EAGAIN as isize) => _ = read(zero, &mut entries),
            found => return Err(format!("a read returned {found}").into()),
        }
    }
}

/// Passes a message. `injects`: by the first of the modes.
fn pass((zero, one): (&Side, &Side), bytes: &'static [u8], injects: bool) -> Result<(), Failed> {
    let (mut buffer, mut sent, mut received) = ([0; MOST], 0, 0);
    let to = &mut buffer[..bytes.len()];
    // SAFETY: entries are valid if they are zero.
    let mut entries: Entries = unsafe { std::mem::zeroed() };
    check("fi_trecv", counted_post(one, black_box(&mut *to), &mut received) as i64)?;
    let context = if injects { None } else { Some(&mut sent) };
    check("the send", counted_send(zero, black_box(bytes), context) as i64)?;
    check("the read of the message", 1 - counted_arrival(one, &mut entries) as i64)?;
    let entry = &entries[0];
    if entry.op_context != (&raw mut received).cast() || entry.len != to.len() || *to != *bytes {
        return Err("another message has arrived".into());
    }
    if !injects {
        check("the read of the send", 1 - counted_sent(zero, &mut entries) as i64)?;
    }
    check("the idle read", i64::from(fi::FI_EAGAIN) + counted_idle(one, &mut entries) as i64)
}

/// Passes a window of messages. The reads of both sides take turns, as in two processes.
fn pass_window((zero, one): (&Side, &Side), bytes: &'static [u8]) -> Result<(), Failed> {
    let (mut buffers, mut sent, mut received) =
        (vec![vec![0; bytes.len()]; WINDOW], [0; WINDOW], [0; WINDOW]);
    // SAFETY: entries are valid if they are zero.
    let mut entries: Entries = unsafe { std::mem::zeroed() };
    for (to, context) in buffers.iter_mut().zip(&mut received) {
        check("fi_trecv", counted_post(one, black_box(to), context) as i64)?;
    }
    for context in &mut sent {
        check("the send", counted_send(zero, black_box(bytes), Some(context)) as i64)?;
    }
    let mut left = [WINDOW; 2];
    while left != [0; 2] {
        for (at, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
            let found =
                if at == 0 { counted_sent(zero, &mut entries) } else { counted_arrival(one, &mut entries) };
            match usize::try_from(found) {
                Ok(found) => *left = left.checked_sub(found).ok_or("too many completions were read")?,
                Err(_) => check("a read", i64::from(fi::FI_EAGAIN) + found as i64)?,
            }
        }
    }
    if buffers.iter().any(|buffer| buffer != bytes) {
        return Err("other messages have arrived".into());
    }
    check("the idle read", i64::from(fi::FI_EAGAIN) + counted_idle(one, &mut entries) as i64)
}

fn main() -> Result<(), Failed> {
    static MESSAGE: [u8; MOST] = [b'm'; MOST];
    let given: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = given.iter().map(String::as_str).collect();
    let [library, mode @ ("inject" | "send" | "window"), count, len] = arguments[..] else {
        return Err("usage: provider-instructions LIBRARY inject|send|window COUNT BYTES".into());
    };
    let (count, len): (usize, usize) = (count.parse()?, len.parse()?);
    let bytes = MESSAGE.get(..len).ok_or("so long are no messages here")?;
    let provider = load(library)?;
    // SAFETY: as promised.
    let (mut zero, mut one) = unsafe { (open(provider)?, open(provider)?) };
    introduce(&mut zero, &one)?;
    introduce(&mut one, &zero)?;
    connect(&zero, &one)?;
    if mode == "window" {
        return (0..count / WINDOW).try_for_each(|_| pass_window((&zero, &one), bytes));
    }
    for _ in 0..count {
        pass((&zero, &one), bytes, mode == "inject")?;
    }
    Ok(())
}
