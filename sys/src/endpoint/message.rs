//! Messages.

mod blocking;

mod request;

mod now;
mod scope;

mod context;
mod probe;

mod list;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use probe::Message;
pub use scope::{Pending, Scope, ScopeContext};

pub(super) use probe::Dropped;
