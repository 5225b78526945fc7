//! One process: its port, its virtual interface, and its memory.

use std::time::Duration;

use nemesia_core::port::memory::{
    Completion, Event, MemoryPort, Offer, PortRegion, Private, RegionAccess, WorkOutcome,
};
use nemesia_core::via::codes::{AsyncError, Reliability};
use nemesia_core::via::record::ViaRecord;
use nemesia_core::via::vi::{MIRROR_STORAGE, ViQueue};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{Vi, ViAttributes, ViaSegment};
use nemesia_core::wire::vipl::ViplMessage;
use nemesia_verification::rdma::{Fabric, SimPort};

use super::areas::{AREAS, Area, BYTES, SLOT_BYTES, SLOTS, offset_of};
use super::link::{MESSAGE_MEMORY, SimCarrier, SimLink};
use crate::channel::node::Land;

/// Turns in which two processes are connected.
const CONNECT_TURNS: usize = 5000;

/// Returns the first bytes of a constant slot of a side.
pub(super) fn pattern(side: usize, slot: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + slot * 31 + side * 101) as u8).collect()
}

/// A process.
pub(super) struct ViplSide {
    // Dropped before the memory that it was lent.
    port: SimPort,
    pub(super) vi: Vi<Vec<WorkEntry>, Vec<ViaSegment>>,
    link: Option<SimLink>,
    region: PortRegion,
    message_region: PortRegion,
    memory: Land,
    messages: Land,
    /// The free slots of each area.
    pub(super) free: [Vec<usize>; AREAS],
    is_up: bool,
}

impl ViplSide {
    pub(super) fn new(mut port: SimPort, at: usize, reliability: Reliability) -> Result<Self, String> {
        let (memory, messages) = (Land::new(BYTES as u64), Land::new(MESSAGE_MEMORY));
        let all = RegionAccess { remote_atomic: false, ..RegionAccess::ALL };
        let mut register = |lent, access| port.register(lent, access).map_err(|error| error.to_string());
        let region = register(memory.lent(BYTES as u64), all)?;
        let message_region = register(messages.lent(MESSAGE_MEMORY), RegionAccess::LOCAL)?;
        let attributes = ViAttributes {
            reliability,
            max_transfer: 4096,
            qos: 0,
            ptag: 1,
            rdma_write: true,
            rdma_read: true,
        };
        let storage = || (vec![WorkEntry::default(); 64], vec![ViaSegment::default(); 512]);
        let vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
        let free = std::array::from_fn(|_| (0..SLOTS).collect());
        let side =
            Self { port, vi, link: None, region, message_region, memory, messages, free, is_up: false };
        (0..SLOTS).for_each(|slot| side.write(Area::Constant, slot, &pattern(at, slot, SLOT_BYTES)));
        Ok(side)
    }

    fn at(area: Area, slot: usize) -> u64 {
        ((area as usize * SLOTS + slot) * SLOT_BYTES) as u64
    }

    pub(super) fn write(&self, area: Area, slot: usize, bytes: &[u8]) {
        assert!(
            self.memory.lent(BYTES as u64).write(Self::at(area, slot), bytes),
            "the slot has that length"
        );
    }

    pub(super) fn read(&self, area: Area, slot: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(
            self.memory.lent(BYTES as u64).read(Self::at(area, slot), &mut bytes),
            "the slot has that length"
        );
        bytes
    }

    /// Returns the first bytes of a list of segments.
    pub(super) fn gather(&self, list: &[ViaSegment], len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in list {
            let mut part = vec![0; segment.length as usize];
            let offset = offset_of(*segment).unwrap_or_default();
            assert!(self.memory.lent(BYTES as u64).read(offset, &mut part), "the segment lies in the memory");
            bytes.extend(part);
        }
        bytes.truncate(len);
        bytes
    }

    pub(super) fn take(&mut self, queue: ViQueue) -> Option<WorkEntry> {
        while self.vi.report(queue).is_some() {}
        self.vi.take(queue)
    }

    fn link(&mut self, connection: nemesia_core::port::memory::Connection, is_caller: bool) {
        let regions = (self.region, self.message_region);
        let link = SimLink::new(&mut self.port, connection, regions, is_caller);
        self.link = Some(link);
    }

    /// Makes progress. Returns whether a message waited for a receive of the other side.
    pub(super) fn drive(&mut self, now: Duration) -> Result<bool, String> {
        let Self { port, vi, link: Some(link), .. } = self else { return Ok(false) };
        let mut completions = [Completion::EMPTY; 8];
        let count = port.poll(&mut completions);
        for completion in completions.iter().take(count) {
            match completion.outcome {
                WorkOutcome::Failed(_) => link.is_cut = true,
                WorkOutcome::Done => vi.transferred(link.end_oldest()),
                WorkOutcome::Received { len, .. } => {
                    let bytes = link.take_message(port, &self.messages, completion.id, len);
                    match ViplMessage::decode(&bytes) {
                        Some(ViplMessage::Taken(count)) => link.taken_there(count)?,
                        Some(ViplMessage::Record { code, word, bytes }) => {
                            let record = ViaRecord::decode(code, word, bytes).ok_or("a malformed record")?;
                            let arrived = vi.arrive(record, &mut SimCarrier(link));
                            arrived.map_err(|violation| violation.to_string())?;
                        }
                        other => return Err(format!("a message that no side sends: {other:?}")),
                    }
                }
            }
        }
        while let Some(event) = port.poll_event(now) {
            link.is_cut |=
                matches!(event, Event::Lost { .. } | Event::Failed { .. } | Event::PortFailed { .. });
        }
        vi.pump(&mut SimCarrier(link));
        vi.refill(&mut SimCarrier(link));
        let waits = link.issue(port, &self.messages);
        if link.is_cut {
            vi.lose(AsyncError::ConnectionLost);
        }
        Ok(waits)
    }
}

/// Connects two processes.
pub(super) fn connect(fabric: &Fabric, sides: &mut [ViplSide; 2]) -> Result<(), String> {
    let offer = Offer { private: Private::EMPTY, shared_receive: false, deadline: Duration::from_secs(1000) };
    let [caller, called] = sides;
    let address = called.port.address().ok_or("the port has no address")?;
    let connection = caller.port.connect(&address, &offer).map_err(|error| error.to_string())?;
    caller.link(connection, true);
    for _ in 0..CONNECT_TURNS {
        let now = fabric.pass();
        for side in [&mut *caller, &mut *called] {
            match side.port.poll_event(now) {
                Some(Event::Requested { connection, .. }) => {
                    side.link(connection, false);
                    side.port.accept(connection, &offer).map_err(|error| error.to_string())?;
                }
                Some(Event::Established { .. }) => side.is_up = true,
                Some(event) => return Err(format!("not connected: {event:?}")),
                None => {}
            }
        }
        if caller.is_up && called.is_up {
            break;
        }
    }
    let key = |side: &ViplSide| side.port.key(side.region).ok_or("the port gives no key");
    let keys = [key(called)?, key(caller)?];
    for (side, key) in [caller, called].into_iter().zip(keys) {
        let link = side.link.as_mut().filter(|_| side.is_up).ok_or("no connection was made")?;
        link.remote = Some(key);
        let is_connected = side.vi.begin_connect().is_ok() && side.vi.connected();
        if !is_connected {
            return Err("the interface is not idle".into());
        }
    }
    Ok(())
}
