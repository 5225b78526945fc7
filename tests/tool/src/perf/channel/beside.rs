//! The engine beside the channel: the group connects through the endpoint, and both are measured in one process.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nemesia::bootstrap::{BootstrapError, Exchange};
use nemesia::{Endpoint, Error, Source, Tag};

/// The tag of the messages of the exchange.
const TAG: u64 = 0x6368;
/// The most bytes of what a process has published between two barriers.
const MOST: usize = 64 << 10;

/// An endpoint that two users share in turn.
pub(super) type SharedEnd = Arc<Mutex<Endpoint>>;

/// Runs a function on the endpoint.
pub(super) fn on<T>(end: &SharedEnd, work: impl FnOnce(&mut Endpoint) -> T) -> T {
    work(&mut end.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The exchange of two processes through an endpoint: a barrier sends what was put to the other.
#[derive(Debug)]
pub(super) struct OverEndpoint {
    end: SharedEnd,
    pending: BTreeMap<String, String>,
    known: BTreeMap<String, String>,
}

impl OverEndpoint {
    pub(super) const fn new(end: SharedEnd) -> Self {
        Self { end, pending: BTreeMap::new(), known: BTreeMap::new() }
    }

    fn swap(&self) -> Result<BTreeMap<String, String>, String> {
        let text = serde_json::to_string(&self.pending).map_err(|error| error.to_string())?;
        let mut theirs = vec![0; MOST];
        let len = on(&self.end, |end| -> Result<usize, Error> {
            let other = 1 - end.rank();
            end.send(other, TAG, text.as_bytes())?;
            Ok(end.recv(Source::Rank(other), Tag::Exactly(TAG), &mut theirs)?.len)
        })
        .map_err(|error| error.to_string())?;
        serde_json::from_slice(&theirs[..len]).map_err(|error| error.to_string())
    }
}

impl Exchange for OverEndpoint {
    fn rank(&self) -> usize {
        on(&self.end, |end| end.rank())
    }

    fn size(&self) -> usize {
        on(&self.end, |end| end.size())
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.pending.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.known.get(key).cloned().ok_or_else(|| BootstrapError::KeyNotFound {
            key: key.to_owned(),
            reason: "no process has put it".to_owned(),
        })
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        let theirs = self.swap().map_err(|why| BootstrapError::caller("barrier", why))?;
        self.known.extend(theirs);
        self.known.append(&mut self.pending);
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}
