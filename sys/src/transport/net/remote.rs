//! Access to the memory of ranks on other machines.

use std::fmt::Write as _;

use nemesia_core::payload::{Exposed, ReceiveRange, SendRange};
use nemesia_core::port::channel::Registrations as _;
use nemesia_core::port::{
    AccessError, AccessShape, Accessed, CompletedAccess, DirectAccess, Exposure, PeerId, RemoteAccess,
    Rendezvous, SharedCopy, ShortPath,
};
use nemesia_core::regcache::Counts;
use nemesia_core::wire::region::RegionBytes;
use nemesia_core::wire::rendezvous::Descriptor;
use nemesia_core::wire::rma::Access;

use super::{AnyChannel, NetPort, Transport, with};
use crate::config::{Config, FastPathChoice};
use crate::verbs::PathAttributes;

impl ShortPath for NetPort {}

impl SharedCopy for NetPort {}

impl NetPort {
    /// Returns the counts of registrations of messages.
    pub(crate) fn registrations(&self) -> Counts {
        with!(&self.any, it => it.channel.registrations().counts())
    }

    /// Returns what this port says about a rank: the path of its small packets, and why registrations are not kept.
    /// Each entry is the name of a facility, whether it is used, and the reason.
    pub(crate) fn explain(&self, config: &Config, peer: PeerId) -> Vec<(&'static str, bool, String)> {
        let refused = self.registrations_refused().map(|why| ("kept registrations", false, why));
        let streams = self.explain_streams(peer);
        let first = [self.explain_path(peer), self.explain_fast_path(config, peer)];
        first.into_iter().chain(streams).chain(refused).collect()
    }

    /// Returns where this process is reached, and the attributes of the connection, if the device has any.
    fn explain_path(&self, peer: PeerId) -> (&'static str, bool, String) {
        let attributes = match &self.any {
            AnyChannel::Verbs(it) => {
                let connection = it.channel.report(peer).connection;
                connection.and_then(|connection| it.channel.port().path(connection))
            }
            AnyChannel::Tcp(_) => None,
        };
        let mut path = self.place.clone();
        if let Some(PathAttributes { mtu, gid_index, traffic_class }) = attributes {
            // Writing to a string cannot fail.
            let _ = write!(path, "; the connection has a path MTU of {mtu} bytes");
            if let (Some(index), Some(class)) = (gid_index, traffic_class) {
                let _ = write!(path, ", GID {index} and traffic class {class:#04x}");
            }
        }
        ("path", true, path)
    }

    fn explain_fast_path(&self, config: &Config, peer: PeerId) -> (&'static str, bool, String) {
        let (report, has_rings) = with!(&self.any, it => (it.channel.report(peer), it.channel.has_rings()));
        let why = match (config.net_fast_path, self.transport()) {
            (FastPathChoice::Off, _) => "NEMESIA_NET_FAST_PATH is off",
            (FastPathChoice::Auto, Transport::Tcp) => "over TCP a ring saves nothing",
            _ if !has_rings => {
                "the device does not promise to place the bytes of a write in order; if it does so nevertheless, set \
                NEMESIA_NET_FAST_PATH=on"
            }
            _ => match (report.writes_ring, report.has_ring) {
                (true, true) => "small packets are written into rings, in both directions",
                (true, false) => "small packets to it are written into its ring",
                (false, true) => "small packets of it are written into a ring here",
                (false, false) => {
                    "neither has a ring: few small packets, no ring is free, or a process sleeps"
                }
            },
        };
        ("fast path", report.writes_ring || report.has_ring, why.to_owned())
    }

    /// Returns why no registration is kept, although it should be.
    fn registrations_refused(&self) -> Option<String> {
        with!(&self.any, it => it.channel.registrations().refused())
    }

    /// Returns whether calls have an effect: in a forked child none has, and a peer from which this process has
    /// disconnected counts as gone.
    fn can_access(&self, peer: PeerId) -> bool {
        !self.origin.is_elsewhere() && self.growing.as_ref().is_none_or(|growing| growing.is_open(peer))
    }
}

