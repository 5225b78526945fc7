//! Completion queues: polled, or armed for sleeping.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys as raw;
use rdma_core_sys::inline::{ibv_poll_cq, ibv_req_notify_cq};

use super::device::Device;
use crate::os::descriptor::occupy_standard;
use crate::rdma::{VerbsError, set_nonblocking, verbs};

/// The largest number of completions that are polled at once.
pub(super) const BATCH: usize = 16;

/// A completion as the device reported it. A failed one has only `id`, `status`, `pair` and `vendor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The number of the work request.
    pub id: u64,
    /// 0 is success; see [`super::describe_status`].
    pub status: u32,
    /// The number of the queue pair.
    pub pair: u32,
    /// The vendor's error code.
    pub vendor: u32,
    /// The kind of the completed operation.
    pub opcode: u32,
    /// The number of bytes received.
    pub len: u32,
    /// The immediate, if there is one.
    pub immediate: Option<u32>,
}

/// A completion queue with the channel that wakes a sleeping process.
pub struct CompletionQueue {
    device: Arc<Device>,
    cq: NonNull<raw::ibv_cq>,
    channel: NonNull<raw::ibv_comp_channel>,
    entries: u32,
}

// SAFETY: libibverbs locks its queues; the pointers are this value's own.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; nothing is written here.
unsafe impl Sync for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// Makes a queue for at least `entries` completions. If more complete than fit, the queue and all its queue
    /// pairs end in an error state: never let more requests be in progress.
    ///
    /// # Errors
    ///
    /// The device has no such queue.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let verbs = verbs()?;
        let occupied = occupy_standard();
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(|| device.last_error("a completion channel"))?;
        drop(occupied);
        let wanted = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open.
        let cq =
            unsafe { (verbs.ibv_create_cq)(device.context(), wanted, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.last_error("a completion queue");
            // SAFETY: nothing uses the channel yet.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        // SAFETY: the queue exists.
        let entries = u32::try_from(unsafe { (*cq.as_ptr()).cqe }).unwrap_or(entries);
        let queue = Self { device: Arc::clone(device), cq, channel, entries };
        set_nonblocking(queue.descriptor())
            .map_err(|code| device.error("the descriptor of a completion channel", code))?;
        Ok(Arc::new(queue))
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the number of completions that fit.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_cq {
        self.cq.as_ptr()
    }

    /// Takes up to 16 completions and hands each to `each`. Returns their number.
    ///
    /// # Errors
    /// The queue is broken.
    #[inline]
    pub fn poll(&self, most: usize, mut each: impl FnMut(Polled)) -> Result<usize, VerbsError> {
        let mut taken = [const { MaybeUninit::<raw::ibv_wc>::uninit() }; BATCH];
        let most = most.min(BATCH);
        // SAFETY: the queue is in use, and there is room for so many.
        let count = unsafe { ibv_poll_cq(self.raw(), most as i32, taken.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.device.error("polling its completion queue", count));
        };
        for wc in taken.iter().take(count.min(most)) {
            let wc = wc.as_ptr();
            // SAFETY: the library has filled the entry: the four fields of a failed completion, or all fields
            // of another. Fields are read in place, so that no unfilled field is read.
            let polled = unsafe {
                let (id, status, pair) = ((*wc).wr_id, (*wc).status, (*wc).qp_num);
                if status == raw::IBV_WC_SUCCESS {
                    let has_immediate = (*wc).wc_flags & raw::IBV_WC_WITH_IMM != 0;
                    let immediate = has_immediate.then(|| u32::from_be((*wc).__bindgen_anon_1.imm_data));
                    Polled {
                        id,
                        status,
                        pair,
                        vendor: 0,
                        opcode: (*wc).opcode,
                        len: (*wc).byte_len,
                        immediate,
                    }
                } else {
                    Polled {
                        id,
                        status,
                        pair,
                        vendor: (*wc).vendor_err,
                        opcode: u32::MAX,
                        len: 0,
                        immediate: None,
                    }
                }
            };
            each(polled);
        }
        Ok(count.min(most))
    }

    /// Requests that [`Self::descriptor`] becomes readable with the next completion. Earlier completions cause
    /// no event: poll again afterwards, before sleeping.
    ///
    /// # Errors
    /// The queue has failed.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.take_events();
        // SAFETY: the queue is in use.
        match unsafe { ibv_req_notify_cq(self.raw(), 0) } {
            0 => Ok(()),
            code => Err(self.device.error("arming its completion queue", code)),
        }
    }

    /// Returns the descriptor that becomes readable when an armed queue has a completion.
    pub fn descriptor(&self) -> i32 {
        // SAFETY: the channel is open.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Takes the events that woke this process.
    pub fn take_events(&self) {
        let Ok(verbs) = verbs() else { return };
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and does not block; both variables may be written. Every event is
        // acknowledged, because destroying the queue waits for that.
        unsafe {
            while (verbs.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: every user of the queue holds this value, so there is no user left. The queue is
            // destroyed first, because it refers to the channel.
            unsafe {
                (verbs.ibv_destroy_cq)(self.raw());
                (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
            }
        }
    }
}
