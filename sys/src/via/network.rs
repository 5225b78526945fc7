//! Connections between machines (paper 2, section 1.4.3, over a memory port instead of SCI): the memory ports of the
//! process, and the attempts to connect.
//!
//! Payload moves by the writes and reads of the port, from and to the registered memory of the two programs. Records
//! are messages ([`nemesia_core::wire::vipl`]). So the model of a VI is the same as inside a machine; the difference is
//! that transfers end later ([`ViaCarrier::pending`](nemesia_core::via::ViaCarrier::pending)).
//!
//! | file | contents |
//! |---|---|
//! | `networks.rs` | the memory ports over TCP and over an RDMA device, and the choice between them |
//! | `port.rs` | a memory port of either kind |
//! | `link.rs` | one connection: its messages, its transfers |
//! | `lending.rs`, `lend.rs` | the regions that the two processes of a connection lend to each other |
//! | `buffers.rs` | the memory of its messages |
//! | `conduit.rs` | what a VI asks of it |
//!
//! Progress is in `network_progress.rs`, connecting in `network_connect.rs`.

mod buffers;
mod conduit;
mod lend;
mod lending;
mod link;
mod networks;
mod port;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Completion, Connection, Event, MemoryPort, Offer, PortRegion, Private, RegionAccess, WorkOutcome,
};
use nemesia_core::via::ViaError;
use nemesia_core::wire::vipl::ViplHello;

use buffers::MessageBuffers;
pub(super) use conduit::NetworkConduit;
pub(super) use lending::RegionSync;
pub(super) use link::NetworkLink;
pub(super) use networks::{Networks, code_of, transport_of};
use port::{AnyViaPort, PortAlarm};

use super::region::RegionMemory;
use crate::transport::net::Transport;

/// Most connections to other machines over TCP.
const MOST_CONNECTIONS: u32 = 4096;
/// Regions of a port: each connection registers those that it lends once more.
const MOST_PORT_REGIONS: u32 = 1 << 16;
/// Work requests of one connection that are in progress.
const SEND_DEPTH: u32 = 64;
/// The limit of a connection of the port.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A connection that is being made, or that no VI has taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortTicket {
    pub(super) transport: Transport,
    /// The ticket of the request.
    pub(super) ticket: [u8; 16],
}

/// An attempt to connect the memory ports of two processes.
#[derive(Debug)]
struct PortAttempt {
    ticket: [u8; 16],
    /// The connection, with its receives posted.
    link: Option<NetworkLink>,
    /// Whether the connection exists, or the attempt has failed.
    outcome: Option<bool>,
}

impl PortAttempt {
    fn is_of(&self, connection: Connection) -> bool {
        self.link.as_ref().is_some_and(|link| link.connection == connection)
    }
}

/// A connection whose VI is disconnected: its last messages leave, then it is closed.
#[derive(Debug)]
pub(super) struct ClosingLink {
    pub(super) link: NetworkLink,
    until: Instant,
}

/// A region that the port could not deregister yet, with the memory of messages if it is theirs.
#[derive(Debug)]
struct RetiredRegion {
    region: PortRegion,
    buffers: Option<MessageBuffers>,
}

/// The regions of the port for memory that this process sends from, and that it reads into.
#[derive(Clone, Copy, Debug, Default)]
struct LocalRegions {
    source: Option<PortRegion>,
    sink: Option<PortRegion>,
}

/// A memory port of the process, and its connections.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) port: AnyViaPort,
    /// Where the port is, in one line.
    place: String,
    alarm: PortAlarm,
    has_failed: bool,
    start: Instant,
    attempts: Vec<PortAttempt>,
    /// The VI of each connection.
    pub(super) owners: HashMap<Connection, u64>,
    pub(super) closing: Vec<ClosingLink>,
    /// By handle.
    locals: HashMap<u32, LocalRegions>,
    retired: Vec<RetiredRegion>,
}

impl Network {
    fn new(port: AnyViaPort, place: String) -> Self {
        Self {
            port,
            place,
            alarm: PortAlarm::default(),
            has_failed: false,
            start: Instant::now(),
            attempts: Vec::new(),
            owners: HashMap::new(),
            closing: Vec::new(),
            locals: HashMap::new(),
            retired: Vec::new(),
        }
    }

    /// Returns whether the port has failed and nothing uses it any more.
    fn is_over(&self) -> bool {
        self.has_failed && self.owners.is_empty() && self.closing.is_empty()
    }

    /// Returns the descriptor that becomes readable when something arrives.
    pub(super) fn descriptor(&self) -> Option<i32> {
        self.port.descriptor()
    }

