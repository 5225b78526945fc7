//! The choice of a device, and the reasons against each other one.

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;

use super::device::{Device, DeviceTransport, Gid, LinkLayer, PortAttributes};
use super::setup::SetUpChoice;
use crate::cm::{self, DevicePlace};
use crate::os::interfaces::AddressFamily;
use crate::rdma::VerbsError;

/// The remedy if no device is visible.
pub(crate) const NONE: &str = "there is none in /sys/class/infiniband: load its driver, or make a software one with \
                               `rdma link add rxe0 type rxe netdev INTERFACE` (module rdma_rxe, package iproute2)";

/// The preferred device; `None` means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePreference {
    /// A device, by name.
    pub device: Option<String>,
    /// A port of it, counted from 1.
    pub port: Option<u8>,
    /// A local IP address, by which peers reach it.
    pub address: Option<IpAddr>,
    /// An entry of the port's table of GIDs. The connection manager derives the entry from the address, so that this
    /// selects an address.
    pub gid_index: Option<u32>,
    /// A partition, whose interface has the address. The highest bit, which distinguishes full members, is ignored.
    pub partition_key: Option<u16>,
    /// A family of addresses.
    pub family: Option<AddressFamily>,
}

impl DevicePreference {
    /// Returns the same without all but the address.
    pub(crate) fn address_only(&self) -> Self {
        Self { address: self.address, ..Self::default() }
    }
}

impl fmt::Display for DevicePreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.device.as_ref().map(|device| format!("the name {device}")),
            self.port.map(|port| format!("port {port}")),
            self.address.map(|address| format!("address {address}")),
            self.gid_index.map(|index| format!("GID {index}")),
            self.partition_key.map(|key| format!("partition {key:#06x}")),
            self.family.map(|family| format!("an {family} address")),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(&words.join(" and "))
    }
}

/// A usable port, with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSelection {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The IP address that leads to it; `None` if none does, so that only datagrams set connections up.
    pub address: Option<IpAddr>,
    /// The entry of the table of GIDs from which connections come; `None` on iWARP, and if it is unknown.
    pub gid_index: Option<u32>,
    /// The partition of the interface with the address; `None` on iWARP.
    pub partition_key: Option<u16>,
}

impl fmt::Display for DeviceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.device, self.port)?;
        match self.address {
            Some(address) => write!(f, " at {address}")?,
            None => f.write_str(" without an IP address")?,
        }
        self.write_entries(f)
    }
}

impl DeviceSelection {
    /// Writes GID and partition, in parentheses.
    fn write_entries(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gid_index, self.partition_key) {
            (Some(index), Some(key)) => write!(f, " (GID {index}, partition {key:#06x})"),
            (Some(index), None) => write!(f, " (GID {index})"),
            (None, Some(key)) => write!(f, " (partition {key:#06x})"),
            (None, None) => Ok(()),
        }
    }

    fn meets(&self, preference: &DevicePreference) -> bool {
        let DevicePreference { device, port, address, gid_index, partition_key, family } = preference;
        let partition = |key: u16| key & !FULL_MEMBER;
        device.as_ref().is_none_or(|device| *device == self.device)
            && port.is_none_or(|port| port == self.port)
            && address.is_none_or(|address| Some(address) == self.address)
            && gid_index.is_none_or(|index| self.gid_index == Some(index))
            && partition_key.is_none_or(|key| self.partition_key.map(partition) == Some(partition(key)))
            && family.is_none_or(|family| self.address.is_some_and(|address| family.has(address)))
    }
}

/// The first bytes of a GID that is valid on its link only.
const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];

/// The bit of a partition key that distinguishes full members.
const FULL_MEMBER: u16 = 1 << 15;

/// The key of the partition that every port has.
const DEFAULT_PARTITION: u16 = 0xffff;

/// A port of a device, with whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The device.
    pub device: String,
    /// Its port; 0 if the device itself cannot be used.
    pub port: u8,
    /// A description in one line.
    pub about: String,
    /// How it is reached, by one address after the other, or why it cannot be used.
    pub verdict: Result<Vec<DeviceSelection>, String>,
    /// The ways to use it without RDMA-CM, one for each GID: [`SetUpChoice::Datagrams`]. Empty if there is none.
    pub joined: Vec<DeviceSelection>,
    /// Whether its link is one of an InfiniBand fabric, where every active port reaches the others. Only there
    /// [`SetUpChoice::Auto`] means datagrams: an Ethernet port without an address may be unused.
    pub is_fabric: bool,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}: ", self.device, self.port)?;
        if !self.about.is_empty() {
            write!(f, "{}; ", self.about)?;
        }
        match &self.verdict {
            Ok(selections) => {
                for (at, selection) in selections.iter().enumerate() {
                    f.write_str(if at == 0 { "usable at" } else { " and" })?;
                    if let Some(address) = selection.address {
                        write!(f, " {address}")?;
                    }
                    selection.write_entries(f)?;
                }
                Ok(())
            }
            Err(why) => match self.joined.first() {
                None => write!(f, "not usable: {why}"),
                Some(joined) => {
                    write!(f, "not usable by RDMA-CM: {why}; usable by datagrams")?;
                    joined.write_entries(f)?;
                    f.write_str(if self.is_fabric { "" } else { ", with NEMESIA_NET_SETUP=datagrams" })
                }
            },
        }
    }
}

