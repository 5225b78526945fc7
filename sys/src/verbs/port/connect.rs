//! Connections: made, refused, lost, closed.

use std::net::SocketAddr;
use std::time::Duration;

use nemesia_core::joining::JoinPlace;
use nemesia_core::port::memory::{Address, ConnectError, Connection, Event, LostError, Offer, Private};
use rdma_core_sys as raw;

use super::link::VerbsLink;
use super::tag::{Queue, WorkTag};
use super::{PathPreference, SetUp, VerbsPort};
use crate::cm::{
    CmAddress, CmAnswer, CmEvent, CmStage, Id, MOST_PLACES, Side, Step, decode_address, is_taken, step,
};
use crate::rdma::{RETRIES, RNR_FOREVER, VerbsError};
use crate::verbs::device::DeviceTransport;
use crate::verbs::pair::{QueuePair, RNR_TIMER};
use crate::verbs::setup::JoinAddress;

/// The time limit for resolving an address or a route; a deadline may come earlier.
const LOOK_UP: Duration = Duration::from_secs(2);
/// How long the identifier of a closed connection stays if the peer does not confirm: the kernel repeats the
/// end of a connection after 4.3 s, but only while the identifier exists.
const LINGER: Duration = Duration::from_secs(10);
/// The token of the listener.
pub(super) const LISTENER: usize = usize::MAX;

fn token(connection: Connection) -> usize {
    (connection.generation as usize) << 32 | connection.index as usize
}

fn owner(token: usize) -> Connection {
    Connection { index: token as u32, generation: (token >> 32) as u32 }
}

pub(super) fn refused(error: &VerbsError) -> ConnectError {
    match error.code() {
        libc::ECONNREFUSED => ConnectError::NotListening,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::EADDRNOTAVAIL => {
            ConnectError::Unreachable
        }
        libc::EAFNOSUPPORT => ConnectError::Address,
        code => ConnectError::System(code),
    }
}

