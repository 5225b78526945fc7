//! The C interface of Nemesia: `nemesia.h`, `nemesia_rdma_channel.h`, `libnemesia.so`, `libnemesia.a`.
//!
//! Every function here checks its arguments, in release builds, too. It turns errors into codes, keeps a text for each
//! error, and stops panics. cbindgen generates the header `include/nemesia.h` from this crate, with the comments of
//! this crate; the header is committed. `install.sh` installs the header and the libraries.
//!
//! | module | content |
//! |---|---|
//! | [`status`] | codes, and the text of the last error |
//! | [`boundary`] | the rules that every function follows: pointers in, pointers out, panics |
//! | [`config`] | `nemesia_config` |
//! | `handle` | the values of the opaque pointers, and the table in which every handle is looked up |
//! | `rank` | ranks in C |
//! | [`exchange`] | `nemesia_exchange`: a bootstrap exchange provided by the caller |
//! | [`endpoint`] | open, close, and the properties of an endpoint |
//! | `lent` | an endpoint for the duration of a call, of one thread or of several |
//! | [`peers`] | endpoints that open alone, and their peers |
//! | [`event`] | waiting in an event loop |
//! | [`agree`] | the barrier, and recovery from failed peers |
//! | [`among`] | the same among a list of ranks |
//! | [`group`] | the same among a group of peers |
//! | `request` | the numbers of requests in C |
//! | [`restart`] | restarted peers |
//! | [`transfer`] | sends, receives and their requests |
//! | `now` | sends and receives that end after a few instructions |
//! | [`active`] | active messages |
//! | `running` | the active messages whose handlers run in this thread |
//! | [`rma`] | one-sided operations |
//! | [`room`] | the room for unexpected messages |
//! | [`fetch`] | one-sided operations that return the old values |
//! | [`region`] | memory that peers may use |
//! | [`put_get`] | puts and gets that wait |
//! | [`memory`] | reports of memory that the caller unmaps or remaps |
//! | [`operation`] | the structure that describes any operation; send modes |
//! | [`start`] | any operation, started or run to its end |
//! | [`many`] | many requests at once |
//! | [`inject`] | messages that leave now or not at all |
//! | [`completion`] | the completion queue; waits until anything happens |
//! | [`list`] | bytes that lie in several runs |
//! | [`observe`] | counters, and the call tree |
//! | [`probe`] | probes |
//! | [`rdma_channel`] | the five functions of the RDMA Channel, in the header `nemesia_rdma_channel.h` |
//!
//! Invariants: an output is written on success only, unless its comment states otherwise. A pointer that the caller
//! lends is not used after the call, unless a request holds it.
#![expect(clippy::missing_safety_doc, reason = "each comment is the contract for callers in C")]

pub mod active;
pub mod agree;
pub mod among;
pub mod boundary;
pub mod completion;
pub mod config;
pub mod endpoint;
pub mod event;
pub mod exchange;
pub mod fetch;
pub mod group;
mod handle;
pub mod inject;
mod lent;
pub mod list;
pub mod many;
pub mod memory;
pub mod multi;
mod now;
pub mod observe;
pub mod operation;
pub mod peers;
pub mod probe;
pub mod put_get;
mod rank;
pub mod rdma_channel;
pub mod region;
mod request;
pub mod restart;
pub mod rma;
pub mod room;
mod running;
pub mod start;
pub mod status;
pub mod transfer;
