//! The provider of a process: its lock, and waiting (paper 2, section 1.4.4).
//!
//! # Waiting
//! A waiting call polls for a short time. Then one of the waiting threads, the leader, sleeps on the bell, which other
//! processes ring; the others wait for the leader. No thread holds the lock while it sleeps, so a call that only looks
//! never waits for one that sleeps. Every sleep is bounded, because other processes can damage the bell.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nemesia_core::via::ViaError;

use super::bell::Bell;
use super::network::Networks;
use super::settings::Settings;
use super::state::ViaState;
use super::trust::HostTrust;
use crate::config::Config;
use crate::os::descriptor::own;
use crate::os::{ProcessOrigin, ShmError};

/// Polls before a waiting thread sleeps, and how many of them yield the processor.
const POLLS: u32 = 600;
const YIELDS: u32 = 40;
/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// What all threads of a process share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<ViaState>,
    changed: Condvar,
    /// For the thread that calls callbacks.
    callbacks: Condvar,
    pub(super) bell: Bell,
    pub(super) settings: Settings,
    pub(super) trust: HostTrust,
    /// The number of this process in requests, random.
    pub(super) process: [u8; 16],
    /// Interrupts the sleep of the service thread.
    pub(super) poke: OwnedFd,
    origin: ProcessOrigin,
}

impl Shared {
    /// Opens the provider, without its threads.
    pub(super) fn open() -> Result<Arc<Self>, ShmError> {
        // SAFETY: takes no pointers.
        let poke = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: a new descriptor, given to us alone.
        let poke =
            unsafe { own(poke) }.map_err(|errno| ShmError::system("making an event descriptor", errno))?;
        let settings = Settings::from_env();
        let networks = Networks::new(Config::from_env().unwrap_or_default(), settings.address);
        let shared = Arc::new(Self {
            state: Mutex::new(ViaState::new(Config::default().non_temporal_from(), networks)),
            changed: Condvar::new(),
            callbacks: Condvar::new(),
            bell: Bell::create()?,
            settings,
            trust: HostTrust::new(settings)?,
            process: crate::os::random()?,
            poke,
            origin: ProcessOrigin::here(1)?,
        });
        Ok(shared)
    }

    /// Returns whether this process was forked from the one that opened the provider.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Locks all objects.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        StateGuard { shared: self, state: self.locked() }
    }

    #[cfg(not(nemesia_race))]
    fn locked(&self) -> MutexGuard<'_, ViaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// ThreadSanitizer does not see a lock that is taken inside of the standard library, which is not instrumented. An
    /// attempt that does not wait is compiled with this crate, so it is seen.
    #[cfg(nemesia_race)]
    fn locked(&self) -> MutexGuard<'_, ViaState> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(std::sync::TryLockError::Poisoned(error)) => return error.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// Sleeps on a condition, without the lock.
    #[cfg(not(nemesia_race))]
    fn sleep_on<'a>(
        &'a self,
        condition: &Condvar,
        state: MutexGuard<'a, ViaState>,
        limit: Duration,
    ) -> MutexGuard<'a, ViaState> {
        condition.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// As above, for ThreadSanitizer: a condition takes the lock inside of the standard library.
    #[cfg(nemesia_race)]
    fn sleep_on<'a>(
        &'a self,
        _condition: &Condvar,
        state: MutexGuard<'a, ViaState>,
        limit: Duration,
    ) -> MutexGuard<'a, ViaState> {
        drop(state);
        std::thread::sleep(limit.min(Duration::from_millis(1)));
        self.locked()
    }

    /// Informs other threads of what changed under the lock.
    fn after(&self, state: &mut ViaState) {
        // No thread may poll the memory port again before the service thread sleeps.
        let mut has_work = false;
        state.networks.iter_mut().for_each(|network| has_work |= !network.arm(false));
        if std::mem::take(&mut state.must_poke) || has_work {
            self.poke();
        }
        if std::mem::take(&mut state.has_callbacks) {
            self.callbacks.notify_all();
        }
        if std::mem::take(&mut state.is_changed) && state.sleepers > 0 {
            if state.has_leader {
                self.bell.notify();
            }
            self.changed.notify_all();
        }
    }

    fn poke(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of a local variable. If the counter is full, the thread is woken anyway.
        unsafe { libc::write(self.poke.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Thread of callbacks: sleeps until there may be something to call.
    pub(super) fn idle(&self) {
        let state = self.locked();
        if state.notifies == 0 && state.errors.is_empty() {
            drop(self.sleep_on(&self.callbacks, state, Duration::from_secs(1)));
        }
    }

    /// Waits until `attempt` returns a value, which it is asked for under the lock after `drive` has made progress.
    pub(super) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        drive: impl Fn(&mut ViaState),
        mut attempt: impl FnMut(&mut ViaState) -> Option<T>,
    ) -> Result<T, ViaError> {
        for poll in 0.. {
            {
                let mut state = self.lock();
                drive(&mut state);
                if let Some(value) = attempt(&mut state) {
                    return Ok(value);
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(ViaError::Timeout);
            }
            if poll < POLLS - YIELDS {
                std::hint::spin_loop();
            } else if poll < POLLS {
                std::thread::yield_now();
            } else if let Some(value) = self.sleep(deadline, &drive, &mut attempt) {
                return Ok(value);
            }
        }
        Err(ViaError::Timeout)
    }

    /// Sleeps once, unless the last attempt before the sleep succeeds.
    fn sleep<T>(
        &self,
        deadline: Option<Instant>,
        drive: &impl Fn(&mut ViaState),
        attempt: &mut impl FnMut(&mut ViaState) -> Option<T>,
    ) -> Option<T> {
        let limit = deadline.map_or(LONGEST_SLEEP, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(LONGEST_SLEEP)
        });
        let mut state = self.locked();
        state.sleepers += 1;
        let is_leader = !std::mem::replace(&mut state.has_leader, true);
        let sequence = if is_leader { self.bell.announce() } else { 0 };
        if is_leader {
            state.drive_all();
        } else {
            drive(&mut state);
        }
        let mut value = attempt(&mut state);
        self.after(&mut state);
        if value.is_none() {
            if is_leader {
                drop(state);
                self.bell.sleep(sequence, limit);
                state = self.locked();
            } else {
                state = self.sleep_on(&self.changed, state, limit);
            }
            if is_leader {
                state.drive_all();
            }
            value = attempt(&mut state);
        }
        if is_leader {
            self.bell.awake();
            state.has_leader = false;
            // Another thread becomes the leader.
            self.changed.notify_all();
        }
        state.sleepers -= 1;
        self.after(&mut state);
        value
    }
}

/// All objects, locked. What changed is announced to other threads at the end.
pub(super) struct StateGuard<'a> {
    shared: &'a Shared,
    state: MutexGuard<'a, ViaState>,
}

impl std::ops::Deref for StateGuard<'_> {
    type Target = ViaState;

    fn deref(&self) -> &ViaState {
        &self.state
    }
}

impl std::ops::DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut ViaState {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.shared.after(&mut self.state);
    }
}