impl VerbsPort {
    pub(super) fn begin_connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        let to = self.destination(to).ok_or(ConnectError::Address)?;
        if offer.shared_receive && self.shared.is_none() {
            return Err(ConnectError::Unsupported);
        }
        if self.failed {
            return Err(ConnectError::System(libc::ENODEV));
        }
        let mut link = VerbsLink::new(
            Side::Active,
            CmStage::Resolving,
            (self.facts.send_depth, self.facts.receive_depth),
        );
        link.shared = offer.shared_receive;
        if let Destination::Socket(to) = to {
            link.to = Some(to);
        }
        link.private = offer.private;
        link.deadline = offer.deadline;
        link.reads = self.reads;
        let limit = self.facts.connections;
        let connection = self.links.add(link).ok_or(ConnectError::Full { limit })?;
        let made = self.make_active(connection, to);
        if let Err(error) = made {
            self.links.remove(connection);
            return Err(refused(&error));
        }
        self.expect_by(offer.deadline);
        Ok(connection)
    }

    /// Returns where a peer's address leads; `None` if no connection can be made from this port to there.
    fn destination(&self, address: &Address) -> Option<Destination> {
        // With packets of two sizes, each end would refuse those of the other.
        match &self.set_up {
            SetUp::Manager(manager) => {
                let CmAddress { socket, path_mtu } = decode_address(address)?;
                let is_alike = socket.is_ipv4() == manager.local.is_ipv4() && path_mtu == self.path.mtu;
                is_alike.then_some(Destination::Socket(socket))
            }
            SetUp::Datagrams(_) => {
                let JoinAddress { place, path_mtu } = JoinAddress::decode(address)?;
                (path_mtu == self.path.mtu).then_some(Destination::Place(place))
            }
        }
    }

    fn make_active(&mut self, connection: Connection, to: Destination) -> Result<(), VerbsError> {
        let Some(link) = self.links.get_mut(connection) else { return Ok(()) };
        let shared = self.shared.as_ref().filter(|_| link.shared).map(|shared| &shared.queue);
        let pair = QueuePair::new(&self.domain, &self.queue, shared, self.depths)?;
        pair.prepare(self.selection.port)?;
        self.by_pair.insert(pair.number(), connection.index);
        link.pair = Some(pair);
        let begun = match to {
            Destination::Socket(_) => self.resolve(connection),
            Destination::Place(place) => self.ask_by_datagram(connection, place),
        };
        begun.inspect_err(|_| self.destroy_pair(connection))
    }

    /// Begins a request from our own address, with any port.
    fn resolve(&mut self, connection: Connection) -> Result<(), VerbsError> {
        let Some(link) = self.links.get_mut(connection) else { return Ok(()) };
        let (Some(to), SetUp::Manager(manager)) = (link.to, &self.set_up) else { return Ok(()) };
        let id = Id::with_class(&manager.channel, token(connection), self.path.traffic_class)?;
        id.resolve(SocketAddr::new(manager.local.ip(), 0), to, LOOK_UP)?;
        link.stage = CmStage::Resolving;
        link.places += 1;
        link.id = Some(id);
        Ok(())
    }

    /// Handles a connection request of a peer.
    fn requested(&mut self, event: CmEvent) {
        let Some(mut id) = event.request else { return };
        if event.token != LISTENER {
            return;
        }
        let mut link = VerbsLink::new(
            Side::Passive,
            CmStage::Requested,
            (self.facts.send_depth, self.facts.receive_depth),
        );
        // The peer's limits are untrusted: they may lower ours, and nothing else.
        link.reads = (self.reads.0.min(event.depth), self.reads.1.min(event.reads));
        // If no place is free, the request is refused by dropping its identifier.
        let Some(connection) = self.links.add(link) else { return };
        id.set_token(token(connection));
        if let Some(link) = self.links.get_mut(connection) {
            link.id = Some(id);
        }
        self.events.push_back(Event::Requested { connection, private: event.private });
    }

    pub(super) fn accept_request(
        &mut self,
        connection: Connection,
        offer: &Offer,
    ) -> Result<(), ConnectError> {
        let link = self.links.get_mut(connection).ok_or(ConnectError::State)?;
        if link.stage != CmStage::Requested || (offer.shared_receive && !link.early.is_empty()) {
            return Err(ConnectError::State);
        }
        if offer.shared_receive && self.shared.is_none() {
            return Err(ConnectError::Unsupported);
        }
        let shared = self.shared.as_ref().filter(|_| offer.shared_receive).map(|shared| &shared.queue);
        let pair = QueuePair::new(&self.domain, &self.queue, shared, self.depths)
            .map_err(|error| refused(&error))?;
        link.shared = offer.shared_receive;
        let number = pair.number();
        self.by_pair.insert(number, connection.index);
        let accepted = match &self.set_up {
            SetUp::Manager(_) => accept(link, connection, &pair, (self.selection.port, self.path), offer),
            SetUp::Datagrams(joins) => joins.accept((link, connection), &pair, self.path, (offer, self.now)),
        };
        if let Err(error) = accepted {
            self.by_pair.remove(&number);
            return Err(refused(&error));
        }
        link.early.clear();
        link.pair = Some(pair);
        link.deadline = offer.deadline;
        link.stage = CmStage::Accepting;
        self.expect_by(offer.deadline);
        self.send_acceptance(connection);
        Ok(())
    }

    pub(super) fn refuse_request(
        &mut self,
        connection: Connection,
        private: Private,
    ) -> Result<(), ConnectError> {
        let is_request = self.links.get(connection).is_some_and(|link| link.stage == CmStage::Requested);
        if !is_request {
            return Err(ConnectError::State);
        }
        let id = self.links.get(connection).and_then(|link| link.id.as_ref());
        let said = id.map_or(Ok(()), |id| id.reject(private.bytes()));
        self.refuse_by_datagram(connection, private);
        self.destroy_pair(connection);
        // Only posted requests are still reported.
        if let Some(link) = self.links.get_mut(connection) {
            link.stage = CmStage::Over;
        }
        if self.links.get(connection).is_some_and(|link| link.unpolled == 0) {
            self.links.remove(connection);
        }
        // A peer that is gone needs no refusal.
        let _ = said;
        Ok(())
    }

    /// Handles the events of the connection manager.
    pub(super) fn hear_manager(&mut self) {
        // A peer that requests all the time must not hold this loop.
        for _ in 0..32 {
            let SetUp::Manager(manager) = &self.set_up else { return };
            let Some(event) = manager.channel.next() else { return };
            self.queries.hasten();
            if event.kind == raw::RDMA_CM_EVENT_CONNECT_REQUEST {
                self.requested(event);
                continue;
            }
            if event.kind == raw::RDMA_CM_EVENT_DEVICE_REMOVAL {
                self.fail_port(raw::IBV_EVENT_DEVICE_FATAL);
                return;
            }
            let connection = owner(event.token);
            if let (raw::RDMA_CM_EVENT_DISCONNECTED, SetUp::Manager(manager)) = (event.kind, &mut self.set_up)
            {
                manager.leaving.retain(|(_, which, _)| *which != connection);
            }
            let Some(link) = self.links.get(connection) else { continue };
            let step = step(link.stage, event.kind, event.status);
            self.take_step(connection, step, event.private);
        }
    }

    fn take_step(&mut self, connection: Connection, step: Step, private: Private) {
        let done = match step {
            Step::Stay | Step::Unplug => Ok(()),
            Step::Route => self.advance(connection, CmStage::Routing, |id| id.route(LOOK_UP)),
            Step::Ask => self.ask(connection),
            Step::Confirm => self.confirm(connection).map(|()| self.establish(connection, private)),
            Step::Establish => {
                self.establish(connection, private);
                Ok(())
            }
            Step::Fail(error) => {
                self.fail_link(connection, error, private);
                Ok(())
            }
            Step::Lose(error) => {
                self.lose(connection, error);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.fail_link(connection, refused(&error), Private::EMPTY);
        }
    }

    fn advance(
        &mut self,
        connection: Connection,
        stage: CmStage,
        call: impl FnOnce(&Id) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let Some(link) = self.links.get_mut(connection) else { return Ok(()) };
        link.stage = stage;
        link.id.as_ref().map_or(Ok(()), call)
    }

    /// Sends the connection request when the route is known.
    fn ask(&mut self, connection: Connection) -> Result<(), VerbsError> {
        let is_infiniband = self.device.transport() == DeviceTransport::InfiniBand;
        let Some(link) = self.links.get_mut(connection) else { return Ok(()) };
        let (Some(id), Some(pair)) = (&link.id, &link.pair) else { return Ok(()) };
        if is_infiniband {
            // Modifies to INIT once more: the partition key is known only now.
            initialise(id, pair)?;
        }
        link.stage = CmStage::Asking;
        let (reads, depth) = link.reads;
        let answer = CmAnswer {
            private: link.private.bytes(),
            pair: pair.number(),
            reads,
            depth,
            shared: link.shared,
        };
        match id.connect(&answer) {
            // The queue pair has no part in the attempt until the device has the port.
            Err(error) if !is_infiniband && is_taken(&error) && link.places < MOST_PLACES => {
                self.resolve(connection)
            }
            done => done,
        }
    }

    /// Handles the peer's acceptance, if this side must bring the queue pair up.
    fn confirm(&mut self, connection: Connection) -> Result<(), VerbsError> {
        let Some(link) = self.links.get_mut(connection) else { return Ok(()) };
        let (Some(id), Some(pair)) = (&link.id, &link.pair) else { return Ok(()) };
        bring_up(id, pair, self.path)?;
        id.establish()
    }

    pub(super) fn establish(&mut self, connection: Connection, private: Private) {
        let Some(link) = self.links.get_mut(connection) else { return };
        link.stage = CmStage::Ready;
        link.deadline = Duration::MAX;
        let private = if link.side == Side::Active { private } else { Private::EMPTY };
        self.events.push_back(Event::Established { connection, private });
    }

    /// Fails a connection that was being made.
    pub(super) fn fail_link(&mut self, connection: Connection, error: ConnectError, private: Private) {
        let Some(link) = self.links.get_mut(connection) else { return };
        if link.stage == CmStage::Over {
            return;
        }
        self.part(connection);
        self.destroy_pair(connection);
        if let Some(link) = self.links.get_mut(connection) {
            link.id = None;
        }
        self.events.push_back(Event::Failed { connection, error, private });
    }

    /// Ends a connection, unless it has ended before.
    pub(super) fn lose(&mut self, connection: Connection, error: LostError) {
        let Some(link) = self.links.get_mut(connection) else { return };
        match link.stage {
            CmStage::Ready => {}
            CmStage::Over => return,
            _ => return self.fail_link(connection, ConnectError::Unreachable, Private::EMPTY),
        }
        self.part(connection);
        let Some(link) = self.links.get_mut(connection) else { return };
        // Failures must be detected before flushes. The device may be gone and report no states.
        if let Some(pair) = &link.pair {
            let _ = pair.fail();
        }
        self.destroy_pair(connection);
        let cause = self.links.get(connection).and_then(|link| link.cause).unwrap_or(error);
        self.events.push_back(Event::Lost { connection, error: cause });
    }

    pub(super) fn close_link(&mut self, connection: Connection) {
        let Some(link) = self.links.get_mut(connection) else { return };
        if link.closing {
            return;
        }
        link.closing = true;
        self.closing += 1;
        self.part(connection);
        self.destroy_pair(connection);
        // Pending events of the connection are dropped.
        self.events.retain(|event| !is_about(event, connection));
        let until = self.now + LINGER;
        let id = self.links.get_mut(connection).and_then(|link| link.id.take());
        if let (Some(id), SetUp::Manager(manager)) = (id, &mut self.set_up) {
            manager.leaving.push((id, connection, until));
        }
    }

    /// Ends a connection as far as its peer is concerned.
    fn part(&mut self, connection: Connection) {
        let Some(link) = self.links.get_mut(connection) else { return };
        link.disconnect();
        link.stage = CmStage::Over;
        let joint = link.joint.take();
        if let (Some(joint), SetUp::Datagrams(joins)) = (joint, &mut self.set_up) {
            joins.leave(&joint, self.now);
        }
    }
}

