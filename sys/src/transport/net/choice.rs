//! The choice of the interface, the device and the path to other machines.
//!
//! A preference that cannot be met is a warning, and something else is used; in strict mode it is an error.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::config::{Config, ConfigError};
use crate::os::interfaces::{self, ChosenAddress};
use crate::rdma::VerbsError;
use crate::tcp::{self, SocketOptions, TcpPort};
use crate::verbs::{DevicePreference, DeviceTransport, PortOptions, VerbsPort};

/// Why a port is not open.
#[derive(Debug)]
pub(crate) enum NotOpen {
    /// It cannot be used. The reason, in one line.
    Unusable(String),
    /// A preference cannot be met, in strict mode.
    Strict(ConfigError),
}

impl From<ConfigError> for NotOpen {
    fn from(error: ConfigError) -> Self {
        Self::Strict(error)
    }
}

impl From<String> for NotOpen {
    fn from(why: String) -> Self {
        Self::Unusable(why)
    }
}

impl NotOpen {
    /// Returns the reason, or the error of strict mode.
    pub(crate) fn reason(self) -> Result<String, ConfigError> {
        match self {
            Self::Unusable(why) => Ok(why),
            Self::Strict(error) => Err(error),
        }
    }
}

/// A port that is open.
#[derive(Debug)]
pub(crate) struct OpenedPort<P> {
    pub(crate) port: P,
    /// Where it is, and why there. One line.
    pub(crate) place: String,
}

/// Returns the address at which this process listens over TCP.
pub(crate) fn tcp_address(config: &Config, warnings: &mut Vec<String>) -> Result<ChosenAddress, NotOpen> {
    let mut chosen = interfaces::choose(config.net_address.as_deref(), config.place.family)?;
    if let Some(unmet) = chosen.unmet.take() {
        config.give_up(format!("{unmet}; without it the choice is {}", chosen.address), warnings)?;
    }
    Ok(chosen)
}

/// Opens a port over TCP, at the address that the settings choose.
pub(crate) fn listen_tcp(
    config: &Config,
    options: &tcp::Options,
    warnings: &mut Vec<String>,
) -> Result<OpenedPort<TcpPort>, NotOpen> {
    let chosen = tcp_address(config, warnings)?;
    let ip = chosen.address;
    let port = tcp::listen_as(SocketAddr::new(ip, 0), socket_options(config), options)
        .map_err(|error| format!("listening at {ip}: {error}; set NEMESIA_NET_ADDRESS"))?;
    Ok(OpenedPort { port, place: format!("{}{}", tcp_place(&chosen), written_class(config)) })
}

/// Returns the options that every socket to other machines has by the settings.
pub(crate) fn socket_options(config: &Config) -> SocketOptions {
    SocketOptions { class: config.place.traffic_class, silence: config.net_silence }
}

/// Describes the address at which this process listens.
pub(crate) fn tcp_place(ChosenAddress { address, why, .. }: &ChosenAddress) -> String {
    format!("at {address} ({why})")
}

fn written_class(config: &Config) -> String {
    config.place.traffic_class.map_or(String::new(), |class| format!(", traffic class {class:#04x}"))
}

/// Opens a port over an RDMA device, that which the settings choose. `options` has the rest.
pub(crate) fn open_device(
    config: &Config,
    options: &PortOptions,
    warnings: &mut Vec<String>,
) -> Result<OpenedPort<VerbsPort>, NotOpen> {
    let preference = device_preference(config, warnings)?;
    let (path_mtu, traffic_class) = (config.place.path_mtu, config.place.traffic_class);
    let (preference_of_port, silence) = (preference.clone(), config.net_silence);
    let options =
        PortOptions { preference: preference_of_port, path_mtu, traffic_class, silence, ..options.clone() };
    let port = match VerbsPort::open(&options) {
        Err(error @ VerbsError::Preference { .. }) => {
            let options = PortOptions { preference: preference.address_only(), ..options };
            let port = VerbsPort::open(&options).map_err(|_| error.to_string())?;
            let (wished, used) = (written_wishes(config), port.selection());
            config.give_up(format!("{wished}: {error}; without it the choice is {used}"), warnings)?;
            port
        }
        opened => opened.map_err(|error| error.to_string())?,
    };
    check_mtu(config, &port, warnings)?;
    let place = device_place(config, &port, &preference);
    Ok(OpenedPort { port, place })
}

/// Returns the preferences of the settings for a device.
pub(crate) fn device_preference(
    config: &Config,
    warnings: &mut Vec<String>,
) -> Result<DevicePreference, NotOpen> {
    let place = &config.place;
    let address = match &config.net_address {
        Some(_) => Some(tcp_address(config, warnings)?.address),
        None => None,
    };
    Ok(DevicePreference {
        device: place.device.clone(),
        port: place.port,
        address,
        gid_index: place.gid_index.map(u32::from),
        partition_key: place.partition_key,
        // An address that was named counts more.
        family: place.family.filter(|_| address.is_none()),
    })
}

/// Returns the settings that choose a device, with their values.
fn written_wishes(config: &Config) -> String {
    let family =
        config.place.family.map(|it| format!("NEMESIA_NET_FAMILY={}", it.to_string().to_lowercase()));
    let wishes = [Some(config.place.of_devices()).filter(|it| !it.is_empty()), family];
    wishes.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Checks whether packets on the wire can be as large as preferred.
fn check_mtu(config: &Config, port: &VerbsPort, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    let Some(wanted) = config.place.path_mtu else { return Ok(()) };
    let (device, name) = (port.device(), port.device().name());
    let why = if device.transport() == DeviceTransport::InfiniBand {
        // The device was open a moment ago; if it is gone, the port reports that.
        let possible = device.port(port.selection().port).map_or(wanted, |it| 128 << it.mtu.clamp(1, 5));
        if wanted <= possible {
            return Ok(());
        }
        format!("packets of {name} have {possible} bytes at most: raise the MTU of its network interface")
    } else {
        format!("{name} is an iWARP device, whose packets are those of TCP: set it to auto")
    };
    config.give_up(format!("NEMESIA_NET_PATH_MTU={wanted}: {why}"), warnings)
}

/// Describes the device in use, and why it is used.
fn device_place(config: &Config, port: &VerbsPort, preference: &DevicePreference) -> String {
    let mut place = port.selection().to_string();
    let why = if *preference == DevicePreference::default() {
        "the first that can be used".to_owned()
    } else {
        format!("chosen by {preference}")
    };
    // Writing to a string cannot fail.
    let _ = write!(place, ", {why}");
    if port.is_joined() {
        place += ", connections set up by datagrams";
    }
    if let Some(bytes) = config.place.path_mtu {
        let _ = write!(place, ", path MTU at most {bytes}");
    }
    place + &written_class(config)
}