// SAFETY: each method passes on to the channel, which has the same obligations. The channel is told of a closed peer by
// `PacketPort::close`, even if the connection lingers (`NetPort::close_growing`).
unsafe impl RemoteAccess for NetPort {
    fn can_get(&self, peer: PeerId) -> bool {
        with!(&self.any, it => it.channel.can_get(peer))
    }

    fn rendezvous(&self, peer: PeerId) -> Rendezvous {
        with!(&self.any, it => it.channel.rendezvous(peer))
    }

    fn access_shape(&self, peer: PeerId) -> AccessShape {
        AccessShape {
            whole_bytes: self.whole_access,
            ..with!(&self.any, it => it.channel.access_shape(peer))
        }
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        self.can_access(peer) && with!(&self.any, it => it.channel.is_accessible(peer, descriptor))
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        if !self.can_access(peer) {
            return (Descriptor::NONE, None);
        }
        with!(&mut self.any, it => it.channel.expose(peer, range))
    }

    fn expose_for_put(
        &mut self,
        peer: PeerId,
        range: ReceiveRange,
        receiver: u64,
    ) -> (Descriptor, Option<Exposure>) {
        if !self.can_access(peer) {
            return (Descriptor::NONE, None);
        }
        with!(&mut self.any, it => it.channel.expose_for_put(peer, range, receiver))
    }

    fn prepare_put(&mut self, peer: PeerId, range: SendRange) -> Option<Exposure> {
        if !self.can_access(peer) {
            return None;
        }
        with!(&mut self.any, it => it.channel.prepare_put(peer, range))
    }

    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        if !self.origin.is_elsewhere() {
            with!(&mut self.any, it => it.channel.revoke(peer, exposure));
        }
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        if !self.can_access(peer) {
            return Accessed::Failed(AccessError::Refused);
        }
        with!(&mut self.any, it => {
            let accessed = it.channel.get(peer, from, at, to, operation);
            super::fabric::Fabric::push_out(it.channel.port_mut());
            accessed
        })
    }

    fn put(&mut self, peer: PeerId, to: &Descriptor, at: u64, from: SendRange, operation: u64) -> Accessed {
        if !self.can_access(peer) {
            return Accessed::Failed(AccessError::Refused);
        }
        with!(&mut self.any, it => {
            let accessed = it.channel.put(peer, to, at, from, operation);
            super::fabric::Fabric::push_out(it.channel.port_mut());
            accessed
        })
    }

    fn notifies(&self, peer: PeerId, to: &Descriptor) -> bool {
        with!(&self.any, it => it.channel.notifies(peer, to))
    }

    fn put_last(
        &mut self,
        peer: PeerId,
        to: &Descriptor,
        at: u64,
        from: SendRange,
        operation: u64,
    ) -> Accessed {
        if !self.can_access(peer) {
            return Accessed::Failed(AccessError::Refused);
        }
        with!(&mut self.any, it => {
            let accessed = it.channel.put_last(peer, to, at, from, operation);
            super::fabric::Fabric::push_out(it.channel.port_mut());
            accessed
        })
    }

    fn orders_puts(&self, peer: PeerId) -> bool {
        with!(&self.any, it => it.channel.orders_puts(peer))
    }

    fn expose_region(
        &mut self,
        peer: PeerId,
        memory: &Exposed,
        access: Access,
    ) -> Option<(RegionBytes, Exposure)> {
        if !self.can_access(peer) {
            return None;
        }
        with!(&mut self.any, it => it.channel.expose_region(peer, memory, access))
    }

    fn withdraw_region(&mut self, exposure: Exposure) -> bool {
        self.origin.is_elsewhere() || with!(&mut self.any, it => it.channel.withdraw_region(exposure))
    }

    fn direct_access(&self, peer: PeerId) -> Option<DirectAccess> {
        with!(&self.any, it => it.channel.direct_access(peer)).filter(|_| self.can_access(peer))
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        if self.origin.is_elsewhere() {
            return None;
        }
        with!(&mut self.any, it => it.channel.poll_access())
    }
}
