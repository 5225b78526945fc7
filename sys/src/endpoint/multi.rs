//! Buffers that receive one message after the other.
//!
//! The engine's room is [`eager`](nemesia_core::engine).

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use nemesia_core::engine::{MultiPlace, MultiReceiveOptions, StartError};
use nemesia_core::payload::RecvBuf;

use super::{Completion, Context, Endpoint, Request, Source, Tag, pattern};
use crate::error::Error;

/// The number of the next buffer.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A buffer that the endpoint owns while messages are received into it.
///
/// The engine has the address of the bytes. As in the slots of futures, no reference to the whole is made before the
/// buffer has ended; [`Endpoint::received`] makes one to the bytes of a message that is complete.
#[derive(Debug)]
pub(in crate::endpoint) struct OwnedBuffer {
    /// Unique in this process. A completion has it if it was taken from the buffer's endpoint, so a completion of
    /// another endpoint or another buffer names no bytes of this one.
    number: u64,
    request: Request,
    bytes: Vec<u8>,
}

/// # Buffers for many messages
///
/// One posted buffer receives message after message, each behind the one before. The messages are those that one
/// receive for each would get: source, tag and context match in the same way, in the order of arrival, and stored
/// messages enter the buffer when it is posted. Each message makes an entry in the completion queue, of the kind
/// [`MultiReceive`](crate::CompletionKind::MultiReceive), with its offset ([`Completion::offset`]), length, tag, rank
/// and immediate data. The last entry, [`MultiReceiveEnd`](crate::CompletionKind::MultiReceiveEnd), follows when the
/// buffer is used up or withdrawn, and all its messages are complete: the buffer is free.
///
/// Messages begin at multiples of 8 bytes from the beginning of the buffer, or of another power of two
/// ([`MultiReceiveOptions::align`]). A message has its place as soon as it matches, so a large one may be complete
/// after a small one that lies behind it. A buffer ends when fewer bytes than a minimum are left
/// ([`MultiReceiveOptions::least`]).
///
/// No message is truncated. A message that is longer than what is left ends the buffer, and goes to the next receive
/// that matches, in the order of posting: buffers are filled one after the other. A message that is longer than a whole
/// buffer passes it by, as if it did not match. If no receive takes a message, it waits as unexpected. So the buffers
/// should be several times as long as the longest message, and the minimum as large as this message.
///
/// Each message takes a slot until its completion is taken. If NEMESIA_REQUESTS slots are in use, further messages wait
/// in the memory for unexpected messages until completions are taken; they keep their places.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Completion, CompletionKind, MultiReceiveOptions, Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let options = MultiReceiveOptions::default().least(16);
/// let buffer = endpoint.receive_many(7, Source::Rank(peer), Tag::Any, vec![0; 1 << 16], options);
/// let buffer = buffer.map_err(|(error, _)| error)?;
/// for tag in 0..3 {
///     endpoint.send(peer, tag, b"nemesia!")?;
/// }
/// let mut completions = [Completion::default(); 16];
/// let mut count = 0;
/// while count < 3 {
///     let taken = endpoint.wait_completions(&mut completions, None)?;
///     for completion in &completions[..taken] {
///         assert_eq!(completion.context, 7);
///         assert_eq!(endpoint.received(completion), Some(&b"nemesia!"[..]));
///         count += 1;
///     }
/// }
/// endpoint.cancel(buffer);
/// assert_eq!(endpoint.wait_completions(&mut completions, None)?, 1);
/// assert_eq!(completions[0].kind, CompletionKind::MultiReceiveEnd);
/// assert_eq!(endpoint.take_buffer(&completions[0]).map(|buffer| buffer.len()), Some(1 << 16));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Posts a buffer that receives one message after the other. `number` is the context of its completions. The bytes
    /// that `buffer` has (its length, not its capacity) receive.
    ///
    /// The endpoint owns the buffer until [`Endpoint::take_buffer`] returns it. [`Endpoint::cancel`] withdraws it: it
    /// then ends with [`Error::Cancelled`], after the messages that it has matched. If a peer fails, messages that were
    /// under way end with [`Error::PeerFailed`], and so does a buffer that no other peer can fill.
    ///
    /// # Errors
    /// As for [`Endpoint::irecv`]; nothing was posted, and the buffer comes back.
    pub fn receive_many(
        &mut self,
        number: u64,
        from: Source,
        tag: Tag,
        buffer: Vec<u8>,
        options: MultiReceiveOptions,
    ) -> Result<Request, (Error, Vec<u8>)> {
        self.in_context(0).receive_many(number, from, tag, buffer, options)
    }

    /// Posts memory of the caller's that receives one message after the other; see [`Endpoint::receive_many`]. The
    /// request serves [`Endpoint::cancel`] only.
    ///
    /// # Errors
    /// As for [`Endpoint::irecv`]; nothing was posted.
    ///
    /// # Safety
    /// The `len` bytes at `base` are initialised and writable. Nothing else writes them until the completion of the
    /// buffer's end was taken, and nothing reads a byte before the completion of its message was taken.
    pub unsafe fn irecv_many(
        &mut self,
        number: u64,
        from: Source,
        tag: Tag,
        (base, len): (*mut u8, usize),
        options: MultiReceiveOptions,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecv_many(number, from, tag, (base, len), options) }
    }

    /// Returns the bytes of a message in a buffer of [`Endpoint::receive_many`], by its completion. `None` if the
    /// completion is another one, its operation failed, or the buffer was taken.
    pub fn received(&self, completion: &Completion) -> Option<&[u8]> {
        let (MultiPlace::Message(_, offset), Ok(status)) = (completion.place, completion.outcome) else {
            return None;
        };
        let owned = self.buffers.iter().find(|owned| owned.number == completion.owned)?;
        let end = offset.checked_add(status.len).filter(|end| *end <= owned.bytes.len())?;
        // SAFETY: the range lies in the buffer. The engine has completed the message that lies there, and writes other
        // bytes of the buffer only. The buffer leaves the endpoint only through an exclusive reference to it.
        Some(unsafe { std::slice::from_raw_parts(owned.bytes.as_ptr().add(offset), end - offset) })
    }

    /// Returns a buffer of [`Endpoint::receive_many`] by the completion of its end. `None` if the completion is another
    /// one, or the buffer was taken before.
    pub fn take_buffer(&mut self, completion: &Completion) -> Option<Vec<u8>> {
        let MultiPlace::End(_) = completion.place else { return None };
        let at = self.buffers.iter().position(|owned| owned.number == completion.owned)?;
        Some(self.buffers.swap_remove(at).bytes)
    }

    /// Takes completions out of the queue. Slots that become free, or that may still be made, go to messages that wait
    /// for them.
    #[inline(always)]
    pub(in crate::endpoint) fn take_completions(&mut self, into: &mut [Completion]) -> usize {
        // Most calls of a program that polls find nothing.
        if self.engine.has_completions() || self.engine.is_starved() { self.take_entries(into) } else { 0 }
    }

    #[inline(never)]
    fn take_entries(&mut self, into: &mut [Completion]) -> usize {
        let count = self.engine.take_completions(into);
        if !self.buffers.is_empty() {
            self.name_buffers(into.iter_mut().take(count));
        }
        if self.engine.is_starved() {
            self.feed();
        }
        count
    }

    /// Gives completions the number of the buffer that they are about, if this endpoint owns it.
    fn name_buffers<'a>(&self, completions: impl Iterator<Item = &'a mut Completion>) {
        for completion in completions {
            if let MultiPlace::Message(id, _) | MultiPlace::End(id) = completion.place {
                let owned = self.buffers.iter().find(|owned| owned.request.0 == id);
                completion.owned = owned.map_or(0, |owned| owned.number);
            }
        }
    }

    /// Returns whether a completion is in the queue, or can be.
    pub(in crate::endpoint) fn has_completions(&mut self) -> bool {
        if self.engine.is_starved() {
            self.feed();
        }
        self.engine.has_completions()
    }

    /// Makes slots for messages that wait for them, within the limit.
    #[cold]
    fn feed(&mut self) {
        self.engine.feed();
        while self.engine.is_starved() {
            let capacity = self.engine.request_capacity();
            if self.make_room(StartError::Requests { capacity }).is_err() {
                return;
            }
            self.engine.feed();
        }
    }
}