/// Where a peer's address leads.
#[derive(Clone, Copy, Debug)]
enum Destination {
    /// To the listener of a connection manager.
    Socket(SocketAddr),
    /// To the datagrams of a port.
    Place(JoinPlace),
}

fn is_about(event: &Event, which: Connection) -> bool {
    match event {
        Event::Requested { connection, .. }
        | Event::Established { connection, .. }
        | Event::Failed { connection, .. }
        | Event::Lost { connection, .. }
        | Event::Closed { connection } => *connection == which,
        Event::PortFailed { .. } => false,
    }
}

/// Prepares a queue pair for a request, and accepts the request.
fn accept(
    link: &mut VerbsLink,
    connection: Connection,
    pair: &QueuePair,
    (port, path): (u8, PathPreference),
    offer: &Offer,
) -> Result<(), VerbsError> {
    let missing = || VerbsError::Manager { what: "accepting", code: libc::EINVAL };
    pair.prepare(port)?;
    initialise(link.id.as_ref().ok_or_else(missing)?, pair)?;
    post_early(link, connection, pair)?;
    let id = link.id.as_ref().ok_or_else(missing)?;
    bring_up(id, pair, path)?;
    let (reads, depth) = link.reads;
    let shared = offer.shared_receive;
    id.accept(&CmAnswer { private: offer.private.bytes(), pair: pair.number(), reads, depth, shared })
}

