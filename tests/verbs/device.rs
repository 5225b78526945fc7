//! Properties of devices: their descriptions, queue pairs that are joined by an exchange of bytes, forks, and
//! leftovers.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use nemesia::verbs::{
    CompletionQueue, Depths, Device, DeviceTransport, Domain, INFO_BYTES, PairInfo, PortOptions, QueuePair,
    SetUpChoice, SharedReceives, VerbsPort, survey,
};
use nemesia_core::port::memory::{CompletionSource, MemoryPort, Origin, ReceiveQueue, RegionAccess, Work};
use nemesia_tests::memory_port::bench::Bench;

use crate::fabric::{Devices, set_up};
use crate::usable;

#[test]
fn every_device_is_explained() {
    if usable("every_device_is_explained").is_none() {
        return;
    }
    for seen in survey().unwrap() {
        let text = seen.to_string();
        assert!(text.contains("usable"), "{text}");
        println!("{text}");
    }
}

#[test]
fn a_device_reports_its_kind() {
    if usable("a_device_reports_its_kind").is_none() {
        return;
    }
    for name in Device::names().unwrap() {
        let device = Device::open(&name).unwrap();
        assert_ne!(device.transport(), DeviceTransport::Other(-1), "{name}");
        let port = device.port(1).unwrap();
        assert!(port.is_active() && port.message_bytes >= 8 << 20, "{name}: {port:?}");
        assert!(device.port(99).is_err(), "{name} has 99 ports");
        assert!(!device.gids(1).unwrap().is_empty(), "{name} has no GID");
        assert_eq!(device.next_event(), None);
    }
    assert!(Device::open("no-such-device").is_err());
}

/// One driver's structures must never be taken for another's.
#[test]
fn a_queue_pair_takes_no_queues_of_another_device() {
    if usable("a_queue_pair_takes_no_queues_of_another_device").is_none() {
        return;
    }
    // The same one, opened twice, is two as well.
    let names = Device::names().unwrap();
    let open = |name: Option<&String>| Device::open(name.unwrap()).unwrap();
    let (one, other) = (open(names.first()), open(names.last()));
    let (domain, foreign) = (Domain::new(&one).unwrap(), Domain::new(&other).unwrap());
    let (queue, foreign_queue) =
        (CompletionQueue::new(&one, 16).unwrap(), CompletionQueue::new(&other, 16).unwrap());
    let depths = Depths { send: 4, receive: 4, parts: 1, inline: 0 };
    let refused = QueuePair::new(&domain, &foreign_queue, None, depths).unwrap_err().to_string();
    assert!(refused.contains("another device"), "{refused}");
    if let Ok(shared) = SharedReceives::new(&foreign, 4, 1) {
        assert!(QueuePair::new(&domain, &queue, Some(&shared), depths).is_err());
    }
    QueuePair::new(&domain, &queue, None, depths).unwrap();
}

#[test]
fn the_facts_are_those_of_the_device() {
    let Some(addresses) = usable("the_facts_are_those_of_the_device") else { return };
    let port = VerbsPort::open(&Devices::new(&addresses).options()).unwrap();
    let facts = *port.facts();
    println!("{facts:?}");
    let is_iwarp = port.device().transport() == DeviceTransport::Iwarp;
    assert_eq!(facts.active_speaks_first, is_iwarp);
    assert_eq!(facts.write_proves_placement, !is_iwarp);
    assert!(!is_iwarp || !(facts.immediates || facts.atomics), "{facts:?}");
    // The assertion counts on InfiniBand and RoCE only, and no device is believed without one.
    assert_eq!((facts.ordered_within_write, facts.ordered_among_writes), (!is_iwarp, !is_iwarp));
    let options = PortOptions { assert_order: false, ..Devices::new(&addresses).options() };
    let plain = *VerbsPort::open(&options).unwrap().facts();
    assert!(!plain.ordered_among_writes, "{plain:?}");
    assert!(!is_iwarp || !plain.ordered_within_write, "{plain:?}");
    match port.device().name() {
        "rxe0" => assert_eq!((facts.inline_bytes, facts.message_bytes >= 8 << 20), (512, true)),
        "siw0" => assert_eq!((facts.inline_bytes, facts.read_slices), (80, 1)),
        _ => {}
    }
    assert!(facts.shared_receive_depth > 0 && facts.send_depth > 0 && facts.connections > 1);
}

