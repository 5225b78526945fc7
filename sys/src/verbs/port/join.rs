//! Connections that datagrams set up: requests, answers, ends. [`nemesia_core::joining`] has the protocol.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::joining::{JoinKind, JoinMessage, JoinPlace, JoinStage, JoinStep, Joint, unknown};
use nemesia_core::port::memory::{ConnectError, Connection, Event, LostError, Offer, Private};

use super::connect::{post_early, refused};
use super::link::{LinkJoint, VerbsLink};
use super::{PathPreference, SetUp, VerbsPort};
use crate::cm::{CmStage, Side};
use crate::os::random;
use crate::rdma::VerbsError;
use crate::verbs::datagram::{DatagramQueue, DatagramSite};
use crate::verbs::domain::Domain;
use crate::verbs::exchange::PairInfo;
use crate::verbs::pair::{MOST_READS, QueuePair};

/// The most ended connections whose ends are repeated. The ends of further ones are sent once.
const MOST_LEAVING: usize = 1024;
/// The kind of a GID of version 2 of `RoCE`: [`Gid::kind`](crate::verbs::Gid::kind).
const ROCE_V2: u32 = 2;
/// How long a port that is dropped waits until its last datagrams have left.
const LAST_WAIT: Duration = Duration::from_millis(20);

/// The datagrams of a port.
pub(super) struct Joins {
    datagrams: DatagramQueue,
    own: JoinPlace,
    /// What describes every queue pair of this port.
    template: PairInfo,
    site: DatagramSite,
    /// The connection of each joint, by the joint's number.
    by_number: HashMap<u64, Connection>,
    /// The number of the joint of each request, by the peer's place and number.
    by_request: HashMap<(JoinPlace, u64), u64>,
    /// Joints of connections that are over, which repeat that.
    leaving: HashMap<u64, Joint>,
    /// The earliest time at which a datagram is due.
    next: Duration,
}

/// Returns a random number; errors are those of the kernel.
fn draw<const N: usize>() -> Result<[u8; N], VerbsError> {
    random().map_err(|_| VerbsError::System { what: "drawing random bytes", code: libc::EAGAIN })
}

