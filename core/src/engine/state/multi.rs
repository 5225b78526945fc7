//! Multi-receive buffers: where the next message goes.
#![forbid(unsafe_code)]

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Pattern;
use crate::payload::RecvBuf;

/// The alignment of messages in a multi-receive buffer, unless another one is chosen, in bytes.
const DEFAULT_ALIGN: usize = 8;

/// The options of a multi-receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiReceiveOptions {
    least: usize,
    align: usize,
}

impl Default for MultiReceiveOptions {
    /// Returns the options of a buffer that ends when no byte is left, and places messages at multiples of 8 bytes.
    fn default() -> Self {
        Self { least: 1, align: DEFAULT_ALIGN }
    }
}

impl MultiReceiveOptions {
    /// Returns the options of a buffer that ends as soon as fewer than `least` bytes are left, but at least one: after
    /// a message has been placed, or at once if the whole buffer is shorter.
    #[must_use]
    pub const fn least(self, least: usize) -> Self {
        Self { least: if least == 0 { 1 } else { least }, ..self }
    }

    /// Returns the options of a buffer whose messages begin at multiples of `align` bytes from its beginning. `None` if
    /// `align` is no power of two.
    #[must_use]
    pub const fn align(self, align: usize) -> Option<Self> {
        if align.is_power_of_two() { Some(Self { align, ..self }) } else { None }
    }
}

/// The part of a multi-receive buffer that is left. Messages that are promised a place are the first that get one.
#[derive(Debug)]
pub(in crate::engine) struct MultiBuffer {
    pub(in crate::engine) pattern: Pattern,
    /// The number in the order of posting.
    pub(in crate::engine) number: u64,
    pub(in crate::engine) rest: RecvBuf,
    /// The number of bytes before the rest, a multiple of the alignment unless the rest is empty.
    offset: usize,
    /// The bytes at the beginning of the rest that are promised, with their padding.
    promised: usize,
    /// The end of the last message: the number of bytes that hold messages, with the padding between them.
    pub(in crate::engine) used: usize,
    options: MultiReceiveOptions,
    /// The number of messages that have a place, or the promise of one, and are not complete.
    pub(in crate::engine) under_way: u32,
    /// The number of promises.
    pub(in crate::engine) promises: u32,
}

/// Whether a message can be placed into the rest of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum MultiFit {
    /// There is room.
    Fits,
    /// The rest is too short. The whole buffer would not be.
    Short,
    /// The message is longer than the whole buffer.
    Never,
}

impl MultiBuffer {
    /// Returns an empty buffer. `buf` is no list.
    pub(in crate::engine) const fn new(
        pattern: Pattern,
        number: u64,
        rest: RecvBuf,
        options: MultiReceiveOptions,
    ) -> Self {
        Self { pattern, number, rest, offset: 0, promised: 0, used: 0, options, under_way: 0, promises: 0 }
    }

    /// Returns whether enough is left for the buffer to stay posted.
    pub(in crate::engine) const fn is_open(&self) -> bool {
        self.free() >= self.options.least
    }

    /// Returns the number of bytes that are neither used nor promised.
    const fn free(&self) -> usize {
        self.rest.len() - self.promised
    }

    /// Returns whether a message of `total` bytes can be placed.
    pub(in crate::engine) const fn fit(&self, total: u64) -> MultiFit {
        match total {
            total if total <= self.free() as u64 => MultiFit::Fits,
            total if total <= (self.offset + self.rest.len()) as u64 => MultiFit::Short,
            _ => MultiFit::Never,
        }
    }

    /// Returns the number of bytes that a message of `len` bytes takes at `offset`, with the padding behind it: what
    /// the next message cannot have goes at once.
    fn taken(&self, offset: usize, len: usize) -> usize {
        // The alignment is a power of two.
        let padding = (offset + len).wrapping_neg() & (self.options.align - 1);
        (len + padding).min(self.offset + self.rest.len() - offset)
    }

    /// Promises a place to a message of `len` bytes, which fits.
    pub(in crate::engine) fn promise(&mut self, len: usize) {
        let offset = self.offset + self.promised;
        self.promised += self.taken(offset, len);
        self.used = offset + len;
        self.promises += 1;
        self.under_way += 1;
    }

