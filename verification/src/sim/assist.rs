//! A message that both sides copy: the receiver from the front, and the sender, if it joins, from the back,
//! until they meet. The fabric chooses their positions and the sizes of the pieces. `core/src/port.rs` says
//! what each side may do.

use nemesia_core::port::{AssistedCopy, NextChunk, Part};

use crate::rng::Rng;

/// The sender-assisted copies of one pair. At most one is open at a time.
#[derive(Debug, Default)]
pub(crate) struct AssistState {
    assist: Option<AssistedCopy>,
    number: u64,
    open: bool,
    /// The number of the copy that the sender found last.
    found: u64,
    /// The number that the sender has joined, and whether it copies a part now or has finished one that
    /// becomes visible at a time.
    joined: u64,
    copying: bool,
    seen: u64,
    /// The receiver was given everything before the first position; the sender has claimed, and written,
    /// everything from the second on.
    front: u64,
    back: u64,
    written: u64,
}

impl AssistState {
    /// Receiver: opens a copy.
    pub(crate) const fn open(&mut self, assist: &AssistedCopy) {
        self.number += 1;
        self.assist = Some(*assist);
        self.open = true;
        (self.front, self.back, self.written) = (assist.start, assist.end, assist.end);
    }

    /// Receiver: returns its next chunk.
    pub(crate) fn next_chunk(&mut self, now: u64, rng: &mut Rng) -> NextChunk {
        if self.open {
            let left = self.back - self.front;
            if left > 0 {
                let start = self.front;
                self.front += piece(left, rng);
                return NextChunk::Copy(Part { start, end: self.front });
            }
            self.close();
        }
        let Some(AssistedCopy { end, .. }) = self.assist else { return NextChunk::Done };
        let assisted = self.joined == self.number;
        if assisted && (self.copying || self.seen > now) {
            return NextChunk::Wait;
        }
        let part = Part { start: self.front, end: if assisted { self.written } else { end } };
        if part.start >= part.end {
            return NextChunk::Done;
        }
        self.front = part.end;
        NextChunk::Copy(part)
    }

    /// Receiver: lets the sender claim nothing more.
    pub(crate) const fn close(&mut self) {
        self.open = false;
    }

    /// Sender: returns a copy that it has not found before.
    pub(crate) fn find(&mut self) -> Option<AssistedCopy> {
        if !self.open || self.found == self.number {
            return None;
        }
        self.found = self.number;
        self.assist
    }

    /// Sender: joins the copy that it found.
    pub(crate) fn join(&mut self, rng: &mut Rng) -> Option<Part> {
        if self.found != self.number {
            return None;
        }
        self.joined = self.number;
        self.claim(rng)
    }

    /// Sender: claims the next part.
    pub(crate) fn claim(&mut self, rng: &mut Rng) -> Option<Part> {
        let left = if self.open { self.back - self.front } else { 0 };
        if self.joined != self.number || left == 0 {
            return None;
        }
        let end = self.back;
        self.back -= piece(left, rng);
        self.copying = true;
        Some(Part { start: self.back, end })
    }

    /// Sender: ends its claimed part, written or not. The receiver sees it at that time.
    pub(crate) const fn end(&mut self, part: Part, written: bool, seen: u64) {
        self.back = if written { part.start } else { part.end };
        self.written = self.back;
        (self.copying, self.seen) = (false, seen);
    }
}

/// Returns at least one byte, usually a large part, and at most everything that is left.
fn piece(left: u64, rng: &mut Rng) -> u64 {
    let some = if rng.one_in(8) { 1 } else { left.div_ceil(4) };
    (some + rng.below(some as usize) as u64).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_together_copy_every_byte_once() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed, 0);
            let mut shared = AssistState::default();
            let mut copied = [0_u8; 300];
            let mut copy = |part: Part| (part.start..part.end).for_each(|at| copied[at as usize] += 1);
            shared.open(&AssistedCopy { request: 0, address: 0, start: 20, end: 300 });
            let (mut claimed, mut turns) = (None, 0);
            loop {
                turns += 1;
                assert!(turns < 10_000, "seed {seed}: they do not meet");
                if let Some(part) = claimed.take_if(|_| rng.one_in(2)) {
                    let written = !rng.one_in(5);
                    shared.end(part, written, turns + 3);
                    if written {
                        copy(part);
                    }
                } else if claimed.is_none() && rng.one_in(2) {
                    let found = shared.find().is_some();
                    claimed = if found { shared.join(&mut rng) } else { shared.claim(&mut rng) };
                }
                match shared.next_chunk(turns, &mut rng) {
                    NextChunk::Copy(part) => copy(part),
                    NextChunk::Wait => {}
                    NextChunk::Done => break,
                }
            }
            assert!(
                copied[..20].iter().all(|&times| times == 0) && copied[20..].iter().all(|&times| times == 1)
            );
        }
    }
}
