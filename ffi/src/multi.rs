//! Buffers that receive one message after the other.

use nemesia::{Endpoint as Inner, MultiReceiveOptions, Request, Tag};

use crate::boundary::check_buffer;
use crate::status::Fault;
use crate::transfer::source;

/// A buffer that receives one message after the other, each behind the one before: `context`, `rank`, `tag`, `ignore`,
/// `buffer` and `len`, with NEMESIA_OPERATION_COMPLETION in `flags`. The messages are those that one receive for each
/// would get. Each makes an entry in the completion queue, NEMESIA_COMPLETION_MULTI_RECEIVE, with its offset in the
/// buffer. The last entry, NEMESIA_COMPLETION_MULTI_RECEIVE_END, follows when the buffer is used up or withdrawn
/// (`nemesia_endpoint_cancel`) and all its messages are complete: the buffer is free. `user_context` is that of all.
///
/// `offset` is the alignment: messages begin at multiples of it from the beginning of the buffer. A power of two, or 0
/// for 8. `operand` is the minimum: the buffer ends when fewer bytes are left.
///
/// No message is truncated. One that is longer than what is left ends the buffer, and goes to the next receive that
/// matches, in the order of posting. One that is longer than the whole buffer passes it by, as if it did not match. If
/// no receive takes a message, it waits as unexpected. Each message takes a request until its completion is taken.
pub const NEMESIA_OPERATION_MULTI_RECEIVE: u32 = 12;

/// Such a buffer, as the fields of `nemesia_operation` describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyMessages {
    pub(crate) context: u16,
    pub(crate) rank: i32,
    pub(crate) tag: Tag,
    pub(crate) buffer: (*mut u8, usize),
    pub(crate) align: u64,
    pub(crate) least: u64,
}

impl ManyMessages {
    /// Posts the buffer. `number` is the number of its completions, if they enter the queue.
    ///
    /// # Safety
    /// The buffer is the caller's, and stays valid until the completion of its end was taken.
    pub(crate) unsafe fn start(self, endpoint: &mut Inner, number: Option<u64>) -> Result<Request, Fault> {
        let Self { context, rank, tag, buffer, align, least } = self;
        let number = number.ok_or_else(|| {
            Fault::argument(
                "flags lack NEMESIA_OPERATION_COMPLETION: the messages of the buffer have no requests",
            )
        })?;
        check_buffer(buffer.0, buffer.1, "buffer")?;
        let options = MultiReceiveOptions::default().least(usize::try_from(least).unwrap_or(usize::MAX));
        let bytes = if align == 0 { Some(8) } else { usize::try_from(align).ok() };
        let options = bytes.and_then(|bytes| options.align(bytes)).ok_or_else(|| {
            Fault::argument(format!("offset is {align}: the alignment must be a power of two, or 0 for 8"))
        })?;
        let from = source(endpoint, rank)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { endpoint.in_context(context).irecv_many(number, from, tag, buffer, options) }?)
    }
}
