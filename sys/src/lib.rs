//! Nemesia: a transport engine that message-passing runtimes embed.
//!
//! It moves tagged messages, active messages and one-sided operations between processes: over shared memory inside a
//! machine, and over RDMA devices or TCP between machines. An [`Endpoint`] is the place of one process in its world. It
//! finds its peers through a launcher that speaks PMI-1 (`mpiexec.hydra`, `nemesia run`), or through an
//! [`Exchange`](bootstrap::Exchange) of the embedding runtime.
//!
//! ```no_run
//! use nemesia::{Config, Endpoint, Source, Tag};
//!
//! let mut endpoint = Endpoint::open(&Config::from_env()?)?;
//! if endpoint.rank() == 0 {
//!     endpoint.send(1, 7, b"nemesia!")?;
//! } else {
//!     let mut buf = [0; 8];
//!     let status = endpoint.recv(Source::Rank(0), Tag::Exactly(7), &mut buf)?;
//!     assert_eq!(status.len, 8);
//! }
//! endpoint.barrier()?;
//! endpoint.close()?;
//! # Ok::<(), nemesia::Error>(())
//! ```
//!
//! # The methods of an endpoint
//! [`Endpoint`] lists its methods in this order, with an example for each group:
//!
//! | group | methods |
//! |---|---|
//! | opening, closing and facts | [`open`], [`open_with`], [`close`], [`rank`], [`size`], [`failure`], [`warnings`] |
//! | blocking messages | [`send`], [`recv`] |
//! | non-blocking requests, for runtimes | [`isend`], [`irecv`], [`test`], [`wait`], [`cancel`], [`send_now`] |
//! | non-blocking requests on borrowed buffers | [`scope`], which lends a [`Scope`] |
//! | matching contexts | [`in_context`], which returns a [`Context`] |
//! | probes | [`iprobe`], [`probe`], [`mprobe`], [`mrecv`] |
//! | context, mode, immediate data, lists of buffers in one description | [`send_op`], [`recv_op`], [`isend_op`], [`irecv_op`] |
//! | buffers that peers map | [`allocate_buffer`] |
//! | active messages | [`set_handler`], [`send_active`], [`Incoming::reply`] |
//! | regions and one-sided operations | [`allocate`], [`remote_key`], [`put`], [`get`], [`fetch_add`], [`flush`] |
//! | barrier and agreement | [`barrier`], [`agree`], [`shrink`] |
//! | restart | [`restarted`], [`readmit`] |
//! | progress and event loops | [`progress`], [`event_fd`], [`arm`] |
//! | several threads | [`into_shared`], which returns a [`SharedEndpoint`] |
//! | futures, for any executor | [`into_async`], which returns an [`AsyncEndpoint`] |
//! | observation | [`counters`], [`explain`](Endpoint::explain), [`call_tree`] |
//!
//! Settings are in [`Config`], errors in [`Error`]. Memory ports for other uses are in [`verbs`] (RDMA) and [`tcp`].
//!
//! # How to end a program
//! Call [`barrier`], then [`close`]. After the barrier no rank waits any longer for a message of another rank, if each
//! rank entered it after its last receive. [`close`] sends the pending messages. Then it sends each peer a notice that
//! this rank has finished.
//!
//! Only [`close`] is a normal end. If an endpoint is dropped otherwise, by `?`, by a panic or at the end of `main`, its
//! peers see [`Failure::Dropped`].
//!
//! # Several ranks in one test
//! [`testing::world`] runs a function once for each rank of a world, in threads of one process and without a launcher:
//!
//! ```
//! use nemesia::{Error, Source, Tag, testing};
//!
//! let received = testing::world(3, |mut endpoint| {
//!     let (rank, size) = (endpoint.rank(), endpoint.size());
//!     endpoint.send((rank + 1) % size, 1, &[rank as u8])?;
//!     let mut from = [0];
//!     endpoint.recv(Source::Any, Tag::Exactly(1), &mut from)?;
//!     endpoint.barrier()?;
//!     endpoint.close()?;
//!     Ok::<_, Error>(from[0])
//! })?;
//! let received: Result<Vec<u8>, Error> = received.into_iter().collect();
//! assert_eq!(received?, [2, 0, 1]);
//! # Ok::<(), Error>(())
//! ```
//!
//! This crate is the layer that touches the operating system. The algorithms are in `nemesia_core`.
//!
//! [`open`]: Endpoint::open
//! [`open_with`]: Endpoint::open_with
//! [`close`]: Endpoint::close
//! [`rank`]: Endpoint::rank
//! [`size`]: Endpoint::size
//! [`failure`]: Endpoint::failure
//! [`warnings`]: Endpoint::warnings
//! [`send`]: Endpoint::send
//! [`recv`]: Endpoint::recv
//! [`isend`]: Endpoint::isend
//! [`irecv`]: Endpoint::irecv
//! [`test`]: Endpoint::test
//! [`wait`]: Endpoint::wait
//! [`cancel`]: Endpoint::cancel
//! [`send_now`]: Endpoint::send_now
//! [`scope`]: Endpoint::scope
//! [`in_context`]: Endpoint::in_context
//! [`iprobe`]: Endpoint::iprobe
//! [`probe`]: Endpoint::probe
//! [`mprobe`]: Endpoint::mprobe
//! [`mrecv`]: Endpoint::mrecv
//! [`send_op`]: Endpoint::send_op
//! [`recv_op`]: Endpoint::recv_op
//! [`isend_op`]: Endpoint::isend_op
//! [`irecv_op`]: Endpoint::irecv_op
//! [`set_handler`]: Endpoint::set_handler
//! [`send_active`]: Endpoint::send_active
//! [`allocate`]: Endpoint::allocate
//! [`allocate_buffer`]: Endpoint::allocate_buffer
//! [`remote_key`]: Endpoint::remote_key
//! [`put`]: Endpoint::put
//! [`get`]: Endpoint::get
//! [`fetch_add`]: Endpoint::fetch_add
//! [`flush`]: Endpoint::flush
//! [`barrier`]: Endpoint::barrier
//! [`agree`]: Endpoint::agree
//! [`shrink`]: Endpoint::shrink
//! [`restarted`]: Endpoint::restarted
//! [`readmit`]: Endpoint::readmit
//! [`progress`]: Endpoint::progress
//! [`event_fd`]: Endpoint::event_fd
//! [`arm`]: Endpoint::arm
//! [`into_shared`]: Endpoint::into_shared
//! [`into_async`]: Endpoint::into_async
//! [`counters`]: Endpoint::counters
//! [`call_tree`]: Endpoint::call_tree

