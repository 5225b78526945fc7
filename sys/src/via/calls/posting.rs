//! Descriptors: posted, done, awaited.

use std::ptr::NonNull;

use nemesia_core::sync::Payload;
use nemesia_core::via::descriptor::{
    CONTROL_BYTES, DESCRIPTOR_BYTES, MOST_SEGMENTS, SEGMENT_BYTES, segment_count,
};
use nemesia_core::via::vi::ViQueue;
use nemesia_core::via::{AsyncError, ViaDescriptor, ViaError, ViaOperation, ViaSegment};

use super::vis::MOST_DESCRIPTORS;
use super::{Provider, deadline};
use crate::via::objects::{AsyncReport, report};
use crate::via::state::ViaState;

/// A descriptor that has ended, and that belongs to the program again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedDescriptor {
    /// Its address.
    pub address: u64,
    /// Whether its status has an error.
    pub has_failed: bool,
}

/// Bytes of the longest descriptor.
const LONGEST: usize = CONTROL_BYTES + MOST_SEGMENTS * SEGMENT_BYTES;

impl Provider {
    /// Posts the descriptor at an address in registered memory.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`] for a VI that does not exist, an address that is not aligned to 64 bytes, and
    /// memory that is not registered under the protection tag of the VI, which the error handler learns as well.
    /// [`ViaError::ErrorResource`] if the queue is full.
    pub fn post(&self, vi: u64, queue: ViQueue, address: *mut u8, handle: u32) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        let ptag = object.model.attributes.ptag;
        let place = NonNull::new(address).ok_or(ViaError::InvalidParameter)?;
        if !(address as usize).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(ViaError::InvalidParameter);
        }
        let mut fixed = [0; DESCRIPTOR_BYTES];
        let Some(count) = read_fixed(&state, place, (handle, ptag), &mut fixed) else {
            return Err(refuse(&mut state, vi, address));
        };
        if CONTROL_BYTES + count * SEGMENT_BYTES <= DESCRIPTOR_BYTES {
            return post_bytes(&mut state, (vi, queue), (address, handle), &fixed, count);
        }
        let mut bytes = [0; LONGEST];
        bytes[..DESCRIPTOR_BYTES].copy_from_slice(&fixed);
        if !read_rest(&state, place, (handle, ptag), count, &mut bytes) {
            return Err(refuse(&mut state, vi, address));
        }
        post_bytes(&mut state, (vi, queue), (address, handle), &bytes, count)
    }

    /// Starts the sends of a VI that can be started. Returns whether some are left, which wait for the other side.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn start_sends(&self, vi: u64) -> Result<bool, ViaError> {
        let mut state = self.lock();
        if !state.drive(vi) {
            state.pump(vi);
        }
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        Ok(object.model.queue(ViQueue::Send).next_posted().is_some())
    }

    /// Takes the oldest descriptor of a queue, if it has ended.
    ///
    /// # Errors
    /// [`ViaError::DescriptorError`] if the queue is empty, [`ViaError::NotDone`], [`ViaError::InvalidParameter`].
    pub fn done(&self, vi: u64, queue: ViQueue) -> Result<CompletedDescriptor, ViaError> {
        take(&mut self.lock(), vi, queue, true)
    }

    /// Waits until the oldest descriptor of a queue has ended, at most for these milliseconds, and takes it.
    ///
    /// # Errors
    /// As [`Provider::done`], with [`ViaError::Timeout`] instead of `NotDone`.
    pub fn wait(&self, vi: u64, queue: ViQueue, limit: u64) -> Result<CompletedDescriptor, ViaError> {
        let attempt = |state: &mut ViaState| match take(state, vi, queue, false) {
            Err(ViaError::NotDone) => None,
            result => Some(result),
        };
        self.0.wait(deadline(limit), |state| _ = state.drive(vi), attempt)?
    }
}

