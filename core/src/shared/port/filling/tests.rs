use super::*;

/// Two cores between which a message costs so many ticks with plain stores and past the caches.
struct Machine {
    fillings: Fillings,
    now: u64,
    received: u64,
    ticks: [u64; 2],
}

impl Machine {
    fn new(cached: u64, past_caches: u64) -> Self {
        Self { fillings: Fillings::new(), now: 1_000_000, received: 0, ticks: [cached, past_caches] }
    }

    /// So many messages of a size, each after an answer if they take turns; how many went past the caches.
    fn send(&mut self, count: usize, len: usize, turns: bool) -> usize {
        (0..count)
            .filter(|_| {
                self.received += u64::from(turns);
                let now = self.now;
                let past = self.fillings.past_caches(3, Stores::Learned, len, self.received, || Some(now));
                self.now += self.ticks[usize::from(past)];
                past
            })
            .count()
    }
}

#[test]
fn the_faster_way_is_found_whichever_it_is() {
    for turns in [false, true] {
        for len in [512, 1000, 4096, 8192, 1 << 20] {
            let past = Machine::new(2200, 900).send(100_000, len, turns);
            assert!(past > 94_000, "{past} of {len} bytes");
            let past = Machine::new(700, 900).send(100_000, len, turns);
            assert!((1..10_000).contains(&past), "{past} of {len} bytes");
        }
    }
}

#[test]
fn small_messages_never_go_past_the_caches() {
    assert_eq!(Machine::new(2200, 900).send(100_000, 511, false), 0);
    assert_eq!(Machine::new(2200, 900).send(100_000, 0, true), 0);
}

#[test]
fn answers_and_messages_in_a_row_are_learned_apart() {
    let mut machine = Machine::new(700, 800);
    machine.send(100_000, 4096, true);
    machine.ticks = [600, 400];
    let past = machine.send(10_000, 4096, false);
    assert!(past > 7500, "{past}");
    machine.ticks = [700, 800];
    let past = machine.send(1000, 4096, true);
    assert!(past < 100, "{past}");
}

#[test]
fn a_window_that_is_acknowledged_is_a_stream() {
    let mut machine = Machine::new(600, 400);
    let past: usize = (0..1000).map(|_| machine.send(1, 4096, true) + machine.send(63, 4096, false)).sum();
    assert!(past > 60_000, "{past}");
}

#[test]
fn a_move_to_another_core_is_noticed() {
    for turns in [false, true] {
        let mut machine = Machine::new(700, 1000);
        machine.send(1_000_000, 4096, turns);
        machine.ticks = [2200, 1000];
        let past = machine.send(10_000, 4096, turns);
        assert!(past > 7000, "{past}");
    }
}

#[test]
fn of_sizes_in_turn_nothing_is_learned() {
    let mut machine = Machine::new(700, 100);
    let past: usize = (0..10_000).map(|_| machine.send(1, 4096, false) + machine.send(1, 1024, false)).sum();
    // All of one size, none of the other: nothing is learned of either.
    assert_eq!(past, 10_000);
}

#[test]
fn without_a_clock_and_by_wish_nothing_is_learned() {
    let mut filling = Fillings::new();
    for received in 0..10_000 {
        assert!(!filling.past_caches(3, Stores::Learned, 4096, received, || None));
        assert!(!filling.past_caches(3, Stores::Cached, 4096, received, || panic!("nobody asks")));
        assert!(filling.past_caches(3, Stores::PastCaches, 4096, received, || panic!("nobody asks")));
        assert!(!filling.past_caches(3, Stores::PastCaches, 100, received, || panic!("nobody asks")));
    }
}

#[test]
fn a_peer_without_a_place_waits_until_the_other_is_quiet() {
    let mut fillings = Fillings::new();
    let other = 3 + HOT as PeerId;
    for _ in 0..10_000 {
        assert!(fillings.of(3).is_some());
        assert!((1..usize::from(TAKE_OVER)).all(|_| fillings.of(other).is_none()));
    }
    assert!((1..=TAKE_OVER).any(|_| fillings.of(other).is_some()));
    assert!(fillings.of(3).is_none());
}
