//! Observation of an endpoint: counters, the call tree, events.

use crate::endpoint::tests::{pair, world};
use crate::{Config, Endpoint, Source, Tag};

/// Waits for a message that never comes until `done` is true. This takes some sleeps, and on a busy machine not
/// every wait has one: the endpoint must not spin.
fn sleep_until(endpoint: &mut Endpoint, done: impl Fn(&Endpoint) -> bool) {
    let me = endpoint.rank();
    // SAFETY: the buffer is empty.
    let request = unsafe { endpoint.irecv(Source::Rank(me), Tag::Any, std::ptr::dangling_mut(), 0) }.unwrap();
    for _ in 0..1000 {
        assert!(endpoint.wait_timeout(request, std::time::Duration::from_millis(120)).is_err());
        if done(endpoint) {
            assert!(endpoint.cancel(request));
            return;
        }
    }
    panic!("{:?}", endpoint.counters());
}

#[test]
fn counters_of_both_ends_agree_and_sleeps_are_counted() {
    // Without spinning: on a busy machine the yields alone may take longer than a wait.
    let (mut zero, one) = pair(&Config::default().spin(0));
    let large = vec![7; 300_000];
    let one = std::thread::scope(|scope| {
        // The endpoint ends with its thread if that panics.
        let receiver = scope.spawn(|| {
            let (mut one, mut buf) = (one, vec![0; large.len()]);
            one.recv(Source::Rank(0), Tag::Exactly(1), &mut buf).unwrap();
            one.recv(Source::Rank(0), Tag::Exactly(2), &mut buf).unwrap();
            assert_eq!(buf, large);
            one
        });
        zero.send(1, 1, b"nemesia!").unwrap();
        zero.send(1, 2, &large).unwrap();
        receiver.join().unwrap()
    });
    sleep_until(&mut zero, |it| it.counters().waits.sleeps > 0);
    let (sent, received) = (zero.peer_counters(1).unwrap(), one.peer_counters(0).unwrap());
    assert_eq!((sent.eager_sent, sent.eager_sent_bytes, sent.rts_sent), (1, 8, 1));
    assert_eq!((received.eager_received, received.eager_received_bytes, received.rts_received), (1, 8, 1));
    assert_eq!(received.large_pulled + received.large_assisted + received.large_streamed, 1);
    assert_eq!(received.matched_posted + received.matched_bypass + received.unexpected, 2);
    let all = zero.counters();
    assert_eq!(all.all, sent, "there is one peer");
    assert!(all.waits.slept_ns > 0 && all.waits.liveness_checks > 0, "{all:?}");
    assert!(all.waits.sleeps >= all.waits.sleeps_woken);
    assert!(zero.peer_counters(2).is_none());
    let mut names = Vec::new();
    all.each(|field, _| names.push(field.name));
    assert!(
        ["eager_sent", "unexpected_most", "slept_ns"].iter().all(|name| names.contains(name)),
        "{names:?}"
    );
}

#[test]
fn operations_on_mapped_memory_are_counted_although_they_send_no_packet() {
    let mut endpoints = world(2, &Config::default());
    let (mut one, mut zero) = (endpoints.pop().unwrap(), endpoints.pop().unwrap());
    let region = one.allocate(4096, crate::Access::ReadWrite).unwrap();
    let key = one.remote_key(region).unwrap();
    zero.put(&key, 0, &[1; 100]).unwrap();
    zero.get(&key, 0, &mut [0; 50]).unwrap();
    let old: u64 = zero.fetch_add(&key, 8, 1).unwrap();
    assert_eq!(old, u64::from_ne_bytes([1; 8]));
    let it = zero.peer_counters(1).unwrap();
    assert_eq!((it.puts, it.put_bytes, it.gets, it.get_bytes, it.fetches), (1, 100, 1, 50, 1));
    let path = zero.path(&key);
    let direct = if path == crate::Path::Direct { (3, 158, 0) } else { (0, 0, it.rma_sent) };
    assert_eq!((it.direct, it.direct_bytes, it.rma_sent), direct, "{path:?}");
}

#[test]
fn failures_are_counted() {
    let (mut zero, one) = pair(&Config::default());
    one.close().unwrap();
    assert!(zero.recv(Source::Rank(1), Tag::Any, &mut []).is_err());
    assert_eq!((zero.counters().engine.peers_finished, zero.counters().engine.peers_died), (1, 0));
}

#[cfg(feature = "trace")]
#[test]
fn the_call_tree_shows_callers_and_callees_and_ends_with_the_last_call() {
    let mut config = Config::default();
    config.set("NEMESIA_TRACE", "256").unwrap();
    let mut endpoint = world(1, &config).pop().unwrap();
    assert!(endpoint.call_tree().unwrap().starts_with("call tree of 0 entries; 0 records"));
    endpoint.send(0, 1, &[0; 100]).unwrap();
    endpoint.recv(Source::Any, Tag::Any, &mut [0; 100]).unwrap();
    let tree = endpoint.call_tree().unwrap();
    let functions: Vec<_> = tree.lines().skip(2).filter_map(|line| line.get(36..)).collect();
    let sends = ["send 100", "  start_send 100", "    work_for 0", "      send_pending 0"];
    assert_eq!(functions[..sends.len()], sends, "{tree}");
    assert!(functions.contains(&"receive_stored 100"), "{tree}");
    for _ in 0..1000 {
        endpoint.send(0, 1, &[0; 100]).unwrap();
    }
    let tree = endpoint.call_tree().unwrap();
    assert!(tree.lines().count() < 260 && !tree.contains("; 0 records"), "{tree}");
    assert_eq!(world(1, &Config::default()).pop().unwrap().call_tree(), None);
}

