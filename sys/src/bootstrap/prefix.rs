//! Several worlds over one key space.

use super::{BootstrapError, Exchange, Member, pmi};
use std::num::NonZeroU64;

/// The longest prefix in bytes. With it, the library's keys still fit into the shortest limit of a launcher.
pub const PREFIX_BYTES: usize = 32;

/// An exchange whose keys all begin with a prefix, so that one key space carries several worlds. The processes of a
/// world use the same prefix, and no other world of the key space uses it.
///
/// The worlds share the barriers of the exchange: all processes open the worlds in the same order. If ranks can be
/// started again ([`Exchange::restarts`]), the exchange has one list of members, and so carries one world.
///
/// ```
/// use nemesia::bootstrap::{Prefixed, Singleton};
/// use nemesia::{Config, Endpoint};
///
/// let exchange = Prefixed::new("world-7.", Singleton::new())?;
/// let endpoint = Endpoint::open_with(&Config::default(), Box::new(exchange))?;
/// endpoint.close()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
#[derive(Debug)]
pub struct Prefixed<E> {
    prefix: String,
    exchange: E,
}

impl<E: Exchange> Prefixed<E> {
    /// Returns the exchange with this prefix, of printable ASCII without spaces and without `=`, at most
    /// [`PREFIX_BYTES`] long. An empty prefix changes nothing.
    ///
    /// # Errors
    /// The prefix cannot be part of a key.
    pub fn new(prefix: &str, exchange: E) -> Result<Self, BootstrapError> {
        if !prefix.is_empty() {
            pmi::check_key(prefix, PREFIX_BYTES)?;
        }
        Ok(Self { prefix: prefix.to_owned(), exchange })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl<E: Exchange> Exchange for Prefixed<E> {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn size(&self) -> usize {
        self.exchange.size()
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.exchange.put(&self.key(key), value)
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.exchange.get(&self.key(key))
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.exchange.barrier()
    }

    fn start_failed(&mut self) {
        self.exchange.start_failed();
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.exchange.finalize()
    }

    fn incarnation(&self) -> u64 {
        self.exchange.incarnation()
    }

    fn restarts(&self) -> bool {
        self.exchange.restarts()
    }

    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        self.exchange.join(address)
    }

    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        self.exchange.member(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Singleton;
    use super::*;

    #[test]
    fn keys_of_two_prefixes_do_not_meet_and_impossible_prefixes_are_refused() {
        let mut one = Prefixed::new("one.", Singleton::new()).unwrap();
        one.put("key", "1").unwrap();
        one.exchange.put("key", "0").unwrap();
        assert_eq!((one.get("key").unwrap(), one.exchange.get("key").unwrap()), ("1".into(), "0".into()));
        assert_eq!(one.exchange.get("one.key").unwrap(), "1");
        for prefix in ["with space", "a=b", "é", &"x".repeat(PREFIX_BYTES + 1)] {
            assert!(Prefixed::new(prefix, Singleton::new()).is_err(), "{prefix}");
        }
        assert!(Prefixed::new("", Singleton::new()).unwrap().put("key", "1").is_ok());
    }
}