impl Context<'_> {
    /// Posts a buffer that receives messages of this context; see [`Endpoint::receive_many`].
    ///
    /// # Errors
    /// As for [`Endpoint::receive_many`].
    pub fn receive_many(
        self,
        number: u64,
        from: Source,
        tag: Tag,
        mut buffer: Vec<u8>,
        options: MultiReceiveOptions,
    ) -> Result<Request, (Error, Vec<u8>)> {
        let Self { endpoint, id } = self;
        // Nothing between the start and the entry may panic.
        endpoint.buffers.reserve(1);
        let place = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the endpoint keeps the bytes, and makes a reference only to those of complete messages, until the
        // buffer has ended. It drops the buffers after the engine.
        match unsafe {
            Context { endpoint: &mut *endpoint, id }.irecv_many(number, from, tag, place, options)
        } {
            Ok(request) => {
                let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
                endpoint.buffers.push(OwnedBuffer { number, request, bytes: buffer });
                Ok(request)
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Posts memory of the caller's that receives messages of this context; see [`Endpoint::irecv_many`].
    ///
    /// # Errors
    /// As for [`Endpoint::irecv_many`].
    ///
    /// # Safety
    /// As for [`Endpoint::irecv_many`].
    pub unsafe fn irecv_many(
        self,
        number: u64,
        from: Source,
        tag: Tag,
        (base, len): (*mut u8, usize),
        options: MultiReceiveOptions,
    ) -> Result<Request, Error> {
        let Self { endpoint, id } = self;
        let pattern = pattern(from, id, tag)?;
        endpoint.check_origin()?;
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        loop {
            match endpoint.engine.post_multi(pattern, &mut buf, options, number) {
                Ok(id) => {
                    // Stored messages may have entered it.
                    endpoint.has_completions();
                    return Ok(Request(id));
                }
                Err(error) => endpoint.make_room(error)?,
            }
        }
    }
}

impl Completion {
    /// Returns the offset of a message in its multi-receive buffer, in bytes; 0 for other completions.
    pub const fn offset(&self) -> usize {
        match self.place {
            MultiPlace::Message(_, offset) => offset,
            _ => 0,
        }
    }

    /// Returns the request of the multi-receive buffer that the completion is about. `None` if it is about another
    /// operation.
    pub const fn buffer(&self) -> Option<Request> {
        match self.place {
            MultiPlace::Message(id, _) | MultiPlace::End(id) => Some(Request(id)),
            MultiPlace::None => None,
        }
    }
}
