//! What the C interface calls. Every handle is checked; every call may come from any thread.
//!
//! | file | contents |
//! |---|---|
//! | `vis.rs` | NICs, VIs, protection tags |
//! | `memory.rs` | registered memory |
//! | `posting.rs` | descriptors: posted, done, awaited |
//! | `queues.rs` | completion queues |
//! | `callbacks.rs` | callbacks, and the thread that calls them |
//! | `connecting.rs` | connections |

mod callbacks;
mod connecting;
mod memory;
mod posting;
mod queues;
mod vis;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nemesia_core::via::ViaError;

use super::provider::{Shared, StateGuard};
use super::{peers, service};

use callbacks::notify;
pub use posting::CompletedDescriptor;
pub use vis::{NicFacts, ViSnapshot, ViTransport};

/// The provider of this process, which is opened with its first NIC.
#[derive(Clone, Copy, Debug)]
pub struct Provider(&'static Shared);

impl Provider {
    /// Returns the provider.
    ///
    /// # Errors
    /// [`ViaError::ErrorResource`] if it cannot be opened, or in a process that was forked from one that has opened it.
    pub fn get() -> Result<Self, ViaError> {
        static PROVIDER: OnceLock<Option<Arc<Shared>>> = OnceLock::new();
        let shared = PROVIDER.get_or_init(|| {
            let shared = Shared::open().ok()?;
            peers::register(&shared);
            for (name, run) in [("vipl-service", service::serve as fn(&Shared)), ("vipl-notify", notify)] {
                let shared = shared.clone();
                std::thread::Builder::new().name(name.into()).spawn(move || run(&shared)).ok()?;
            }
            Some(shared)
        });
        let shared = shared.as_deref().filter(|shared| !shared.is_elsewhere());
        shared.map(Self).ok_or(ViaError::ErrorResource)
    }

    fn lock(&self) -> StateGuard<'_> {
        self.0.lock()
    }
}

/// Returns the end of a time limit in milliseconds; `None` if there is none (`VIP_INFINITE`) or it is beyond any clock.
fn deadline(milliseconds: u64) -> Option<Instant> {
    if milliseconds == u64::MAX || milliseconds == u64::from(u32::MAX) {
        return None;
    }
    Instant::now().checked_add(Duration::from_millis(milliseconds))
}
