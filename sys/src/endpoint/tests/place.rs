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

/// Opens two endpoints with the same settings. Returns the warnings of one of them, or its error.
fn warnings(config: &Config) -> Result<Vec<String>, Error> {
    let [first, second] = warnings_of([config, config]);
    assert_eq!(first.as_ref().ok(), second.as_ref().ok());
    first
}

/// Opens two endpoints. Returns the warnings of each, or its error.
fn warnings_of(configs: [&Config; 2]) -> [Result<Vec<String>, Error>; 2] {
    let meeting = TestMeeting::new(2);
    let open = |rank: usize| {
        let (config, exchange) = (configs[rank].clone(), meeting.exchange(rank));
        std::thread::spawn(move || Endpoint::open_with(&config, exchange))
    };
    // Neither is closed before both are open: the other one would say that our memory can't be read.
    [0, 1].map(open).map(|opening| opening.join().unwrap()).map(|opened| {
        let endpoint = opened?;
        let warnings = endpoint.warnings().to_vec();
        endpoint.close()?;
        Ok(warnings)
    })
}

/// A key of the job, an address, or TCP by name say that other machines are to be reached.
#[test]
fn a_world_of_one_machine_that_is_to_reach_others_and_does_not_says_so() {
    let with_key = || Config::default().net_address(Some("127.0.0.1")).job_key([7; 32]);
    let verbs = with_key().net(NetChoice::Verbs);
    let nowhere = Config::default().net_address(Some("203.0.113.9"));
    let off = with_key().net(NetChoice::Off);
    let by_verbs = "other machines are not reached: NEMESIA_NET is verbs";
    let by_place = "other machines are not reached: NEMESIA_NET_ADDRESS=203.0.113.9 is no address";
    for (configs, said) in [
        ([&with_key(), &with_key()], ["", ""]),
        ([&verbs, &verbs], [by_verbs, by_verbs]),
        ([&with_key(), &nowhere], ["", by_place]),
        ([&off, &off], ["", ""]),
    ] {
        for (warnings, said) in warnings_of(configs).into_iter().zip(said) {
            let warnings = warnings.unwrap();
            let is_right = if said.is_empty() { warnings.is_empty() } else { warnings.len() == 1 };
            assert!(is_right && warnings.iter().all(|it| it.starts_with(said)), "{said:?}: {warnings:?}");
        }
    }
    let without_key = Config::default().net(NetChoice::Verbs);
    assert_eq!(warnings(&without_key).unwrap(), [""; 0]);
    // The only rank of a world meets others as an endpoint does that opens alone.
    let only = Endpoint::open_with(&verbs, TestMeeting::new(1).exchange(0)).unwrap();
    assert!(only.warnings()[0].starts_with(by_verbs), "{:?}", only.warnings());
    only.close().unwrap();
    let strict = verbs.clone().strict(true);
    let error = Endpoint::open_with(&strict, TestMeeting::new(1).exchange(0)).unwrap_err().to_string();
    assert!(error.starts_with(by_verbs), "{error}");
}

#[test]
fn a_preference_for_a_place_that_is_not_there_is_a_warning_or_in_strict_mode_an_error() {
    let other_family = apart().net_address(Some("127.0.0.1")).net_family(Some(AddressFamily::Ipv6));
    let without_use = apart().net_address(Some("127.0.0.1")).net_device(Some("mlx5_9")).net_port(Some(2));
    let without_device = without_use.clone().net(NetChoice::Auto);
    for (config, parts) in [
        (
            other_family,
            [
                "NEMESIA_NET_FAMILY=ipv6: NEMESIA_NET_ADDRESS=127.0.0.1 is no IPv6",
                "without it the choice is 127.0.0.1",
            ],
        ),
        (
            without_use,
            ["NEMESIA_NET_DEVICE=mlx5_9, NEMESIA_NET_PORT=2: ", "set NEMESIA_NET to auto or verbs"],
        ),
        (without_device, ["NEMESIA_NET_DEVICE=mlx5_9, NEMESIA_NET_PORT=2: ", "no RDMA device"]),
    ] {
        let found = warnings(&config).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(parts.iter().all(|part| found[0].contains(part)), "{found:?}");
        let error = warnings(&config.strict(true)).unwrap_err().to_string();
        let is_same = parts.iter().all(|part| error.contains(part));
        assert!(is_same && error.contains("NEMESIA_STRICT"), "{error}");
    }
}
