//! The memory ports of a process, which are opened when a process of another machine is met, and the choice between
//! them (`NEMESIA_NET`, as for the engine).

use std::net::Ipv4Addr;

use nemesia_core::port::memory::{Address, MemoryPort as _};
use nemesia_core::via::ViaError;
use nemesia_core::via::setup::{PORT_TCP, PORT_VERBS, SetupNetwork};

use super::buffers::{MessageBuffers, RECEIVES};
use super::port::AnyViaPort;
use super::{MOST_CONNECTIONS, MOST_PORT_REGIONS, Network, SEND_DEPTH, deregister};
use crate::config::{Config, NetChoice};
use crate::tcp::{self, SocketOptions, listen_as};
use crate::transport::net::{NotOpen, Transport, open_device};
use crate::verbs::PortOptions;

/// Most connections by an RDMA device: each has a queue pair, and all work requests must fit one completion queue.
const MOST_DEVICE_CONNECTIONS: u32 = 512;

/// Returns the number of a transport in frames.
pub(in crate::via) const fn code_of(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => PORT_TCP,
        Transport::Verbs => PORT_VERBS,
    }
}

/// Returns the transport of an acceptance; `None` if it names none, or several.
pub(in crate::via) fn transport_of(code: u8) -> Option<Transport> {
    Transport::ALL.into_iter().find(|transport| code_of(*transport) == code)
}

/// The memory ports.
#[derive(Debug)]
pub(in crate::via) struct Networks {
    /// The settings. Without an address of their own, those of devices begin with the address of this process.
    config: Config,
    address: Ipv4Addr,
    open: [Option<Network>; Transport::ALL.len()],
    /// Why no RDMA device is used, once that was tried.
    refused: Option<String>,
}

impl Networks {
    /// Nothing is opened yet.
    pub(in crate::via) fn new(mut config: Config, address: Ipv4Addr) -> Self {
        if config.net_address.is_none() && !address.is_loopback() {
            config.net_address = Some(address.to_string());
        }
        Self { config, address, open: [None, None], refused: None }
    }

    /// Returns the port of a transport, if it is open.
    pub(in crate::via) fn get_mut(&mut self, transport: Transport) -> Option<&mut Network> {
        self.open[transport as usize].as_mut()
    }

    /// Takes the port of a transport out, for calls that need the rest as well. The caller puts it back.
    pub(in crate::via) fn take(&mut self, transport: Transport) -> Option<Network> {
        self.open[transport as usize].take()
    }

    /// Puts a port back. A device that has failed is closed when its last connection has ended.
    pub(in crate::via) fn put(&mut self, network: Network) {
        if !network.is_over() {
            let at = network.port.transport() as usize;
            self.open[at] = Some(network);
        }
    }

    /// Returns all that are open.
    pub(in crate::via) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Network> {
        self.open.iter_mut().flatten()
    }

    /// Returns whether the settings permit a transport, whatever the other process asks for.
    fn permits(&self, transport: Transport) -> bool {
        // A preference for a device that cannot be met is an error in strict mode.
        let is_bound = self.config.strict && !self.config.place.of_devices().is_empty();
        match (self.config.net, transport) {
            (NetChoice::Auto | NetChoice::Tcp, Transport::Tcp) => !is_bound,
            (NetChoice::Auto | NetChoice::Verbs, Transport::Verbs) => true,
            _ => false,
        }
    }

    /// Returns the port of a transport. Opens it if it is not open.
    ///
    /// # Errors
    /// [`ViaError::NotReachable`]: it cannot be used, or is not permitted.
    pub(in crate::via) fn open(&mut self, transport: Transport) -> Result<&mut Network, ViaError> {
        let is_permitted = self.permits(transport);
        let is_tried = transport == Transport::Verbs && self.refused.is_some();
        if self.get_mut(transport).is_none() && is_permitted && !is_tried {
            let port = match transport {
                Transport::Tcp => self.listen().map_err(|_| ViaError::NotReachable)?,
                Transport::Verbs => match open_verbs(&self.config) {
                    Ok(opened) => opened,
                    Err(why) => {
                        self.refused = Some(why);
                        return Err(ViaError::NotReachable);
                    }
                },
            };
            self.open[transport as usize] = Some(Network::new(port.0, port.1));
        }
        self.get_mut(transport).ok_or(ViaError::NotReachable)
    }

    fn listen(&self) -> std::io::Result<(AnyViaPort, String)> {
        let options = tcp::Options {
            connections: MOST_CONNECTIONS,
            regions: MOST_PORT_REGIONS,
            send_depth: SEND_DEPTH,
            receive_depth: RECEIVES as u32,
            shared_receive_depth: 0,
            ..tcp::Options::default()
        };
        let sockets = SocketOptions { silence: self.config.net_silence, ..SocketOptions::default() };
        let port = listen_as((self.address, 0).into(), sockets, &options)?;
        Ok((AnyViaPort::Tcp(Box::new(port)), format!("tcp at {}", self.address)))
    }

    /// Caller: returns the part of a confirmation that names the own ports.
    pub(in crate::via) fn offer(&mut self, network: SetupNetwork) -> SetupNetwork {
        let port = self.device_address();
        let has_tcp = self.permits(Transport::Tcp);
        let ports = port.map_or(0, |_| PORT_VERBS) | if has_tcp { PORT_TCP } else { 0 };
        SetupNetwork { ports, port, ..network }
    }

    fn device_address(&mut self) -> Option<Address> {
        self.open(Transport::Verbs).ok()?.port.address()
    }