/// Examines every port of every device.
///
/// # Errors
/// The library is absent, or the kernel reports no list.
pub fn survey() -> Result<Vec<Seen>, VerbsError> {
    let names = Device::names()?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // Without the connection manager, datagrams may still set connections up.
    let reached = cm::local_addresses();
    let mut seen = Vec::new();
    for name in names {
        match Device::open(&name) {
            Ok(device) => {
                for port in 1..=device.attributes().phys_port_cnt {
                    seen.push(look(&device, port, reached.as_deref()));
                }
            }
            Err(error) => {
                seen.push(Seen {
                    device: name,
                    port: 0,
                    about: String::new(),
                    verdict: Err(error.to_string()),
                    joined: Vec::new(),
                    is_fabric: false,
                });
            }
        }
    }
    match reached {
        Err(error) if seen.iter().all(|seen| seen.joined.is_empty()) => Err(error),
        _ => Ok(seen),
    }
}

fn look(device: &Device, port: u8, reached: Result<&[(IpAddr, DevicePlace)], &VerbsError>) -> Seen {
    let seen = |about, verdict| Seen {
        device: device.name().into(),
        port,
        about,
        verdict,
        joined: Vec::new(),
        is_fabric: false,
    };
    let attributes = match device.port(port) {
        Ok(attributes) => attributes,
        Err(error) => return seen(String::new(), Err(error.to_string())),
    };
    let gids = device.gids(port).unwrap_or_default();
    let kind = match (device.transport(), attributes.link) {
        (DeviceTransport::InfiniBand, LinkLayer::Ethernet) => "RoCE".to_string(),
        (transport, _) => transport.to_string(),
    };
    let bytes = attributes.message_bytes;
    let limits = device.attributes();
    let about = format!(
        "{kind}, {} GIDs, messages of up to {bytes} bytes, {} shared receive queues, {} atomics",
        gids.len(),
        if limits.max_srq > 0 { "with" } else { "no" },
        if limits.atomic_cap == rdma_core_sys::IBV_ATOMIC_NONE { "no" } else { "with" },
    );
    if let DeviceTransport::Other(_) = device.transport() {
        return seen(about, Err("it has no reliable connections".into()));
    }
    if !attributes.is_active() {
        return seen(about, Err(format!("its state is {}: bring its link up", state(attributes.state))));
    }
    let joined = joined((device, port), attributes, &gids, reached.unwrap_or(&[]));
    let is_fabric = attributes.link == LinkLayer::InfiniBand;
    let seen = |verdict| Seen { joined, is_fabric, ..seen(about, verdict) };
    let reached = match reached {
        Ok(reached) => reached,
        Err(error) => return seen(Err(error.to_string())),
    };
    let mine = reached.iter().filter(|(_, place)| place.device == device.name() && place.port == port);
    let selections: Vec<_> = mine
        .map(|(address, place)| selection((device.transport(), attributes.link, &gids), *address, place))
        .collect();
    if selections.is_empty() {
        let why = "no IP address leads to it: give its network interface one, with `ip address add`";
        return seen(Err(why.into()));
    }
    seen(Ok(selections))
}

/// Returns the ways to use a port without RDMA-CM, the best first. Ethernet needs a GID: one of version 2 of `RoCE`,
/// which routers forward, before version 1, and one that is valid beyond the link before others.
/// An IP address that a GID stands for can still choose it.
fn joined(
    (device, port): (&Device, u8),
    attributes: PortAttributes,
    gids: &[Gid],
    reached: &[(IpAddr, DevicePlace)],
) -> Vec<DeviceSelection> {
    if device.transport() != DeviceTransport::InfiniBand {
        return Vec::new();
    }
    let way = |address, gid_index| {
        let (device, partition_key) = (device.name().into(), None);
        DeviceSelection { device, port, address, gid_index, partition_key }
    };
    if attributes.link == LinkLayer::InfiniBand && attributes.lid != 0 && gids.is_empty() {
        return vec![way(None, None)];
    }
    let address = |gid: &Gid| {
        let is_here = |place: &DevicePlace| {
            (place.device == device.name(), place.port, place.gid) == (true, port, gid.bytes)
        };
        reached.iter().find(|(_, place)| is_here(place)).map(|(address, _)| *address)
    };
    let mut gids: Vec<&Gid> = gids.iter().collect();
    let is_of_link = |gid: &Gid| gid.bytes[..2] == LINK_LOCAL;
    if attributes.link == LinkLayer::Ethernet {
        gids.sort_by_key(|gid| (Reverse(gid.kind), is_of_link(gid), gid.index));
    }
    gids.into_iter().map(|gid| way(address(gid), Some(gid.index))).collect()
}

