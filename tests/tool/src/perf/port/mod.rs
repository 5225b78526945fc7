//! The traffic over a memory port, without the engine: RDMA writes into the peer's memory.
//!
//! In a ping-pong, a write is found by polling on its last byte if the port places bytes in order, as
//! `ib_write_lat` of perftest does. Otherwise, and for empty writes, it is found by the receive that a write
//! with immediate consumes, or by a message behind the write. In windows `UNDER_WAY` writes are under way (as
//! in `ib_write_bw`); the time ends when the target has confirmed the last.

mod link;
mod meet;
mod memory;

use std::net::{Ipv4Addr, SocketAddr};

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia::tcp::{self, Options, TcpPort};
use nemesia::verbs::{DevicePreference, PortOptions, VerbsPort};
use nemesia_core::port::memory::Facts;

use super::plan::Plan;
use link::PortLink;
use meet::text;

/// The writes under way in a window, as many as perftest has.
const UNDER_WAY: u32 = 128;
/// The work requests of a send queue.
const DEPTH: u32 = 2 * UNDER_WAY;

/// How the target of a write learns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// By its last byte.
    LastByte,
    /// By an immediate.
    Immediate,
    /// By an empty message behind it.
    Message,
}

impl Arrival {
    /// If `last_byte` is set, the port's promise of order is ignored.
    const fn of(facts: &Facts, last_byte: bool, bytes: usize) -> Self {
        match ((facts.ordered_within_write || last_byte) && bytes > 0, facts.immediates) {
            (true, _) => Self::LastByte,
            (false, true) => Self::Immediate,
            (false, false) => Self::Message,
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::LastByte => "found by polling on their last byte",
            Self::Immediate => "with immediate",
            Self::Message => "each followed by an empty send",
        }
    }
}

/// Describes the measurement for the reader of the results.
fn describe(place: &str, facts: &Facts, last_byte: bool) -> String {
    let arrival = Arrival::of(facts, last_byte, 1).describe();
    let inline = facts.inline_bytes;
    format!(
        "memory port, without the engine: {place}; RDMA writes, in the ping-pong {arrival}, inline up to {inline} \
        bytes, \
         in windows {} under way",
        window(facts)
    )
}

/// Returns the writes under way in a window; there is room for one message in addition.
fn window(facts: &Facts) -> u64 {
    u64::from(UNDER_WAY.min(facts.send_depth / 2).max(1))
}

/// Connects the two processes over TCP on the loopback interface.
pub(super) fn over_tcp(bootstrap: Bootstrap, most: usize) -> Result<PortLink<TcpPort>, String> {
    let options = Options { connections: 4, regions: 4, send_depth: DEPTH, ..Options::default() };
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let port = tcp::listen(at, &options).map_err(text)?;
    PortLink::new(bootstrap, port, most, false, &format!("TCP over {}", at.ip()))
}

/// Connects the two processes over the named devices, or over any.
pub(super) fn over_verbs(
    bootstrap: Bootstrap,
    most: usize,
    plan: &Plan,
) -> Result<PortLink<VerbsPort>, String> {
    let device = plan.devices.get(bootstrap.rank()).or(plan.devices.first()).cloned();
    let usual = PortOptions::default();
    let options = PortOptions {
        preference: DevicePreference { device, ..DevicePreference::default() },
        connections: 4,
        send_depth: DEPTH,
        shared_receive_depth: 0,
        regions: 8,
        inline_bytes: plan.inline.unwrap_or(usual.inline_bytes),
        ..usual
    };
    let port = VerbsPort::open(&options).map_err(text)?;
    let place = port.selection().to_string();
    PortLink::new(bootstrap, port, most, plan.last_byte, &place)
}
