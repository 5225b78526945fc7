//! Connections between machines (paper 2, section 1.4.3, over a memory port instead of SCI): the memory port of the
//! process, and the attempts to connect.
//!
//! Payload moves by the writes and reads of the port, from and to the registered memory of the two programs. Records
//! are messages ([`nemesia_core::wire::vipl`]). So the model of a VI is the same as inside a machine; the difference is
//! that transfers end later ([`ViaCarrier::pending`](nemesia_core::via::ViaCarrier::pending)).
//!
//! | file | contents |
//! |---|---|
//! | `link.rs` | one connection: its messages, its transfers, lent regions |
//! | `buffers.rs` | the memory of its messages |
//! | `conduit.rs` | what a VI asks of it |
//!
//! Progress is in `network_progress.rs`, connecting in `network_connect.rs`.

mod buffers;
mod conduit;
mod link;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Armed, Connection, Event, MemoryPort as _, Offer, PortRegion, Private, RegionAccess,
};
use nemesia_core::via::ViaError;
use nemesia_core::wire::vipl::ViplHello;

pub(super) use conduit::NetworkConduit;
pub(super) use link::{NetworkLink, RegionSync};

use super::region::RegionMemory;
use crate::tcp::{Options, SocketOptions, TcpPort, listen_as};

/// Most connections to other machines.
const MOST_CONNECTIONS: u32 = 4096;
/// Regions of the port: each connection registers those that it lends once more.
const MOST_PORT_REGIONS: u32 = 1 << 16;
/// Work requests of one connection that are in progress.
const SEND_DEPTH: u32 = 64;
/// The limit of a connection of the port.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// An attempt to connect the memory ports of two processes.
#[derive(Debug)]
struct PortAttempt {
    /// The ticket of the request.
    ticket: [u8; 16],
    connection: Option<Connection>,
    /// Whether the connection exists, or the attempt has failed.
    outcome: Option<bool>,
}

/// A connection whose VI is disconnected: its last messages leave, then it is closed.
#[derive(Debug)]
pub(super) struct ClosingLink {
    pub(super) link: NetworkLink,
    until: Instant,
}

/// The memory port of the process, and its connections.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) port: TcpPort,
    start: Instant,
    attempts: Vec<PortAttempt>,
    /// The VI of each connection.
    pub(super) owners: HashMap<Connection, u64>,
    pub(super) closing: Vec<ClosingLink>,
    /// The region of the port for each region that this process sends from or reads into, by handle.
    locals: HashMap<u32, PortRegion>,
}

impl Network {
    /// Opens a memory port at the address of this process. A machine that does not answer for `silence` is lost.
    pub(super) fn open(address: Ipv4Addr, silence: Duration) -> Result<Self, ViaError> {
        let options = Options {
            connections: MOST_CONNECTIONS,
            regions: MOST_PORT_REGIONS,
            send_depth: SEND_DEPTH,
            receive_depth: buffers::RECEIVES as u32,
            shared_receive_depth: 0,
            ..Options::default()
        };
        let sockets = SocketOptions { silence, ..SocketOptions::default() };
        let port = listen_as((address, 0).into(), sockets, &options).map_err(|_| ViaError::NotReachable)?;
        Ok(Self {
            port,
            start: Instant::now(),
            attempts: Vec::new(),
            owners: HashMap::new(),
            closing: Vec::new(),
            locals: HashMap::new(),
        })
    }

    /// Returns the descriptor that becomes readable when something arrives.
    pub(super) fn descriptor(&self) -> Option<i32> {
        self.port.descriptor()
    }

    /// Returns whether nothing has to be done before the descriptor is readable. The port then holds no report back.
    pub(super) fn arm(&mut self) -> bool {
        self.port.arm() == Armed::Sleep
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
        self.attempts.push(PortAttempt { ticket, connection: Some(connection), outcome: None });
        Ok(())
    }

