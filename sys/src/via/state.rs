//! All objects of a process, under one lock, and the progress of its connections.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use nemesia_core::via::completion::CompletionEntry;
use nemesia_core::via::vi::ViQueue;
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{AsyncError, ViaSegment};

use super::conduit::{Conduit, Memory, rights};
use super::link::Link;
use super::listener::Listener;
use super::network::Networks;
use super::objects::{
    AsyncReport, ConnectWaiter, NewViLink, NicObject, QueueObject, Requested, ViObject, index, pointer,
    report,
};
use super::table::{HandleKind, HandleTable};

const DESCRIPTOR_BYTES: u32 = 64;
/// Errors that are kept for their handler; further ones are lost.
const MOST_ERRORS: usize = 1024;

/// All objects.
#[derive(Debug)]
pub(super) struct ViaState {
    pub(super) nics: HandleTable<NicObject>,
    pub(super) ptags: HandleTable<u64>,
    pub(super) queues: HandleTable<QueueObject>,
    pub(super) vis: HandleTable<ViObject>,
    pub(super) requests: HandleTable<Requested>,
    pub(super) memory: Memory,
    /// VIs that have a link.
    pub(super) connected: Vec<u64>,
    pub(super) waiters: Vec<ConnectWaiter>,
    pub(super) next_waiter: u64,
    pub(super) errors: VecDeque<AsyncReport>,
    pub(super) listener: Option<Listener>,
    /// The memory ports for other machines, once they were needed.
    pub(super) networks: Networks,
    /// Number of callbacks that are registered.
    pub(super) notifies: usize,
    /// Whether the thread of callbacks must look.
    pub(super) has_callbacks: bool,
    /// Whether something happened for which another thread may wait.
    pub(super) is_changed: bool,
    /// Threads that sleep, and whether one of them sleeps on the bell.
    pub(super) sleepers: usize,
    pub(super) has_leader: bool,
    /// Whether the service thread must look again.
    pub(super) must_poke: bool,
    pub(super) bytes: Vec<u8>,
}

impl ViaState {
    pub(super) fn new(non_temporal_from: u64, networks: Networks) -> Self {
        Self {
            nics: HandleTable::new(HandleKind::Nic),
            ptags: HandleTable::new(HandleKind::Ptag),
            queues: HandleTable::new(HandleKind::CompletionQueue),
            vis: HandleTable::new(HandleKind::Vi),
            requests: HandleTable::new(HandleKind::Connection),
            memory: Memory::new(non_temporal_from),
            connected: Vec::new(),
            waiters: Vec::new(),
            next_waiter: 0,
            errors: VecDeque::new(),
            listener: None,
            networks,
            notifies: 0,
            has_callbacks: false,
            is_changed: false,
            sleepers: 0,
            has_leader: false,
            must_poke: false,
            bytes: Vec::new(),
        }
    }

    /// Makes progress on every connection.
    pub(super) fn drive_all(&mut self) {
        self.drive_network();
        for at in (0..self.connected.len()).rev() {
            if let Some(vi) = self.connected.get(at).copied()
                && !self.nudge_network(vi)
            {
                self.drive(vi);
            }
        }
    }

    /// Makes progress on the connections whose queues report to a completion queue.
    pub(super) fn drive_queue(&mut self, queue: u64) {
        for at in (0..self.connected.len()).rev() {
            let Some(vi) = self.connected.get(at).copied() else { continue };
            if self.vis.get(vi).is_some_and(|object| object.queues.contains(&Some(queue))) {
                self.drive(vi);
            }
        }
    }

    /// Makes progress on the connection of a VI. Returns whether there was anything to do: if so, all that can be
    /// started is started, and all that has ended is reported.
    #[inline(always)]
    pub(super) fn drive(&mut self, vi: u64) -> bool {
        let Some(object) = self.vis.get_mut(vi) else { return false };
        let Some(link) = &mut object.link else {
            if object.network.is_some() {
                self.drive_network();
                self.nudge_network(vi);
            }
            return false;
        };
        // The usual case of a program that polls.
        if !link.has_next() && !object.model.is_blocked() && !link.has_changes() && !link.is_cut {
            if object.model.can_refill() {
                object.refill(&self.memory);
            }
            return false;
        }
        object.read_records(&self.memory, &mut self.bytes);
        self.settle(vi);
        true
    }

