//! The user's buffers: the sources and destinations of messages.
//!
//! Non-blocking operations outlive the call that starts them, so the engine keeps addresses. The caller that builds a
//! [`SendBuf`] or [`RecvBuf`] guarantees once that the addresses stay valid; everything after is safe. Neither type can
//! be copied outside of this crate: the guarantee ends when the request that has taken the buffer completes, and a kept
//! copy could be read after that.
//!
//! A buffer is contiguous, or a list of contiguous runs ([`Segment`], the `struct iovec` of POSIX) that its
//! owner keeps. The top bit of the length, which no length needs, is set for a list.

use core::ptr::NonNull;

mod borrowed;
mod bounce;
mod exposed;
mod lent;
mod lists;
mod range;

pub use borrowed::{BorrowedGather, BorrowedRecv};
pub use bounce::{BOUNCE, Bounce};
pub use exposed::Exposed;
// The models leave out `shared::window`, which uses it.
#[cfg(not(nemesia_loom))]
pub(crate) use exposed::update;
pub use lent::LentMemory;
pub use lists::{GatherList, MOST_PIECES, ScatterList};
pub use range::{MOST_RANGES, ReceiveList, ReceiveRange, ReceiveRanges, SendRange, SendRuns};

/// Flag in the length of a buffer whose base is the address of a list.
const LIST: usize = 1 << (usize::BITS - 1);

/// One contiguous run of a scattered buffer, with the layout of the `struct iovec` of POSIX and of
/// `std::io::IoSlice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Address of the first byte; any value if the run is empty.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

impl Segment {
    const EMPTY: Self = Self { base: core::ptr::null_mut(), len: 0 };
}

/// Returns address and total length of a list, or its only run. `None` if the length exceeds any possible memory, or
/// a run that is not empty has no address.
///
/// # Safety
/// There are `count` segments at `list`.
unsafe fn describe(list: *const Segment, count: usize) -> Option<(NonNull<u8>, usize)> {
    let (mut total, mut runs, mut only) = (0_usize, 0, NonNull::dangling());
    for at in 0..count {
        // SAFETY: the caller guarantees the segments.
        let Segment { base, len } = unsafe { list.add(at).read() };
        if len > 0 {
            total = total.checked_add(len).filter(|total| *total < LIST)?;
            runs += 1;
            only = NonNull::new(base)?;
        }
    }
    if runs <= 1 {
        return Some((only, total));
    }
    Some((NonNull::new(list.cast_mut().cast())?, total | LIST))
}

/// Returns whether a buffer may contain a byte of the `len` bytes at address `base`.
fn may_touch((start, bytes): (NonNull<u8>, usize), (base, len): (usize, usize)) -> bool {
    let start = start.as_ptr().addr();
    bytes & LIST != 0 || (start < base.saturating_add(len) && base < start.saturating_add(bytes))
}

/// A position in a list: a segment, and the number of bytes before it. A walk resumes here, so that it need not start
/// from the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct ListPosition {
    segment: usize,
    before: usize,
}

/// Calls `each` with the runs that make up `len` bytes from `at` on, and with the number of bytes before each.
/// The walk starts at `position`, unless that is beyond `at`, and leaves `position` where it ends.
///
/// # Safety
/// `list` belongs to a buffer of at least `at + len` bytes, whose maker guarantees a valid list. The position
/// is new, or was left by a walk of the same list.
unsafe fn walk(
    list: NonNull<u8>,
    position: &mut ListPosition,
    (at, len): (usize, usize),
    mut each: impl FnMut(usize, NonNull<u8>, usize),
) {
    if at < position.before {
        *position = ListPosition::default();
    }
    let (mut skip, mut done) = (at - position.before, 0);
    while done < len {
        #[cfg(test)]
        tests::count_step();
        // SAFETY: bytes are missing, so the list goes on.
        let Segment { base, len: here } = unsafe { list.cast::<Segment>().add(position.segment).read() };
        if skip >= here {
            skip -= here;
            *position = ListPosition { segment: position.segment + 1, before: position.before + here };
            continue;
        }
        let count = (here - skip).min(len - done);
        // SAFETY: inside the run, which is not empty; `describe` has checked that its address is not null.
        each(done, unsafe { NonNull::new_unchecked(base.add(skip)) }, count);
        (done, skip) = (done + count, skip + count);
    }
}

