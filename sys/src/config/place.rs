//! Settings of the device, the interface and the path to other machines.

use super::{Config, NetChoice};
use crate::os::interfaces::AddressFamily;

/// Preferences for the device, the interface and the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacePreference {
    /// The name of an RDMA device.
    pub(crate) device: Option<String>,
    /// The port of an RDMA device, from 1.
    pub(crate) port: Option<u8>,
    /// An entry of the port's table of GIDs.
    pub(crate) gid_index: Option<u8>,
    pub(crate) partition_key: Option<u16>,
    /// The most bytes of a packet on the wire, of RDMA devices.
    pub(crate) path_mtu: Option<u32>,
    /// The byte that IPv4 calls type of service and IPv6 traffic class.
    pub(crate) traffic_class: Option<u8>,
    pub(crate) family: Option<AddressFamily>,
}

impl PlacePreference {
    /// Returns the settings that only RDMA devices have, with their values; empty if there is none.
    pub(crate) fn of_devices(&self) -> String {
        let words = [
            self.device.as_ref().map(|it| format!("NEMESIA_NET_DEVICE={it}")),
            self.port.map(|it| format!("NEMESIA_NET_PORT={it}")),
            self.gid_index.map(|it| format!("NEMESIA_NET_GID_INDEX={it}")),
            self.partition_key.map(|it| format!("NEMESIA_NET_PARTITION_KEY={it:#06x}")),
            self.path_mtu.map(|it| format!("NEMESIA_NET_PATH_MTU={it}")),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Config {
    /// Sets the RDMA device that is preferred, by its name; `None`: the first one that can be used.
    #[must_use]
    pub fn net_device(self, device: Option<&str>) -> Self {
        self.with(["NEMESIA_NET_DEVICE"], |config| config.place.device = device.map(str::to_owned))
    }

    /// Sets the port of an RDMA device that is preferred, from 1; `None`: the first one that can be used.
    #[must_use]
    pub fn net_port(self, port: Option<u8>) -> Self {
        self.with(["NEMESIA_NET_PORT"], |config| config.place.port = port.map(|port| port.max(1)))
    }

    /// Sets the entry of the GID table that connections over an RDMA device should use. The connection manager derives
    /// the entry from the address; this selects an address with that entry.
    #[must_use]
    pub fn net_gid_index(self, index: Option<u8>) -> Self {
        self.with(["NEMESIA_NET_GID_INDEX"], |config| config.place.gid_index = index)
    }

    /// Sets the partition that connections over an InfiniBand device should use. Each interface (`ib0.8001`) has the
    /// key of one partition; this selects an address of such an interface. The highest bit, which distinguishes full
    /// members, is not compared.
    #[must_use]
    pub fn net_partition_key(self, key: Option<u16>) -> Self {
        self.with(["NEMESIA_NET_PARTITION_KEY"], |config| config.place.partition_key = key)
    }

    /// Sets the most payload bytes of a packet on the wire of an RDMA device: 256, 512, 1024, 2048 or 4096; another
    /// number is rounded down. `None`: as many as the path permits. All processes must agree.
    #[must_use]
    pub fn net_path_mtu(self, bytes: Option<u32>) -> Self {
        let bytes = bytes.map(|bytes| 1 << bytes.clamp(256, 4096).ilog2());
        self.with(["NEMESIA_NET_PATH_MTU"], |config| config.place.path_mtu = bytes)
    }

    /// Sets the traffic class of packets to other machines: the byte that IPv4 calls type of service, with the DSCP in
    /// its upper six bits. `None`: that of the system.
    #[must_use]
    pub fn net_traffic_class(self, class: Option<u8>) -> Self {
        self.with(["NEMESIA_NET_TRAFFIC_CLASS"], |config| config.place.traffic_class = class)
    }

    /// Sets the family of the address at which this process listens. `None`: IPv4 if there is such an address. All
    /// processes must agree over RDMA devices.
    #[must_use]
    pub fn net_family(self, family: Option<AddressFamily>) -> Self {
        self.with(["NEMESIA_NET_FAMILY"], |config| config.place.family = family)
    }

    /// Returns a warning if preferences for RDMA devices have no effect because another transport is chosen.
    pub(super) fn unused_place(&self) -> Option<String> {
        let (NetChoice::Tcp | NetChoice::Off, wished) = (self.net, self.place.of_devices()) else {
            return None;
        };
        let remedy = "has no effect without RDMA devices: set NEMESIA_NET to auto or verbs";
        (!wished.is_empty()).then(|| format!("{wished}: {remedy}"))
    }
}