/// Posts the receives that were posted before the queue pair existed.
pub(super) fn post_early(
    link: &mut VerbsLink,
    connection: Connection,
    pair: &QueuePair,
) -> Result<(), VerbsError> {
    for (parts, sequence) in link.early.iter_mut().zip(0..) {
        let (index, generation) = (connection.index, connection.generation);
        let tag = WorkTag { queue: Queue::Receive, index, generation, sequence };
        // SAFETY: the parts were checked when the receive was posted. If their region was deregistered since,
        // the device refuses its key.
        unsafe { pair.post_receive(tag.encode(), parts) }
            .map_err(|code| VerbsError::Manager { what: "posting a receive", code })?;
    }
    Ok(())
}

/// Moves to INIT with the attributes of the connection manager.
fn initialise(id: &Id, pair: &QueuePair) -> Result<(), VerbsError> {
    let (mut attr, mask) = id.attributes(raw::IBV_QPS_INIT)?;
    // The manager does not set the peers' access rights yet.
    attr.qp_access_flags = pair.access();
    pair.modify(&mut attr, mask, "a queue pair to INIT")
}

/// Moves to RTR and RTS, unless iWARP does that by itself. The manager takes the path from the route and the request;
/// both ends lower its MTU alike, and each has the traffic class of what it sends.
fn bring_up(id: &Id, pair: &QueuePair, path: PathPreference) -> Result<(), VerbsError> {
    let (mut attr, mask) = id.attributes(raw::IBV_QPS_RTR)?;
    attr.min_rnr_timer = RNR_TIMER;
    if path.mtu != 0 {
        attr.path_mtu = attr.path_mtu.min(path.mtu.into());
    }
    if let Some(class) = path.traffic_class {
        attr.ah_attr.grh.traffic_class = class;
    }
    pair.modify(&mut attr, mask, "a queue pair to RTR")?;
    let (mut attr, mask) = id.attributes(raw::IBV_QPS_RTS)?;
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (path.ack_timeout, RETRIES, RNR_FOREVER);
    pair.modify(&mut attr, mask, "a queue pair to RTS")
}
