//! Reading completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use nemesia::internals::os::clock;

use super::QueueObject;
use crate::bindings::{self as fi, fi_cq_err_entry, fi_cq_tagged_entry, fid_cq};
use crate::entries::Reader;
use crate::failure::text_of;
use crate::object::{Errno, call, call_now, object};
use crate::port::Port;
use crate::state::DomainState;

/// The longest sleep: another thread's call may have taken the completion that this one waits for, and a program that
/// polls may look for more than completions.
const SLEEP: Duration = Duration::from_millis(1);

impl QueueObject {
    /// Copies up to `count` completions to the application.
    ///
    /// # Safety
    /// `to` has room for them, and `sources` is null or has room for as many numbers.
    #[inline(always)]
    unsafe fn take(&self, to: *mut u8, count: usize, sources: *mut u64) -> Result<isize, Errno> {
        self.domain.with(|state| {
            // SAFETY: the caller's promise.
            let mut reader = unsafe { Reader::new((self.number, self.entry_bytes), to, count, sources) };
            if state.fill(self.number, Some(&mut reader))? {
                return if reader.taken > 0 { Ok(reader.taken as isize) } else { Err(Errno::AGAIN) };
            }
            take_waiting(state, &mut reader)
        })
    }

    /// Lets others run, after many failed reads.
    #[cold]
    fn give_way(&self) {
        let is_rapid = self.rest.is_rapid(clock::ticks());
        let has_waited = self.domain.with(|state| {
            self.learn_load(state);
            is_rapid && self.rest.is_oversubscribed() && !self.domain.is_shared() && self.wait_for_all(state)
        });
        if has_waited { self.rest.wake() } else { self.rest.give_way() }
    }

    /// Learns whether there are more processes than processors.
    fn learn_load(&self, state: &mut DomainState) {
        let DomainState { ports, queues, .. } = state;
        let numbers = queues.get(self.number).map_or(&[][..], |queue| &queue.ports);
        let count = |number: &usize| ports.get(*number).map_or(0, |port| port.endpoint.neighbours());
        let neighbours = numbers.iter().map(count).sum();
        let lacks = |number: &usize| ports.get(*number).is_some_and(|port| port.endpoint.learn_load());
        self.rest.learn(neighbours, || numbers.iter().any(lacks));
    }

    /// Waits until the only endpoint of the process has something, for a short time. Returns `false` at once if the
    /// application may look for something else: in another queue, at another endpoint, or at descriptors.
    fn wait_for_all(&self, state: &mut DomainState) -> bool {
        let is_quiet = state.queues.iter_mut().all(|it| it.entries.is_empty() && !it.has_wait());
        let only = state.queues.get(self.number).and_then(|queue| queue.ports.first().copied());
        let Some(port) = only.filter(|_| is_quiet && Port::is_only()).and_then(|at| state.ports.get(at))
        else {
            return false;
        };
        port.pause(SLEEP);
        true
    }

    /// Waits until there may be something to read, for a short time. Returns whether a wait must end.
    fn pause(&self, limit: Duration) -> bool {
        let mut watched = Vec::new();
        let is_ended = self.domain.with(|state| {
            let DomainState { ports, queues, .. } = state;
            let Some(queue) = queues.get(self.number) else { return Some(true) };
            if std::mem::take(&mut queue.signalled) {
                return Some(true);
            }
            if let ([only], false) = (&*queue.ports, self.domain.is_shared()) {
                ports.get(*only)?.pause(limit);
                return Some(false);
            }
            for port in &queue.ports {
                let port = ports.get(*port)?;
                let Ok(fd) = port.descriptor() else { continue };
                if !port.arm() {
                    return Some(false);
                }
                watched.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            }
            None
        });
        is_ended.unwrap_or_else(|| {
            // Other threads use the domain meanwhile. If one closes an endpoint, its descriptor wakes nobody:
            // the limit is short.
            let (count, milliseconds) = (watched.len() as libc::nfds_t, limit.as_millis().max(1) as c_int);
            // SAFETY: the array lives during the call.
            unsafe { libc::poll(watched.as_mut_ptr(), count, milliseconds) };
            false
        })
    }

