//! NICs, VIs and protection tags.

use nemesia_core::via::attributes::{MOST_TRANSFER_BYTES, NO_PTAG};
use nemesia_core::via::descriptor::MOST_SEGMENTS;
use nemesia_core::via::memory::MOST_REGIONS;
use nemesia_core::via::setup::{HOST_BYTES, MOST_DISCRIMINATOR_BYTES};
use nemesia_core::via::vi::ViQueue;
use nemesia_core::via::{ViAttributes, ViState, ViaError};

use super::Provider;
use crate::transport::net::Transport;
use crate::via::objects::{NicObject, UserContext, ViObject, index};
use crate::via::state::ViaState;

/// Most descriptors of a work queue.
pub(super) const MOST_DESCRIPTORS: usize = 4096;
/// Most VIs of a process.
const MOST_VIS: usize = 16 << 10;
/// Most protection tags of a process.
const MOST_PTAGS: usize = 64 << 10;
/// Most completion queues of a process.
pub(super) const MOST_QUEUES: usize = 16 << 10;
/// Most entries of a completion queue.
pub(super) const MOST_ENTRIES: usize = 1 << 20;
/// Most bytes of a registered region.
pub(super) const MOST_REGION_BYTES: u64 = 1 << 40;

/// The limits of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicFacts {
    /// The name under which it was opened.
    pub name: Vec<u8>,
    /// Its address.
    pub address: [u8; HOST_BYTES],
    /// Most bytes of a discriminator.
    pub discriminator_bytes: usize,
    /// Most bytes of one registration.
    pub region_bytes: u64,
    /// Most registrations.
    pub regions: usize,
    /// Most VIs.
    pub vis: usize,
    /// Most descriptors of a work queue.
    pub descriptors: usize,
    /// Most segments of a descriptor.
    pub segments: usize,
    /// Most completion queues.
    pub queues: usize,
    /// Most entries of a completion queue.
    pub entries: usize,
    /// Most bytes of a transfer.
    pub transfer_bytes: u64,
    /// Most protection tags.
    pub ptags: usize,
}

/// The state of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViSnapshot {
    /// Its state.
    pub state: ViState,
    /// Its attributes.
    pub attributes: ViAttributes,
    /// Whether its send queue is empty.
    pub is_send_empty: bool,
    /// Whether its receive queue is empty.
    pub is_receive_empty: bool,
}

/// How a VI reaches the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViTransport {
    /// It is not connected.
    None,
    /// Through shared memory, inside of one machine.
    SharedMemory,
    /// Over TCP.
    Tcp,
    /// Over an RDMA device.
    Verbs,
}

impl Provider {
    /// Opens a NIC. There is one, with number 0: a name that ends in another number is refused, because programs count
    /// NICs by opening one after the other. Old programs have names of many vendors, and each of them is accepted.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`] for an empty name, and for a number other than 0; [`ViaError::ErrorResource`].
    pub fn open_nic(&self, name: &[u8]) -> Result<u64, ViaError> {
        let number = name.iter().rev().take_while(|byte| byte.is_ascii_digit());
        let is_first = number.into_iter().all(|digit| *digit == b'0');
        if name.is_empty() || !is_first {
            return Err(ViaError::InvalidParameter);
        }
        let nic = NicObject { name: name.to_vec(), handler: None, has_names: false };
        self.lock().nics.insert(|_| nic).ok_or(ViaError::ErrorResource)
    }

