//! Opens a port: the limits of the device, and how much of them is used.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nemesia_core::port::memory::Facts;
use rdma_core_sys as raw;

use super::connect::LISTENER;
use super::held::{Holding, SIW};
use super::idle::Probing;
use super::join::Joins;
use super::link::VerbsLinks;
use super::regions::{MOST_PARTS, VerbsRegions};
use super::ring::Slab;
use super::tag::MOST_LINKS;
use super::watch::Queries;
use super::{Manager, PROBES, PathPreference, PortOptions, SetUp, SharedDevice, VerbsPort};
use crate::cm::{Channel, Id};
use crate::os::descriptor::own;
use crate::rdma::VerbsError;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::device::{Device, DeviceTransport, PortAttributes};
use crate::verbs::domain::Domain;
use crate::verbs::pair::{Depths, MOST_READS, QueuePair, ack_timeout};
use crate::verbs::shared::SharedReceives;
use crate::verbs::survey::choose_for;

/// The inline payloads to try, largest first: a device does not report its limit. rxe takes 512, siw 80.
const INLINE: [u32; 9] = [1024, 512, 256, 220, 128, 80, 64, 32, 0];
/// The descriptors of a port, without those of librdmacm: of the device for commands and for events, of the completion
/// queue, of the connection manager's channel or of the queue of datagrams, and epoll.
pub(crate) const DESCRIPTORS: u32 = 5;

/// Converts a number of C that is at least 0.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

impl VerbsPort {
    /// Opens a port on a usable device that meets the preferences, and listens there.
    ///
    /// # Errors
    /// The library, the device or the right to it is missing. The error names the reason for each device.
    pub fn open(options: &PortOptions) -> Result<Self, VerbsError> {
        let (selection, is_managed) = choose_for(&options.preference, options.set_up)?;
        let device = Device::open(&selection.device)?;
        let attributes = device.port(selection.port)?;
        let domain = Domain::new(&device)?;
        let mut facts = facts(&device, attributes, options);
        let queue = CompletionQueue::new(&device, entries(&facts).max(least_entries(&device)))?;
        let (depths, order) = probe(&domain, &queue, &facts, options)?;
        facts.inline_bytes = depths.inline.min(facts.message_bytes);
        // A library that answers 0 promises nothing: it may not know.
        let is_infiniband = device.transport() == DeviceTransport::InfiniBand;
        let asserted = options.assert_order && is_infiniband;
        facts.ordered_within_write = order.unwrap_or(false) || asserted;
        facts.ordered_among_writes = asserted;
        let shared = share(&domain, &mut facts);
        let (set_up, descriptor) = match selection.address {
            Some(address) if is_managed => listen(address, &facts, options)?,
            _ => {
                let gid = selection.gid_index.unwrap_or(0);
                let joins = Joins::new(&domain, (selection.port, gid), options.traffic_class)?;
                let descriptor = joins.descriptor();
                (SetUp::Datagrams(Box::new(joins)), descriptor)
            }
        };
        let epoll = watch(&[queue.descriptor(), descriptor, device.event_descriptor()])?;
        let limits = device.attributes();
        let holding = Holding::of(limits.vendor_id);
        let reads = (
            limits.max_qp_rd_atom.clamp(0, MOST_READS) as u8,
            limits.max_qp_init_rd_atom.clamp(0, MOST_READS) as u8,
        );
        Ok(Self {
            links: VerbsLinks::new(facts.connections),
            set_up,
            shared,
            regions: VerbsRegions::new(facts.regions),
            queue,
            domain,
            device,
            epoll,
            selection,
            facts,
            depths,
            path: path(is_infiniband, options),
            reads,
            by_pair: HashMap::new(),
            pending: VecDeque::new(),
            events: VecDeque::new(),
            holding,
            answered: Vec::new(),
            suspects: Vec::new(),
            now: Duration::ZERO,
            alarm: Duration::MAX,
            closing: 0,
            queries: Queries::new(),
            probing: Probing::new(options.silence, is_infiniband),
            down: None,
            failed: false,
        })
    }
}

/// Makes an endpoint of the connection manager, and listens. Returns its descriptor too.
fn listen(address: IpAddr, facts: &Facts, options: &PortOptions) -> Result<(SetUp, i32), VerbsError> {
    let channel = Channel::new()?;
    let place = (address, options.traffic_class);
    let listener = Id::listen_at(&channel, LISTENER, place, facts.connections)?;
    let local = listener.local_address().unwrap_or(SocketAddr::new(address, 0));
    let descriptor = channel.descriptor();
    let listener = Some(listener);
    Ok((SetUp::Manager(Manager { leaving: Vec::new(), listener, channel, local }), descriptor))
}

/// Returns the preferences for the paths, as far as the transport has them.
fn path(is_infiniband: bool, options: &PortOptions) -> PathPreference {
    // Code 1 is 256 bytes, and each next one twice as many.
    let code = |bytes: u32| bytes.clamp(256, 4096).ilog2().saturating_sub(7) as u8;
    let mtu = options.path_mtu.filter(|_| is_infiniband).map_or(0, code);
    let ack_timeout = ack_timeout(options.silence);
    PathPreference { mtu, traffic_class: options.traffic_class, ack_timeout }
}

