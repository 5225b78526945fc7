//! The addresses of this machine: the one at which other machines reach this process.

use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// A family of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl AddressFamily {
    /// Returns whether an address belongs to it.
    pub const fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Ipv4 => address.is_ipv4(),
            Self::Ipv6 => address.is_ipv6(),
        }
    }
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Ipv4 { "IPv4" } else { "IPv6" })
    }
}

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    interface: String,
    address: IpAddr,
    /// A network is connected with the interface (IFF_RUNNING).
    has_carrier: bool,
}

/// The address at which this process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChosenAddress {
    pub(crate) address: IpAddr,
    /// Why it was chosen.
    pub(crate) why: String,
    /// What is wrong with the preference for a family, if no address meets it. One line.
    pub(crate) unmet: Option<String>,
}

/// Returns the address at which this process listens: `wanted`, which is an address, a prefix of addresses
/// (`10.1.0.0/16`) or the name of an interface; by default an address of the interface with the default route, else the
/// first address that is not local to this machine, else the loopback address. IPv4 comes before IPv6, unless a family
/// is preferred. An interface without a carrier, such as the bridge of containers that do not run, is used only if it
/// is named, or if all others are local to this machine. Link-local addresses are not used, because they mean nothing
/// on another machine. The error is one line.
pub(crate) fn choose(wanted: Option<&str>, family: Option<AddressFamily>) -> Result<ChosenAddress, String> {
    pick(wanted, family, &addresses()?, &default_interfaces())
}

/// Returns the interface of each default route.
fn default_interfaces() -> DefaultInterfaces {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (ipv4, ipv6) = (read("/proc/net/route"), read("/proc/net/ipv6_route"));
    DefaultInterfaces {
        ipv4: default_interface(&ipv4).map(str::to_owned),
        ipv6: default_interface_of_ipv6(&ipv6).map(str::to_owned),
    }
}

/// The interfaces with the default routes.
#[derive(Debug, Default)]
struct DefaultInterfaces {
    ipv4: Option<String>,
    ipv6: Option<String>,
}

fn pick(
    wanted: Option<&str>,
    family: Option<AddressFamily>,
    all: &[InterfaceAddress],
    defaults: &DefaultInterfaces,
) -> Result<ChosenAddress, String> {
    let found = pick_in(wanted, family, all, defaults);
    let (Some(family), Err(why)) = (family, &found) else { return found };
    let unmet = format!("NEMESIA_NET_FAMILY={}: {why}", family.to_string().to_lowercase());
    pick_in(wanted, None, all, defaults).map(|chosen| ChosenAddress { unmet: Some(unmet), ..chosen })
}

