//! Connections that reach processes, and that end.

use nemesia_core::link::machine::terms::{CarrierKind, DialFault};

use super::LinksWorld;
use super::network::{CarrierUse, Happening};
use crate::tally::Event;

impl LinksWorld {
    /// A connection reaches a process: the kernel takes it, also if the process is stopped.
    pub(super) fn accept(&mut self, at: usize, id: u64) {
        let Some(connection) = self.network.connections.get(&id) else { return };
        let (kind, first, is_known) = (connection.kind, connection.sides[0], connection.stranger.is_none());
        let when = self.network.later(200);
        let hosts = &self.truth.hosts;
        let is_blocked = kind == CarrierKind::Stream
            && at < hosts.len()
            && self.truth.blocked.contains(&(hosts[first.process], hosts[at]));
        let is_full = kind == CarrierKind::HandOff && self.listens(at) && self.rng.one_in(30);
        if is_blocked || is_full || !self.listens(at) {
            let fault = match (is_blocked, is_full) {
                (true, _) => DialFault::Busy,
                (_, true) => DialFault::Full,
                _ => DialFault::Nothing,
            };
            if is_known {
                self.network.schedule(when, first.process, Happening::Failed(id, fault));
            } else {
                self.network.connections.remove(&id);
            }
            return;
        }
        if is_known {
            self.network.schedule(when, first.process, Happening::Reached(id));
        }
        self.happen_accept(at, id);
    }

    /// The owner of a process accepts a connection. If the process is stopped, it does so when it runs again.
    fn happen_accept(&mut self, at: usize, id: u64) {
        if let Some(process) = self.processes[at].as_mut()
            && process.stopped.is_some()
        {
            process.inbox.push(Happening::Reached(id));
            return;
        }
        self.owner_accepts(at, id);
    }

    pub(super) fn owner_accepts(&mut self, at: usize, id: u64) {
        let Some(kind) = self.network.connections.get(&id).map(|connection| connection.kind) else { return };
        let accepted = self.act(at, None, |links, now, hands| links.accepted(kind, now, hands)).flatten();
        let Some(carrier) = accepted else {
            self.tally.count(Event::LinkDoorFull);
            let now = self.network.now;
            if let Some(process) = self.processes[at].as_mut() {
                process.desk.last_full = now;
            }
            return self.network.close(id, 1);
        };
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.sides[1].carrier = Some(carrier);
        }
        self.network.uses.insert((at, carrier), CarrierUse::Connection(id, 1));
        self.act(at, None, |links, _, hands| links.challenge(carrier, hands));
        self.stranger_begins(at, id);
    }

    pub(super) fn connection_ends(&mut self, at: usize, id: u64, side: usize) {
        let Some(connection) = self.network.connections.get_mut(&id) else { return };
        let this = connection.sides[side];
        let is_stranger = connection.stranger.is_some() && side == 0;
        if this.is_closed || is_stranger {
            return;
        }
        // A side that has no carrier yet is not accepted any more.
        let Some(carrier) = this.carrier else { return self.network.close(id, side) };
        self.truth.is_losing = true;
        self.act(at, None, |links, now, hands| links.lost(carrier, now, hands));
        self.truth.is_losing = false;
        if self.network.uses.contains_key(&(at, carrier)) {
            self.truth.violate(format!("{at}: a carrier that is lost stays"));
        }
    }
}