    /// Closes a NIC and everything that was made with it.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn close_nic(&self, nic: u64) -> Result<(), ViaError> {
        let mut state = self.lock();
        state.nics.remove(nic).ok_or(ViaError::InvalidParameter)?;
        for vi in state.vis.handles(|vi| vi.nic == nic) {
            disconnect(&mut state, vi);
            remove_vi(&mut state, vi);
        }
        for queue in state.queues.handles(|queue| queue.nic == nic) {
            let removed = state.queues.remove(queue);
            state.notifies -= removed.map_or(0, |queue| queue.notifies.len());
        }
        for ptag in state.ptags.handles(|owner| *owner == nic) {
            state.ptags.remove(ptag);
        }
        for request in state.requests.handles(|request| request.nic == nic) {
            state.requests.remove(request);
        }
        let of_nic =
            |state: &ViaState, handle| state.memory.get(handle).is_some_and(|memory| memory.nic == nic);
        let regions: Vec<u32> = state.memory.table.iter().map(|(handle, _)| handle).collect();
        for handle in regions.into_iter().filter(|handle| of_nic(&state, *handle)).collect::<Vec<_>>() {
            state.remove_region(handle);
        }
        state.errors.retain(|error| error.nic as usize as u64 != nic);
        Ok(())
    }

    /// Returns the limits of a NIC.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn query_nic(&self, nic: u64) -> Result<NicFacts, ViaError> {
        let state = self.lock();
        let nic = state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
        Ok(NicFacts {
            name: nic.name.clone(),
            address: self.0.settings.address.octets(),
            discriminator_bytes: MOST_DISCRIMINATOR_BYTES,
            region_bytes: MOST_REGION_BYTES,
            regions: MOST_REGIONS,
            vis: MOST_VIS,
            descriptors: MOST_DESCRIPTORS,
            segments: MOST_SEGMENTS,
            queues: MOST_QUEUES,
            entries: MOST_ENTRIES,
            transfer_bytes: MOST_TRANSFER_BYTES,
            ptags: MOST_PTAGS,
        })
    }

    /// Returns the address of this process.
    pub fn address(&self) -> [u8; HOST_BYTES] {
        self.0.settings.address.octets()
    }

    /// Switches the name service of a NIC on or off.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn set_names(&self, nic: u64, has_names: bool) -> Result<(), ViaError> {
        let mut state = self.lock();
        state.nics.get_mut(nic).ok_or(ViaError::InvalidParameter)?.has_names = has_names;
        Ok(())
    }

    /// Returns whether the name service of a NIC is on.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn has_names(&self, nic: u64) -> Result<bool, ViaError> {
        self.lock().nics.get(nic).map(|nic| nic.has_names).ok_or(ViaError::InvalidParameter)
    }

    /// Creates a protection tag.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::ErrorResource`].
    pub fn create_ptag(&self, nic: u64) -> Result<u64, ViaError> {
        let mut state = self.lock();
        state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
        if state.ptags.len() >= MOST_PTAGS {
            return Err(ViaError::ErrorResource);
        }
        state.ptags.insert(|_| nic).ok_or(ViaError::ErrorResource)
    }

    /// Destroys a protection tag.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`]; [`ViaError::ErrorResource`] while a VI or registered memory uses it.
    pub fn destroy_ptag(&self, nic: u64, ptag: u64) -> Result<(), ViaError> {
        let mut state = self.lock();
        require_ptag(&state, nic, ptag).map_err(|_| ViaError::InvalidParameter)?;
        let is_used = state.vis.iter().any(|(_, vi)| vi.model.attributes.ptag == ptag);
        if is_used || state.memory.table.uses(ptag) {
            return Err(ViaError::ErrorResource);
        }
        state.ptags.remove(ptag);
        Ok(())
    }

    /// Creates a VI. The queues are completion queues of the same NIC, or `None`.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::InvalidPtag`], those of [`ViAttributes::check`],
    /// [`ViaError::ErrorResource`].
    pub fn create_vi(
        &self,
        nic: u64,
        attributes: ViAttributes,
        queues: [Option<u64>; 2],
    ) -> Result<u64, ViaError> {
        let mut state = self.lock();
        state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
        for queue in queues.into_iter().flatten() {
            state.queues.get(queue).filter(|queue| queue.nic == nic).ok_or(ViaError::InvalidParameter)?;
        }
        require_vi_ptag(&state, nic, attributes.ptag)?;
        attributes.check()?;
        if state.vis.len() >= MOST_VIS {
            return Err(ViaError::ErrorResource);
        }
        let object = ViObject::new(nic, attributes, queues);
        let vi = state.vis.insert(|_| object).ok_or(ViaError::ErrorResource)?;
        for queue in queues.into_iter().flatten() {
            if let Some(queue) = state.queues.get_mut(queue) {
                queue.queue.users += 1;
            }
        }
        Ok(vi)
    }

    /// Destroys a VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`]; [`ViaError::InvalidState`] unless it is idle; [`ViaError::ErrorResource`] while
    /// it has descriptors.
    pub fn destroy_vi(&self, vi: u64) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        if object.model.state() != ViState::Idle {
            return Err(ViaError::InvalidState);
        }
        let is_empty = [ViQueue::Send, ViQueue::Receive].map(|queue| object.model.queue(queue).is_empty());
        if is_empty != [true; 2] {
            return Err(ViaError::ErrorResource);
        }
        remove_vi(&mut state, vi);
        Ok(())
    }

    /// Changes the attributes of an idle VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::InvalidState`], [`ViaError::InvalidPtag`], those of
    /// [`ViAttributes::check`].
    pub fn set_vi_attributes(&self, vi: u64, attributes: ViAttributes) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.vis.get(vi).ok_or(ViaError::InvalidParameter)?;
        let (nic, is_idle) = (object.nic, object.model.state() == ViState::Idle);
        if !is_idle {
            return Err(ViaError::InvalidState);
        }
        require_vi_ptag(&state, nic, attributes.ptag)?;
        attributes.check()?;
        if let Some(object) = state.vis.get_mut(vi) {
            object.model.attributes = attributes;
        }
        Ok(())
    }

    /// Returns the state of a VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn query_vi(&self, vi: u64) -> Result<ViSnapshot, ViaError> {
        let mut state = self.lock();
        state.drive(vi);
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        Ok(ViSnapshot {
            state: object.model.state(),
            attributes: object.model.attributes,
            is_send_empty: object.model.queue(ViQueue::Send).is_empty(),
            is_receive_empty: object.model.queue(ViQueue::Receive).is_empty(),
        })
    }

    /// Returns the transport of a VI's connection, and a line that explains it.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn transport(&self, vi: u64) -> Result<(ViTransport, String), ViaError> {
        let state = self.lock();
        let object = state.vis.get(vi).ok_or(ViaError::InvalidParameter)?;
        Ok(match (&object.link, &object.network) {
            (Some(_), _) => (ViTransport::SharedMemory, "shared memory".to_owned()),
            (None, Some(link)) => {
                let transport = match link.transport {
                    Transport::Tcp => ViTransport::Tcp,
                    Transport::Verbs => ViTransport::Verbs,
                };
                (transport, link.explanation.clone())
            }
            (None, None) => (ViTransport::None, "not connected".to_owned()),
        })
    }

    /// Returns the pointer that a program stored with a VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn user_pointer(&self, vi: u64) -> Result<*mut std::ffi::c_void, ViaError> {
        self.lock().vis.get(vi).map(|object| object.user.0).ok_or(ViaError::InvalidParameter)
    }

    /// Stores a pointer with a VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn set_user_pointer(&self, vi: u64, pointer: *mut std::ffi::c_void) -> Result<(), ViaError> {
        self.lock().vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?.user = UserContext(pointer);
        Ok(())
    }
}