/// Returns a usable port with an address that leads to it. The table may have two entries with the same GID, for both
/// versions of `RoCE`: the connection manager uses the later version, 2 (`cma_set_default_gid_type`, Linux 6.1). `RoCE`
/// has the default partition only (`cma_ib_init_qp_attr`).
fn selection(
    (transport, link, gids): (DeviceTransport, LinkLayer, &[Gid]),
    address: IpAddr,
    place: &DevicePlace,
) -> DeviceSelection {
    let has_entries = transport == DeviceTransport::InfiniBand;
    let key = if link == LinkLayer::Ethernet { DEFAULT_PARTITION } else { place.partition_key };
    let entry = gids.iter().filter(|gid| gid.bytes == place.gid).max_by_key(|gid| gid.kind);
    DeviceSelection {
        device: place.device.clone(),
        port: place.port,
        address: Some(address),
        gid_index: entry.filter(|_| has_entries).map(|gid| gid.index),
        partition_key: has_entries.then_some(key),
    }
}

fn state(code: u32) -> String {
    let words = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    words.get(code as usize).map_or_else(|| format!("{code}"), |word| (*word).to_string())
}

/// Returns the first usable port, and the first of its addresses, that meets the preferences.
///
/// # Errors
/// There is none. The error names what each port has, or why it cannot be used.
pub fn choose(preference: &DevicePreference) -> Result<DeviceSelection, VerbsError> {
    choose_for(preference, SetUpChoice::Manager).map(|(selection, _)| selection)
}

/// Returns the first usable port that meets the preferences, with one of its addresses, or with one of its GIDs, and
/// whether connections are set up by RDMA-CM, which comes first if both are allowed.
pub(super) fn choose_for(
    preference: &DevicePreference,
    set_up: SetUpChoice,
) -> Result<(DeviceSelection, bool), VerbsError> {
    let mut seen = survey()?;
    if let Some(address) = preference.address {
        add_address(&mut seen, address);
    }
    pick(preference, &seen, set_up)
}

/// Adds a named address that the survey leaves out, such as a loopback address, to the port to which it leads.
fn add_address(seen: &mut [Seen], address: IpAddr) {
    let Ok(place) = cm::place_of(address) else { return };
    let Some(seen) = seen.iter_mut().find(|it| it.device == place.device && it.port == place.port) else {
        return;
    };
    let device = Device::open(&place.device).ok();
    let Some(device) = device else { return };
    let (Ok(gids), Ok(attributes)) = (device.gids(place.port), device.port(place.port)) else { return };
    let Ok(selections) = &mut seen.verdict else { return };
    if selections.iter().all(|it| it.address != Some(address)) {
        selections.push(selection((device.transport(), attributes.link, &gids), address, &place));
    }
}

