//! The provider of virtual interfaces (paper 2, first half): [`nemesia_core::via`] over mapped segments inside a
//! machine, and over a memory port between machines. The library `libvipl` (`ffi/vipl`) is its C interface.
//!
//! Inside a machine, payload moves through memory that its receiver lent: the sender stores into it, and sends a record
//! through a fastbox of its own. TCP carries only requests for connections (section 1.2). Two threads serve a process:
//! one executes what other processes need while the program does something else, the other one calls callbacks.
//!
//! | file | contents | paper 2 |
//! |---|---|---|
//! | `settings.rs` | addresses and ports | 1.4.1 |
//! | `trust.rs` | which processes of other machines are connected | |
//! | `table.rs` | objects by checked handle | |
//! | `bell.rs` | the words on which a process sleeps | 1.4.4 |
//! | `region.rs` | registered memory: user memory with its shadow, or allocated memory | 1.4.2 |
//! | `meeting.rs` | the exchange of segments by two connecting processes | 1.4.1 |
//! | `link.rs` | a connection in shared memory: records, imported regions | 1.4.3, 1.4.5 |
//! | `conduit.rs` | what a VI asks of its connection: copies and records | 1.4.3 |
//! | `objects.rs` | the objects of the program | |
//! | `state.rs` | all objects of a process, under one lock, and their progress | |
//! | `provider.rs` | the lock, and waiting | 1.4.4 |
//! | `service.rs` | the thread that executes what other processes need | 1.4.4 |
//! | `listener.rs` | requests for connections that arrive by TCP | 1.4.1 |
//! | `client.rs`, `server.rs`, `peers.rs` | connecting | 1.4.1 |
//! | `network.rs` and its directory | connections between machines, over TCP or an RDMA device | 1.4.3 |
//! | `network_progress.rs`, `network_connect.rs` | their progress, and connecting | 1.4.3 |
//! | `names.rs` | the names of hosts | |
//! | `calls.rs` and its directory | what the C interface calls | |
//!
//! # Trust
//! Inside a machine, another process of the same user that is connected can write to the segments that were lent to it,
//! whenever it likes: protection tags and rights are checked by both libraries, but a hostile process is limited only
//! by the mapped segment. It can never make this process read or write anything else. Between machines, the memory port
//! limits the other process to the regions that were lent to it, with their rights; see `trust.rs` for the processes
//! that are connected.

mod bell;
mod calls;
mod client;
mod conduit;
mod link;
mod listener;
mod meeting;
mod names;
mod network;
mod network_connect;
mod network_progress;
mod objects;
mod peers;
mod provider;
mod region;
mod server;
mod service;
mod settings;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod trust;

pub use calls::{CompletedDescriptor, NicFacts, Provider, ViSnapshot, ViTransport};
pub use names::name_of_host;
pub use objects::{AsyncReport, Callback, ErrorHandler};
pub use region::MemoryKind;