    /// As [`QueueObject::take`], but waits for `timeout` milliseconds, or for ever.
    ///
    /// # Safety
    /// As there.
    unsafe fn take_within(
        &self,
        to: *mut u8,
        count: usize,
        sources: *mut u64,
        timeout: c_int,
    ) -> Result<isize, Errno> {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let begun = Instant::now();
        loop {
            // SAFETY: the caller's promise.
            match unsafe { self.take(to, count, sources) } {
                Err(Errno::AGAIN) => {}
                taken => return taken,
            }
            let left = limit.map_or(SLEEP, |limit| limit.saturating_sub(begun.elapsed()));
            if left.is_zero() || self.pause(left.min(SLEEP)) {
                return Err(Errno::AGAIN);
            }
        }
    }
}

/// Takes the completions that wait in the queue of a reader.
#[inline(never)]
fn take_waiting(state: &mut DomainState, reader: &mut Reader) -> Result<isize, Errno> {
    let queue = state.queues.get(reader.queue).ok_or(Errno::INVALID)?;
    while let Some(entry) = queue.entries.front()
        && reader.take(entry)
    {
        queue.pop();
    }
    match queue.entries.front() {
        _ if reader.taken > 0 => Ok(reader.taken as isize),
        Some(entry) if entry.error.is_some() => Err(Errno::AVAILABLE),
        _ => Err(Errno::AGAIN),
    }
}

pub(super) unsafe extern "C" fn read(queue: *mut fid_cq, to: *mut c_void, count: usize) -> isize {
    // SAFETY: the same contract.
    unsafe { read_now(queue, to, count, std::ptr::null_mut()) }
}

pub(super) unsafe extern "C" fn read_from(
    queue: *mut fid_cq,
    to: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: the same contract.
    unsafe { read_now(queue, to, count, sources) }
}

/// Reads a queue without waiting.
///
/// # Safety
/// As for `fi_cq_readfrom`; `sources` may be null.
#[inline(always)]
unsafe fn read_now(queue: *mut fid_cq, to: *mut c_void, count: usize, sources: *mut u64) -> isize {
    call_now(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(queue) }?;
        if to.is_null() && count > 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's arrays.
        let taken = unsafe { it.take(to.cast(), count, sources) };
        match taken {
            Err(Errno::AGAIN) if it.rest.begin() => it.give_way(),
            Err(Errno::AGAIN) => {}
            _ => it.rest.end(),
        }
        taken
    })
}

pub(super) unsafe extern "C" fn wait_and_read(
    queue: *mut fid_cq,
    to: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the same contract.
    unsafe { wait_and_read_from(queue, to, count, std::ptr::null_mut(), condition, timeout) }
}

pub(super) unsafe extern "C" fn wait_and_read_from(
    queue: *mut fid_cq,
    to: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    call(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(queue) }?;
        if to.is_null() || count == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's arrays.
        unsafe { it.take_within(to.cast(), count, sources, timeout) }
    })
}

pub(super) unsafe extern "C" fn read_error(
    queue: *mut fid_cq,
    out: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    call(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(queue) }?;
        // SAFETY: the application's structure. Later versions have more fields, which are not written.
        let out = unsafe { out.as_mut() }.ok_or(Errno::INVALID)?;
        it.domain.with(|state| {
            let queue = state.queues.get(it.number).ok_or(Errno::INVALID)?;
            let (entry, (failure, left)) =
                queue.entries.front().and_then(|entry| Some((*entry, entry.error?))).ok_or(Errno::AGAIN)?;
            queue.pop();
            let fi_cq_tagged_entry { op_context, flags, len, buf, data, tag } = entry.tagged();
            (out.op_context, out.flags, out.len, out.buf) = (op_context, flags, len, buf);
            (out.data, out.tag, out.olen) = (data, tag, left);
            (out.err, out.prov_errno) = (failure.errno() as c_int, failure.number() as c_int);
            out.err_data_size = 0;
            Ok(1)
        })
    })
}

/// Returns the text of an error.
pub(super) unsafe extern "C" fn text(
    _: *mut fid_cq,
    error: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    text_of(u32::try_from(error).unwrap_or(fi::FI_EOTHER)).as_ptr()
}