    /// Reports what has ended on a VI, and starts what can be started.
    #[inline(always)]
    pub(super) fn settle(&mut self, vi: u64) {
        if self.vis.get(vi).is_some_and(ViObject::must_pump) {
            self.pump(vi);
        } else {
            self.report(vi);
        }
    }

    /// Starts what can be started after a descriptor was posted.
    pub(super) fn advance(&mut self, vi: u64) {
        let Some(object) = self.vis.get_mut(vi) else { return };
        if object.must_pump() && !self.drive(vi) {
            self.pump(vi);
        }
    }

    /// Starts what can be started on a VI, and reports what has ended.
    #[inline(never)]
    pub(super) fn pump(&mut self, vi: u64) {
        let Some(object) = self.vis.get_mut(vi) else { return };
        let mut is_cut = false;
        if object.network.is_some() {
            is_cut = self.pump_network(vi);
        } else if let Some(link) = &mut object.link {
            link.send_changes();
            let attributes = object.model.attributes;
            object.model.pump(&mut Conduit::new(link, &self.memory, attributes));
            link.wake();
            self.must_poke |= std::mem::take(&mut link.has_taken_wake);
            is_cut = link.is_cut;
        }
        if is_cut {
            self.cut(vi);
        }
        self.report(vi);
    }

    /// Ends the connection of a VI that has failed. The VI stays in its error state until it is disconnected.
    pub(super) fn cut(&mut self, vi: u64) {
        if let Some(object) = self.vis.get_mut(vi) {
            object.model.lose(AsyncError::ConnectionLost);
        }
        self.unlink(vi);
    }

    /// Drops the link of a VI.
    pub(super) fn unlink(&mut self, vi: u64) {
        self.connected.retain(|connected| *connected != vi);
        if let Some(object) = self.vis.get_mut(vi) {
            let network = object.network.take();
            if let Some(mut link) = object.link.take() {
                link.wake();
                link.connection.disconnect();
                self.must_poke = true;
            }
            if let Some(link) = network {
                self.unlink_network(link);
                self.must_poke = true;
            }
        }
    }

    /// Gives a VI its link.
    pub(super) fn connect(&mut self, vi: u64, link: NewViLink) -> bool {
        let is_connected = self.vis.get_mut(vi).is_some_and(|object| object.model.connected());
        match link {
            NewViLink::Shared(link) if is_connected => self.link_shared(vi, *link),
            NewViLink::Network(ticket, explanation) if is_connected => {
                self.link_network(vi, ticket, explanation);
            }
            NewViLink::Network(ticket, _) => self.abandon_network(ticket),
            NewViLink::Shared(_) => {}
        }
        if is_connected {
            self.connected.push(vi);
            (self.must_poke, self.is_changed) = (true, true);
            self.pump(vi);
        }
        is_connected
    }

    fn link_shared(&mut self, vi: u64, mut link: Link) {
        let Some(object) = self.vis.get_mut(vi) else { return };
        let attributes = object.model.attributes;
        for (handle, region) in self.memory.table.iter() {
            let granted = rights(&region, &attributes);
            if (granted.write || granted.read)
                && let Some(memory) = self.memory.get(handle)
            {
                link.lend(handle, &region, memory, granted);
            }
        }
        object.link = Some(link);
    }

