//! The variables of the device, the interface and the path to other machines.

use std::time::Duration;

use super::{AUTO, NEVER, Variable, meaning, or_auto, or_never, put, ranged, word_for};
use crate::os::interfaces::{self, AddressFamily};
use crate::tcp::SILENCE_SECONDS;
use crate::verbs::SetUpChoice;

const FAMILIES: &[(&str, Option<AddressFamily>)] =
    &[(AUTO, None), ("ipv4", Some(AddressFamily::Ipv4)), ("ipv6", Some(AddressFamily::Ipv6))];

pub(super) const ADDRESS: Variable = Variable {
    name: "NEMESIA_NET_ADDRESS",
    values: "an IP address, a prefix of one such as 10.1.0.0/16, an interface of this machine that is up, or auto",
    help: "where this process listens for other machines; auto is the interface with the default route, else the first \
           address that is not local to this machine; for verbs, the address chooses the RDMA device, and auto is the \
           first usable one",
    get: |config| config.net_address.clone().unwrap_or_else(|| AUTO.to_owned()),
    set: |config, value| put(&mut config.net_address, address_or_auto(value)),
};

pub(super) const FAMILY: Variable = Variable {
    name: "NEMESIA_NET_FAMILY",
    values: "auto, ipv4 or ipv6",
    help: "family of the address at which this process listens for other machines; auto is IPv4 if there is such an \
           address; all processes must agree for verbs",
    get: |config| word_for(config.place.family, FAMILIES),
    set: |config, value| put(&mut config.place.family, meaning(value, FAMILIES)),
};

const SET_UPS: &[(&str, SetUpChoice)] =
    &[(AUTO, SetUpChoice::Auto), ("rdmacm", SetUpChoice::Manager), ("datagrams", SetUpChoice::Datagrams)];

pub(super) const SET_UP: Variable = Variable {
    name: "NEMESIA_NET_SETUP",
    values: "auto, rdmacm or datagrams",
    help: "how connections over RDMA devices are set up: by RDMA-CM, which needs an IP address on each device, or by \
           datagrams of the processes, on InfiniBand and RoCE; auto takes datagrams on an InfiniBand fabric if no IP \
           address leads to a device",
    get: |config| word_for(config.net_set_up, SET_UPS),
    set: |config, value| put(&mut config.net_set_up, meaning(value, SET_UPS)),
};

pub(super) const DEVICE: Variable = Variable {
    name: "NEMESIA_NET_DEVICE",
    values: "the name of an RDMA device such as mlx5_0, or auto",
    help: "RDMA device to other machines; auto is that of NEMESIA_NET_ADDRESS, else the first usable one",
    get: |config| shown(config.place.device.as_ref()),
    set: |config, value| {
        let is_name = !value.is_empty() && !value.contains(|it: char| it.is_whitespace() || it == '/');
        put(&mut config.place.device, is_name.then(|| (value != AUTO).then(|| value.to_owned())))
    },
};

pub(super) const PORT: Variable = Variable {
    name: "NEMESIA_NET_PORT",
    values: "1 to 255, or auto",
    help: "port of the RDMA device to other machines; auto is the first usable one",
    get: |config| shown(config.place.port.as_ref()),
    set: |config, value| put(&mut config.place.port, or_auto(value).filter(|port| *port != Some(0))),
};

pub(super) const GID_INDEX: Variable = Variable {
    name: "NEMESIA_NET_GID_INDEX",
    values: "0 to 255, or auto",
    help: "entry of the GID table of the RDMA device that connections use: an address with that entry is chosen; auto \
           is any",
    get: |config| shown(config.place.gid_index.as_ref()),
    set: |config, value| put(&mut config.place.gid_index, or_auto(value)),
};

pub(super) const PARTITION_KEY: Variable = Variable {
    name: "NEMESIA_NET_PARTITION_KEY",
    values: "1 to 65535 or 0x0001 to 0xffff, or auto",
    help: "InfiniBand partition (P_Key) of connections over RDMA devices: an address of an interface with that key is \
           chosen; auto is any",
    get: |config| config.place.partition_key.map_or_else(|| AUTO.to_owned(), |key| format!("{key:#06x}")),
    set: |config, value| {
        let key = match value.strip_prefix("0x") {
            _ if value == AUTO => None,
            Some(digits) => Some(u16::from_str_radix(digits, 16).ok()?),
            None => Some(value.parse().ok()?),
        };
        put(&mut config.place.partition_key, (key != Some(0)).then_some(key))
    },
};

pub(super) const PATH_MTU: Variable = Variable {
    name: "NEMESIA_NET_PATH_MTU",
    values: "256, 512, 1024, 2048, 4096 or auto",
    help: "most payload bytes of a packet on the wire of InfiniBand and RoCE devices; auto is what the path permits; \
           all processes must agree",
    get: |config| shown(config.place.path_mtu.as_ref()),
    set: |config, value| {
        let bytes = if value == AUTO { None } else { Some(ranged(value, 256, 4096)?) };
        put(&mut config.place.path_mtu, bytes.is_none_or(u32::is_power_of_two).then_some(bytes))
    },
};

pub(super) const TRAFFIC_CLASS: Variable = Variable {
    name: "NEMESIA_NET_TRAFFIC_CLASS",
    values: "0 to 255, or auto",
    help: "traffic class (type of service) of packets to other machines, with the DSCP in the upper six bits: DSCP 26 \
           is 104; auto is that of the system",
    get: |config| shown(config.place.traffic_class.as_ref()),
    set: |config, value| put(&mut config.place.traffic_class, or_auto(value)),
};

pub(super) const DIRECT_BYTES: Variable = Variable {
    name: "NEMESIA_NET_DIRECT_BYTES",
    values: "bytes, or never",
    help: "smallest put or get on memory of another machine that is done by remote memory access; smaller ones, \
           and with never all, travel in packets; never also keeps other machines from accessing regions of this \
           process in that way",
    get: |config| config.net_direct_bytes.map_or_else(|| NEVER.to_owned(), |bytes| bytes.to_string()),
    set: |config, value| put(&mut config.net_direct_bytes, or_never(value)),
};

pub(super) const SILENCE: Variable = Variable {
    name: "NEMESIA_NET_SILENCE",
    values: "seconds, 2 to 3600",
    help: "time after which a host that does not answer counts as gone; over TCP its kernel answers, whatever its \
           processes do; an InfiniBand or RoCE device notices it when something is sent, within this time and 30 s; \
           iWARP devices have limits of their own",
    get: |config| config.net_silence.as_secs().to_string(),
    set: |config, value| {
        let seconds = ranged(value, *SILENCE_SECONDS.start(), *SILENCE_SECONDS.end());
        put(&mut config.net_silence, seconds.map(Duration::from_secs))
    },
};

fn shown(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| AUTO.to_owned(), ToString::to_string)
}

fn address_or_auto(value: &str) -> Option<Option<String>> {
    let exists = value == AUTO || interfaces::choose(Some(value), None).is_ok();
    exists.then(|| (value != AUTO).then(|| value.to_owned()))
}
