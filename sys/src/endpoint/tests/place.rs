//! The choice of address, family and device of endpoints on several machines.

use super::meeting::TestMeeting;
use crate::os::testing::skipped;
use crate::{AddressFamily, Config, Endpoint, Error, NetChoice, Source, Tag};

/// A process that shares memory with no other one.
fn apart() -> Config {
    Config::default().local(false).net(NetChoice::Tcp)
}

fn has_ipv6() -> bool {
    let has = std::net::TcpListener::bind("[::1]:0").is_ok();
    if !has {
        skipped("this machine has no IPv6");
    }
    has
}

/// Opens two endpoints with these settings, exchanges messages, and returns how each explains its route and warns.
fn converse(config: &Config) -> [(String, Vec<String>); 2] {
    let meeting = TestMeeting::new(2);
    let talk = |rank: usize| {
        let (config, exchange) = (config.clone(), meeting.exchange(rank));
        std::thread::spawn(move || {
            let mut endpoint = Endpoint::open_with(&config, exchange).unwrap();
            for len in [0, 100, 40_000, 300_000] {
                let (mut got, sent) = (vec![0; len], vec![rank as u8; len]);
                if rank == 0 {
                    endpoint.send(1, 7, &sent).unwrap();
                }
                endpoint.recv(Source::Rank(1 - rank), Tag::Exactly(7), &mut got).unwrap();
                assert_eq!(got, vec![1 - rank as u8; len]);
                if rank == 1 {
                    endpoint.send(0, 7, &sent).unwrap();
                }
            }
            let route = endpoint.explain().routes.swap_remove(1 - rank);
            assert_eq!(route.transport, "tcp");
            let path = route.facilities.into_iter().find(|it| it.name == "path").unwrap().reason;
            let warnings = endpoint.warnings().to_vec();
            endpoint.close().unwrap();
            (path, warnings)
        })
    };
    [0, 1].map(talk).map(|talking| talking.join().unwrap())
}

#[test]
fn ranks_reach_each_other_over_ipv6() {
    if !has_ipv6() {
        return;
    }
    let config = apart().net_address(Some("::1")).net_traffic_class(Some(0x68));
    for on_demand in [true, false] {
        for (path, warnings) in converse(&config.clone().connect_on_demand(on_demand)) {
            assert_eq!(path, "at ::1 (NEMESIA_NET_ADDRESS), traffic class 0x68");
            assert_eq!(warnings, [""; 0]);
        }
    }
    let config = apart().net_address(Some("lo")).net_family(Some(AddressFamily::Ipv6));
    for (path, _) in converse(&config) {
        assert_eq!(path, "at ::1 (lo, which NEMESIA_NET_ADDRESS names)");
    }
    for (path, _) in converse(&apart().net_address(Some("127.0.0.0/8"))) {
        assert_eq!(path, "at 127.0.0.1 (lo, which NEMESIA_NET_ADDRESS contains)");
    }
}

#[test]
fn endpoints_that_open_alone_call_each_other_over_ipv6() {
    if !has_ipv6() {
        return;
    }
    let lone = || {
        let config = apart().net_address(Some("::1")).job_key([7; 32]).net_traffic_class(Some(0x20));
        Endpoint::alone(&config).unwrap()
    };
    let mut one = lone();
    let address = *one.address().unwrap();
    let other = std::thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        let rank = two.rank_of(peer).unwrap();
        two.send(rank, 7, b"over IPv6").unwrap();
        two.recv(Source::Rank(rank), Tag::Exactly(8), &mut []).unwrap();
        let text = two.explain().to_string();
        assert!(text.contains("over tcp") && text.contains("path: at ::1 ("), "{text}");
        two.close().unwrap();
    });
    let mut got = [0; 9];
    let from = one.recv(Source::Any, Tag::Exactly(7), &mut got).unwrap().rank;
    assert_eq!(&got, b"over IPv6");
    one.send(from, 8, &[]).unwrap();
    other.join().unwrap();
    one.close().unwrap();
}

/// Opens two endpoints that share no memory. Returns the warnings of one of them, or its error.
fn warnings(config: &Config) -> Result<Vec<String>, Error> {
    let meeting = TestMeeting::new(2);
    let open = |rank: usize| {
        let (config, exchange) = (config.clone(), meeting.exchange(rank));
        std::thread::spawn(move || {
            let endpoint = Endpoint::open_with(&config, exchange)?;
            let warnings = endpoint.warnings().to_vec();
            endpoint.close()?;
            Ok(warnings)
        })
    };
    let [first, second] = [0, 1].map(open).map(|opening| opening.join().unwrap());
    assert_eq!(first.as_ref().ok(), second.as_ref().ok());
    first
}

#[test]
fn a_preference_for_a_place_that_is_not_there_is_a_warning_or_in_strict_mode_an_error() {
    let other_family = apart().net_address(Some("127.0.0.1")).net_family(Some(AddressFamily::Ipv6));
    let without_use = apart().net_address(Some("127.0.0.1")).net_device(Some("mlx5_9")).net_port(Some(2));
    let without_device = without_use.clone().net(NetChoice::Auto);
    for (config, parts) in [
        (
            other_family,
            ["NEMESIA_NET_FAMILY=ipv6: NEMESIA_NET_ADDRESS=127.0.0.1 is no IPv6", "127.0.0.1 is used"],
        ),
        (
            without_use,
            ["NEMESIA_NET_DEVICE=mlx5_9, NEMESIA_NET_PORT=2: ", "set NEMESIA_NET to auto or verbs"],
        ),
        (without_device, ["NEMESIA_NET_DEVICE=mlx5_9, NEMESIA_NET_PORT=2: ", "no RDMA device"]),
    ] {
        let warnings = self::warnings(&config).unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(parts.iter().all(|part| warnings[0].contains(part)), "{warnings:?}");
        let error = self::warnings(&config.strict(true)).unwrap_err().to_string();
        let is_same = parts.iter().all(|part| error.contains(part));
        assert!(is_same && error.contains("NEMESIA_STRICT"), "{error}");
    }
}