impl Joins {
    /// Makes the queue pair for datagrams of a port of a device.
    pub(super) fn new(
        domain: &Arc<Domain>,
        (port, gid): (u8, u32),
        class: Option<u8>,
    ) -> Result<Self, VerbsError> {
        // The highest bit has another meaning.
        let key = u32::from_le_bytes(draw()?) >> 1;
        let device = domain.device();
        let (attributes, limits) = (device.port(port)?, device.attributes());
        let entry = device.gids(port)?.into_iter().find(|entry| entry.index == gid);
        let bytes = entry.map_or([0; 16], |entry| entry.bytes);
        let is_mapped = Ipv6Addr::from(bytes).to_ipv4_mapped().is_some();
        let is_ipv4 = entry.filter(|_| attributes.needs_gid).and_then(|entry| entry.kind);
        let is_ipv4 = is_ipv4.map(|kind| is_mapped && kind == ROCE_V2);
        let site = DatagramSite { port, gid, class, key, is_ipv4 };
        let datagrams = DatagramQueue::new(domain, site)?;
        let own = JoinPlace { number: datagrams.number(), key, lid: attributes.lid, gid: bytes };
        let template = PairInfo {
            number: 0,
            psn: 0,
            mtu: attributes.mtu.clamp(1, 5) as u8,
            reads: limits.max_qp_rd_atom.clamp(0, MOST_READS) as u8,
            lid: own.lid,
            gid: own.gid,
        };
        let (by_number, by_request, leaving) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { datagrams, own, template, site, by_number, by_request, leaving, next: Duration::MAX })
    }

    /// Returns where the port receives datagrams.
    pub(super) fn own(&self) -> &JoinPlace {
        &self.own
    }

    /// Returns the descriptor that becomes readable with the next datagram after [`VerbsPort::arm`].
    pub(super) fn descriptor(&self) -> i32 {
        self.datagrams.queue().descriptor()
    }

    /// Describes our queue pair to a peer.
    fn describe(&self, pair: &QueuePair, path: PathPreference) -> Result<PairInfo, VerbsError> {
        let mtu = if path.mtu == 0 { self.template.mtu } else { self.template.mtu.min(path.mtu) };
        let psn = u32::from_le_bytes(draw()?) & 0xff_ffff;
        Ok(PairInfo { number: pair.number(), psn, mtu, ..self.template })
    }

    fn join(
        &self,
        link: &mut VerbsLink,
        pair: &QueuePair,
        (ours, theirs): (&PairInfo, &PairInfo),
        path: PathPreference,
    ) -> Result<(), VerbsError> {
        link.reads = (ours.reads, link.reads.1.min(ours.reads).min(theirs.reads));
        let (site, with) = ((self.site.port, self.site.gid), (path.traffic_class, path.ack_timeout));
        pair.join_by(site, ours, theirs, with)
    }

    /// Prepares a queue pair for a request, joins it, and accepts the request.
    pub(super) fn accept(
        &self,
        (link, connection): (&mut VerbsLink, Connection),
        pair: &QueuePair,
        path: PathPreference,
        (offer, now): (&Offer, Duration),
    ) -> Result<(), VerbsError> {
        let Some(theirs) = link.joint.as_ref().map(|it| it.info) else {
            return Err(VerbsError::System { what: "accepting", code: libc::EINVAL });
        };
        let ours = self.describe(pair, path)?;
        pair.prepare(self.site.port)?;
        post_early(link, connection, pair)?;
        self.join(link, pair, (&ours, &theirs), path)?;
        if let Some(it) = &mut link.joint {
            it.joint.accept(ours.to_bytes(), offer.private, now);
        }
        Ok(())
    }

    /// Ends this end of a connection. The end is repeated until the peer answers.
    pub(super) fn leave(&mut self, ending: &LinkJoint, now: Duration) {
        let mut joint = ending.joint;
        joint.end(now);
        self.keep(joint, now);
    }

    /// Sends the end of a connection, and keeps the joint that repeats the end.
    fn keep(&mut self, mut joint: Joint, now: Duration) {
        self.send_due_of(&mut joint, now);
        self.by_number.remove(&joint.number());
        if joint.stage() != JoinStage::Over && self.leaving.len() < MOST_LEAVING {
            self.leaving.insert(joint.number(), joint);
        } else {
            self.forget(&joint);
        }
    }

    fn forget(&mut self, joint: &Joint) {
        let request = (*joint.peer(), joint.peer_number());
        if self.by_request.get(&request) == Some(&joint.number()) {
            self.by_request.remove(&request);
        }
    }

    /// Returns the number of the joint that a datagram is for.
    fn addressee(&self, message: &JoinMessage) -> Option<u64> {
        let number = match message.to {
            0 => *self.by_request.get(&(message.place, message.from))?,
            number => number,
        };
        (self.by_number.contains_key(&number) || self.leaving.contains_key(&number)).then_some(number)
    }

    /// Sends what this joint is due to send. What finds no place stays due.
    fn send_due_of(&mut self, joint: &mut Joint, now: Duration) {
        if !self.datagrams.is_full()
            && let Some(message) = joint.due(now)
        {
            self.datagrams.send(joint.peer(), &message.to_bytes());
        }
        self.next = self.next.min(joint.next());
    }

    fn send(&mut self, to: &JoinPlace, message: &JoinMessage) {
        self.datagrams.send(to, &message.to_bytes());
    }

    /// Takes datagrams that have arrived. Those that name another sender than their packets do are dropped: answers
    /// would go to a port that has sent nothing.
    fn take(&mut self) -> Result<Vec<JoinMessage>, VerbsError> {
        let mut arrived = Vec::new();
        self.datagrams.poll(|bytes, source| {
            let message = JoinMessage::from_bytes(&bytes);
            arrived.extend(message.filter(|it| source.is_none_or(|source| source == it.place.gid)));
        })?;
        Ok(arrived)
    }

    /// Handles a datagram for a joint whose connection is over.
    fn hear_leaving(&mut self, number: u64, message: &JoinMessage) {
        let Some(joint) = self.leaving.get_mut(&number) else { return };
        let (_, answer) = joint.hear(message);
        let joint = *joint;
        if let Some(answer) = answer {
            self.send(joint.peer(), &answer);
        }
        if joint.stage() == JoinStage::Over {
            self.leaving.remove(&number);
            self.forget(&joint);
        }
    }

    /// Sends what joints of ended connections are due to send.
    fn send_ends(&mut self, now: Duration) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|_, joint| {
            self.send_due_of(joint, now);
            let is_over = joint.stage() == JoinStage::Over;
            if is_over {
                self.forget(joint);
            }
            !is_over
        });
        self.leaving = leaving;
    }
}

