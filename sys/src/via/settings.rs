//! Addresses, ports and limits. The variables that belong to `libvipl` alone do not begin with `NEMESIA_`.

use std::net::Ipv4Addr;

/// The variable with the IPv4 address under which other processes reach this one: 127.0.0.1 by default.
const ADDRESS: &str = "VIPL_ADDRESS";
/// The variable with the ports, `first:count`.
const PORTS: &str = "VIPL_PORTS";
/// The variable with the processes of other machines that are connected: `key`, those that know the key of the job
/// (`NEMESIA_JOB_KEY_FILE`), or `any` if there is no key.
const TRUST: &str = "VIPL_TRUST";
/// Most ports: an attempt to connect looks at all of them.
const MOST_PORTS: u16 = 1024;

/// The address of this process, and the ports of which its listener takes the first free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) address: Ipv4Addr,
    pub(super) first_port: u16,
    pub(super) port_count: u16,
    /// Whether processes of other machines are connected if there is no key of the job.
    pub(super) trusts_any: bool,
}

impl Settings {
    /// Reads the environment. What is malformed counts as not set.
    pub(super) fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok();
        let trusts_any = variable(TRUST).as_deref() == Some("any");
        Self { trusts_any, ..Self::new(variable(ADDRESS).as_deref(), variable(PORTS).as_deref()) }
    }

    fn new(address: Option<&str>, ports: Option<&str>) -> Self {
        let (first_port, port_count) = ports
            .and_then(|text| text.split_once(':'))
            .and_then(|(first, count)| Some((first.parse::<u16>().ok()?, count.parse::<u16>().ok()?)))
            .filter(|(first, count)| {
                *first > 0 && (1..=MOST_PORTS).contains(count) && first.checked_add(*count).is_some()
            })
            .unwrap_or((21100, 64));
        let address = address.and_then(|text| text.parse().ok()).unwrap_or(Ipv4Addr::LOCALHOST);
        Self { address, first_port, port_count, trusts_any: false }
    }

    /// Returns the ports.
    pub(super) fn ports(self) -> impl Iterator<Item = u16> {
        self.first_port..self.first_port + self.port_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_settings_count_as_not_set() {
        let default = Settings::new(None, None);
        assert_eq!((default.address, default.ports().count()), (Ipv4Addr::LOCALHOST, 64));
        for ports in ["", "1", "0:4", "5:0", "65535:2", "5:2000", "a:b", "5:-1"] {
            assert_eq!(Settings::new(Some("nowhere"), Some(ports)), default, "{ports}");
        }
        let set = Settings::new(Some("10.1.2.3"), Some("7000:3"));
        assert_eq!(set.address, Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(set.ports().collect::<Vec<_>>(), [7000, 7001, 7002]);
    }
}