/// Returns the requested limits, as far as the device has them.
fn facts(device: &Device, port: PortAttributes, options: &PortOptions) -> Facts {
    let limits = device.attributes();
    let is_infiniband = device.transport() == DeviceTransport::InfiniBand;
    let most_work = count(limits.max_qp_wr).saturating_sub(PROBES).max(1);
    let slices = options.slices.min(count(limits.max_sge)).clamp(1, MOST_PARTS as u32);
    let (send_depth, receive_depth) =
        (options.send_depth.clamp(1, most_work), options.receive_depth.clamp(1, most_work));
    let has_shared = limits.max_srq > 0 && count(limits.max_srq_sge) >= slices;
    let shared = if has_shared { options.shared_receive_depth.min(count(limits.max_srq_wr)) } else { 0 };
    // All requests in progress must fit the completion queue.
    let room = count(limits.max_cqe).saturating_sub(shared) / (send_depth + receive_depth + PROBES);
    let message_bytes = port.message_bytes.min(options.work_bytes).max(1);
    let connections = options.connections.min(count(limits.max_qp)).min(room).clamp(1, MOST_LINKS);
    let atomics = is_infiniband && limits.atomic_cap != raw::IBV_ATOMIC_NONE;
    Facts {
        name: "verbs",
        ordered_within_write: false,
        ordered_among_writes: false,
        active_speaks_first: !is_infiniband,
        write_proves_placement: is_infiniband,
        waits_for_receive: is_infiniband,
        read_needs_remote_write: !is_infiniband,
        registration_pins: true,
        immediates: is_infiniband,
        atomics,
        atomics_exclude_processor: atomics && limits.atomic_cap == raw::IBV_ATOMIC_GLOB,
        inline_bytes: 0,
        message_bytes,
        // As many work requests as the send queue has places.
        transfer_bytes: message_bytes.saturating_mul(send_depth),
        slices,
        read_slices: slices.min(count(limits.max_sge_rd)).max(1),
        send_depth,
        receive_depth,
        shared_receive_depth: shared,
        connections,
        regions: options.regions.min(count(limits.max_mr)),
    }
}

fn entries(facts: &Facts) -> u32 {
    let Facts { connections, send_depth, receive_depth, shared_receive_depth, .. } = *facts;
    let granted = PortOptions {
        connections,
        send_depth,
        receive_depth,
        shared_receive_depth,
        ..PortOptions::default()
    };
    granted.completion_entries()
}

/// Returns the least entries of a completion queue.
///
/// libsiw refuses the queue that the kernel lets it map at offset 0x90000: there its number for no offset
/// (`SIW_INVAL_UOBJ_KEY`) lies in the middle of those that the kernel gives to the queues of a context, one after the
/// other (rdma-core 44, Linux 6.1). So one of some 16 to 140 queue pairs could not be made. The completion queue is the
/// first one: with so many entries, of 32 bytes, it contains this offset.
fn least_entries(device: &Device) -> u32 {
    const NO_OFFSET: u32 = 0x9_0000;
    let limits = device.attributes();
    if limits.vendor_id == SIW { (NO_OFFSET / 32).min(count(limits.max_cqe)) } else { 0 }
}

/// Determines the device's limit of inline payload, by making queue pairs, and the order that it guarantees.
fn probe(
    domain: &Arc<Domain>,
    queue: &Arc<CompletionQueue>,
    facts: &Facts,
    options: &PortOptions,
) -> Result<(Depths, Option<bool>), VerbsError> {
    let (send, receive, parts) = (facts.send_depth + PROBES, facts.receive_depth, facts.slices);
    let mut refused = None;
    let tried = std::iter::once(options.inline_bytes)
        .chain(INLINE.into_iter().filter(|it| *it < options.inline_bytes));
    for inline in tried {
        match QueuePair::new(domain, queue, None, Depths { send, receive, parts, inline }) {
            Ok(pair) => return Ok((pair.depths(), pair.promises_order())),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| domain.device().error("a queue pair", libc::EINVAL)))
}

/// Makes a shared receive queue, if the device really has one.
fn share(domain: &Arc<Domain>, facts: &mut Facts) -> Option<SharedDevice> {
    if facts.shared_receive_depth == 0 {
        return None;
    }
    match SharedReceives::new(domain, facts.shared_receive_depth, facts.slices) {
        Ok(queue) => Some(SharedDevice { posted: Slab::new(queue.depth()), queue }),
        // The facts report it; plain receives do as well.
        Err(_) => {
            facts.shared_receive_depth = 0;
            None
        }
    }
}

/// Returns one descriptor that is readable when one of these is.
fn watch(descriptors: &[i32]) -> Result<OwnedFd, VerbsError> {
    // SAFETY: no requirements.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: a new descriptor, given to us alone.
    let epoll = unsafe { own(epoll) }.map_err(|_| VerbsError::system("a descriptor to wait on"))?;
    for descriptor in descriptors {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the event can be read.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *descriptor, &raw mut event) }
            != 0
        {
            return Err(VerbsError::system("watching a device"));
        }
    }
    Ok(epoll)
}
