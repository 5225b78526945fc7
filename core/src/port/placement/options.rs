//! The limits of a port.
#![forbid(unsafe_code)]

use core::time::Duration;

use super::link::MOST_INLINE;
use super::regions::{MOST_PARTS, MOST_REGIONS};
use crate::port::memory::Facts;

/// The limits of a port. Memory is taken when it is needed, and bounded by these.
#[derive(Clone, Copy, Debug)]
pub struct PlacementOptions {
    /// Connections.
    pub connections: u32,
    /// Regions, at most 65536.
    pub regions: u32,
    /// Work requests of a connection's send queue.
    pub send_depth: u32,
    /// Receives of a connection's own queue.
    pub receive_depth: u32,
    /// Receives of the shared queue. With one for each connection that uses it, no peer can keep another from
    /// sending.
    pub shared_receive_depth: u32,
    /// How long a peer may go on reading memory that is being deregistered. After that its connection ends.
    pub patience: Duration,
    /// Whether a message may be read to the receive that it probably takes before its frame is known. Other bytes may
    /// then lie behind a message, within the memory of its receive.
    pub reads_ahead: bool,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        Self {
            connections: 1024,
            regions: 16384,
            send_depth: 64,
            receive_depth: 64,
            shared_receive_depth: 256,
            patience: Duration::from_secs(10),
            reads_ahead: false,
        }
    }
}

impl PlacementOptions {
    pub(super) fn facts(&self, name: &'static str) -> Facts {
        Facts {
            name,
            ordered_within_write: true,
            ordered_among_writes: true,
            active_speaks_first: false,
            write_proves_placement: true,
            waits_for_receive: true,
            read_needs_remote_write: false,
            registration_pins: false,
            immediates: true,
            atomics: true,
            atomics_exclude_processor: true,
            inline_bytes: MOST_INLINE as u32,
            message_bytes: 1 << 30,
            transfer_bytes: 1 << 30,
            slices: MOST_PARTS as u32,
            read_slices: MOST_PARTS as u32,
            send_depth: self.send_depth.max(1),
            receive_depth: self.receive_depth.max(1),
            shared_receive_depth: self.shared_receive_depth,
            connections: self.connections.max(1),
            regions: self.regions.clamp(1, MOST_REGIONS),
        }
    }
}