fn pick_in(
    wanted: Option<&str>,
    family: Option<AddressFamily>,
    all: &[InterfaceAddress],
    defaults: &DefaultInterfaces,
) -> Result<ChosenAddress, String> {
    let fits = |address| family.is_none_or(|family| family.has(address));
    let first = |is: &dyn Fn(&InterfaceAddress) -> bool, why: &str| {
        let usable = || all.iter().filter(|it| is_usable(it.address) && fits(it.address) && is(it));
        let found = usable().find(|it| it.address.is_ipv4()).or_else(|| usable().next())?;
        let why = format!("{}, {why}", found.interface);
        Some(ChosenAddress { address: found.address, why, unmet: None })
    };
    let kind = family.map_or(String::new(), |family| format!("{family} "));
    let Some(wanted) = wanted else {
        let has_route = |it: &InterfaceAddress| {
            let default = if it.address.is_ipv4() { &defaults.ipv4 } else { &defaults.ipv6 };
            // An interface has an address of either family more often than a route of either.
            let is_default = |name: &String| *name == it.interface;
            it.has_carrier && [default, &defaults.ipv4].into_iter().flatten().any(is_default)
        };
        let leaves = |it: &InterfaceAddress| it.has_carrier && !it.address.is_loopback();
        return first(&has_route, "the interface with the default route")
            .or_else(|| first(&leaves, "the first address that is not local to this machine"))
            // The kernel reports the carrier of a new interface up to a second late.
            .or_else(|| {
                first(&|it| !it.address.is_loopback(), "which has no carrier: there is no other address")
            })
            .or_else(|| {
                let why = "which other machines do not reach: there is no other address";
                first(&|_| true, &format!("{why}{}", unused(all)))
            })
            .ok_or_else(|| {
                format!("this machine has no interface that is up with an {kind}address: {}", list(all))
            });
    };
    if let Ok(address) = wanted.parse::<IpAddr>() {
        if !fits(address) {
            return Err(format!(
                "NEMESIA_NET_ADDRESS={wanted} is no {kind}address: set one of the two to auto"
            ));
        }
        let is_here = address.is_loopback() || all.iter().any(|it| it.address == address);
        if !is_here || !is_usable(address) {
            let no =
                if is_here { LINK_LOCAL } else { "is no address of an interface of this machine that is up" };
            return Err(format!("NEMESIA_NET_ADDRESS={wanted} {no}: there are {}", list(all)));
        }
        return Ok(ChosenAddress { address, why: "NEMESIA_NET_ADDRESS".into(), unmet: None });
    }
    let found = match prefix(wanted) {
        Some(prefix) => first(&|it| is_within(it.address, prefix), "which NEMESIA_NET_ADDRESS contains"),
        None => first(&|it| it.interface == wanted, "which NEMESIA_NET_ADDRESS names"),
    };
    found.ok_or_else(|| {
        let no = match prefix(wanted) {
            _ if family.is_some() => format!("has no {kind}address here"),
            Some(_) => "contains no address of this machine".into(),
            None if wanted.contains('/') => "is no prefix such as 10.1.0.0/16".into(),
            None => "names no interface of this machine that is up and has an address".into(),
        };
        format!("NEMESIA_NET_ADDRESS={wanted} {no}: there are {}{}", list(all), unused(all))
    })
}

/// Why a link-local address is not used.
const LINK_LOCAL: &str = "is link-local, and means nothing on another machine";

/// Names the link-local addresses, which are not used.
fn unused(all: &[InterfaceAddress]) -> String {
    let unused = all.iter().filter(|it| !is_usable(it.address));
    let names: Vec<String> = unused.map(|it| format!("{} ({})", it.interface, it.address)).collect();
    match names.join(", ") {
        names if names.is_empty() => names,
        names => format!("; not used, as it {LINK_LOCAL}: {names}; give the interface another address"),
    }
}

/// Lists the interfaces with their addresses.
fn list(all: &[InterfaceAddress]) -> String {
    let usable = all.iter().filter(|it| is_usable(it.address));
    let names: Vec<String> = usable.map(|it| format!("{} ({})", it.interface, it.address)).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Returns address and length of a prefix in the form `10.1.0.0/16`.
fn prefix(text: &str) -> Option<(IpAddr, u32)> {
    let (address, len) = text.split_once('/')?;
    let (address, len) = (address.parse::<IpAddr>().ok()?, len.parse().ok()?);
    (len <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, len))
}

fn is_within(address: IpAddr, (prefix, len): (IpAddr, u32)) -> bool {
    match (address, prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differing = address.to_bits() ^ prefix.to_bits();
            differing.leading_zeros() >= len
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differing = address.to_bits() ^ prefix.to_bits();
            differing.leading_zeros() >= len
        }
        _ => false,
    }
}

fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_unspecified(),
    }
}

/// Returns the interface with the default route, from the kernel's table of IPv4 routes.
fn default_interface(table: &str) -> Option<&str> {
    let routes = table.lines().skip(1).map(|line| line.split_ascii_whitespace());
    let mut defaults = routes.filter_map(|mut fields| {
        let (interface, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then_some(interface)
    });
    defaults.next()
}

/// Returns the interface with the default route, from the kernel's table of IPv6 routes. The loopback interface has a
/// default route that refuses everything.
fn default_interface_of_ipv6(table: &str) -> Option<&str> {
    let mut defaults = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [destination, len, .., interface] = fields[..] else { return None };
        (len == "00" && destination.bytes().all(|digit| digit == b'0') && interface != "lo")
            .then_some(interface)
    });
    defaults.next()
}

/// Frees the list of the C library.
struct Listed(*mut libc::ifaddrs);