#[cfg(not(feature = "trace"))]
#[test]
fn a_call_tree_that_this_build_cannot_make_is_refused() {
    let mut config = Config::default();
    config.set("NEMESIA_TRACE", "256").unwrap();
    let endpoint = world(1, &config).pop().unwrap();
    assert_eq!(endpoint.call_tree(), None);
    assert!(
        endpoint
            .warnings()
            .iter()
            .any(|warning| warning.contains("NEMESIA_TRACE=256") && warning.contains("feature"))
    );
}

#[cfg(feature = "tracing")]
#[test]
fn opening_routes_sleeps_and_ends_are_reported() {
    use crate::events::tests::{heard, listen};

    listen();
    let mut endpoints = world(3, &Config::default().spin(0));
    endpoints.drain(1..).for_each(|endpoint| endpoint.close().unwrap());
    let mut zero = endpoints.pop().unwrap();
    assert!(zero.recv(Source::Rank(2), Tag::Any, &mut []).is_err());
    for words in [
        &["INFO", "open", "rank=2", "size=3"][..],
        &["DEBUG", "connect", "peers=2"],
        &["DEBUG", "route", "rank=2", "transport=\"shm\"", "used=\"fastbox", "refused=", "verbs"],
        &["DEBUG", "finished", "rank=2"],
    ] {
        assert!(heard(words), "{words:?}");
    }
    sleep_until(&mut zero, |_| heard(&["TRACE", "slept", "woken=false"]));
}

#[test]
fn an_endpoint_has_as_many_descriptors_as_the_bill_says() {
    const NAME: &str = concat!(module_path!(), "::an_endpoint_has_as_many_descriptors_as_the_bill_says");
    const COUNT: usize = 4;
    if !crate::os::testing::is_child() {
        return crate::os::testing::run_again(NAME, || Ok(()));
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let bill = crate::Bill::new(&Config::default(), COUNT as u32).unwrap();
    // The thread that closes unwanted descriptors closes some of them later.
    let wait_for = |count: usize| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while open() != count {
            assert!(std::time::Instant::now() < end, "{} instead of {count}", open());
            std::thread::yield_now();
        }
    };
    let before = open();
    let mut all: Vec<_> = (0..COUNT).map(|_| Endpoint::alone(&Config::default()).unwrap()).collect();
    // One serves all endpoints.
    let apart = before + 1 + COUNT * (bill.descriptors as usize - 1);
    wait_for(apart);
    for one in 0..COUNT {
        for other in one + 1..COUNT {
            let address = *all[other].address().unwrap();
            let peer = all[one].connect(&address).unwrap();
            all[one].rank_of(peer).unwrap();
            let is_connected =
                |it: &Endpoint| matches!(it.stage_of(peer), Ok(crate::PeerStage::Connected(_)));
            while !is_connected(&all[one]) || all[other].neighbours() <= one {
                all.iter_mut().for_each(|it| _ = it.progress());
            }
        }
    }
    wait_for(apart + COUNT * (COUNT - 1) * bill.descriptors_per_peer as usize);
}

#[test]
fn a_further_peer_costs_at_most_13_kib_and_the_call_tree_is_on_the_bill() {
    let config = Config::default();
    let [two, three] = [2, 3].map(|processes| crate::Bill::new(&config, processes).unwrap());
    assert_eq!(three.private_at_start - two.private_at_start, three.private_per_peer);
    assert!(two.per_peer + two.private_per_peer <= 13 << 10, "{two:?}");
    assert!(two.private_per_rank <= 2 << 10, "{two:?}");
    let mut traced = config;
    traced.set("NEMESIA_TRACE", "1000").unwrap();
    let more = crate::Bill::new(&traced, 2).unwrap().private_at_start - two.private_at_start;
    assert_eq!(more > 0, cfg!(feature = "trace"));
}

/// Bytes of a message that is announced.
const LARGE: usize = 300 << 10;

/// Sends `count` large messages, each with an answer. Returns how many were copied once and how many were
/// streamed.
fn copied_and_streamed(config: &Config, count: u64) -> (u64, u64) {
    let (mut zero, one) = pair(config);
    // The endpoint ends with its thread if that panics.
    let receiver = std::thread::spawn(move || {
        let (mut one, mut buf) = (one, vec![0; LARGE]);
        for number in 0..count {
            one.recv(Source::Rank(0), Tag::Exactly(number), &mut buf).unwrap();
            assert!(buf.iter().all(|&byte| byte == number as u8), "message {number}");
            one.send(0, number, &[]).unwrap();
        }
        one
    });
    for number in 0..count {
        zero.send(1, number, &vec![number as u8; LARGE]).unwrap();
        zero.recv(Source::Rank(1), Tag::Exactly(number), &mut []).unwrap();
    }
    let one = receiver.join().unwrap();
    let received = one.peer_counters(0).unwrap();
    (received.large_pulled + received.large_assisted, received.large_streamed)
}

#[test]
fn large_messages_are_tried_with_each_protocol_unless_one_is_selected() {
    use crate::SingleCopy;

    const COUNT: u64 = 500;
    let by = |choice| copied_and_streamed(&Config::default().single_copy(choice), COUNT);
    assert_eq!(by(SingleCopy::Off), (0, COUNT));
    let (copied, streamed) = by(SingleCopy::Prefer);
    assert_eq!(copied + streamed, COUNT);
    if streamed == COUNT {
        // The kernel refuses single copies, so there is no choice.
        assert_eq!(by(SingleCopy::Auto), (0, COUNT));
        return;
    }
    assert_eq!(copied, COUNT);
    let (copied, streamed) = by(SingleCopy::Auto);
    assert!(copied >= 3 && streamed > 0 && copied + streamed == COUNT, "{copied} and {streamed}");
}