/// Returns the queue pair that a datagram describes, which is untrusted; `None` if it describes none, or one of another
/// port than the sender's.
fn described(message: &JoinMessage) -> Option<PairInfo> {
    let info = PairInfo::from_bytes(&message.pair).ok()?;
    ((info.lid, info.gid) == (message.place.lid, message.place.gid)).then_some(info)
}

impl VerbsPort {
    /// Requests a connection by a datagram.
    pub(super) fn ask_by_datagram(
        &mut self,
        connection: Connection,
        peer: JoinPlace,
    ) -> Result<(), VerbsError> {
        let (Some(link), SetUp::Datagrams(joins)) = (self.links.get_mut(connection), &mut self.set_up) else {
            return Ok(());
        };
        let Some(pair) = &link.pair else { return Ok(()) };
        let info = joins.describe(pair, self.path)?;
        let number = u64::from_le_bytes(draw()?).max(1);
        let mut joint = Joint::ask((joins.own, peer), number, info.to_bytes(), link.private, self.now);
        joins.send_due_of(&mut joint, self.now);
        link.joint = Some(Box::new(LinkJoint { joint, info }));
        link.stage = CmStage::Asking;
        joins.by_number.insert(number, connection);
        Ok(())
    }

    /// Refuses a request that came by a datagram.
    pub(super) fn refuse_by_datagram(&mut self, connection: Connection, private: Private) {
        let joint = self.links.get_mut(connection).and_then(|link| link.joint.take());
        if let (Some(it), SetUp::Datagrams(joins)) = (joint, &mut self.set_up) {
            let mut joint = it.joint;
            joint.refuse(private, self.now);
            joins.keep(joint, self.now);
        }
    }

    /// Handles the datagrams that have arrived, and sends those that are due.
    pub(super) fn hear_datagrams(&mut self) {
        if self.failed {
            return;
        }
        let SetUp::Datagrams(joins) = &mut self.set_up else { return };
        match joins.take() {
            Ok(arrived) => {
                for message in arrived {
                    self.queries.hasten();
                    if self.failed {
                        return;
                    }
                    self.hear_datagram(&message);
                }
            }
            Err(error) => return self.fail_port(error.code().unsigned_abs()),
        }
        if matches!(&self.set_up, SetUp::Datagrams(joins) if joins.next <= self.now) {
            self.send_due();
        }
    }

    fn hear_datagram(&mut self, message: &JoinMessage) {
        let SetUp::Datagrams(joins) = &mut self.set_up else { return };
        let Some(number) = joins.addressee(message) else {
            match unknown(&joins.own, message) {
                Some(answer) => joins.send(&message.place, &answer),
                None if message.kind == JoinKind::Request => self.requested_by_datagram(message),
                None => {}
            }
            return;
        };
        let Some(connection) = joins.by_number.get(&number).copied() else {
            return joins.hear_leaving(number, message);
        };
        let Some(joint) = self.links.get_mut(connection).and_then(|link| link.joint.as_mut()) else { return };
        let (step, answer) = joint.joint.hear(message);
        let peer = *joint.joint.peer();
        if let Some(answer) = answer {
            joins.send(&peer, &answer);
        }
        self.take_join_step(connection, step, message);
    }

    /// Handles a request of a peer.
    fn requested_by_datagram(&mut self, message: &JoinMessage) {
        let SetUp::Datagrams(joins) = &mut self.set_up else { return };
        let (Some(info), Ok(number)) = (described(message), draw()) else { return };
        let number = u64::from_le_bytes(number).max(1);
        let mut joint = Joint::requested(joins.own, number, message);
        if self.links.is_full() {
            // Nothing is kept: the peer repeats its request until this answer has arrived.
            joint.refuse(Private::EMPTY, self.now);
            if let Some(refusal) = joint.due(self.now) {
                joins.send(&message.place, &refusal);
            }
            return;
        }
        let depths = (self.facts.send_depth, self.facts.receive_depth);
        let mut link = VerbsLink::new(Side::Passive, CmStage::Requested, depths);
        link.joint = Some(Box::new(LinkJoint { joint, info }));
        link.reads = self.reads;
        let Some(connection) = self.links.add(link) else { return };
        joins.by_request.insert((message.place, message.from), number);
        joins.by_number.insert(number, connection);
        self.events.push_back(Event::Requested { connection, private: message.private });
    }