/// Bytes to send. Not `Clone`: see the [module](self).
///
/// ```compile_fail,E0382
/// # use nemesia_core::payload::SendBuf;
/// fn keep(buf: SendBuf) -> (SendBuf, SendBuf) {
///     (buf, buf)
/// }
/// ```
#[derive(Debug)]
pub struct SendBuf {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker's guarantee (readable until the request completes) does not depend on the thread.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// The bytes are readable and unchanged until this value is dropped or, if a request takes it, until that has
    /// completed.
    #[inline(always)]
    pub unsafe fn from_raw(base: *const u8, len: usize) -> Self {
        Self { base: NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling()), len }
    }

    /// Describes the bytes of `count` segments in sequence. `None` if they are too many, or a segment that is not
    /// empty has no address.
    ///
    /// # Safety
    /// There are `count` segments at `list`. They, and the bytes that they name, are readable and unchanged until this
    /// value is dropped or, if a request takes it, until that has completed.
    pub unsafe fn from_list(list: *const Segment, count: usize) -> Option<Self> {
        // SAFETY: the caller guarantees the segments.
        unsafe { describe(list, count) }.map(|(base, len)| Self { base, len })
    }

    /// Returns the same buffer once more, to start an operation again that the engine has refused.
    ///
    /// # Safety
    /// The guarantee of this value's maker holds for the other value as well.
    #[inline(always)]
    pub const unsafe fn again(&self) -> Self {
        self.alias()
    }

    /// Returns the same buffer once more, for the engine: to read it during a call in which the request that owns it
    /// stays alive, or to move it into that request's next state. Not public, because nothing checks that.
    #[inline(always)]
    pub(crate) const fn alias(&self) -> Self {
        Self { base: self.base, len: self.len }
    }

    /// Returns the number of bytes in the buffer.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len & !LIST
    }

    /// Returns whether the message is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the buffer is a list.
    pub const fn is_list(&self) -> bool {
        self.len & LIST != 0
    }

    /// Returns the address of the bytes, for processes that can read this process's memory; 0 if there are none, or
    /// the buffer is a list.
    pub fn address(&self) -> u64 {
        if self.len == 0 || self.len & LIST != 0 { 0 } else { self.base.as_ptr() as u64 }
    }

    /// Returns whether the buffer may contain a byte of the `len` bytes at address `base`. A list always may.
    pub(crate) fn may_touch(&self, base: usize, len: usize) -> bool {
        may_touch((self.base, self.len), (base, len))
    }

    /// Returns the buffer as a range that a port may expose; `None` if it is empty or a list.
    pub(crate) const fn range(&self) -> Option<SendRange> {
        if self.len == 0 || self.len & LIST != 0 { None } else { Some(SendRange::new(self.base, self.len)) }
    }

    /// Returns at most `len` bytes from `at` on of a buffer that is no list. `None` if there are none.
    pub(crate) fn range_of(&self, at: usize, len: usize) -> Option<SendRange> {
        let part = self.whole(at, len).filter(|part| !part.is_empty())?;
        Some(SendRange::new(NonNull::from(part).cast(), part.len()))
    }

    /// Returns the last run that is not empty, as a range that a port may expose, and the number of bytes before it.
    /// `None` if the buffer is empty, or more than `most` bytes come before the run.
    pub(crate) fn last_run(&self, most: usize) -> Option<(usize, SendRange)> {
        if self.len & LIST == 0 {
            return self.range().map(|range| (0, range));
        }
        let (mut before, mut segment) = (0, 0);
        while before <= most {
            // SAFETY: fewer bytes than those of the list came before, so the list goes on.
            let Segment { base, len } = unsafe { self.base.cast::<Segment>().add(segment).read() };
            if before + len == self.len() {
                return NonNull::new(base).map(|base| (before, SendRange::new(base, len)));
            }
            (before, segment) = (before + len, segment + 1);
        }
        None
    }

    /// Returns the runs of a list that has at most `most` segments, and at least `least` bytes for each on average.
    pub(crate) fn runs(&self, most: usize, least: usize) -> Option<SendRuns> {
        let (len, mut before, mut count) = (self.len(), 0, 0);
        while self.is_list() && before < len {
            if count == most || count.saturating_mul(least) > len {
                return None;
            }
            // SAFETY: fewer bytes than those of the list came before, so the list goes on.
            before += unsafe { self.base.cast::<Segment>().add(count).read() }.len;
            count += 1;
        }
        (count > 0 && count.saturating_mul(least) <= len).then(|| SendRuns::new(self.base, count, len))
    }

    /// Returns at most `len` bytes from `at` on; fewer at the end. `None` if the buffer is a list.
    #[inline(always)]
    pub fn whole(&self, at: usize, len: usize) -> Option<&[u8]> {
        if self.len & LIST != 0 {
            return None;
        }
        let at = at.min(self.len);
        // SAFETY: the range is within the buffer, which the maker guarantees to be readable and unchanged; the slice
        // lives no longer than the borrow of `self`, which the request owns.
        Some(unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at), len.min(self.len - at)) })
    }

    /// Returns at most `len` bytes from `at` on; fewer at the end of the buffer or, in a list, of a run.
    #[inline(always)]
    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        match self.whole(at, len) {
            Some(part) => part,
            None => self.run(at, len),
        }
    }

    #[cold]
    fn run(&self, at: usize, len: usize) -> &[u8] {
        let mut first: (NonNull<u8>, usize) = (NonNull::dangling(), 0);
        self.each(at, len, |done, part| {
            if done == 0 {
                first = (NonNull::from(part).cast(), part.len());
            }
        });
        // SAFETY: a run that `each` supplied, which the maker guarantees to be readable and unchanged; the slice
        // lives no longer than the borrow of `self`.
        unsafe { core::slice::from_raw_parts(first.0.as_ptr(), first.1) }
    }

    /// Calls `each` with the runs that make up `len` bytes from `at` on, fewer at the end, and with the number of
    /// bytes before each.
    pub fn each(&self, at: usize, len: usize, each: impl FnMut(usize, &[u8])) {
        Gather::new(self.alias()).each(at, len, each);
    }

    /// Copies bytes from `at` on into `to`, as far as both reach.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        Gather::new(self.alias()).read(at, to);
    }
}

