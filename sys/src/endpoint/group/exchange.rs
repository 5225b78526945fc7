//! An exchange of short texts among a group of peers: each member gets those of all.
//!
//! The messages lie in the matching context of barriers. A tag has the number of the call, which is the same in all
//! processes of the group, that of the exchange within the call, and a bit above those of meetings. Texts of others are
//! untrusted: their length is limited, and the caller decodes them.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::SendBuf;

use super::AmongPeers;
use crate::endpoint::peers::PeerGroup;
use crate::endpoint::reserved::{BARRIER_CONTEXT, GROUP_TAG};
use crate::endpoint::{Endpoint, Message, Mode, Request, Status};
use crate::error::Error;

/// The bit in the tags of exchanges. The ways of meetings lie below.
const EXCHANGE_TAG: u64 = 1 << 40;
const _: () = assert!(EXCHANGE_TAG > u32::MAX as u64 && EXCHANGE_TAG < GROUP_TAG);
/// The most bytes of a text.
const MOST_BYTES: usize = 4096;
/// The time in which a message that has begun to arrive must end.
const GRACE: Duration = Duration::from_secs(10);

impl AmongPeers<'_> {
    /// Begins a collective call that has some exchanges. Returns its number, for each of them.
    ///
    /// # Errors
    /// As for [`Endpoint::rank_of`].
    pub(crate) fn begin_exchanges(&mut self) -> Result<u64, Error> {
        let Self { endpoint, group, .. } = self;
        endpoint.with_peers(|peers, _| Ok(peers.next_call_of(group)))
    }

    /// Gives a text of at most 4096 bytes to all members, and returns the texts of all, by their positions. Collective:
    /// all name the same call and the same exchange of it.
    ///
    /// # Errors
    /// [`Error::Timeout`] if a member does not take part within `limit`; [`Error::MemberFailed`] if a member is gone;
    /// [`Error::Peer`] with its position if its text is invalid. As for [`Endpoint::rank_of`].
    pub(crate) fn exchange(
        &mut self,
        (call, exchange): (u64, u8),
        own: &str,
        limit: Duration,
    ) -> Result<Vec<String>, Error> {
        let Self { endpoint, group, .. } = self;
        let number = EXCHANGE_TAG | u64::from(exchange) << 32 | (call & u64::from(u32::MAX));
        let deadline = Instant::now() + limit;
        let mut sends = Vec::new();
        let mut result = Ok(());
        for place in 0..group.size() {
            result = endpoint.give(group, place, (number, own)).map(|send| sends.extend(send));
            if result.is_err() {
                break;
            }
        }
        let texts = result.and_then(|()| {
            let text = |place| match group.peer(place) {
                None => Ok(own.to_owned()),
                Some(_) => endpoint.take_text(group, place, number, deadline),
            };
            (0..group.size()).map(text).collect()
        });
        for (request, bytes) in sends {
            let ended = endpoint.wait_timeout(request, deadline.saturating_duration_since(Instant::now()));
            if matches!(ended, Ok(_) | Err(Error::PeerFailed { .. })) {
                drop(ManuallyDrop::into_inner(bytes));
            }
            // Otherwise the engine may still read the bytes, so they are never freed.
        }
        texts
    }
}

type SentText = (Request, ManuallyDrop<Box<[u8]>>);

impl Endpoint {
    fn rank_at(&mut self, group: &PeerGroup, place: usize) -> Result<Option<usize>, Error> {
        group.peer(place).map(|peer| self.rank_of(peer)).transpose()
    }

    /// Begins to send a text to the member at a position.
    fn give(
        &mut self,
        group: &PeerGroup,
        place: usize,
        (number, text): (u64, &str),
    ) -> Result<Option<SentText>, Error> {
        let Some(rank) = self.rank_at(group, place)? else { return Ok(None) };
        let bytes = ManuallyDrop::new(Box::<[u8]>::from(text.as_bytes()));
        // SAFETY: the bytes lie on the heap. No code changes them before the request has ended, and they are freed only
        // then.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        let request = self.start(rank, BARRIER_CONTEXT, number, buf, Mode::Standard);
        Ok(Some((request.map_err(|error| at_place(error, place))?, bytes)))
    }

    /// Receives the text of the member at a position.
    fn take_text(
        &mut self,
        group: &PeerGroup,
        place: usize,
        number: u64,
        deadline: Instant,
    ) -> Result<String, Error> {
        let Some(rank) = self.rank_at(group, place)? else { return Err(Error::Members) };
        let source = CoreSource::Rank(rank as u32);
        let pattern = Pattern { source, context: BARRIER_CONTEXT, tag: number, ignore: 0 };
        let left = deadline.saturating_duration_since(Instant::now());
        let message = self.take_within(&pattern, Some(left)).map_err(|error| at_place(error, place))?;
        let text = self.open_text(message).map_err(|error| at_place(error, place))?;
        text.ok_or_else(|| Error::Peer {
            rank: place,
            problem: "its text is invalid: build both with the same nemesia".into(),
        })
    }

    /// Receives a message that was taken out of the queue. `None` if it is no text.
    fn open_text(&mut self, message: Message) -> Result<Option<String>, Error> {
        let len = message.status().len;
        // A longer one is received into nothing, as every message that is dropped.
        if len > MOST_BYTES {
            return Ok(None);
        }
        let mut bytes = ManuallyDrop::new(vec![0; len]);
        // SAFETY: the bytes lie on the heap. No code uses them before the request has ended, and they are freed only
        // then.
        let request = unsafe { self.imrecv(message, bytes.as_mut_ptr(), len) }?;
        let ended: Result<Status, Error> = self.wait_timeout(request, GRACE);
        match ended {
            Ok(_) => Ok(String::from_utf8(ManuallyDrop::into_inner(bytes)).ok()),
            Err(error @ (Error::PeerFailed { .. } | Error::Truncated(_))) => {
                drop(ManuallyDrop::into_inner(bytes));
                Err(error)
            }
            // The engine may still write to the bytes, so they are never freed.
            Err(error) => Err(error),
        }
    }
}

/// Names the member's position in the failure of a peer.
fn at_place(error: Error, place: usize) -> Error {
    match error {
        Error::PeerFailed { failure, reason, .. } => Error::MemberFailed { place, failure, reason },
        error => error,
    }
}
