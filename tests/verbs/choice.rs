//! The choice of device, port, GID, partition and path.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nemesia::AddressFamily;
use nemesia::verbs::{
    Device, DevicePreference, DeviceSelection, DeviceTransport, PathAttributes, VerbsError, choose, survey,
};
use nemesia_core::port::memory::{ConnectError, MemoryPort as _, Offer, Private};
use nemesia_tests::memory_port::bench::Bench;

use crate::fabric::Devices;
use crate::usable;

/// The bits of the kernel's name for all protocols and for packets of IPv4, in network order.
const IPV4: u16 = 0x0800_u16.to_be();
/// The UDP port of packets of `RoCE` v2.
const ROCE: u16 = 4791;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the usable ports, once for each address.
fn selections() -> Vec<DeviceSelection> {
    survey().unwrap().into_iter().filter_map(|seen| seen.verdict.ok()).flatten().collect()
}

fn is_roce(device: &str) -> bool {
    Device::open(device).unwrap().transport() == DeviceTransport::InfiniBand
}

#[test]
fn every_port_can_be_chosen_by_what_it_has_and_nothing_else_can() {
    if usable("choice::every_port_can_be_chosen_by_what_it_has_and_nothing_else_can").is_none() {
        return;
    }
    let any = DevicePreference::default();
    for it in selections() {
        let device = Some(it.device.clone());
        let by_device = DevicePreference { device: device.clone(), port: Some(it.port), ..any.clone() };
        assert_eq!(choose(&by_device).unwrap().device, it.device);
        let by_address = DevicePreference { address: it.address, ..any.clone() };
        assert_eq!(choose(&by_address).unwrap(), it);
        assert_eq!((it.gid_index.is_some(), it.partition_key.is_some()), [is_roce(&it.device); 2].into());
        let (gid_index, partition_key) = (it.gid_index, it.partition_key);
        let by_entries = DevicePreference { gid_index, partition_key, ..by_device.clone() };
        assert_eq!(choose(&by_entries).unwrap().gid_index, it.gid_index);
        for (unmet, words) in [
            (DevicePreference { port: Some(99), ..by_device.clone() }, "port 99"),
            (DevicePreference { gid_index: Some(77), ..by_device.clone() }, "GID 77"),
            (DevicePreference { partition_key: Some(0x7abc), ..by_device }, "partition 0x7abc"),
            (DevicePreference { device: Some("no-device".into()), ..any.clone() }, "the name no-device"),
        ] {
            let error = choose(&unmet).unwrap_err();
            assert!(matches!(error, VerbsError::Preference { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(words), "{text}");
            assert!(text.contains(&format!("{} port {}: ", it.device, it.port)), "{text}");
            assert!(text.contains(&it.address.unwrap().to_string()), "{text}");
        }
    }
}

/// Makes a connection between the first two devices, and returns the attributes of both ends.
fn path(devices: Devices) -> [Option<PathAttributes>; 2] {
    let mut bench = Bench::new(devices);
    bench.open(2).unwrap();
    let (a, b) = bench.connect(0, 1).unwrap();
    bench.works((0, a), (1, b)).unwrap();
    let paths = [bench.port(0).unwrap().path(a), bench.port(1).unwrap().path(b)];
    bench.close(0, a).unwrap();
    bench.close(1, b).unwrap();
    paths
}

#[test]
fn a_connection_has_the_preferred_path() {
    let Some(addresses) = usable("choice::a_connection_has_the_preferred_path") else { return };
    let plain = path(Devices::new(&addresses));
    let mut devices = Devices::new(&addresses);
    (devices.path_mtu, devices.traffic_class) = (Some(512), Some(0x68));
    let preferred = path(devices);
    let is_roce =
        selections().iter().find(|it| it.address == Some(addresses[0])).is_some_and(|it| is_roce(&it.device));
    if !is_roce {
        assert_eq!((plain, preferred), ([None; 2], [None; 2]), "the path is that of TCP");
        return;
    }
    let index =
        |address: IpAddr| selections().into_iter().find(|it| it.address == Some(address)).unwrap().gid_index;
    for (end, (plain, preferred)) in plain.into_iter().zip(preferred).enumerate() {
        let (plain, preferred) = (plain.unwrap(), preferred.unwrap());
        assert!(plain.mtu > 512 && plain.traffic_class == Some(0), "{plain:?}");
        assert_eq!((preferred.mtu, preferred.traffic_class), (512, Some(0x68)));
        let expected = index(addresses[end % addresses.len()]);
        assert_eq!(plain.gid_index.map(u32::from), expected, "the survey has the index of the connection");
    }
}

/// Both ends would refuse the packets of the other.
#[test]
fn ports_with_different_path_mtus_do_not_connect() {
    let Some(addresses) = usable("choice::ports_with_different_path_mtus_do_not_connect") else { return };
    if !is_roce(&selections()[0].device) {
        return;
    }
    let mut devices = Devices::new(&addresses);
    let open = |devices: &mut Devices| nemesia::verbs::VerbsPort::open(&devices.options()).unwrap();
    let one = open(&mut devices);
    devices.path_mtu = Some(1024);
    let mut other = open(&mut devices);
    let offer = Offer { private: Private::EMPTY, shared_receive: false, deadline: LIMIT };
    assert_eq!(other.connect(&one.address().unwrap(), &offer), Err(ConnectError::Address));
}

/// A socket that sees every packet of IPv4 on the devices of this machine.
fn sniffer() -> OwnedFd {
    // SAFETY: takes no memory; a returned descriptor is ours.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_PACKET, kind, IPV4.into());
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Returns the traffic classes of the packets of `RoCE` that a socket has seen since.
fn seen_classes(socket: &OwnedFd) -> Vec<u8> {
    let mut classes = Vec::new();
    loop {
        let mut packet = [0; 64];
        // SAFETY: the packet may be written for its length.
        let len = unsafe { libc::recv(socket.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
        if len < 0 {
            return classes;
        }
        let header = usize::from(packet[0] & 0xf) * 4;
        let port = packet.get(header + 2..header + 4).map(|it| u16::from_be_bytes([it[0], it[1]]));
        if packet[9] == libc::IPPROTO_UDP as u8 && port == Some(ROCE) {
            classes.push(packet[1]);
        }
    }
}

/// On the wire between the two hosts of the virtual machine.
#[test]
fn packets_on_the_wire_have_the_traffic_class() {
    let Some(addresses) = usable("choice::packets_on_the_wire_have_the_traffic_class") else { return };
    if std::env::var_os("VM_KIND").is_none_or(|kind| kind != "rxe") || addresses.len() < 2 {
        return;
    }
    for class in [None, Some(0x68), Some(0xb8)] {
        let socket = sniffer();
        let mut devices = Devices::new(&addresses);
        devices.traffic_class = class;
        let _ = path(devices);
        let classes = seen_classes(&socket);
        let of_data = classes.iter().filter(|it| **it == class.unwrap_or(0)).count();
        println!("{class:?}: {of_data} of {} packets", classes.len());
        // The manager's own packets have the class of the route.
        assert!(of_data > classes.len() / 2, "{class:?}: {classes:?}");
    }
}

/// An address that is removed at the end.
struct ExtraAddress(&'static str);

impl ExtraAddress {
    fn new(words: &'static str) -> Self {
        let added =
            Command::new("ip").args(["-6", "address", "add"]).args(words.split(' ')).arg("nodad").status();
        assert!(added.unwrap().success(), "{words}");
        Self(words)
    }
}

impl Drop for ExtraAddress {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["-6", "address", "delete"]).args(self.0.split(' ')).status();
    }
}

/// In the virtual machine, whose first device gets an address of IPv6 and with it another GID.
#[test]
fn a_gid_of_ipv6_is_chosen_by_its_family_or_its_index() {
    const NAME: &str = "choice::a_gid_of_ipv6_is_chosen_by_its_family_or_its_index";
    if usable(NAME).is_none() || std::env::var_os("VM_KIND").is_none() {
        return;
    }
    let _added = ExtraAddress::new("fd07::1/64 dev net0");
    let address: IpAddr = "fd07::1".parse().unwrap();
    let begun = Instant::now();
    // The kernel adds the GID a little later.
    let six = loop {
        let found = selections().into_iter().find(|it| it.address == Some(address));
        if let Some(found) = found.filter(|it| it.gid_index.is_some() || !is_roce(&it.device)) {
            break found;
        }
        assert!(begun.elapsed() < LIMIT, "{:?}", selections());
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{six}");
    let four = selections()
        .into_iter()
        .find(|it| it.device == six.device && it.address.is_some_and(|it| it.is_ipv4()))
        .unwrap();
    let any = DevicePreference { device: Some(six.device.clone()), ..DevicePreference::default() };
    assert_eq!(choose(&any).unwrap(), four, "IPv4 is the default");
    let family = |family| DevicePreference { family: Some(family), ..any.clone() };
    assert_eq!(choose(&family(AddressFamily::Ipv6)).unwrap(), six);
    assert_eq!(choose(&family(AddressFamily::Ipv4)).unwrap(), four);
    if is_roce(&six.device) {
        assert_ne!(six.gid_index, four.gid_index);
        let by_index = DevicePreference { gid_index: six.gid_index, ..any };
        assert_eq!(choose(&by_index).unwrap(), six);
    }
    let mut devices = Devices::new(&[address]);
    devices.traffic_class = Some(0x20);
    for path in path(devices).into_iter().flatten() {
        assert_eq!((path.gid_index.map(u32::from), path.traffic_class), (six.gid_index, Some(0x20)));
    }
}
