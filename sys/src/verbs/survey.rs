//! The choice of a device, and the reasons against each other one.

use std::fmt;
use std::net::IpAddr;

use super::device::{Device, DeviceTransport, LinkLayer};
use crate::cm;
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
}

/// A usable port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSelection {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The IP address that leads to it.
    pub address: IpAddr,
}

/// A port of a device, with whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The device.
    pub device: String,
    /// Its port; 0 if the device itself cannot be used.
    pub port: u8,
    /// A description in one line.
    pub about: String,
    /// How it is reached, or why it cannot be used.
    pub verdict: Result<DeviceSelection, String>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}: ", self.device, self.port)?;
        if !self.about.is_empty() {
            write!(f, "{}; ", self.about)?;
        }
        match &self.verdict {
            Ok(selection) => write!(f, "usable at {}", selection.address),
            Err(why) => write!(f, "not usable: {why}"),
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
    let reached = cm::local_addresses()?;
    let mut seen = Vec::new();
    for name in names {
        match Device::open(&name) {
            Ok(device) => {
                for port in 1..=device.attributes().phys_port_cnt {
                    seen.push(look(&device, port, &reached));
                }
            }
            Err(error) => {
                seen.push(Seen {
                    device: name,
                    port: 0,
                    about: String::new(),
                    verdict: Err(error.to_string()),
                });
            }
        }
    }
    Ok(seen)
}

fn look(device: &Device, port: u8, reached: &[(IpAddr, String, u8)]) -> Seen {
    let seen = |about, verdict| Seen { device: device.name().into(), port, about, verdict };
    let attributes = match device.port(port) {
        Ok(attributes) => attributes,
        Err(error) => return seen(String::new(), Err(error.to_string())),
    };
    let gids = device.gids(port).map_or(0, |gids| gids.len());
    let kind = match (device.transport(), attributes.link) {
        (DeviceTransport::InfiniBand, LinkLayer::Ethernet) => "RoCE".to_string(),
        (transport, _) => transport.to_string(),
    };
    let bytes = attributes.message_bytes;
    let limits = device.attributes();
    let about = format!(
        "{kind}, {gids} GIDs, messages of up to {bytes} bytes, {} shared receive queues, {} atomics",
        if limits.max_srq > 0 { "with" } else { "no" },
        if limits.atomic_cap == rdma_core_sys::IBV_ATOMIC_NONE { "no" } else { "with" },
    );
    if let DeviceTransport::Other(_) = device.transport() {
        return seen(about, Err("it has no reliable connections".into()));
    }
    if !attributes.is_active() {
        return seen(about, Err(format!("its state is {}: bring its link up", state(attributes.state))));
    }
    let mut mine = reached.iter().filter(|(_, name, number)| name == device.name() && *number == port);
    match mine.next() {
        Some((address, ..)) => {
            seen(about, Ok(DeviceSelection { device: device.name().into(), port, address: *address }))
        }
        None => seen(
            about,
            Err("no IP address leads to it: give its network interface one, with `ip address add`".into()),
        ),
    }
}

fn state(code: u32) -> String {
    let words = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    words.get(code as usize).map_or_else(|| format!("{code}"), |word| (*word).to_string())
}

/// Returns the first usable port that meets the preferences.
///
/// # Errors
/// There is none. The error names the reason for each port.
pub fn choose(preference: &DevicePreference) -> Result<DeviceSelection, VerbsError> {
    pick(preference, survey()?)
}

fn pick(preference: &DevicePreference, seen: Vec<Seen>) -> Result<DeviceSelection, VerbsError> {
    let mut refused = Vec::new();
    for mut seen in seen {
        let line = seen.to_string();
        if let (Ok(selection), Some(address)) = (&mut seen.verdict, preference.address) {
            // A port may have several addresses; the survey names one of them.
            let leads = cm::place_of(address)
                .is_ok_and(|(device, port)| device == selection.device && port == selection.port);
            if leads {
                selection.address = address;
            }
        }
        match seen.verdict {
            Ok(selection) if fits(preference, &selection) => return Ok(selection),
            Ok(_) => refused.push(format!("{line}, but it is not the one wished for")),
            Err(_) => refused.push(line),
        }
    }
    if refused.is_empty() {
        refused.push(NONE.into());
    }
    Err(VerbsError::NoDevice { why: refused.join("; ") })
}

fn fits(preference: &DevicePreference, selection: &DeviceSelection) -> bool {
    preference.device.as_ref().is_none_or(|device| *device == selection.device)
        && preference.port.is_none_or(|port| port == selection.port)
        && preference.address.is_none_or(|address| address == selection.address)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn seen(device: &str, port: u8, verdict: Result<Ipv4Addr, &str>) -> Seen {
        let verdict = match verdict {
            Ok(address) => Ok(DeviceSelection { device: device.into(), port, address: address.into() }),
            Err(why) => Err(why.into()),
        };
        Seen { device: device.into(), port, about: "RoCE".into(), verdict }
    }

    fn both() -> Vec<Seen> {
        vec![
            seen("a", 1, Err("its state is DOWN")),
            seen("b", 1, Ok(Ipv4Addr::LOCALHOST)),
            seen("b", 2, Ok(Ipv4Addr::BROADCAST)),
        ]
    }

    #[test]
    fn the_first_that_fits_is_chosen() {
        assert_eq!(pick(&DevicePreference::default(), both()).unwrap().port, 1);
        assert_eq!(
            pick(&DevicePreference { port: Some(2), ..DevicePreference::default() }, both()).unwrap().device,
            "b"
        );
    }

    #[test]
    fn an_unmet_preference_names_the_reason_of_each_port() {
        let preference = DevicePreference { device: Some("a".into()), ..DevicePreference::default() };
        let text = pick(&preference, both()).unwrap_err().to_string();
        assert!(text.contains("a port 1: RoCE; not usable: its state is DOWN"), "{text}");
        assert!(
            text.contains("b port 2: RoCE; usable at 255.255.255.255, but it is not the one wished for"),
            "{text}"
        );
        let none = pick(&DevicePreference::default(), Vec::new()).unwrap_err().to_string();
        assert!(none.contains("there is none"), "{none}");
    }

    #[test]
    fn an_unknown_state_is_a_number() {
        assert_eq!((state(1), state(99)), ("DOWN".into(), "99".into()));
    }
}
