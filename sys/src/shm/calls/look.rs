//! What comes for the links: connections of others, messages, losses and time.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nemesia_core::link::bytes::MOST_LINK_BYTES;
use nemesia_core::link::machine::table::Links;
use nemesia_core::link::machine::terms::{CarrierKind, CarrierRef, DialFault, LinkRef, LinkStage};
use nemesia_core::port::memory::ConnectError;

use super::desk::{CallDesk, CarrierLine, HandOffLine, LinkCarrier};
use super::owner::CallOwner;
use super::{BUDGET, CallOutcome, CallTerms, Calls, ENGINE, GrowingLinks};
use crate::os::shortage::{arrived, listening};
use crate::os::{HandoffConnection, ShmError, Watch, closer};
use crate::shm::address;
use crate::shm::segments::MOST_DESCRIPTORS;
use crate::transport::net::{StreamLoss, refused_connection};

/// The connections of this user, and those of other machines, that are accepted before the present ones are read.
pub(super) const AT_ONCE: usize = 64;
/// The connections of all users that are accepted before the present ones are read: as many as the kernel queues.
const MOST_AT_ONCE: usize = 4096;

impl Calls {
    /// Makes progress on all calls.
    pub(crate) fn attend<T: CallTerms>(&mut self, terms: &mut T) {
        for link in std::mem::take(&mut self.freed) {
            self.act(terms, |links, now, owner| links.free(link, now, owner));
        }
        // The confirmation of a call precedes the next call of its author, which may be among those accepted now.
        self.accept(terms);
        for carrier in self.carriers(|it| !it.is_silent()) {
            self.look_at(carrier, terms);
        }
        self.read_callers(terms);
        self.act(terms, |links, now, owner| links.attend(BUDGET, now, owner));
        for carrier in self.carriers(|it| it.line.is_none()) {
            self.look_at(carrier, terms);
        }
        self.end_of_shortage(terms);
    }

    /// Accepts pending connections, and reads what those have sent whose calls have not come.
    fn hear<T: CallTerms>(&mut self, terms: &mut T) {
        self.accept(terms);
        self.read_callers(terms);
    }

    fn read_callers<T: CallTerms>(&mut self, terms: &mut T) {
        for carrier in self.carriers(LinkCarrier::is_silent) {
            self.look_at(carrier, terms);
        }
    }

    /// Reads all that has come so far: the announcements of processes that have left are among it.
    fn hear_all<T: CallTerms>(&mut self, terms: &mut T) {
        for _ in 1..self.desk.world.size.max(2) {
            self.hear(terms);
            if !self.more {
                break;
            }
        }
    }

    fn carriers(&self, is_meant: impl Fn(&LinkCarrier) -> bool) -> Vec<CarrierRef> {
        self.desk.carriers.iter().filter(|(_, it)| is_meant(it)).map(|(carrier, _)| *carrier).collect()
    }

    /// Lets the machine act, and sees what is left of answers that are over.
    pub(super) fn act<T: CallTerms, R>(
        &mut self,
        terms: &mut T,
        run: impl FnOnce(&mut Links<GrowingLinks>, Duration, &mut CallOwner<'_, T>) -> R,
    ) -> R {
        self.links.reserve(2, BUDGET + 2);
        let now = self.now();
        let mut owner = self.desk.owner(now, terms);
        let result = run(&mut self.links, now, &mut owner);
        while let Some(rank) = owner.desk.claimed.pop() {
            self.links.restarted(rank, false, now, &mut owner);
        }
        for link in std::mem::take(&mut self.desk.touched) {
            if self.links.stage(link) == LinkStage::Idle
                && let Some(parts) = self.desk.parts.remove(&link)
            {
                let problem = parts.problem.unwrap_or_default();
                self.desk.outcomes.push_back((parts.peer, CallOutcome::Undone(problem)));
            }
        }
        result
    }

    pub(super) fn accept<T: CallTerms>(&mut self, terms: &mut T) {
        let is_through = self.accept_here(terms);
        self.more = !(self.accept_across(terms) && is_through);
    }

    /// Returns whether there is room for one more connection of this kind whose call has not come.
    fn has_room<T: CallTerms>(&mut self, kind: CarrierKind, terms: &mut T) -> bool {
        closer::has_room() && self.act(terms, |links, now, owner| links.make_room(kind, now, owner))
    }

    /// Accepts connections inside the machine. Returns whether none is left.
    fn accept_here<T: CallTerms>(&mut self, terms: &mut T) -> bool {
        let mut ours = 0;
        for _ in 0..MOST_AT_ONCE {
            if ours == AT_ONCE || !self.has_room(CarrierKind::HandOff, terms) {
                break;
            }
            let Self { listener, desk: CallDesk { shortage, .. }, .. } = self;
            let (listen, now) = (listening(terms.watch(), listener.as_fd()), Instant::now());
            let Some(connection) = shortage.next_connection(now, listen, || arrived(listener.accept(now)))
            else {
                return true;
            };
            // A process of another user is not heard.
            if connection.require_same_user().is_ok() {
                ours += 1;
                self.admit(CarrierKind::HandOff, CarrierLine::hand_off(connection), terms);
            }
        }
        false
    }

    /// Accepts connections of other machines. Returns whether none is left.
    fn accept_across<T: CallTerms>(&mut self, terms: &mut T) -> bool {
        if self.desk.door.is_none() {
            return true;
        }
        for _ in 0..AT_ONCE {
            if !self.has_room(CarrierKind::Stream, terms) {
                break;
            }
            let door = self.desk.door.as_mut();
            let Some(line) = door.and_then(|door| door.accept(Instant::now(), terms.watch())) else {
                return true;
            };
            if let Some(carrier) = self.admit(CarrierKind::Stream, CarrierLine::Stream(Box::new(line)), terms)
            {
                // Before the challenge: a process that leaves has closed the connection, and its kernel would refuse
                // it.
                self.look_at(carrier, terms);
                self.act(terms, |links, _, owner| links.challenge(carrier, owner));
            }
        }
        false
    }

    fn admit<T: CallTerms>(
        &mut self,
        kind: CarrierKind,
        line: CarrierLine,
        terms: &mut T,
    ) -> Option<CarrierRef> {
        let carrier = self.act(terms, |links, now, owner| links.accepted(kind, now, owner))?;
        // Without room in the set, the time limit ends the caller.
        let _ = terms.watch().attend(line.descriptor());
        self.desk.carriers.insert(carrier, LinkCarrier::accepted(kind, line));
        Some(carrier)
    }

    /// Reads the next message of a connection, or sees that it has ended; or makes it.
    fn look_at<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get(&carrier) else { return };
        match it.line {
            None => self.reach(carrier, terms),
            Some(CarrierLine::HandOff(_)) => self.look_here(carrier, terms),
            Some(CarrierLine::Stream(_)) => self.look_across(carrier, terms),
        }
    }