/// Checks that a protection tag belongs to a NIC.
pub(super) fn require_ptag(state: &ViaState, nic: u64, ptag: u64) -> Result<(), ViaError> {
    state.ptags.get(ptag).filter(|owner| **owner == nic).map(drop).ok_or(ViaError::InvalidPtag)
}

/// Checks the protection tag of a VI, which may have none.
fn require_vi_ptag(state: &ViaState, nic: u64, ptag: u64) -> Result<(), ViaError> {
    if ptag == NO_PTAG { Ok(()) } else { require_ptag(state, nic, ptag) }
}

/// Disconnects a VI: its descriptors are flushed, and it is idle.
pub(super) fn disconnect(state: &mut ViaState, vi: u64) {
    let Some(object) = state.vis.get_mut(vi) else { return };
    object.peer = None;
    object.remote = None;
    if let Some(link) = &mut object.link {
        link.push(&nemesia_core::via::record::ViaRecord::Disconnect);
    }
    if let Some(link) = &mut object.network {
        link.push(&nemesia_core::via::record::ViaRecord::Disconnect);
    }
    object.model.disconnect();
    state.unlink(vi);
    state.report(vi);
    state.is_changed = true;
}

/// Removes a VI, its callbacks and its entries in completion queues.
fn remove_vi(state: &mut ViaState, vi: u64) {
    let Some(object) = state.vis.remove(vi) else { return };
    let callbacks: usize = object.notifies.iter().map(std::collections::VecDeque::len).sum();
    state.notifies -= callbacks;
    for queue in [ViQueue::Send, ViQueue::Receive] {
        if let Some(queue) = object.queues[index(queue)].and_then(|queue| state.queues.get_mut(queue)) {
            queue.queue.users -= 1;
            queue.queue.forget(vi);
        }
    }
}
