//! Reading ahead: what comes next is probably like what came last. If that was a large message behind certain frames,
//! the next read puts the bytes behind as many frames at once where such a message belongs. A message of a
//! conversation is then not copied on its way into its receive. If something else has come, its bytes are copied to
//! where they would have been read, and nothing has happened but that.
#![forbid(unsafe_code)]

use super::buffers::InputBuffer;
use super::regions::{PlacementParts, PlacementRegions};
use super::{PlacementStorage, STAGE_BYTES};
use crate::payload::ScatterList;
use crate::wire::placement::{Frame, Parsed};

/// From this length on, payloads are read directly to their destination.
pub(super) const DIRECT: u64 = 4096;
/// The room that stays behind an expected message, so that a read shows whether more has come.
const ROOM_BEHIND: usize = 1024;
/// The most bytes of an input buffer, to which it grows for expected messages: if such a message does not come, its
/// place in the buffer takes what has come. Of longer messages, only the rest is read to where it belongs.
const MOST_INPUT: usize = STAGE_BYTES + (64 << 10);

/// A message that the next read probably brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedMessage {
    /// The bytes of the frames before its payload, its own included.
    pub(super) before: usize,
    /// The bytes of the payload.
    pub(super) len: usize,
}

impl ExpectedMessage {
    /// Returns the message that will follow a read which has brought this frame as its first transfer, behind
    /// so many bytes of frames.
    fn after(frame: &Frame, before: usize) -> Option<Self> {
        let Frame::Send { len, .. } = *frame else { return None };
        let len = len as usize;
        let expected = Self { before, len };
        (len as u64 >= DIRECT && expected.room() <= MOST_INPUT).then_some(expected)
    }

    /// Returns the bytes of the input buffer that the next read may need.
    pub(super) const fn room(self) -> usize {
        self.before + self.len + ROOM_BEHIND
    }

    /// Adds the places of the frames, of the payload and of what follows to a list. Returns false if the memory of
    /// the receive is gone.
    pub(super) fn list<'a, P: PlacementStorage>(
        self,
        parts: &PlacementParts,
        input: &'a mut InputBuffer<P::Table<u8>>,
        regions: &'a PlacementRegions<P>,
        list: &mut ScatterList<'a>,
    ) -> bool {
        let (frames, rest) = input.room_around(self.before, self.len, STAGE_BYTES);
        list.push(frames);
        let is_there = regions.destinations(parts, 0, self.len as u64, list);
        list.push(rest);
        is_there
    }

    /// Returns whether these bytes are the frames before the payload.
    pub(super) fn is_announced_by(self, mut frames: &[u8]) -> bool {
        loop {
            match Frame::parse(frames) {
                Parsed::Frame(Frame::Send { len, .. }, count) => {
                    return count == frames.len() && len as usize == self.len;
                }
                Parsed::Frame(frame, count) if !frame.is_transfer() => {
                    frames = frames.get(count..).unwrap_or(&[]);
                }
                _ => return false,
            }
        }
    }
}

/// What a connection expects.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Whether the port reads ahead at all.
    pub(super) is_on: bool,
    expected: Option<ExpectedMessage>,
    /// The bytes of the frames that the last read has brought, as long as no transfer was among them.
    frames: Option<usize>,
}

impl ReadAhead {
    pub(super) fn expected(&self) -> Option<ExpectedMessage> {
        self.expected.filter(|_| self.is_on)
    }

    /// Expects nothing.
    pub(super) const fn forget(&mut self) {
        self.expected = None;
    }

    /// Begins with what a read has brought; `is_between` if it began with a frame.
    pub(super) const fn begin(&mut self, is_between: bool) {
        self.frames = if is_between { Some(0) } else { None };
    }

    /// Takes note of a frame of this length.
    pub(super) fn see(&mut self, frame: &Frame, count: usize) {
        self.frames = self.frames.map(|before| before + count);
        if frame.is_transfer()
            && let Some(before) = self.frames.take()
        {
            self.expected = ExpectedMessage::after(frame, before);
        }
    }
}
