//! Nemesia: a kernel-bypass transport engine that message-passing runtimes embed.
//!
//! Processes of one machine exchange tagged messages over shared memory. An [`Endpoint`] is a process's place in
//! its world: it finds its peers through a launcher that speaks PMI-1 (`mpiexec.hydra`, `nemesia run`) or
//! through any [`Exchange`](bootstrap::Exchange) that the embedding runtime provides.
//!
//! ```no_run
//! use nemesia::{Config, Endpoint, Source, Tag};
//!
//! let mut endpoint = Endpoint::open(&Config::from_env()?)?;
//! let mut buf = [0; 8];
//! if endpoint.rank() == 0 {
//!     endpoint.send(1, 7, b"nemesia!")?;
//! } else {
//!     let status = endpoint.recv(Source::Rank(0), Tag::Exactly(7), &mut buf)?;
//!     assert_eq!(status.len, 8);
//! }
//! endpoint.close()?;
//! # Ok::<(), nemesia::Error>(())
//! ```
//!
//! This crate is the thin layer that touches the operating system; every algorithm is in `nemesia_core`.

pub mod bootstrap;
#[cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "for `internals`")
)]
mod cm;
mod config;
mod endpoint;
mod error;
mod events;
mod explain;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
#[cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "for `internals`")
)]
mod os;
mod placement;
pub mod regcache;
mod route;
pub mod shm;
pub mod tcp;
pub mod testing;
pub mod verbs;

pub use config::{Config, ConfigError, Origin, SingleCopy, Stores, VARIABLES, Variable};
pub use endpoint::{
    Access, Agreed, Arm, Context, Counters, Datatype, Endpoint, EngineCounters, Incoming, KEY_BYTES,
    LockedEndpoint, Message, Path, PeerCounters, Pending, Ranking, Reduction, Refusal, Region, RemoteKey,
    Request, Scope, ScopeContext, SharedEndpoint, Source, Status, Tag, Value, WaitCounters,
};
pub use error::Error;
pub use explain::{Bill, Verdict, explain};
pub use nemesia_core::counters::Field;
pub use nemesia_core::engine::{Failure, Truncation};
pub use nemesia_core::payload::Segment;
pub use nemesia_core::shared::layout::LayoutError;
pub use os::{Bytes, HugePages, SegmentBacking, SegmentOptions, ShmError};
pub use route::{Explanation, Route};