    /// Returns whether nothing has to be done before the descriptor is readable. The port then holds no report back.
    /// `again`: the descriptor was readable since the last call.
    pub(super) fn arm(&mut self, again: bool) -> bool {
        self.alarm.set(&mut self.port, again)
    }

    /// Takes completions. Returns their number.
    pub(super) fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.alarm.poll(&mut self.port, into)
    }

    /// Returns the number of completions that can be there at once, of all connections.
    pub(super) fn most_completions(&self) -> usize {
        let links = self.owners.len() + self.closing.len() + self.attempts.len();
        links * (SEND_DEPTH as usize + buffers::RECEIVES)
    }

    fn offer(&self, ticket: Option<[u8; 16]>) -> Offer {
        let hello = ticket.map(|ticket| ViplHello { ticket }.encode());
        let private = hello.and_then(|hello| Private::new(&hello)).unwrap_or(Private::EMPTY);
        Offer { private, shared_receive: false, deadline: self.start.elapsed() + CONNECT_LIMIT }
    }

    /// Begins to connect to the port of another process, with the ticket of the request.
    pub(super) fn call(&mut self, ticket: [u8; 16], to: &Address) -> Result<(), ViaError> {
        let offer = self.offer(Some(ticket));
        let connection = self.port.connect(to, &offer).map_err(|_| ViaError::NotReachable)?;
        let link = NetworkLink::new(self, connection, true).inspect_err(|_| self.port.close(connection))?;
        self.attempts.push(PortAttempt { ticket, link: Some(link), outcome: None });
        Ok(())
    }

    /// Expects a connection with this ticket. Returns the address of the port.
    pub(super) fn expect(&mut self, ticket: [u8; 16]) -> Result<Address, ViaError> {
        let address = self.port.address().ok_or(ViaError::ErrorResource)?;
        self.attempts.push(PortAttempt { ticket, link: None, outcome: None });
        Ok(address)
    }

    /// Returns whether the connection with this ticket exists, or has failed; `None` if the attempt goes on.
    pub(super) fn outcome(&self, ticket: [u8; 16]) -> Option<bool> {
        self.attempts.iter().find(|attempt| attempt.ticket == ticket)?.outcome
    }

    /// Takes the connection with this ticket for a VI. If it is lost already, what has arrived is still in it.
    pub(super) fn take_link(&mut self, ticket: [u8; 16], vi: u64) -> Option<NetworkLink> {
        let at = self.attempts.iter().position(|attempt| attempt.ticket == ticket)?;
        let attempt = self.attempts.swap_remove(at);
        let mut link = attempt.link?;
        link.is_cut |= attempt.outcome != Some(true);
        self.owners.insert(link.connection, vi);
        Some(link)
    }

    /// Expects the connection of a failed attempt once more.
    pub(super) fn renew(&mut self, ticket: [u8; 16]) {
        self.abandon(ticket);
        self.attempts.push(PortAttempt { ticket, link: None, outcome: None });
    }

    /// Ends an attempt.
    pub(super) fn abandon(&mut self, ticket: [u8; 16]) {
        let Some(at) = self.attempts.iter().position(|attempt| attempt.ticket == ticket) else { return };
        if let Some(link) = self.attempts.swap_remove(at).link {
            self.close(link);
        }
    }

    fn requested(&mut self, connection: Connection, private: &Private) {
        let ticket = ViplHello::decode(private.bytes()).map(|hello| hello.ticket);
        let offer = self.offer(None);
        let mut attempts = self.attempts.iter();
        let expected = attempts.position(|it| Some(it.ticket) == ticket && it.link.is_none());
        let link = expected.and_then(|_| NetworkLink::new(self, connection, false).ok());
        if let Some((at, link)) = expected.zip(link) {
            if self.port.accept(connection, &offer).is_ok() {
                self.attempts[at].link = Some(link);
                return;
            }
            self.close(link);
        }
        // A connection that is no longer requested has left.
        let _ = self.port.refuse(connection, Private::EMPTY);
    }

    fn decide(&mut self, connection: Connection, is_ready: bool) {
        if let Some(attempt) = self.attempts.iter_mut().find(|it| it.is_of(connection)) {
            // A connection that is lost before its VI has taken it was made: what has arrived says why it ended. So was
            // one that fails after a message has arrived: the other side ended it at once.
            let is_made = is_ready || attempt.link.as_ref().is_some_and(NetworkLink::has_message);
            let outcome = *attempt.outcome.get_or_insert(is_made);
            attempt.link.iter_mut().for_each(|link| link.is_cut |= outcome && !is_ready);
        } else if !is_ready {
            self.port.close(connection);
        }
    }

    /// Keeps a completion of a connection that no VI has taken yet. Returns whether there is such a connection.
    pub(super) fn keep_early(&mut self, completion: &Completion) -> bool {
        let mut attempts = self.attempts.iter_mut();
        let Some(attempt) = attempts.find(|it| it.is_of(completion.connection)) else { return false };
        let Some(link) = attempt.link.as_mut() else { return false };
        // One for each receive: they are not posted again.
        link.early.push(*completion);
        // A message proves that the connection was made for the other side, which may have ended it at once.
        if matches!(completion.outcome, WorkOutcome::Received { .. }) && attempt.outcome == Some(false) {
            (attempt.outcome, link.is_cut) = (Some(true), true);
        }
        true
    }

    /// Makes progress on connections that are being made. Returns the VIs whose connection is lost, and whether
    /// anything happened.
    pub(super) fn progress_connections(&mut self) -> (Vec<u64>, bool) {
        let (mut lost, mut is_changed) = (Vec::new(), false);
        while let Some(event) = self.port.poll_event(self.start.elapsed()) {
            is_changed = true;
            match event {
                Event::Requested { connection, private } => self.requested(connection, &private),
                Event::Established { connection, .. } => self.decide(connection, true),
                Event::Failed { connection, .. } => self.decide(connection, false),
                Event::Lost { connection, .. } => match self.owners.get(&connection) {
                    Some(vi) => lost.push(*vi),
                    None => self.decide(connection, false),
                },
                Event::Closed { .. } => {}
                Event::PortFailed { .. } => {
                    self.has_failed = true;
                    lost.extend(self.owners.values());
                    self.attempts.iter_mut().for_each(|attempt| attempt.outcome = Some(false));
                }
            }
        }
        self.finish_closing();
        self.finish_retired();
        (lost, is_changed)
    }

    /// Closes the connections whose last messages have left, that are lost, or that take too long.
    fn finish_closing(&mut self) {
        let mut at = 0;
        while let Some(closing) = self.closing.get(at) {
            if closing.link.is_idle(&self.port) || Instant::now() >= closing.until {
                let closing = self.closing.swap_remove(at);
                self.close(closing.link);
            } else {
                at += 1;
            }
        }
    }

    /// Returns the region of the port for memory that this process sends from, or reads into.
    fn local(&mut self, handle: u32, memory: &RegionMemory, is_sink: bool) -> Option<PortRegion> {
        let had = self.locals.get(&handle).copied().unwrap_or_default();
        // On iWARP a read is placed as a write of the peer would be.
        let is_open = is_sink && self.port.facts().read_needs_remote_write;
        if let Some(region) = if is_open { had.sink } else { had.source } {
            return Some(region);
        }
        let access = RegionAccess { remote_write: is_open, ..RegionAccess::LOCAL };
        let region = Some(self.register(memory, access)?);
        let entry = self.locals.entry(handle).or_default();
        *if is_open { &mut entry.sink } else { &mut entry.source } = region;
        region
    }

    fn register(&mut self, memory: &RegionMemory, access: RegionAccess) -> Option<PortRegion> {
        let (base, len) = (memory.address().as_ptr(), memory.len());
        // SAFETY: the program promised that registered memory stays mapped, readable and writable until it is
        // deregistered, which `ViaState::remove_region` executes: it withdraws the memory from the port first, and ends
        // the connections that still use it. Nothing makes a reference to it.
        let lent = unsafe { LentMemory::from_raw(base, len) };
        self.port.register(lent, access).ok()
    }

    /// Deregisters the memory of a handle that becomes invalid. Returns the regions that the device still uses, to be
    /// passed to [`Network::retire`].
    pub(super) fn forget(&mut self, handle: u32) -> Vec<PortRegion> {
        let had = self.locals.remove(&handle).unwrap_or_default();
        let regions = [had.source, had.sink].into_iter().flatten();
        regions.filter(|region| !deregister(&mut *self.port, *region)).collect()
    }

    /// Deregisters a region that the device has used, as soon as the port knows that it does not use it any more. No
    /// connection has an operation of it in progress.
    pub(super) fn retire(&mut self, region: PortRegion) {
        self.retire_with(region, None);
    }

    fn retire_with(&mut self, region: PortRegion, buffers: Option<MessageBuffers>) {
        if deregister(&mut *self.port, region) {
            // SAFETY: deregistered.
            buffers.into_iter().for_each(|buffers| unsafe { buffers.free() });
        } else {
            self.retired.push(RetiredRegion { region, buffers });
        }
    }

    fn finish_retired(&mut self) {
        for RetiredRegion { region, buffers } in std::mem::take(&mut self.retired) {
            self.retire_with(region, buffers);
        }
    }
}

/// Deregisters a region. Returns false if the device still uses it.
fn deregister(port: &mut dyn MemoryPort, region: PortRegion) -> bool {
    port.deregister(region).is_ok()
}