/// Bytes to send, part by part. In a list, the search for a part starts where the preceding part ended.
#[derive(Debug)]
pub struct Gather {
    buf: SendBuf,
    position: ListPosition,
}

impl Gather {
    /// Returns the bytes of `buf`, starting at the beginning.
    pub const fn new(buf: SendBuf) -> Self {
        Self { buf, position: ListPosition { segment: 0, before: 0 } }
    }

    /// Returns the buffer.
    pub const fn buf(&self) -> &SendBuf {
        &self.buf
    }

    /// As [`SendBuf::each`].
    pub fn each(&mut self, at: usize, len: usize, mut each: impl FnMut(usize, &[u8])) {
        if let Some(part) = self.buf.whole(at, len) {
            return each(0, part);
        }
        let at = at.min(self.buf.len());
        let len = len.min(self.buf.len() - at);
        let run = |done: usize, base: NonNull<u8>, count: usize| {
            // SAFETY: the maker guarantees that each run is readable and unchanged; the slice ends with the call.
            each(done, unsafe { core::slice::from_raw_parts(base.as_ptr(), count) });
        };
        // SAFETY: the range was limited to the buffer, whose maker guarantees a valid list; the position is
        // used with this list only.
        unsafe { walk(self.buf.base, &mut self.position, (at, len), run) };
    }

    /// Calls `each` with the runs that make up `len` bytes from `at` on, fewer at the end, as ranges that a port may
    /// read, and with the number of bytes before each.
    pub(crate) fn each_range(&mut self, at: usize, len: usize, mut each: impl FnMut(usize, SendRange)) {
        self.each(at, len, |done, part| each(done, SendRange::new(NonNull::from(part).cast(), part.len())));
    }

    /// As [`SendBuf::read`].
    pub fn read(&mut self, at: usize, to: &mut [u8]) {
        self.each(at, to.len(), |done, part| to[done..done + part.len()].copy_from_slice(part));
    }
}