/// Takes the oldest descriptor of a queue, if it has ended.
fn take(
    state: &mut ViaState,
    vi: u64,
    queue: ViQueue,
    drives: bool,
) -> Result<CompletedDescriptor, ViaError> {
    let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
    if drives && !object.model.queue(queue).has_finished() {
        state.drive(vi);
    }
    let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
    match object.model.take(queue) {
        Some(entry) => Ok(CompletedDescriptor { address: entry.cookie, has_failed: entry.has_failed() }),
        None if object.model.queue(queue).is_empty() => Err(ViaError::DescriptorError),
        None => Err(ViaError::NotDone),
    }
}

/// Reports a descriptor that is not in memory of the VI's protection tag.
#[cold]
fn refuse(state: &mut ViaState, vi: u64, address: *mut u8) -> ViaError {
    let nic = state.vis.get(vi).map_or(0, |object| object.nic);
    let error = report(nic, vi, AsyncError::PostDescriptor);
    state.add_error(AsyncReport { descriptor: address.cast(), resource: 3, ..error });
    ViaError::InvalidParameter
}

/// Posts the descriptor in these bytes, which has `count` segments.
fn post_bytes(
    state: &mut ViaState,
    (vi, queue): (u64, ViQueue),
    (address, handle): (*mut u8, u32),
    bytes: &[u8],
    count: usize,
) -> Result<(), ViaError> {
    let (control, list) = bytes.split_first_chunk::<CONTROL_BYTES>().ok_or(ViaError::ErrorResource)?;
    let (list, _) = list.as_chunks::<SEGMENT_BYTES>();
    let segments = list.iter().take(count).map(ViaSegment::decode);
    let descriptor = ViaDescriptor::decode(control, segments.clone().next(), queue == ViQueue::Receive);
    let skipped = usize::from(descriptor.operation != ViaOperation::Send);
    let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
    if !object.grow(queue, descriptor.segments.into(), MOST_DESCRIPTORS) {
        return Err(ViaError::ErrorResource);
    }
    if queue == ViQueue::Send
        && let Some(segment) = segments.clone().next()
        && object.send_single(&state.memory, (address as u64, handle), &descriptor, segment)
    {
        state.settle(vi);
        return Ok(());
    }
    if !object.model.post(queue, (address as u64, handle), descriptor, segments.skip(skipped)) {
        return Err(ViaError::ErrorResource);
    }
    state.advance(vi);
    Ok(())
}

fn is_registered(state: &ViaState, place: NonNull<u8>, (handle, ptag): (u32, u64), length: usize) -> bool {
    let segment = ViaSegment { address: place.as_ptr() as u64, handle, length: length as u32 };
    state.memory.table.check(segment, ptag).is_some()
}

/// Copies the first 64 bytes of a descriptor once, if they are registered under the protection tag. Returns the number
/// of its segments.
fn read_fixed(
    state: &ViaState,
    place: NonNull<u8>,
    of: (u32, u64),
    bytes: &mut [u8; DESCRIPTOR_BYTES],
) -> Option<usize> {
    if !is_registered(state, place, of, DESCRIPTOR_BYTES) {
        return None;
    }
    // SAFETY: registered, so the program keeps it mapped; no reference to it exists.
    let fixed = unsafe { Payload::from_raw(place, DESCRIPTOR_BYTES) };
    let _is_read = fixed.read(0, bytes);
    bytes.first_chunk().map(segment_count)
}

/// Copies the other segments of a descriptor once, if all of it is registered. The first 64 bytes are not read again.
fn read_rest(
    state: &ViaState,
    place: NonNull<u8>,
    of: (u32, u64),
    count: usize,
    bytes: &mut [u8; LONGEST],
) -> bool {
    let len = CONTROL_BYTES + count * SEGMENT_BYTES;
    if !is_registered(state, place, of, len) {
        return false;
    }
    // SAFETY: registered, so the program keeps it mapped; no reference to it exists.
    let all = unsafe { Payload::from_raw(place, len) };
    all.read(DESCRIPTOR_BYTES, &mut bytes[DESCRIPTOR_BYTES..len])
}