    fn take_join_step(&mut self, connection: Connection, step: JoinStep, message: &JoinMessage) {
        match step {
            JoinStep::Stay => {}
            JoinStep::Join => match self.join_accepted(connection, message) {
                Ok(()) => self.establish(connection, message.private),
                Err(error) => self.fail_link(connection, error, Private::EMPTY),
            },
            JoinStep::Establish => self.establish(connection, Private::EMPTY),
            JoinStep::Fail(error) => self.fail_link(connection, error, message.private),
            JoinStep::Lose => self.lose(connection, LostError::Closed),
        }
    }

    /// Joins our queue pair to that of the peer that has accepted.
    fn join_accepted(&mut self, connection: Connection, message: &JoinMessage) -> Result<(), ConnectError> {
        let (Some(link), SetUp::Datagrams(joins)) = (self.links.get_mut(connection), &mut self.set_up) else {
            return Err(ConnectError::State);
        };
        let theirs = described(message).ok_or(ConnectError::System(libc::EPROTO))?;
        let (Some(pair), Some(mut it)) = (link.pair.take(), link.joint.take()) else {
            return Err(ConnectError::State);
        };
        let joined = joins.join(link, &pair, (&it.info, &theirs), self.path);
        if joined.is_ok() {
            let confirm = it.joint.confirm();
            // Twice, because this process may compute now, and answer repeated acceptances late.
            joins.send(it.joint.peer(), &confirm);
            joins.send(it.joint.peer(), &confirm);
        }
        (link.pair, link.joint) = (Some(pair), Some(it));
        joined.map_err(|error| refused(&error))
    }

    /// Sends the acceptance of a connection.
    pub(super) fn send_acceptance(&mut self, connection: Connection) {
        let (Some(link), SetUp::Datagrams(joins)) = (self.links.get_mut(connection), &mut self.set_up) else {
            return;
        };
        if let Some(it) = &mut link.joint {
            joins.send_due_of(&mut it.joint, self.now);
        }
    }

    /// Sends the datagrams that are due.
    fn send_due(&mut self) {
        let now = self.now;
        let SetUp::Datagrams(joins) = &mut self.set_up else { return };
        joins.next = Duration::MAX;
        self.links.each(|_, link| {
            if let Some(it) = &mut link.joint {
                joins.send_due_of(&mut it.joint, now);
            }
        });
        joins.send_ends(now);
    }

    /// Arms the queue of the datagrams. Returns whether a datagram that arrives from now on wakes a sleeping caller,
    /// and none is due. A datagram that has arrived before causes no wake-up, so this function handles it.
    pub(super) fn may_sleep(&mut self) -> bool {
        let SetUp::Datagrams(joins) = &self.set_up else { return true };
        if joins.datagrams.queue().arm().is_err() {
            return false;
        }
        self.hear_datagrams();
        matches!(&self.set_up, SetUp::Datagrams(joins) if self.failed || joins.next > self.now)
    }

    /// Makes the queue pair of the datagrams fail, as an error of the device would. For tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn fail_datagrams(&self) -> Result<(), VerbsError> {
        match &self.set_up {
            SetUp::Manager(_) => Ok(()),
            SetUp::Datagrams(joins) => joins.datagrams.fail(),
        }
    }

    /// Sends the end of every connection once, because the port is dropped.
    pub(super) fn end_all(&mut self) {
        let now = self.now;
        let SetUp::Datagrams(joins) = &mut self.set_up else { return };
        let until = Instant::now() + LAST_WAIT;
        let mut left = Vec::new();
        self.links.each(|_, link| left.extend(link.joint.take()));
        for mut it in left {
            it.joint.end(now);
            while joins.datagrams.is_full() && Instant::now() < until {
                let _ = joins.datagrams.poll(|_, _| {});
            }
            if let Some(message) = it.joint.due(now) {
                joins.send(it.joint.peer(), &message);
            }
        }
        while joins.datagrams.is_sending() && Instant::now() < until {
            let _ = joins.datagrams.poll(|_, _| {});
        }
    }
}
