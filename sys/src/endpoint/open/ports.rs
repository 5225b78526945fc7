//! Shared memory and the port to other machines as one port of the engine.

use nemesia_core::port::{PacketPort as _, Pair, Route};

use crate::endpoint::Endpoint;
use crate::shm::Port;
use crate::transport::net::NetPort;

/// All ports of an endpoint. Without ranks on other machines there is no second one.
pub(in crate::endpoint) type Ports = Pair<Port, NetPort, Vec<Route>>;

/// Returns the ports as one. `remote` has the transport of each rank on another machine.
pub(in crate::endpoint) fn join(local: Port, net: Option<NetPort>, remote: &[Option<&'static str>]) -> Ports {
    let route = |transport: &Option<_>| if transport.is_some() { Route::Remote } else { Route::Local };
    Pair::new(local, net, remote.iter().map(route).collect())
}

impl Endpoint {
    /// Returns whether the endpoint has connections to other machines, so that its calls may call the operating system.
    #[cfg(feature = "internals")]
    #[inline]
    pub fn has_network(&self) -> bool {
        self.engine.port().remote().is_some()
    }

    /// Returns the port to other machines, if the world has any.
    #[inline]
    pub(in crate::endpoint) fn net_mut(&mut self) -> Option<&mut NetPort> {
        self.engine.port_mut().remote_mut()
    }

    /// As [`Endpoint::net_mut`], for reading.
    #[inline]
    pub(in crate::endpoint) fn net(&self) -> Option<&NetPort> {
        self.engine.port().remote()
    }

    /// Makes progress on connections to other machines.
    #[inline]
    pub(in crate::endpoint) fn advance_net(&mut self) {
        if let Some(net) = self.net_mut() {
            net.advance(net.now());
        }
    }

    /// Prepares the port to other machines for a sleep. `false`: there may be something to do already.
    pub(in crate::endpoint) fn arm_net(&mut self) -> bool {
        self.net_mut().is_none_or(NetPort::arm)
    }
}