pub mod bootstrap;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub, unused_imports, reason = "for `internals`"))]
mod cm;
mod config;
mod endpoint;
mod error;
mod events;
mod explain;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod opening;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub, unused_imports, reason = "for `internals`"))]
mod os;
mod placement;
mod rdma;
pub mod rdma_channel;
pub mod regcache;
mod route;
pub mod shm;
pub mod tcp;
pub mod testing;
mod transport;
pub mod verbs;
#[cfg(feature = "internals")]
#[allow(unreachable_pub, unused_imports, reason = "for `internals`")]
mod via;

pub use config::{
    ChannelDesign, Config, ConfigError, FastPathChoice, NetChoice, Origin, SingleCopy, Stores, VARIABLES,
    Variable,
};
pub use endpoint::{
    Access, Addressing, Agreed, Among, AmongPeers, Arm, AsyncEndpoint, AsyncTransfer, Comparison, CompleteAt,
    Completion, Context, Counters, Datatype, EndedRequest, Endpoint, EngineCounters, ExposeOptions, Incoming,
    KEY_BYTES, LockedEndpoint, Meeting, Message, MessageBuffer, Path, PeerCounters, PeerGroup, Pending,
    Ranking, RecvOp, Reduction, Refusal, Region, RegistrationCounters, RemoteKey, Request, RequestPlace,
    Scope, ScopeContext, ScopeLoan, SendOp, SharedEndpoint, Source, StartedOperation, Status, Tag, Value,
    WaitCounters, WithCompletion,
};
pub use error::Error;
pub use explain::{Bill, Verdict, explain};
pub use nemesia_core::counters::Field;
pub use nemesia_core::engine::{CompletionKind, Failure, MultiReceiveOptions, Truncation};
pub use nemesia_core::payload::Segment;
pub use nemesia_core::peers::{ADDRESS_BYTES, PeerAddress, PeerEnd, PeerError, PeerRef, PeerStage};
pub use nemesia_core::port::channel::RendezvousChoice;
pub use nemesia_core::shared::layout::LayoutError;
pub use os::interfaces::AddressFamily;
pub use os::{Bytes, HugePages, SegmentBacking, SegmentOptions, ShmError};
pub use route::{Explanation, Route};
pub use transport::net::{NetBill, NetUsage, TransportBill};