/// An error of the device ends neither the port nor what asks for a connection meanwhile.
#[test]
fn datagrams_go_on_after_their_queue_pair_has_failed() {
    const NAME: &str = "datagrams_go_on_after_their_queue_pair_has_failed";
    let Some(addresses) = usable(NAME) else { return };
    if set_up() != SetUpChoice::Datagrams {
        // The part `by_datagrams` of `tests/vm/verbs` runs it.
        return;
    }
    let mut bench = Bench::new(Devices::new(&addresses));
    bench.open(2).unwrap();
    for failing in 0..4 {
        let (a, b) = bench.connect(0, 1).unwrap();
        bench.works((0, a), (1, b)).unwrap();
        bench.port(failing % 2).unwrap().fail_datagrams().unwrap();
        bench.close(0, a).unwrap();
        bench.lost(1, b).unwrap();
        bench.close(1, b).unwrap();
    }
}

#[test]
fn the_manager_reports_the_origin_of_the_other_end() {
    let Some(addresses) = usable("the_manager_reports_the_origin_of_the_other_end") else { return };
    let mut bench = Bench::new(Devices::new(&addresses));
    bench.open(2).unwrap();
    let (a, b) = bench.connect(0, 1).unwrap();
    // The ports use the addresses in turn.
    let at = |port: usize| Some(Origin::Host(addresses[port % addresses.len()]));
    assert_eq!(bench.port(0).unwrap().origin(a), at(1));
    assert_eq!(bench.port(1).unwrap().origin(b), at(0));
}

/// Takes ports of TCP at these addresses, evenly among those that the kernel gives out.
fn occupy(addresses: &[IpAddr]) -> Vec<TcpListener> {
    const OCCUPIED: usize = 2000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure can be written, and read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let ends: Vec<usize> = range.split_whitespace().map(|end| end.parse().unwrap()).collect();
    let ports = (ends[0]..=ends[1]).step_by(((ends[1] - ends[0]) / OCCUPIED).max(2));
    let places = ports.flat_map(|port| addresses.iter().map(move |address| (*address, port as u16)));
    places.filter_map(|place| TcpListener::bind(place).ok()).collect()
}

/// An iWARP device takes a port of TCP for each identifier, and the manager does not ask whether a socket has it.
#[test]
fn ports_of_tcp_that_sockets_have_are_left_out() {
    const TIMES: usize = 60;
    let name = "ports_of_tcp_that_sockets_have_are_left_out";
    let Some(addresses) = usable(name) else { return };
    let sockets = occupy(&addresses);
    println!("{} sockets", sockets.len());
    if sockets.len() < 1000 {
        return nemesia_tests::skip(name, "too few sockets: raise the limit of descriptors (ulimit -n)");
    }
    let mut bench = Bench::new(Devices::new(&addresses));
    bench.open(2).unwrap();
    for _ in 0..TIMES {
        drop(VerbsPort::open(&Devices::new(&addresses).options()).unwrap());
        let (a, b) = bench.connect(0, 1).unwrap();
        bench.close(0, a).unwrap();
        bench.close(1, b).unwrap();
    }
}

/// The queues of this depth take a page each on siw, so that each page from the first one on begins a queue.
#[test]
fn many_connections_of_small_queues_can_be_made_at_the_same_time() {
    const MOST: usize = 72;
    let Some(addresses) = usable("many_connections_of_small_queues_can_be_made_at_the_same_time") else {
        return;
    };
    let mut devices = Devices::new(&addresses);
    devices.depth = Some(8);
    let mut bench = Bench::new(devices);
    bench.open(2).unwrap();
    for made in 0..MOST {
        bench.connect(0, 1).unwrap_or_else(|why| panic!("after {made}: {why}"));
    }
}

/// Makes a queue pair in INIT.
fn pair(domain: &std::sync::Arc<Domain>, queue: &std::sync::Arc<CompletionQueue>) -> QueuePair {
    let pair =
        QueuePair::new(domain, queue, None, Depths { send: 4, receive: 4, parts: 1, inline: 0 }).unwrap();
    pair.prepare(1).unwrap();
    pair
}

