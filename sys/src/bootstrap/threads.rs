//! A world of threads in one process, for tests and examples without a launcher.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{BootstrapError, DEFAULT_DEADLINE, Exchange, SINGLETON_MAX_KEY, SINGLETON_MAX_VALUE, pmi};

/// Returns the exchanges of a world of `size` ranks in one process, by rank. Each belongs to one thread, which
/// opens an endpoint with it ([`Endpoint::open_with`](crate::Endpoint::open_with)).
/// [`testing::world`](crate::testing::world) does all of that.
///
/// If a thread drops its exchange before it has finalized it, the barriers of the other ranks fail at once.
#[must_use]
pub fn threads(size: usize) -> Vec<ThreadExchange> {
    let meeting = Arc::new(ThreadBoard::default());
    let exchange = |rank| ThreadExchange {
        rank,
        size,
        meeting: Arc::clone(&meeting),
        deadline: DEFAULT_DEADLINE,
        finalized: false,
    };
    (0..size).map(exchange).collect()
}

/// The exchange of one rank of [`threads`].
#[derive(Debug)]
pub struct ThreadExchange {
    rank: usize,
    size: usize,
    meeting: Arc<ThreadBoard>,
    deadline: Duration,
    finalized: bool,
}

/// The state that the ranks share.
#[derive(Debug, Default)]
struct ThreadBoard {
    state: Mutex<BoardState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BoardState {
    pairs: HashMap<String, String>,
    /// The number of ranks in the barrier.
    arrived: usize,
    /// The number of barriers that are over.
    barriers: u64,
    /// A rank that left before it finalized.
    gone: Option<usize>,
}

impl ThreadBoard {
    /// A panic of another thread leaves the state consistent: no call changes it half-way.
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadExchange {
    /// Sets the time limit of a barrier.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    fn check_open(&self, during: &'static str) -> Result<(), BootstrapError> {
        if self.finalized { Err(BootstrapError::Finalized { during }) } else { Ok(()) }
    }
}

impl Exchange for ThreadExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.check_open("put")?;
        pmi::check_pair(key, value, SINGLETON_MAX_KEY, SINGLETON_MAX_VALUE)?;
        let mut state = self.meeting.lock();
        if state.pairs.contains_key(key) {
            return Err(BootstrapError::KeyTaken { key: key.to_owned() });
        }
        state.pairs.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.check_open("get")?;
        pmi::check_key(key, SINGLETON_MAX_KEY)?;
        self.meeting.lock().pairs.get(key).cloned().ok_or_else(|| BootstrapError::KeyNotFound {
            key: key.to_owned(),
            reason: "no thread has put it".to_owned(),
        })
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.check_open("barrier")?;
        let until = Instant::now() + self.deadline;
        let mut state = self.meeting.lock();
        let barrier = state.barriers;
        state.arrived += 1;
        if state.arrived == self.size {
            state.arrived = 0;
            state.barriers += 1;
            self.meeting.changed.notify_all();
            return Ok(());
        }
        while state.barriers == barrier {
            if let Some(rank) = state.gone {
                let reason = format!("the thread of rank {rank} has dropped its exchange");
                return Err(BootstrapError::BarrierFailed { reason });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BootstrapError::Timeout { during: "barrier", deadline: self.deadline });
            }
            let waited = self.meeting.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.finalized = true;
        Ok(())
    }
}

impl Drop for ThreadExchange {
    fn drop(&mut self) {
        if !self.finalized {
            self.meeting.lock().gone.get_or_insert(self.rank);
            self.meeting.changed.notify_all();
        }
    }
}
