//! Several worlds over one key space, and exchanges of the caller's own that refuse.

use super::meeting::TestMeeting;
use crate::bootstrap::{BootstrapError, Exchange, Prefixed};
use crate::endpoint::{Endpoint, Source, Tag};
use crate::{Config, Error};

#[test]
fn one_key_space_carries_two_worlds_at_once_in_the_same_processes() {
    const SIZE: usize = 3;
    let meeting = TestMeeting::new(SIZE);
    let process = |rank| {
        move || {
            // A blocking call in one world makes no progress in the other, which may be called there.
            let config = Config::default().connect_on_demand(false);
            // The second world has other settings, so that worlds that met by mistake would refuse each other.
            let worlds = [("first.", config.clone()), ("second.", config.cells(8))];
            let mut worlds = worlds.map(|(prefix, config)| {
                let exchange = Prefixed::new(prefix, *meeting.exchange(rank)).unwrap();
                Endpoint::open_with(&config, Box::new(exchange)).unwrap()
            });
            for round in 0..20_u64 {
                for (number, world) in worlds.iter_mut().enumerate() {
                    let bytes = [round as u8, number as u8, rank as u8];
                    world.send((rank + 1) % SIZE, round, &bytes).unwrap();
                }
                // Received in the other order: nothing passes from one world to the other.
                for (number, world) in worlds.iter_mut().enumerate().rev() {
                    let (mut got, from) = ([0; 3], (rank + SIZE - 1) % SIZE);
                    world.recv(Source::Any, Tag::Exactly(round), &mut got).unwrap();
                    assert_eq!(got, [round as u8, number as u8, from as u8]);
                }
            }
            for mut world in worlds {
                world.barrier().unwrap();
                world.close().unwrap();
            }
        }
    };
    let threads: Vec<_> = (0..SIZE).map(|rank| std::thread::spawn(process(rank))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// An exchange that refuses one operation, with an error of its own type.
struct Refusing(&'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnReason(u32);

impl std::fmt::Display for OwnReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {} is full", self.0)
    }
}

impl std::error::Error for OwnReason {}

impl Refusing {
    fn ask(&self, what: &'static str) -> Result<(), BootstrapError> {
        if self.0 == what { Err(BootstrapError::caller(what, OwnReason(7))) } else { Ok(()) }
    }
}

impl Exchange for Refusing {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn put(&mut self, _: &str, _: &str) -> Result<(), BootstrapError> {
        self.ask("put")
    }

    fn get(&mut self, _: &str) -> Result<String, BootstrapError> {
        self.ask("get").map(|()| "nonsense".into())
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.ask("barrier")
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

#[test]
fn an_exchange_that_refuses_gets_its_own_error_back() {
    for during in ["put", "get", "barrier"] {
        let error = Endpoint::open_with(&Config::default(), Box::new(Refusing(during))).unwrap_err();
        let text = error.to_string();
        let Error::Bootstrap(BootstrapError::Caller { during: said, source }) = error else {
            panic!("{text}");
        };
        assert_eq!((said, source.downcast_ref()), (during, Some(&OwnReason(7))));
        assert!(text.contains("caller's own exchange") && text.contains("table 7 is full"), "{text}");
        assert!(!text.contains("launcher"), "{text}");
    }
}