/// A receive buffer.
#[derive(Debug)]
pub struct RecvBuf {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker's guarantee (exclusive until the request completes) does not depend on the thread.
unsafe impl Send for RecvBuf {}

impl RecvBuf {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// The bytes are initialised and writable, and nothing else uses them until this value is dropped or, if a request
    /// takes it, until that request has completed.
    #[inline(always)]
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len }
    }

    /// Describes a receive buffer of `count` segments in sequence. `None` if it is too large, or a segment that is
    /// not empty has no address.
    ///
    /// # Safety
    /// There are `count` segments at `list`, which are unchanged until this value is dropped or, if a request takes it,
    /// until that request has completed. The bytes that they name are initialised and writable, and nothing else uses
    /// them until then.
    pub unsafe fn from_list(list: *const Segment, count: usize) -> Option<Self> {
        // SAFETY: the caller guarantees the segments.
        unsafe { describe(list, count) }.map(|(base, len)| Self { base, len })
    }

    /// As [`SendBuf::may_touch`].
    pub(crate) fn may_touch(&self, base: usize, len: usize) -> bool {
        may_touch((self.base, self.len), (base, len))
    }

    /// Returns an empty buffer, which replaces that of a completed request.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// Takes the first `len` bytes, fewer at the end, out of a buffer that is no list. The buffer keeps the others, so
    /// no byte belongs to both.
    pub(crate) fn take_front(&mut self, len: usize) -> Self {
        debug_assert!(!self.is_list(), "a list is not divided");
        let len = len.min(self.len());
        let front = Self { base: self.base, len };
        // SAFETY: `len` bytes of the buffer's memory, or none of it, lie before the new base.
        self.base = unsafe { self.base.add(len) };
        self.len -= len;
        front
    }

    /// As [`RecvBuf::take_front`], but the buffer keeps these bytes as well.
    #[cfg(nemesia_injected_fault)]
    pub(crate) fn take_front_again(&self, len: usize) -> Self {
        Self { base: self.base, len: len.min(self.len()) }
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len & !LIST
    }

    /// Returns whether the buffer is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the buffer is a list.
    pub const fn is_list(&self) -> bool {
        self.len & LIST != 0
    }

    /// Returns the address of the buffer, for processes that can write this process's memory; 0 if the buffer is a
    /// list.
    pub fn address(&self) -> u64 {
        if self.len & LIST != 0 { 0 } else { self.base.as_ptr() as u64 }
    }

    /// Returns at most `len` bytes from `at` on; fewer at the end. `None` if the buffer is a list.
    #[inline(always)]
    pub fn whole(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        if self.len & LIST != 0 {
            return None;
        }
        let at = at.min(self.len);
        // SAFETY: the range is within the buffer, which the maker guarantees to be exclusive and writable; the slice
        // lives no longer than the exclusive borrow of `self`.
        Some(unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len.min(self.len - at)) })
    }

    /// Returns at most `len` bytes from `at` on of a buffer that is no list, as a range that a port may write. `None`
    /// if there are none.
    pub(crate) fn range_of(&mut self, at: usize, len: usize) -> Option<ReceiveRange> {
        let part = self.whole(at, len).filter(|part| !part.is_empty())?;
        let len = part.len();
        Some(ReceiveRange::new(NonNull::from(part).cast(), len))
    }

    /// Returns at most `len` bytes from `at` on; fewer at the end of the buffer or, in a list, of a run.
    #[inline(always)]
    pub fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        let (base, len) = match self.whole(at, len) {
            Some(part) => (NonNull::from(&mut *part).cast(), part.len()),
            None => self.run(at, len),
        };
        // SAFETY: a run of the buffer, which the maker guarantees to be exclusive and writable; the slice lives no
        // longer than the exclusive borrow of `self`.
        unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), len) }
    }

    #[cold]
    fn run(&mut self, at: usize, len: usize) -> (NonNull<u8>, usize) {
        let mut first = (NonNull::dangling(), 0);
        self.each(at, len, |done, part| {
            if done == 0 {
                first = (NonNull::from(&mut *part).cast(), part.len());
            }
        });
        first
    }

    /// Calls `each` with the runs that make up `len` bytes from `at` on, fewer at the end, and with the number of
    /// bytes before each.
    pub fn each(&mut self, at: usize, len: usize, each: impl FnMut(usize, &mut [u8])) {
        // SAFETY: a new position is valid for every list.
        unsafe { self.each_after(&mut ListPosition::default(), at, len, each) };
    }

    /// # Safety
    /// That of [`walk`], for the position.
    unsafe fn each_after(
        &mut self,
        position: &mut ListPosition,
        at: usize,
        len: usize,
        mut each: impl FnMut(usize, &mut [u8]),
    ) {
        if let Some(part) = self.whole(at, len) {
            return each(0, part);
        }
        let at = at.min(self.len());
        let len = len.min(self.len() - at);
        let run = |done: usize, base: NonNull<u8>, count: usize| {
            // SAFETY: the maker guarantees that each run is exclusive and writable; the slice ends with the call.
            each(done, unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), count) });
        };
        // SAFETY: the range was limited to the buffer, whose maker guarantees a valid list; the caller
        // guarantees the position.
        unsafe { walk(self.base, position, (at, len), run) };
    }

    /// Returns the number of runs that contain these bytes.
    pub fn runs(&mut self, at: usize, len: usize) -> usize {
        let mut runs = 0;
        self.each(at, len, |_, _| runs += 1);
        runs
    }
}

