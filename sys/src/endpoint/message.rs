//! Messages: a send names a rank and a tag, and a receive accepts the messages of a pattern. The engine's rooms are
//! [`eager` and `lmt`](nemesia_core::engine).
//!
//! | file | contents | who keeps the buffer |
//! |---|---|---|
//! | `message/blocking.rs` | blocking sends and receives | the call borrows it |
//! | `message/request.rs` | non-blocking sends and receives, tests and waits | the caller, by promise |
//! | `message/now.rs` | calls that complete at once or do nothing: the critical path | the call borrows it |
//! | `message/scope.rs` | non-blocking operations that end with a scope | the scope borrows it |
//! | `message/context.rs` | matching contexts | as without |
//! | `message/probe.rs` | probes, and receives of the messages that they found | as for receives |
//! | `message/op.rs` | the general form: context, mode, immediate data, one buffer or a list | as for the plain call |
//!
//! The calls share one path: [`Endpoint::start`](super::Endpoint) and `post` pass a buffer to the engine, and `wait.rs`
//! completes the request.

// Rustdoc lists the methods in the order of these modules: see `endpoint.rs`.

mod blocking;

mod request;

mod now;
mod scope;

mod context;
mod probe;

mod op;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use op::{RecvOp, SendOp};
pub use probe::Message;
pub use scope::{Pending, Scope, ScopeContext, ScopeLoan};

pub(super) use probe::Dropped;
