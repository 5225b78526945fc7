//! The exchange of a world whose ranks from 2 on publish nothing themselves. For their places and cards the others get
//! copies of those of rank 1: no rank requests a connection with a higher one, so that no address of them is used.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nemesia::bootstrap::{BootstrapError, Exchange};

use super::{HOSTILE, PATIENCE};

/// The published values, and the number of ranks that wait at a barrier.
#[derive(Debug, Default)]
struct Published {
    values: HashMap<String, String>,
    waiting: usize,
    barriers: u64,
}

/// The place where ranks 0 and 1 meet.
#[derive(Debug)]
pub(super) struct HonestMeeting {
    size: usize,
    published: Mutex<Published>,
    changed: Condvar,
}

impl HonestMeeting {
    pub(super) fn new(size: usize) -> &'static Self {
        // An endpoint keeps its exchange as long as it likes.
        Box::leak(Box::new(Self { size, published: Mutex::default(), changed: Condvar::new() }))
    }

    pub(super) fn exchange(&'static self, rank: usize) -> Box<HonestExchange> {
        Box::new(HonestExchange { meeting: self, rank })
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` returns something. `None` after the time limit.
    fn wait<T>(&self, mut ready: impl FnMut(&mut Published) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut published = self.lock();
        loop {
            if let Some(found) = ready(&mut published) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            published =
                self.changed.wait_timeout(published, left).map_or_else(|it| it.into_inner().0, |it| it.0);
        }
    }

    /// Waits for the card of a rank: its network addresses.
    pub(super) fn card(&self, rank: usize) -> Option<String> {
        let key = format!("nemesia-net-{rank}");
        self.wait(|published| published.values.get(&key).cloned())
    }
}

/// The exchange of rank 0 or 1.
#[derive(Debug)]
pub(super) struct HonestExchange {
    meeting: &'static HonestMeeting,
    rank: usize,
}

/// Returns what a hostile rank has published instead of this value of rank 1. The cards of two ranks differ in the
/// token that a process draws, which is behind the host.
fn of_hostile(value: &str, rank: &str) -> String {
    match value.split_once('/').and_then(|(host, rest)| Some((host, rest.split_once('.')?.1))) {
        Some((host, rest)) => format!("{host}/{rank:0>32}.{rest}"),
        None => value.to_owned(),
    }
}

impl Exchange for HonestExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.meeting.lock().values.insert(key.to_owned(), value.to_owned());
        self.meeting.changed.notify_all();
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        let published = self.meeting.lock();
        let found = match key.rsplit_once('-') {
            Some((name, rank)) if rank.parse::<usize>().is_ok_and(|rank| rank >= HOSTILE) => {
                let of_honest = published.values.get(&format!("{name}-1"));
                of_honest.map(|value| of_hostile(value, rank))
            }
            _ => published.values.get(key).cloned(),
        };
        let reason = || "nobody has put it".to_owned();
        found.ok_or_else(|| BootstrapError::KeyNotFound { key: key.to_owned(), reason: reason() })
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        let mut published = self.meeting.lock();
        let barrier = published.barriers;
        published.waiting += 1;
        if published.waiting == HOSTILE {
            (published.waiting, published.barriers) = (0, barrier + 1);
        }
        drop(published);
        self.meeting.changed.notify_all();
        let passed = self.meeting.wait(|published| (published.barriers > barrier).then_some(()));
        passed.ok_or(BootstrapError::Timeout { during: "barrier", deadline: PATIENCE })
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}