    /// Expects a connection with this ticket. Returns the address of the port.
    pub(super) fn expect(&mut self, ticket: [u8; 16]) -> Result<Address, ViaError> {
        let address = self.port.address().ok_or(ViaError::ErrorResource)?;
        self.attempts.push(PortAttempt { ticket, connection: None, outcome: None });
        Ok(address)
    }

    /// Returns the connection with this ticket if it exists, or that it has failed; `None` if the attempt goes on.
    pub(super) fn take_outcome(&mut self, ticket: [u8; 16]) -> Option<Result<Connection, ViaError>> {
        let at = self.attempts.iter().position(|attempt| attempt.ticket == ticket)?;
        let outcome = self.attempts[at].outcome?;
        let connection = self.attempts.swap_remove(at).connection.filter(|_| outcome);
        Some(connection.ok_or(ViaError::NotReachable))
    }

    /// Ends an attempt.
    pub(super) fn abandon(&mut self, ticket: [u8; 16]) {
        let Some(at) = self.attempts.iter().position(|attempt| attempt.ticket == ticket) else { return };
        if let Some(connection) = self.attempts.swap_remove(at).connection {
            self.port.close(connection);
        }
    }

    fn requested(&mut self, connection: Connection, private: &Private) {
        let ticket = ViplHello::decode(private.bytes()).map(|hello| hello.ticket);
        let offer = self.offer(None);
        let mut attempts = self.attempts.iter_mut();
        let expected = attempts.find(|it| Some(it.ticket) == ticket && it.connection.is_none());
        match expected {
            Some(attempt) if self.port.accept(connection, &offer).is_ok() => {
                attempt.connection = Some(connection);
            }
            // A connection that is no longer requested has left.
            _ => drop(self.port.refuse(connection, Private::EMPTY)),
        }
    }

    fn decide(&mut self, connection: Connection, is_ready: bool) {
        let attempt = self.attempts.iter_mut().find(|it| it.connection == Some(connection));
        if let Some(attempt) = attempt {
            attempt.outcome = Some(is_ready);
        }
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
                Event::Failed { connection, .. } => {
                    self.decide(connection, false);
                    self.port.close(connection);
                }
                Event::Lost { connection, .. } => match self.owners.get(&connection) {
                    Some(vi) => lost.push(*vi),
                    None => {
                        self.decide(connection, false);
                        self.port.close(connection);
                    }
                },
                Event::Closed { .. } => {}
                Event::PortFailed { .. } => lost.extend(self.owners.values()),
            }
        }
        self.finish_closing();
        (lost, is_changed)
    }

    /// Closes the connections whose last messages have left, that are lost, or that take too long.
    fn finish_closing(&mut self) {
        let mut at = 0;
        while let Some(closing) = self.closing.get(at) {
            if closing.link.is_idle(&self.port) || Instant::now() >= closing.until {
                let closing = self.closing.swap_remove(at);
                closing.link.close(&mut self.port);
            } else {
                at += 1;
            }
        }
    }

    /// Returns the region of the port for memory of this process.
    fn local(&mut self, handle: u32, memory: &RegionMemory) -> Option<PortRegion> {
        if let Some(region) = self.locals.get(&handle) {
            return Some(*region);
        }
        let region = self.register(memory, RegionAccess::LOCAL)?;
        self.locals.insert(handle, region);
        Some(region)
    }

    fn register(&mut self, memory: &RegionMemory, access: RegionAccess) -> Option<PortRegion> {
        let (base, len) = (memory.address().as_ptr(), memory.len());
        // SAFETY: the program promised that registered memory stays mapped, readable and writable until it is
        // deregistered, which `ViaState::remove_region` executes: it withdraws the memory from the port first. Nothing
        // makes a reference to it.
        let lent = unsafe { LentMemory::from_raw(base, len) };
        self.port.register(lent, access).ok()
    }

    /// Deregisters the memory of a handle that becomes invalid.
    pub(super) fn forget(&mut self, handle: u32) {
        if let Some(region) = self.locals.remove(&handle) {
            link::deregister(&mut self.port, region);
        }
    }
}