fn pick(
    preference: &DevicePreference,
    seen: &[Seen],
    set_up: SetUpChoice,
) -> Result<(DeviceSelection, bool), VerbsError> {
    let managed = || seen.iter().filter_map(|seen| seen.verdict.as_ref().ok()).flatten().map(|it| (it, true));
    let is_joined = |seen: &&Seen| match set_up {
        SetUpChoice::Auto => seen.is_fabric,
        SetUpChoice::Manager => false,
        SetUpChoice::Datagrams => true,
    };
    let joined = || seen.iter().filter(is_joined).flat_map(|seen| &seen.joined).map(|it| (it, false));
    let usable = || managed().filter(|_| set_up != SetUpChoice::Datagrams).chain(joined());
    if let Some((selection, is_managed)) = usable().find(|(selection, _)| selection.meets(preference)) {
        return Ok((selection.clone(), is_managed));
    }
    let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
    let why = if lines.is_empty() { NONE.into() } else { lines.join("; ") };
    if usable().next().is_some() {
        return Err(VerbsError::Preference { wished: preference.to_string(), why });
    }
    Err(VerbsError::NoDevice { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(device: &str, port: u8, address: &str, index: u32) -> DeviceSelection {
        let address = Some(address.parse().unwrap());
        let (gid_index, partition_key) = (Some(index), Some(0x8001));
        DeviceSelection { device: device.into(), port, address, gid_index, partition_key }
    }

    fn seen(device: &str, port: u8, verdict: Result<Vec<DeviceSelection>, &str>) -> Seen {
        Seen {
            device: device.into(),
            port,
            about: "RoCE".into(),
            verdict: verdict.map_err(Into::into),
            joined: Vec::new(),
            is_fabric: false,
        }
    }

    fn all() -> Vec<Seen> {
        vec![
            seen("a", 1, Err("its state is DOWN")),
            seen("b", 1, Ok(vec![at("b", 1, "10.0.0.1", 1), at("b", 1, "fd00::1", 3)])),
            seen("b", 2, Ok(vec![at("b", 2, "10.0.0.2", 1)])),
        ]
    }

    #[test]
    fn the_first_that_meets_every_preference_is_chosen() {
        let any = DevicePreference::default();
        let chosen = |preference: DevicePreference| {
            pick(&preference, &all(), SetUpChoice::Auto).map(|(it, _)| it.address.unwrap().to_string())
        };
        assert_eq!(chosen(any.clone()).unwrap(), "10.0.0.1");
        assert_eq!(chosen(DevicePreference { port: Some(2), ..any.clone() }).unwrap(), "10.0.0.2");
        assert_eq!(chosen(DevicePreference { gid_index: Some(3), ..any.clone() }).unwrap(), "fd00::1");
        let family = Some(AddressFamily::Ipv6);
        assert_eq!(chosen(DevicePreference { family, ..any.clone() }).unwrap(), "fd00::1");
        let address = Some("10.0.0.2".parse().unwrap());
        assert_eq!(chosen(DevicePreference { address, ..any.clone() }).unwrap(), "10.0.0.2");
        for key in [0x8001, 1] {
            let preference = DevicePreference { partition_key: Some(key), ..any.clone() };
            assert_eq!(chosen(preference).unwrap(), "10.0.0.1");
        }
        for unmet in [
            DevicePreference { family, port: Some(2), ..any.clone() },
            DevicePreference { gid_index: Some(2), ..any.clone() },
            DevicePreference { partition_key: Some(0x8002), ..any.clone() },
        ] {
            assert!(matches!(chosen(unmet), Err(VerbsError::Preference { .. })));
        }
        assert_eq!(DevicePreference { family, address, ..any }.address_only().family, None);
    }

    #[test]
    fn an_unmet_preference_names_what_each_port_has() {
        let preference =
            DevicePreference { device: Some("a".into()), gid_index: Some(7), ..DevicePreference::default() };
        let text = pick(&preference, &all(), SetUpChoice::Auto).unwrap_err().to_string();
        for part in [
            "has the name a and GID 7: ",
            "a port 1: RoCE; not usable: its state is DOWN",
            "b port 1: RoCE; usable at 10.0.0.1 (GID 1, partition 0x8001) and fd00::1 (GID 3, partition 0x8001)",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let none = pick(&preference, &[], SetUpChoice::Auto).unwrap_err().to_string();
        assert!(none.contains("there is none"), "{none}");
        let unusable = pick(&preference, &all()[..1], SetUpChoice::Auto).unwrap_err();
        assert!(matches!(unusable, VerbsError::NoDevice { .. }), "{unusable}");
    }

    #[test]
    fn the_entry_of_an_address_is_that_of_the_later_version() {
        let gid = |index, kind| Gid { index, bytes: [7; 16], kind: Some(kind) };
        let other = Gid { index: 0, bytes: [1; 16], kind: Some(2) };
        let place = DevicePlace { device: "b".into(), port: 1, gid: [7; 16], partition_key: 0x8001 };
        let chosen = |transport, link, gids: &[Gid]| {
            let it = selection((transport, link, gids), "10.0.0.1".parse().unwrap(), &place);
            (it.gid_index, it.partition_key)
        };
        let gids = [other, gid(1, 1), gid(2, 2), gid(3, 1)];
        let (infiniband, ethernet) = (LinkLayer::InfiniBand, LinkLayer::Ethernet);
        assert_eq!(chosen(DeviceTransport::InfiniBand, ethernet, &gids), (Some(2), Some(0xffff)));
        assert_eq!(chosen(DeviceTransport::InfiniBand, infiniband, &gids[..2]), (Some(1), Some(0x8001)));
        assert_eq!(chosen(DeviceTransport::InfiniBand, ethernet, &gids[..1]), (None, Some(0xffff)));
        assert_eq!(chosen(DeviceTransport::Iwarp, ethernet, &gids), (None, None));
    }

    #[test]
    fn an_unknown_state_is_a_number() {
        assert_eq!((state(1), state(99)), ("DOWN".into(), "99".into()));
    }
}