    /// Informs every connection of a region that is new, changed, or about to go.
    pub(super) fn publish_region(&mut self, handle: u32, is_gone: bool) {
        let Some(region) = self.memory.table.get(handle).copied() else { return };
        for at in (0..self.connected.len()).rev() {
            let Some(vi) = self.connected.get(at).copied() else { continue };
            let Some(object) = self.vis.get_mut(vi) else { continue };
            let granted = rights(&region, &object.model.attributes);
            if let Some(link) = &mut object.link {
                if link.has_lent(handle) {
                    link.change_lent(handle, (!is_gone).then_some(granted));
                } else if !is_gone
                    && (granted.write || granted.read)
                    && let Some(memory) = self.memory.get(handle)
                {
                    link.lend(handle, &region, memory, granted);
                }
            }
            self.publish_on_network(vi, handle, is_gone);
            self.pump(vi);
        }
    }

    /// Removes a region. Afterwards no other process and no memory port accesses its memory.
    pub(super) fn remove_region(&mut self, handle: u32) {
        self.publish_region(handle, true);
        let removed = self.memory.remove(handle);
        // A receive descriptor may have lent it once more; from now on that is refused.
        self.withdraw_from_network(handle);
        drop(removed);
    }

    /// Writes back the descriptors of a VI that have ended, and reports them and its errors.
    #[inline(always)]
    pub(super) fn report(&mut self, vi: u64) {
        let Some(object) = self.vis.get_mut(vi) else { return };
        for queue in [ViQueue::Send, ViQueue::Receive] {
            while let Some(entry) = object.model.report(queue) {
                if !write_back(&self.memory, &entry, object.model.attributes.ptag) {
                    object.model.add_error(AsyncError::CompletionProtection);
                }
                self.is_changed = true;
                let Some(completion_queue) = object.queues[index(queue)] else { continue };
                let Some(to) = self.queues.get_mut(completion_queue) else { continue };
                if !to.queue.push(CompletionEntry { vi, is_receive: queue == ViQueue::Receive }) {
                    let overrun = report(to.nic, vi, AsyncError::Overrun);
                    let completion_queue = pointer(completion_queue);
                    keep(&mut self.errors, AsyncReport { completion_queue, resource: 2, ..overrun });
                    self.has_callbacks = true;
                }
            }
        }
        while let Some(error) = object.model.take_error() {
            let has_handler = self.nics.get(object.nic).is_some_and(|nic| nic.handler.is_some());
            if error == AsyncError::ConnectionLost && object.model.is_left() && !has_handler {
                // The default handler writes a line. The end of a connection in good order is no reason for one.
                continue;
            }
            keep(&mut self.errors, report(object.nic, vi, error));
            (self.is_changed, self.has_callbacks) = (true, true);
        }
    }

    /// Keeps an error for its handler.
    pub(super) fn add_error(&mut self, error: AsyncReport) {
        keep(&mut self.errors, error);
        (self.is_changed, self.has_callbacks) = (true, true);
    }
}

/// Adds an error to those that wait for their handler, unless there are too many.
#[cold]
fn keep(errors: &mut VecDeque<AsyncReport>, error: AsyncReport) {
    if errors.len() < MOST_ERRORS {
        errors.push_back(error);
    }
}

/// Writes the result to the descriptor of the program: status last, so that a program that polls it sees the rest.
/// False if the memory of the descriptor is not registered any more.
#[inline(always)]
fn write_back(memory: &Memory, entry: &WorkEntry, ptag: u64) -> bool {
    let range = ViaSegment { address: entry.cookie, handle: entry.handle, length: DESCRIPTOR_BYTES };
    let Some(place) = memory.place(range, ptag) else { return false };
    // SAFETY: 64 registered bytes, which the program keeps mapped and writable; aligned to 64 bytes (`Provider::post`).
    let word = |at: usize| unsafe { place.as_ptr().add(at) }.cast::<u32>();
    if let Some(immediate) = entry.arrived {
        // SAFETY: within the descriptor.
        unsafe { ptr::write_volatile(word(20), immediate) };
    }
    // SAFETY: within the descriptor.
    unsafe { ptr::write_volatile(word(24), entry.length) };
    // SAFETY: within the descriptor and aligned; a program that polls the word reads it by one load.
    unsafe { AtomicU32::from_ptr(word(28)) }.store(entry.status, Ordering::Release);
    true
}
