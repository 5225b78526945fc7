//! Who calls at the door and is none of those that are awaited.

use nemesia_core::shared::layout::Geometry;

use super::*;
use crate::config::Config;
use crate::os::Segment;
use crate::os::closer::lingering;

const GEOMETRY: Geometry = Geometry { peers: 4, cells: 4, cell_bytes: 4096, fastbox_slots: 4 };
/// As many as there is room for.
const MOST: usize = GEOMETRY.peers as usize + SPARE_CALLERS;

fn world(rank: u32, incarnation: u64) -> World {
    let config = Config::default();
    World {
        config,
        geometry: GEOMETRY,
        rank,
        epoch: 7,
        expedited: true,
        cpus: [1; 8],
        mark: 0,
        incarnation,
        sealed: false,
    }
}

fn pair() -> Pair {
    let options = Config::default().segments;
    let segment = |name, bytes| Segment::create(name, bytes, &options).unwrap();
    Pair {
        own: segment("nemesia-own", GEOMETRY.own().total),
        inbox: segment("nemesia-inbox", GEOMETRY.inbox().total),
    }
}

/// The door of rank 0, and the name of its listener.
fn door() -> (Door, String) {
    let listener = Listener::bind().unwrap();
    let name = listener.name();
    (Door::new(world(0, 0), Arc::new(pair()), Some(listener)), name)
}

fn call(name: &str) -> Connection {
    Connection::connect(name, Instant::now() + GREETING_TIME).unwrap()
}

/// Rank 1, which was started again.
fn call_again(name: &str) -> Connection {
    let connection = call(name);
    connect::greet(&world(1, 1), &pair(), &connection, 0, Instant::now()).unwrap();
    connection
}

fn heard(door: &Door) -> Vec<u32> {
    door.callers.iter().filter_map(|caller| Some(caller.said.as_ref()?.0.rank)).collect()
}

#[test]
fn callers_that_never_end_do_not_keep_the_one_that_opens() {
    let (mut door, name) = door();
    let many: Vec<_> = (0..3 * MOST).map(|_| call(&name)).collect();
    // As many as there can be, if somebody calls whenever one is let in.
    door.open();
    let hung_up = many.iter().filter(|caller| caller.has_hung_up()).count();
    assert!(door.callers.len() + hung_up <= MOST, "{} and {hung_up}", door.callers.len());
    assert!(door.is_busy(), "the others are not forgotten");
}

#[test]
fn callers_that_say_nothing_do_not_keep_out_who_was_started_again() {
    let (mut door, name) = door();
    let silent: Vec<_> = (0..MOST).map(|_| call(&name)).collect();
    for _ in 0..4 {
        door.open();
        door.hear(|_| false);
    }
    assert_eq!((door.callers.len(), heard(&door)), (MOST, vec![]));
    let more: Vec<_> = (0..2 * MOST).map(|_| call(&name)).collect();
    let _again = call_again(&name);
    let yet_more: Vec<_> = (0..2 * MOST).map(|_| call(&name)).collect();
    for _ in 0..5 * MOST {
        door.open();
        assert!(door.callers.len() <= MOST);
        door.hear(|rank| rank != 1);
    }
    assert_eq!(heard(&door), [1]);
    drop((silent, more, yet_more));
}

#[test]
fn descriptors_whose_close_blocks_do_not_hold_up_progress() {
    let began = Instant::now();
    let (mut door, name) = door();
    let (mut callers, mut others) = (Vec::new(), Vec::new());
    let greeting = greeting_of(1).encode();
    for words in [b"nonsense".as_slice(), &greeting, &greeting] {
        let (bad, other) = lingering(600);
        let caller = call(&name);
        caller.send(words, &[bad.as_fd()], Instant::now()).unwrap();
        others.push(other);
        callers.push(caller);
    }
    door.open();
    door.hear(|_| false);
    assert_eq!(heard(&door), [1, 1]);
    // One does not hand over two segments, and the other goes with the door.
    assert!(door.callers.iter_mut().all(|caller| {
        caller.genuine = true;
        caller.said.is_some()
    }));
    assert!(door.admit(1).unwrap().is_err());
    drop(door);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn who_lives_or_does_not_exist_has_no_business_here() {
    let (mut door, name) = door();
    let _again = call_again(&name);
    door.open();
    door.hear(|_| true);
    assert_eq!((door.callers.len(), heard(&door)), (0, vec![]));
    let stranger = call(&name);
    let greeting = Greeting { rank: u32::MAX, ..greeting_of(1) };
    stranger.send(&greeting.encode(), &[], Instant::now()).unwrap();
    door.open();
    door.hear(|rank| panic!("rank {rank} is nobody's"));
    assert_eq!(door.callers.len(), 0);
}

fn greeting_of(rank: u32) -> Greeting {
    let World { geometry, epoch, expedited, cpus, mark, .. } = world(rank, 1);
    Greeting { rank, epoch, geometry, expedited, cpus, mark, incarnation: 1, agreements: 0 }
}
