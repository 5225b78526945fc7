//! Counters of operations that have ended.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::bindings::{self as fi, fi_cntr_attr, fi_ops_cntr, fid, fid_cntr, fid_domain};
use crate::counts::Counts;
use crate::object::{Constant, Errno, FidOps, call_int, call_now, fid_of, lend, object, reclaim};
use crate::state::{Domain, DomainState, domain_of};

#[repr(C)]
pub(crate) struct CounterObject {
    counter: fid_cntr,
    pub(crate) domain: Arc<Domain>,
    pub(crate) counts: Arc<Counts>,
}

static FID: FidOps = FidOps::closed_by(close);
static OPS: Constant<fi_ops_cntr> = Constant(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(read_errors),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(add_errors),
    seterr: Some(set_errors),
});

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's domain.
        let domain = unsafe { domain_of(domain) }?;
        // SAFETY: the application's structure, null or valid.
        if let Some(attr) = unsafe { attr.as_ref() }
            && (attr.events != fi::FI_CNTR_EVENTS_COMP
                || !matches!(attr.wait_obj, fi::FI_WAIT_NONE | fi::FI_WAIT_UNSPEC))
        {
            return Err(Errno::NO_SYSTEM);
        }
        domain.opened();
        let counter = fid_cntr { fid: fid_of(fi::FI_CLASS_CNTR, context, &FID), ops: OPS.get() };
        lend(CounterObject { counter, domain, counts: Arc::default() }, out)
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's counter.
        let it: &CounterObject = unsafe { object(fid) }?;
        if Arc::strong_count(&it.counts) > 1 {
            return Err(Errno::BUSY);
        }
        it.domain.closed();
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<CounterObject, _>(fid) });
        Ok(())
    })
}

impl CounterObject {
    /// Makes progress.
    fn progress(&self) {
        self.domain.with(DomainState::collect_all);
    }
}

unsafe extern "C" fn read(counter: *mut fid_cntr) -> u64 {
    let mut value = 0;
    call_now(|| {
        // SAFETY: the application's counter.
        let it: &CounterObject = unsafe { object(counter) }?;
        it.progress();
        value = it.counts.succeeded.load(Ordering::Relaxed);
        Ok(0)
    });
    value
}

unsafe extern "C" fn read_errors(counter: *mut fid_cntr) -> u64 {
    // SAFETY: the application's counter.
    let it: Result<&CounterObject, Errno> = unsafe { object(counter) };
    it.map_or(0, |it| it.counts.failed.load(Ordering::Relaxed))
}

unsafe extern "C" fn add(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the application's counter.
    let it: Result<&CounterObject, Errno> = unsafe { object(counter) };
    call_int(|| it.map(|it| _ = it.counts.succeeded.fetch_add(value, Ordering::Relaxed)))
}

unsafe extern "C" fn set(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the application's counter.
    let it: Result<&CounterObject, Errno> = unsafe { object(counter) };
    call_int(|| it.map(|it| it.counts.succeeded.store(value, Ordering::Relaxed)))
}

unsafe extern "C" fn add_errors(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the application's counter.
    let it: Result<&CounterObject, Errno> = unsafe { object(counter) };
    call_int(|| it.map(|it| _ = it.counts.failed.fetch_add(value, Ordering::Relaxed)))
}

unsafe extern "C" fn set_errors(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the application's counter.
    let it: Result<&CounterObject, Errno> = unsafe { object(counter) };
    call_int(|| it.map(|it| it.counts.failed.store(value, Ordering::Relaxed)))
}

/// Waits for a count, for `timeout` milliseconds or for ever.
unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    call_int(|| {
        // SAFETY: the application's counter.
        let it: &CounterObject = unsafe { object(counter) }?;
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let (begun, failed) = (Instant::now(), it.counts.failed.load(Ordering::Relaxed));
        loop {
            it.progress();
            if it.counts.succeeded.load(Ordering::Relaxed) >= threshold {
                return Ok(());
            }
            if it.counts.failed.load(Ordering::Relaxed) != failed {
                return Err(Errno::AVAILABLE);
            }
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return Err(Errno(fi::FI_ETIMEDOUT));
            }
            std::thread::yield_now();
        }
    })
}