    fn look_here<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let Some(CarrierLine::HandOff(HandOffLine { connection, pidfd, descriptors })) = &mut it.line else {
            return;
        };
        // Checked before the packets are read: a dead process sends no further packets.
        let ended = pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
        let mut bytes = [0; MOST_LINK_BYTES];
        let len = match connection.recv(&mut bytes, MOST_DESCRIPTORS, Instant::now()) {
            Ok((len, _)) if HandoffConnection::is_wake(&bytes[..len]) => return,
            Ok((len, came)) => {
                *descriptors = came;
                len
            }
            Err(ShmError::TimedOut { .. }) if !ended => return,
            Err(ShmError::TimedOut { .. } | ShmError::PeerGone { .. }) => {
                return self.lose((carrier, ended), terms);
            }
            Err(error) if error.is_shortage() => {
                let link = it.link;
                self.desk.shortage.record_packet(&error, terms.watch(), connection.as_fd());
                return self.desk.lack_for(link);
            }
            // The kernel refuses it to this process, which is no fault of the peer.
            Err(error @ ShmError::System { .. }) if it.link.is_some() => {
                let link = it.link;
                return self.abandon(link, error.to_string(), terms);
            }
            // It is refused like any other packet that is no message.
            Err(_) => 0,
        };
        self.act(terms, |links, now, owner| links.received(carrier, &bytes[..len], now, owner));
    }

    fn look_across<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        if !self.is_reached(carrier, terms) {
            return;
        }
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let Some(CarrierLine::Stream(line)) = &mut it.line else { return };
        match line.receive() {
            Ok(Some(message)) => {
                self.act(terms, |links, now, owner| links.received(carrier, message.get(), now, owner));
            }
            Ok(None) => {
                if line.has_part() {
                    self.links.partial(carrier);
                }
            }
            Err(loss) => {
                let why = match loss {
                    StreamLoss::Ended if it.link.is_none() => {
                        "it takes no connections: it is overloaded".into()
                    }
                    StreamLoss::Ended => {
                        "it has closed the connection without an answer: it is overloaded".into()
                    }
                    StreamLoss::Network(error) => format!("{}: {error}", line.from),
                };
                let peer = it.peer;
                self.desk.note_attempt(self.links.find(&peer, ENGINE.0, ENGINE.1), Some(why), true);
                self.act(terms, |links, now, owner| links.lost(carrier, now, owner));
            }
        }
    }

    /// Returns whether the other machine has taken a connection.
    fn is_reached<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) -> bool {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return false };
        let Some(CarrierLine::Stream(line)) = it.line.as_mut().filter(|_| !it.is_reached) else {
            return it.is_reached;
        };
        let Some(connected) = line.is_connected() else { return false };
        let (peer, from) = (it.peer, line.from);
        let link = self.links.find(&peer, ENGINE.0, ENGINE.1);
        match connected {
            Ok(()) => {
                it.is_reached = true;
                self.desk.note_attempt(link, None, true);
                self.act(terms, |links, now, owner| links.reached(carrier, now, owner));
                return true;
            }
            Err(ConnectError::NotListening) => {
                // If it has left in order, it has announced that before.
                self.hear_all(terms);
                if let Ok(place) = address::decode(&peer)
                    && !place.shares_machine(&self.desk.place)
                    && let Some(at) = address::remote(&place)
                    && let Some(parts) = link.and_then(|link| self.desk.parts.get_mut(&link))
                {
                    parts.problem = Some(refused_connection(at));
                }
                self.fail(carrier, DialFault::Nothing, terms);
            }
            Err(error) => {
                self.desk.note_attempt(link, Some(format!("{from}: {error}")), false);
                self.fail(carrier, DialFault::Busy, terms);
            }
        }
        false
    }

    /// The connection has ended, or its process has.
    fn lose<T: CallTerms>(&mut self, (carrier, ended): (CarrierRef, bool), terms: &mut T) {
        let link = self.desk.carriers.get(&carrier).and_then(|it| it.link);
        match link.filter(|_| ended) {
            Some(link) => {
                // If it has left in order, it has announced that before.
                self.hear_all(terms);
                self.act(terms, |links, now, owner| links.process_ended(link, now, owner));
            }
            None => self.act(terms, |links, now, owner| links.lost(carrier, now, owner)),
        }
    }

    /// Connects to a process.
    fn reach<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get(&carrier) else { return };
        match it.kind {
            CarrierKind::HandOff => self.reach_here(carrier, terms),
            CarrierKind::Stream => self.reach_across(carrier, terms),
            CarrierKind::Datagram => self.fail(carrier, DialFault::Nothing, terms),
        }
    }

    fn reach_here<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let peer = it.peer;
        let link = self.links.find(&peer, ENGINE.0, ENGINE.1);
        let Ok(place) = address::decode(&peer) else { return self.fail(carrier, DialFault::Nothing, terms) };
        match HandoffConnection::connect(&address::socket(&place.token), Instant::now()) {
            Ok(connection) => {
                if let Err(problem) = address::check(&place, &self.desk.place, &connection) {
                    return self.abandon(link, problem, terms);
                }
                // Without room in the set, the answer is found by the next look.
                let _ = terms.watch().attend(connection.as_fd());
                (it.line, it.is_reached) = (Some(CarrierLine::hand_off(connection)), true);
                self.act(terms, |links, now, owner| links.reached(carrier, now, owner));
            }
            Err(ShmError::TimedOut { .. }) => self.fail(carrier, DialFault::Full, terms),
            Err(ShmError::NotListening { .. }) => {
                // If it has left in order, it has announced that before.
                self.hear_all(terms);
                self.fail(carrier, DialFault::Nothing, terms);
            }
            Err(error) if error.is_shortage() => {
                self.desk.lack(&error, link);
                self.fail(carrier, DialFault::Busy, terms);
            }
            Err(error) => self.abandon(link, error.to_string(), terms),
        }
    }

    fn reach_across<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let link = self.links.find(&it.peer, ENGINE.0, ENGINE.1);
        let at = address::decode(&it.peer).ok().and_then(|place| address::remote(&place));
        #[cfg(test)]
        let at = self.desk.redirected.or(at);
        let (Some(at), Some(door)) = (at, &self.desk.door) else {
            return self.fail(carrier, DialFault::Nothing, terms);
        };
        match door.connect(at) {
            Ok(line) => {
                // Without room in the set, the challenge is found by the next look.
                let _ = terms.watch().attend(line.descriptor());
                it.line = Some(CarrierLine::Stream(Box::new(line)));
                self.desk.note_attempt(link, None, false);
            }
            Err(error) => {
                let error = ShmError::system("connecting to another machine", error);
                if error.is_shortage() {
                    self.desk.lack(&error, link);
                } else {
                    self.desk.note_attempt(link, Some(format!("{at}: {error}")), false);
                }
                self.fail(carrier, DialFault::Busy, terms);
            }
        }
    }

    fn fail<T: CallTerms>(&mut self, carrier: CarrierRef, fault: DialFault, terms: &mut T) {
        self.act(terms, |links, now, owner| links.failed(carrier, fault, now, owner));
    }

    /// Ends a call of this process for a reason that only this process knows.
    fn abandon<T: CallTerms>(&mut self, link: Option<LinkRef>, problem: String, terms: &mut T) {
        let Some(link) = link else { return };
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.problem = Some(problem);
        }
        self.act(terms, |links, now, owner| links.disconnect(link, now, owner));
    }

    /// Ends the calls of this process that lack something here, if no connection was made for long. Both processes may
    /// lack something, so that no single call lasts for long.
    fn end_of_shortage<T: CallTerms>(&mut self, terms: &mut T) {
        let Some(text) = self.desk.lasting() else { return };
        let short: Vec<_> =
            self.desk.parts.iter().filter(|(_, parts)| parts.is_short).map(|it| *it.0).collect();
        short.into_iter().for_each(|link| self.abandon(Some(link), text.clone(), terms));
    }
}