impl Drop for Listed {
    fn drop(&mut self) {
        // SAFETY: `getifaddrs` made the list, and nothing else frees it.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

fn addresses() -> Result<Vec<InterfaceAddress>, String> {
    let mut first = ptr::null_mut();
    // SAFETY: the library stores a pointer to a list that it allocates.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(format!("listing the interfaces of this machine: {}", std::io::Error::last_os_error()));
    }
    let listed = Listed(first);
    let mut found = Vec::new();
    let mut next = listed.0;
    // SAFETY: the elements of the list live until it is freed, and the last one has a null pointer.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        if element.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: an element's address is null or a socket address of its family.
        let Some(address) = (unsafe { ip(element.ifa_addr) }) else { continue };
        // SAFETY: the name is a string that lives as long as the list.
        let interface = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy().into_owned();
        let has_carrier = element.ifa_flags & libc::IFF_RUNNING as u32 != 0;
        found.push(InterfaceAddress { interface, address, has_carrier });
    }
    Ok(found)
}

/// Returns the IP address in a socket address; `None` for another family.
///
/// # Safety
/// The pointer is null, or leads to a socket address of the size that belongs to its family.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = unsafe { address.as_ref()? }.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so. The alignment need not suit, so the value is copied.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<InterfaceAddress> {
        let it = |interface: &str, address: &str| InterfaceAddress {
            interface: interface.into(),
            address: address.parse().unwrap(),
            has_carrier: true,
        };
        vec![
            it("lo", "127.0.0.1"),
            it("lo", "::1"),
            it("eth0", "fe80::1"),
            it("eth0", "10.0.0.1"),
            it("ib0", "fd00::7"),
            it("ib0", "10.1.0.1"),
        ]
    }

    fn choose_in(
        wanted: Option<&str>,
        family: Option<AddressFamily>,
        all: &[InterfaceAddress],
        default: Option<&str>,
    ) -> Result<ChosenAddress, String> {
        let defaults = DefaultInterfaces { ipv4: default.map(str::to_owned), ipv6: None };
        pick(wanted, family, all, &defaults)
    }

    #[test]
    fn the_default_address_is_that_of_the_default_route_else_the_first_that_others_can_reach() {
        let choose = |all: &[InterfaceAddress], default| {
            choose_in(None, None, all, default).map(|it| it.address.to_string())
        };
        let all = all();
        assert_eq!(choose(&all, Some("ib0")).unwrap(), "10.1.0.1");
        assert_eq!(choose(&all, None).unwrap(), "10.0.0.1");
        assert_eq!(choose(&all[..2], None).unwrap(), "127.0.0.1");
        assert_eq!(
            choose(&all[..3], Some("eth0")).unwrap(),
            "127.0.0.1",
            "a link-local address is of no use"
        );
        assert!(choose(&[], None).is_err());
    }

    #[test]
    fn an_interface_without_carrier_is_chosen_by_name_or_before_the_loopback_address() {
        let mut all = all();
        all[3].has_carrier = false;
        let choose = |wanted, all: &[InterfaceAddress]| choose_in(wanted, None, all, Some("eth0")).unwrap();
        assert_eq!(choose(None, &all).address.to_string(), "10.1.0.1");
        assert_eq!(choose(Some("eth0"), &all).address.to_string(), "10.0.0.1");
        assert_eq!(choose(Some("10.0.0.0/16"), &all).address.to_string(), "10.0.0.1");
        let down = choose(None, &all[..4]);
        assert!(down.address.to_string() == "10.0.0.1" && down.why.contains("no carrier"), "{down:?}");
    }

    #[test]
    fn a_machine_with_link_local_addresses_only_says_so() {
        let all = &all()[..3];
        let chosen = choose_in(None, None, all, None).unwrap();
        let says = |text: &str| text.contains("eth0 (fe80::1)") && text.contains("link-local");
        assert!(chosen.address.is_loopback() && says(&chosen.why), "{chosen:?}");
        let named = choose_in(Some("eth0"), None, all, None).unwrap_err();
        assert!(says(&named), "{named}");
        let given = choose_in(Some("fe80::1"), None, all, None).unwrap_err();
        assert!(given.contains("fe80::1 is link-local"), "{given}");
    }

    #[test]
    fn an_address_a_prefix_or_an_interface_can_be_named_and_another_name_is_an_error_with_those_there_are() {
        let all = all();
        let choose =
            |wanted| choose_in(Some(wanted), None, &all, Some("eth0")).map(|it| it.address.to_string());
        assert_eq!(choose("ib0").unwrap(), "10.1.0.1");
        assert_eq!(choose("fd00::7").unwrap(), "fd00::7");
        assert_eq!(choose("127.0.0.9").unwrap(), "127.0.0.9");
        assert_eq!(choose("10.1.0.0/16").unwrap(), "10.1.0.1");
        assert_eq!(choose("fd00::/8").unwrap(), "fd00::7");
        assert_eq!(choose("10.0.0.0/7").unwrap(), "10.0.0.1");
        assert_eq!(choose("0.0.0.0/0").unwrap(), "127.0.0.1");
        for (wanted, why) in [
            ("ib1", "names no interface"),
            ("192.0.2.9", "is no address of an interface"),
            ("10.2.0.0/16", "contains no address of this machine"),
            ("10.1.0.0/33", "is no prefix"),
            ("fd00::/129", "is no prefix"),
            ("10.1.0.0/", "is no prefix"),
            ("/8", "is no prefix"),
        ] {
            let error = choose(wanted).unwrap_err();
            assert!(error.contains(&format!("{wanted} {why}")), "{error}");
            assert!(error.contains("lo (::1), eth0 (10.0.0.1), ib0"), "{error}");
        }
    }

    #[test]
    fn the_preferred_family_is_chosen_and_without_it_the_other_one_with_the_reason() {
        let all = all();
        let choose = |wanted, family, all: &[InterfaceAddress]| {
            let chosen = choose_in(wanted, Some(family), all, Some("ib0")).unwrap();
            (chosen.address.to_string(), chosen.unmet.unwrap_or_default())
        };
        let (ipv4, ipv6) = (AddressFamily::Ipv4, AddressFamily::Ipv6);
        assert_eq!(choose(None, ipv6, &all), ("fd00::7".into(), String::new()));
        assert_eq!(choose(Some("ib0"), ipv6, &all), ("fd00::7".into(), String::new()));
        assert_eq!(choose(Some("lo"), ipv4, &all), ("127.0.0.1".into(), String::new()));
        let (address, unmet) = choose(Some("eth0"), ipv6, &all);
        assert_eq!(address, "10.0.0.1");
        assert!(
            unmet.starts_with("NEMESIA_NET_FAMILY=ipv6: NEMESIA_NET_ADDRESS=eth0 has no IPv6"),
            "{unmet}"
        );
        let (address, unmet) = choose(Some("10.1.0.1"), ipv6, &all);
        assert!(address == "10.1.0.1" && unmet.contains("10.1.0.1 is no IPv6 address"), "{unmet}");
        let (address, unmet) = choose(None, ipv6, &all[3..4]);
        assert!(address == "10.0.0.1" && unmet.contains("eth0 (10.0.0.1)"), "{unmet}");
    }

    #[test]
    fn the_default_route_of_ipv6_is_found_in_the_table_of_the_kernel() {
        let zeros = "0".repeat(32);
        let line = |len: &str, interface: &str| {
            format!("{zeros} {len} {zeros} 00 {zeros} 00000400 1 0 00000003 {interface}\n")
        };
        let table = line("00", "lo") + &line("40", "eth1") + &line("00", "eth0");
        assert_eq!(default_interface_of_ipv6(&table), Some("eth0"));
        assert_eq!(default_interface_of_ipv6("x\n\n 00"), None);
    }

    #[test]
    fn the_default_route_is_found_in_the_table_of_the_kernel() {
        let table = "Iface\tDestination\tGateway\neth1\t000200C0\t00000000\neth0\t00000000\t010200C0\n";
        assert_eq!(default_interface(table), Some("eth0"));
        assert_eq!(default_interface("Iface\tDestination\n"), None);
        assert_eq!(default_interface("Iface\n\n x"), None);
    }

    #[test]
    fn this_machine_has_an_address() {
        assert!(addresses().unwrap().iter().any(|it| it.address.is_loopback()));
        assert!(choose(Some("lo"), None).unwrap().address.is_loopback());
    }
}
