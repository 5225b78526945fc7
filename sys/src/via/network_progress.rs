//! Progress of the connections to other machines.

use nemesia_core::port::memory::{Completion, MemoryPort as _, WorkOutcome};
use nemesia_core::via::record::ViaRecord;
use nemesia_core::via::{ViAttributes, ViState};
use nemesia_core::wire::vipl::ViplMessage;

use super::conduit::{Memory, rights};
use super::network::{Network, NetworkConduit, NetworkLink, PortTicket, RegionSync};
use super::objects::ViObject;
use super::state::ViaState;
use crate::transport::net::Transport;

/// Completions that are polled at once, and how often: the lock is free in between.
const COMPLETIONS: usize = 32;
const ROUNDS: usize = 8;

impl ViaState {
    /// Makes progress on all connections to other machines.
    pub(super) fn drive_network(&mut self) {
        for transport in Transport::ALL {
            self.drive_transport(transport);
        }
    }

    fn drive_transport(&mut self, transport: Transport) {
        let Some(mut network) = self.networks.take(transport) else { return };
        let mut changed = Vec::new();
        self.take_completions(&mut network, &mut changed, ROUNDS);
        let (lost, has_events) = network.progress_connections();
        self.is_changed |= has_events;
        for vi in &lost {
            self.network_of(*vi).into_iter().for_each(|link| link.is_cut = true);
        }
        // What the other side sent before the end says why the connection ended, also one that no VI has taken yet. It
        // may be the last of all completions.
        let is_cut = |vi: &u64| self.network_of(*vi).is_some_and(|link| link.is_cut);
        if has_events || changed.iter().any(is_cut) {
            let rounds = network.most_completions() / COMPLETIONS + 1;
            self.take_completions(&mut network, &mut changed, rounds);
        }
        self.networks.put(network);
        changed.extend(lost);
        for vi in changed {
            self.pump(vi);
        }
    }

    fn network_of(&mut self, vi: u64) -> Option<&mut NetworkLink> {
        self.vis.get_mut(vi)?.network.as_mut()
    }

    /// Takes completions of a memory port, at most so many rounds. Adds the VIs that they belong to.
    fn take_completions(&mut self, network: &mut Network, changed: &mut Vec<u64>, rounds: usize) {
        let mut bytes = std::mem::take(&mut self.bytes);
        for _ in 0..rounds {
            let mut completions = [Completion::EMPTY; COMPLETIONS];
            let count = network.poll(&mut completions);
            for completion in completions.iter().take(count) {
                match network.owners.get(&completion.connection).copied() {
                    Some(vi) => {
                        if let Some(object) = self.vis.get_mut(vi) {
                            complete(object, network, &self.memory, completion, &mut bytes);
                        }
                        if changed.last() != Some(&vi) {
                            changed.push(vi);
                        }
                    }
                    None if network.keep_early(completion) => {}
                    None => network.complete_closing(completion, &mut bytes),
                }
            }
            if count < COMPLETIONS {
                break;
            }
        }
        self.bytes = bytes;
    }

    /// Makes progress on the connection of a VI to another machine, if it has one. Returns whether it has one.
    pub(super) fn nudge_network(&mut self, vi: u64) -> bool {
        let Some(object) = self.vis.get(vi) else { return false };
        let Some(link) = &object.network else { return false };
        let is_late = link.lends_later || link.answers_later;
        if link.has_waiting() || is_late || link.is_cut || object.model.is_blocked() {
            self.pump(vi);
        }
        true
    }

    /// Takes the memory port of a VI's connection out of the state.
    fn take_network(&mut self, vi: u64) -> Option<Network> {
        let transport = self.network_of(vi)?.transport;
        self.networks.take(transport)
    }

    /// Starts what can be started on a VI whose connection goes to another machine. Returns whether the connection is
    /// over.
    pub(super) fn pump_network(&mut self, vi: u64) -> bool {
        let Some(mut network) = self.take_network(vi) else { return false };
        let mut is_cut = false;
        if let Some(object) = self.vis.get_mut(vi)
            && let Some(link) = &mut object.network
        {
            let attributes = object.model.attributes;
            link.lend_and_answer(&mut network, &self.memory, &attributes);
            let mut conduit =
                NetworkConduit { link, network: &mut network, memory: &self.memory, attributes };
            object.model.pump(&mut conduit);
            object.model.refill(&mut conduit);
            if link.issue(&mut network.port) {
                network.port.push_out();
            }
            // The descriptors of a VI that has failed are the program's again: nothing may use their memory.
            is_cut = link.is_cut || object.model.state() == ViState::Error;
        }
        self.networks.put(network);
        is_cut
    }

    /// Gives a VI its connection to another machine, and lends what the other process may use by RDMA.
    pub(super) fn link_network(&mut self, vi: u64, of: PortTicket, explanation: String) {
        let Some(mut network) = self.networks.take(of.transport) else { return };
        if let Some(object) = self.vis.get_mut(vi)
            && let Some(mut link) = network.take_link(of.ticket, vi)
        {
            let attributes = object.model.attributes;
            link.explanation = explanation;
            link.lends_later = true;
            link.lend_and_answer(&mut network, &self.memory, &attributes);
            let early = link.take_early();
            object.network = Some(link);
            let mut bytes = std::mem::take(&mut self.bytes);
            for completion in &early {
                complete(object, &mut network, &self.memory, completion, &mut bytes);
            }
            self.bytes = bytes;
        }
        self.networks.put(network);
    }