    /// Called process: chooses the transport for a caller with these ports. `None` if there is none in common.
    pub(in crate::via) fn choose(&mut self, theirs: &SetupNetwork) -> Option<Transport> {
        let own = self.offer(*theirs);
        let both = own.ports & theirs.ports;
        if both & PORT_VERBS != 0 && self.difference(theirs).is_none() {
            return Some(Transport::Verbs);
        }
        (both & PORT_TCP != 0).then_some(Transport::Tcp)
    }

    /// Returns why the devices of both processes cannot connect; `None` if they can.
    fn difference(&mut self, theirs: &SetupNetwork) -> Option<String> {
        let (port, theirs) = (self.get_mut(Transport::Verbs).map(|network| &network.port), theirs.port);
        match (port, theirs) {
            (Some(AnyViaPort::Verbs(port)), Some(theirs)) => port.difference(&theirs),
            _ => Some("the other process has no RDMA device that it can use".to_owned()),
        }
    }

    /// Returns a line with the place of a transport, and why no RDMA device is used. `theirs` are the ports of the
    /// other process, if they are known.
    pub(in crate::via) fn explain(&mut self, transport: Transport, theirs: Option<&SetupNetwork>) -> String {
        let place = self.get_mut(transport).map(|network| network.place.clone()).unwrap_or_default();
        if transport == Transport::Verbs {
            return place;
        }
        let refused = match (self.config.net, &self.refused, theirs) {
            (NetChoice::Tcp, ..) => Some("NEMESIA_NET is tcp".to_owned()),
            (_, Some(why), _) => Some(why.clone()),
            (_, None, Some(theirs)) => self.difference(theirs),
            (_, None, None) => Some("the other process cannot use one with this process".to_owned()),
        };
        refused.map_or(place.clone(), |why| format!("{place}; no RDMA device: {why}"))
    }
}

/// Opens a device that can also lock the memory of the messages of a connection: otherwise TCP must be used.
fn open_verbs(config: &Config) -> Result<(AnyViaPort, String), String> {
    let options = PortOptions {
        connections: MOST_DEVICE_CONNECTIONS,
        regions: MOST_PORT_REGIONS,
        send_depth: SEND_DEPTH,
        receive_depth: RECEIVES as u32,
        shared_receive_depth: 0,
        slices: 1,
        ..PortOptions::default()
    };
    let mut warnings = Vec::new();
    let mut opened = open_device(config, &options, &mut warnings).map_err(|not_open| match not_open {
        NotOpen::Unusable(why) => why,
        NotOpen::Strict(error) => error.to_string(),
    })?;
    let port = &mut opened.port;
    let buffers = MessageBuffers::new(|memory, access| port.register(memory, access).ok());
    let buffers =
        buffers.ok_or("its memory cannot be registered: raise the limit of locked memory (ulimit -l)")?;
    if deregister(port, buffers.region) {
        // SAFETY: deregistered.
        unsafe { buffers.free() };
    }
    let unmet = warnings.iter().map(|warning| format!("; {warning}"));
    let place = format!("verbs: {}{}", opened.place, unmet.collect::<String>());
    Ok((AnyViaPort::Verbs(Box::new(opened.port)), place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(net: NetChoice) -> Networks {
        Networks::new(Config::default().net(net), Ipv4Addr::LOCALHOST)
    }

    #[test]
    fn tcp_is_chosen_if_both_have_it_and_one_has_no_device() {
        let theirs = |ports| SetupNetwork { ports, ..SetupNetwork::new([1; 16]) };
        for (net, ports, chosen) in [
            (NetChoice::Tcp, PORT_TCP, Some(Transport::Tcp)),
            (NetChoice::Tcp, PORT_TCP | PORT_VERBS, Some(Transport::Tcp)),
            (NetChoice::Tcp, PORT_VERBS, None),
            (NetChoice::Off, PORT_TCP, None),
            (NetChoice::Verbs, PORT_TCP, None),
            (NetChoice::Auto, PORT_TCP, Some(Transport::Tcp)),
            // The address of the device is missing.
            (NetChoice::Auto, PORT_TCP | PORT_VERBS, Some(Transport::Tcp)),
            (NetChoice::Auto, 0, None),
        ] {
            assert_eq!(networks(net).choose(&theirs(ports)), chosen, "{net:?} {ports}");
        }
    }

    #[test]
    fn a_preference_for_a_device_permits_no_tcp_in_strict_mode() {
        let config = Config::default().net_device(Some("no-such-device")).strict(true);
        let mut networks = Networks::new(config, Ipv4Addr::LOCALHOST);
        assert_eq!(networks.offer(SetupNetwork::new([1; 16])).ports, 0);
        // Nor if an acceptance names it nevertheless.
        assert!(networks.open(Transport::Tcp).is_err());
    }

    #[test]
    fn the_explanation_says_why_no_device_is_used() {
        let mut networks = networks(NetChoice::Tcp);
        assert!(networks.open(Transport::Verbs).is_err() && networks.open(Transport::Tcp).is_ok());
        let text = networks.explain(Transport::Tcp, None);
        assert_eq!(text, "tcp at 127.0.0.1; no RDMA device: NEMESIA_NET is tcp");
    }

    #[test]
    fn an_acceptance_names_one_transport() {
        assert_eq!(transport_of(PORT_TCP), Some(Transport::Tcp));
        assert_eq!(transport_of(PORT_VERBS), Some(Transport::Verbs));
        assert_eq!((transport_of(0), transport_of(PORT_TCP | PORT_VERBS)), (None, None));
    }
}
