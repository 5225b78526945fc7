//! Exchanges with inconsistent answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Endpoint, Source, Tag};
use crate::bootstrap::{BootstrapError, Exchange, Singleton};
use crate::{Config, Error};

/// An exchange that returns one rank and size when each is first asked for, and others later.
struct Fickle {
    asked: AtomicUsize,
    said: [(usize, usize); 2],
    pairs: Singleton,
}

impl Fickle {
    fn says(&self) -> (usize, usize) {
        self.said[usize::from(self.asked.fetch_add(1, Ordering::Relaxed) > 1)]
    }
}

impl Exchange for Fickle {
    fn rank(&self) -> usize {
        self.says().0
    }

    fn size(&self) -> usize {
        self.says().1
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.pairs.put(key, value)
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.pairs.get(key)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.pairs.barrier()
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.pairs.finalize()
    }
}

fn open(said: [(usize, usize); 2]) -> Result<Endpoint, Error> {
    let exchange = Fickle { asked: AtomicUsize::new(0), said, pairs: Singleton::new() };
    Endpoint::open_with(&Config::default(), Box::new(exchange))
}

#[test]
fn rank_and_size_are_read_from_an_exchange_once_and_impossible_values_are_errors() {
    for size in [4097, 1 << 20, u32::MAX as usize, 1 << 32, usize::MAX] {
        let error = open([(0, size); 2]).unwrap_err().to_string();
        assert!(error.contains("number of processes") && error.contains("4096"), "{error}");
        let mut endpoint = open([(0, 1), (size - 1, size)]).unwrap();
        assert_eq!((endpoint.rank(), endpoint.size()), (0, 1));
        endpoint.send(0, 1, b"one").unwrap();
        assert_eq!(endpoint.recv(Source::Any, Tag::Any, &mut [0; 8]).unwrap().len, 3);
        endpoint.close().unwrap();
    }
    assert!(matches!(open([(0, 0), (0, 1)]), Err(Error::Rank { rank: 0, last: 0 })));
    assert!(matches!(open([(1, 1), (0, 1)]), Err(Error::Rank { rank: 1, last: 0 })));
    // The other ranks of this world do not exist, so they have put no keys.
    assert!(matches!(open([(0, 2), (0, 1)]), Err(Error::Bootstrap(_))));
}