    /// Places the message of `len` bytes that was promised a place first, or one that fits if there are no promises.
    /// Returns its offset in the buffer, and its bytes.
    pub(in crate::engine) fn place(&mut self, len: usize) -> (usize, RecvBuf) {
        if self.promises == 0 {
            self.promise(len);
        }
        self.promises -= 1;
        let (offset, taken) = (self.offset, self.taken(self.offset, len));
        self.promised -= taken;
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::PlaceTwice) {
            return (offset, self.rest.take_front_again(len));
        }
        let place = self.rest.take_front(len);
        self.offset += len + self.rest.take_front(taken - len).len();
        (offset, place)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::matching::Source;
    use crate::shared::tests::fabric::{Fabric, tiny};

    const PATTERN: Pattern = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };

    fn check(len: usize, options: MultiReceiveOptions, messages: &[(usize, usize)]) -> MultiBuffer {
        let fabric = Fabric::new(tiny(1));
        let mut lender = fabric.lender();
        let (_, buf) = lender.receive(0, len);
        let base = buf.address() as usize;
        let mut buffer = MultiBuffer::new(PATTERN, 1, buf, options);
        for (message, offset) in messages {
            assert!(buffer.is_open() && buffer.fit(*message as u64) == MultiFit::Fits);
            let (at, mut place) = buffer.place(*message);
            assert_eq!((at, place.len()), (*offset, *message));
            assert_eq!(place.address() as usize, base + offset);
            assert!(place.whole(0, *message).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0xee)));
            assert_eq!(buffer.used, offset + message);
        }
        buffer
    }

    #[test]
    fn messages_lie_behind_each_other_at_multiples_of_the_alignment() {
        let options = MultiReceiveOptions::default();
        let mut end = check(64, options, &[(8, 0), (1, 8), (0, 16), (0, 16), (17, 16), (24, 40)]);
        assert!(!end.is_open());
        assert_eq!((end.fit(0), end.fit(1)), (MultiFit::Fits, MultiFit::Short));
        assert_eq!(end.place(0).0, 64);
        let one = options.align(1).unwrap();
        assert!(check(10, one, &[(3, 0), (6, 3)]).is_open());
        let wide = options.align(64).unwrap();
        assert!(!check(65, wide, &[(1, 0), (1, 64)]).is_open());
        assert!(!check(60, wide, &[(1, 0)]).is_open(), "less than the padding was left");
        assert_eq!(options.align(0).or(options.align(24)), None);
    }

    #[test]
    fn promised_places_are_those_that_would_have_been_taken_at_once() {
        let lens = [8, 1, 0, 17, 20];
        let mut now = check(64, MultiReceiveOptions::default(), &[]);
        let at_once: Vec<_> = lens.map(|len| now.place(len).0).to_vec();
        for promised in 0..=lens.len() {
            let mut later = check(64, MultiReceiveOptions::default(), &[]);
            lens[..promised].iter().for_each(|len| later.promise(*len));
            assert_eq!((later.promises, later.under_way), (promised as u32, promised as u32));
            assert_eq!(later.is_open(), promised < lens.len());
            let offsets: Vec<_> = lens.map(|len| later.place(len).0).to_vec();
            assert_eq!((offsets, later.used), (at_once.clone(), now.used));
            assert_eq!((later.promised, later.promises, later.rest.len()), (0, 0, 0));
        }
    }

    #[test]
    fn buffer_ends_when_less_than_the_least_is_left() {
        let options = MultiReceiveOptions::default().least(16);
        assert!(check(32, options, &[(16, 0)]).is_open());
        assert!(!check(32, options, &[(17, 0)]).is_open());
        assert!(!check(15, options, &[]).is_open());
        assert!(!check(0, options.least(0), &[]).is_open(), "a buffer without a byte is open");
    }

    #[test]
    fn message_longer_than_the_whole_buffer_never_fits_and_another_may_fit_the_next() {
        let empty = check(32, MultiReceiveOptions::default(), &[]);
        assert_eq!(
            (empty.fit(32), empty.fit(33), empty.fit(u64::MAX)),
            (MultiFit::Fits, MultiFit::Never, MultiFit::Never)
        );
        let used = check(32, MultiReceiveOptions::default(), &[(8, 0)]);
        assert_eq!((used.fit(24), used.fit(25)), (MultiFit::Fits, MultiFit::Short));
        assert_eq!((used.fit(32), used.fit(33)), (MultiFit::Short, MultiFit::Never));
    }
}
