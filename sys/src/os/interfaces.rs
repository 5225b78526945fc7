//! The addresses of this machine: the one at which other machines reach this process.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    interface: String,
    address: IpAddr,
}

/// Returns the address at which this process listens: `wanted`, which is an address or the name of an interface; by
/// default an address of the interface with the default route, else the first address that is not local to this
/// machine, else the loopback address. IPv4 comes before IPv6. Link-local addresses are not used, because they mean
/// nothing on another machine. The error is one line.
pub(crate) fn choose(wanted: Option<&str>) -> Result<IpAddr, String> {
    let all = addresses()?;
    let routed = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    pick(wanted, &all, default_interface(&routed))
}

fn pick(
    wanted: Option<&str>,
    all: &[InterfaceAddress],
    default_interface: Option<&str>,
) -> Result<IpAddr, String> {
    let first = |is: &dyn Fn(&InterfaceAddress) -> bool| {
        let usable = || all.iter().filter(|it| is_usable(it.address) && is(it));
        usable().find(|it| it.address.is_ipv4()).or_else(|| usable().next()).map(|it| it.address)
    };
    let Some(wanted) = wanted else {
        return first(&|it| Some(it.interface.as_str()) == default_interface)
            .or_else(|| first(&|it| !it.address.is_loopback()))
            .or_else(|| first(&|_| true))
            .ok_or_else(|| "this machine has no interface that is up".to_owned());
    };
    if let Ok(address) = wanted.parse() {
        return Ok(address);
    }
    first(&|it| it.interface == wanted).ok_or_else(|| {
        let mut names: Vec<_> = all.iter().map(|it| it.interface.as_str()).collect();
        names.dedup();
        format!(
            "NEMESIA_NET_ADDRESS={wanted} is neither an address nor an interface that is up and has one: there are {}",
            names.join(", ")
        )
    })
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
        found.push(InterfaceAddress { interface, address });
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

    #[test]
    fn the_default_address_is_that_of_the_default_route_else_the_first_that_others_can_reach() {
        let choose = |all: &[InterfaceAddress], default| pick(None, all, default).map(|it| it.to_string());
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
    fn an_address_or_an_interface_can_be_named_and_another_name_is_an_error_with_those_there_are() {
        let choose = |wanted| pick(Some(wanted), &all(), Some("eth0")).map(|it| it.to_string());
        assert_eq!(choose("ib0").unwrap(), "10.1.0.1");
        assert_eq!(choose("192.0.2.9").unwrap(), "192.0.2.9");
        assert_eq!(choose("fd00::9").unwrap(), "fd00::9");
        let error = choose("ib1").unwrap_err();
        assert!(error.contains("ib1") && error.contains("lo, eth0, ib0"), "{error}");
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
        assert!(choose(Some("lo")).unwrap().is_loopback());
    }
}