#[test]
fn queue_pairs_are_joined_by_bytes_where_the_fabric_allows_it() {
    if usable("queue_pairs_are_joined_by_bytes_where_the_fabric_allows_it").is_none() {
        return;
    }
    let device = Device::open(&Device::names().unwrap()[0]).unwrap();
    let (domain, queue) = (Domain::new(&device).unwrap(), CompletionQueue::new(&device, 16).unwrap());
    let (a, b) = (pair(&domain, &queue), pair(&domain, &queue));
    let gid = device.gids(1).unwrap().last().map_or(0, |gid| gid.index);
    if device.transport() == DeviceTransport::Iwarp {
        assert!(a.describe(1, gid, 7).is_err(), "iWARP connects by RDMA-CM only");
        return;
    }
    let (ours, theirs) = (a.describe(1, gid, 7).unwrap(), b.describe(1, gid, 0xff_ffff).unwrap());
    let (there, back): ([u8; INFO_BYTES], [u8; INFO_BYTES]) = (ours.to_bytes(), theirs.to_bytes());
    a.join(1, gid, &ours, &PairInfo::from_bytes(&back).unwrap()).unwrap();
    b.join(1, gid, &theirs, &PairInfo::from_bytes(&there).unwrap()).unwrap();
    // A request posted to a failed queue pair comes back flushed.
    b.fail().unwrap();
    assert!(a.promises_order().is_some());
    assert_eq!(queue.poll(16, |polled| panic!("{polled:?}")).unwrap(), 0);
}

#[test]
fn a_child_of_fork_that_writes_does_not_disturb_the_parent() {
    let name = "a_child_of_fork_that_writes_does_not_disturb_the_parent";
    let Some(addresses) = usable(name) else { return };
    let safety = nemesia::verbs::fork_safety().unwrap();
    println!("{safety:?}");
    if safety == nemesia::verbs::ForkSafety::Unsafe {
        return nemesia_tests::skip(name, "this kernel moves pinned pages at fork");
    }
    let mut bench = Bench::new(Devices::new(&addresses));
    bench.open(2).unwrap();
    let (a, b) = bench.connect(0, 1).unwrap();
    let (from, to) =
        (bench.memory(0, 8192, RegionAccess::NONE).unwrap(), bench.open_memory(1, 8192).unwrap());
    from.put(0, &[1; 8192]);
    // SAFETY: the child only writes to memory that it has, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        to.put(0, &[9; 8192]);
        from.put(0, &[9; 8192]);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The parent writes first after the fork: if pages were shared, the parent's copy would move.
    from.put(4096, &[2; 4096]);
    let id = bench.post_small(1, ReceiveQueue::Of(b)).unwrap();
    let part = [from.slice(0, 8192)];
    bench.port(0).unwrap().write(Work::new(a, 1), CompletionSource::Gather(&part), to.at(0), None).unwrap();
    bench.send_small(0, a).unwrap();
    bench.received(1, id).unwrap();
    assert_eq!((to.get(0, 4096), to.get(4096, 4096)), (vec![1; 4096], vec![2; 4096]));
}

/// Returns the resources of this process in a device, as the kernel counts them.
pub(crate) fn resources() -> Option<String> {
    let output = std::process::Command::new("rdma").args(["resource", "show"]).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

/// Waits until the resources are as before. The kernel frees what a connection leaves a moment later, in a
/// worker of its own. It announces this nowhere (its netlink interface lists these resources, and announces
/// devices only), so this function polls and yields the processor in between. The duration decides nothing: a
/// leak is still there after a minute.
pub(crate) fn until_resources(before: &str) {
    const PAUSE: Duration = Duration::from_millis(100);
    const LEAKED: Duration = Duration::from_secs(60);
    let start = Instant::now();
    while resources().unwrap() != before {
        assert!(start.elapsed() < LEAKED, "before:\n{before}\nnow:\n{}", resources().unwrap());
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn nothing_is_left_of_ports_that_were_dropped() {
    let name = "nothing_is_left_of_ports_that_were_dropped";
    let Some(addresses) = usable(name) else { return };
    let Some(before) = resources() else { return nemesia_tests::skip(name, "no `rdma`; install iproute2") };
    for round in 0..3 {
        let mut bench = Bench::new(Devices::new(&addresses));
        bench.open(2).unwrap();
        for _ in 0..10 {
            let (a, b) = bench.connect(0, 1).unwrap();
            bench.works((0, a), (1, b)).unwrap();
            if round == 1 {
                bench.close(0, a).unwrap();
                bench.close(1, b).unwrap();
            }
        }
        if round > 0 {
            assert_ne!(resources().unwrap(), before, "what is in use is counted");
        }
    }
    until_resources(&before);
}