    /// Ends an attempt to connect, or a connection that no VI has taken.
    pub(super) fn abandon_network(&mut self, of: PortTicket) {
        if let Some(network) = self.networks.get_mut(of.transport) {
            network.abandon(of.ticket);
        }
        self.must_poke = true;
    }

    /// Ends the connection of a VI to another machine.
    pub(super) fn unlink_network(&mut self, link: NetworkLink) {
        if let Some(mut network) = self.networks.take(link.transport) {
            network.shut(link);
            self.networks.put(network);
        }
    }

    /// Informs the other process of a VI of a region that is new, changed, or about to go.
    pub(super) fn publish_on_network(&mut self, vi: u64, handle: u32, is_gone: bool) {
        let Some(mut network) = self.take_network(vi) else { return };
        let region = self.memory.table.get(handle).copied().zip(self.memory.get(handle));
        if let Some((region, memory)) = region
            && let Some(object) = self.vis.get_mut(vi)
            && let Some(link) = &mut object.network
        {
            let granted = rights(&region, &object.model.attributes);
            let done = match is_gone {
                true => link.forget(&mut network, handle),
                false if link.has_lent(handle) || granted.write || granted.read => {
                    link.lend(&mut network, (handle, &region), memory, (granted, false))
                }
                false => true,
            };
            // What was withdrawn is withdrawn by now. The other process is told when there is room.
            link.lends_later |= !done;
        }
        self.networks.put(network);
    }
}

impl ViaState {
    /// Withdraws a region that does not exist any more from all memory ports.
    pub(super) fn withdraw_from_network(&mut self, handle: u32) {
        for transport in Transport::ALL {
            let Some(mut network) = self.networks.take(transport) else { continue };
            let links = self.connected.iter().filter_map(|vi| {
                let object = self.vis.get_mut(*vi)?;
                object.network.take_if(|link| link.transport == transport).map(|link| (*vi, link))
            });
            let mut links: Vec<(u64, NetworkLink)> = links.collect();
            links.iter_mut().for_each(|(_, link)| _ = link.forget(&mut network, handle));
            for region in network.forget(handle) {
                // The device still reads for operations in progress: only the end of their connections ends that.
                for (_, link) in links.iter_mut().filter(|(_, link)| link.uses(region)) {
                    network.port.close(link.connection);
                    link.is_cut = true;
                }
                network.retire(region);
            }
            for (vi, link) in links {
                if let Some(object) = self.vis.get_mut(vi) {
                    object.network = Some(link);
                }
            }
            self.networks.put(network);
        }
    }
}

impl NetworkLink {
    /// Lends the regions that the other process may use by RDMA, and then answers that all are lent, as far as there is
    /// room.
    fn lend_and_answer(&mut self, network: &mut Network, memory: &Memory, attributes: &ViAttributes) {
        if std::mem::take(&mut self.lends_later) {
            for (handle, region) in memory.table.iter() {
                let granted = rights(&region, attributes);
                let is_due = granted.write || granted.read || self.has_lent(handle);
                let Some(lent) = memory.get(handle).filter(|_| is_due) else { continue };
                let done = self.lend(network, (handle, &region), lent, (granted, false));
                self.lends_later |= !done;
                // The port has no more regions.
                self.is_cut |= !done && self.has_room();
            }
        }
        if self.answers_later && !self.lends_later && self.message(&ViplMessage::Synced) {
            self.answers_later = false;
        }
    }
}

/// Executes a completion for a VI. Everything in a message is untrusted.
fn complete(
    object: &mut ViObject,
    network: &mut Network,
    memory: &Memory,
    completion: &Completion,
    bytes: &mut Vec<u8>,
) {
    let Some(link) = &mut object.network else { return };
    match completion.outcome {
        WorkOutcome::Failed(_) => link.is_cut = true,
        WorkOutcome::Done => {
            let last = link.end_oldest();
            object.model.transferred(last);
        }
        WorkOutcome::Received { len, written, .. } => {
            if written || !link.take_message(&mut network.port, completion.id, len, bytes) {
                link.is_cut = true;
                return;
            }
            let is_executed = match ViplMessage::decode(bytes) {
                Some(ViplMessage::Region(lent)) => link.import(&lent).is_some(),
                // One question at a time.
                Some(ViplMessage::Sync) => !std::mem::replace(&mut link.answers_later, true),
                Some(ViplMessage::Synced) => {
                    let (next, was_asked) = match link.sync {
                        RegionSync::Asked => (RegionSync::Answered, true),
                        RegionSync::Unneeded => (RegionSync::Idle, true),
                        other => (other, false),
                    };
                    link.sync = next;
                    was_asked
                }
                Some(ViplMessage::Taken(count)) => link.taken_there(count),
                Some(ViplMessage::Record { code, word, bytes }) => {
                    let attributes = object.model.attributes;
                    let mut conduit = NetworkConduit { link, network, memory, attributes };
                    let record = ViaRecord::decode(code, word, bytes);
                    record.is_some_and(|record| object.model.arrive(record, &mut conduit).is_ok())
                }
                None => false,
            };
            if let Some(link) = &mut object.network {
                link.is_cut |= !is_executed;
            }
        }
    }
}
