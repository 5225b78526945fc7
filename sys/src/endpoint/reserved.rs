//! The matching contexts of messages that the library itself sends: of barriers and meetings, and of agreements.

use nemesia_core::agreement;

use crate::error::Error;

/// The matching context of barriers and meetings. The tags of barriers of a world are the numbers of the rounds. Those
/// of meetings lie below [`GROUP_TAG`], and those of barriers of groups of peers have this bit.
pub(in crate::endpoint) const BARRIER_CONTEXT: u16 = 65534;
/// The bit in the tags of barriers and agreements of groups of peers.
pub(in crate::endpoint) const GROUP_TAG: u64 = 1 << 63;

/// Checks that the caller may use a context.
///
/// # Errors
/// [`Error::Context`] if the context is reserved for barriers or agreements.
#[inline(always)]
pub(in crate::endpoint) fn free_context(context: u16) -> Result<u16, Error> {
    const { assert!(BARRIER_CONTEXT + 1 == agreement::CONTEXT && agreement::CONTEXT == u16::MAX) };
    if context >= BARRIER_CONTEXT { Err(Error::Context) } else { Ok(context) }
}