/// A receive buffer that is filled part by part. In a list, the search for a part starts where the preceding part
/// ended.
#[derive(Debug)]
pub struct Scatter {
    buf: RecvBuf,
    position: ListPosition,
}

impl Scatter {
    /// Returns `buf`, to be filled from the beginning.
    pub const fn new(buf: RecvBuf) -> Self {
        Self { buf, position: ListPosition { segment: 0, before: 0 } }
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.buf.len()
    }

    /// Returns whether the buffer is empty.
    pub const fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// As [`SendBuf::may_touch`].
    pub(crate) fn may_touch(&self, base: usize, len: usize) -> bool {
        self.buf.may_touch(base, len)
    }

    /// As [`RecvBuf::address`].
    pub fn address(&self) -> u64 {
        self.buf.address()
    }

    /// As [`RecvBuf::whole`].
    #[inline(always)]
    pub fn whole(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        self.buf.whole(at, len)
    }

    /// As [`RecvBuf::each`].
    pub fn each(&mut self, at: usize, len: usize, each: impl FnMut(usize, &mut [u8])) {
        // SAFETY: the position is used with this list only.
        unsafe { self.buf.each_after(&mut self.position, at, len, each) };
    }

    /// Calls `each` with the runs that make up `len` bytes from `at` on, fewer at the end, as ranges that a port may
    /// write, and with the number of bytes before each.
    pub(crate) fn each_range(&mut self, at: usize, len: usize, mut each: impl FnMut(usize, ReceiveRange)) {
        self.each(at, len, |done, part| {
            let len = part.len();
            each(done, ReceiveRange::new(NonNull::from(part).cast(), len));
        });
    }

    /// Returns the first [`MOST_RANGES`] of the runs that make up `len` bytes from `at` on, fewer at the end, as ranges
    /// that a port may write.
    pub(crate) fn ranges(&mut self, at: usize, len: usize) -> ReceiveRanges {
        let (mut ranges, mut done) = (ReceiveRanges::new(), 0);
        while done < len
            && let Some(range) = self.range_from(at + done, len - done)
            && ranges.push(&range)
        {
            done += range.len();
        }
        ranges
    }

    /// Returns at most `most` bytes from `at` on, fewer at the end of the run. `None` at the end of the buffer.
    pub(crate) fn range_from(&mut self, at: usize, most: usize) -> Option<ReceiveRange> {
        if !self.buf.is_list() {
            return self.buf.range_of(at, most);
        }
        if at >= self.len() {
            return None;
        }
        let mut base = None;
        // SAFETY: the byte lies in the buffer, whose maker guarantees a valid list; the position is used with this
        // list only.
        unsafe { walk(self.buf.base, &mut self.position, (at, 1), |_, byte, _| base = Some(byte)) };
        let ListPosition { segment, before } = self.position;
        // SAFETY: the walk has ended in the segment that holds the byte.
        let Segment { len, .. } = unsafe { self.buf.base.cast::<Segment>().add(segment).read() };
        base.map(|base| ReceiveRange::new(base, (before + len - at).min(most)))
    }

    /// As [`RecvBuf::runs`].
    pub fn runs(&mut self, at: usize, len: usize) -> usize {
        self.buf.runs(at, len)
    }
}

#[cfg(test)]
pub(crate) mod tests;
