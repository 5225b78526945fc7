//! The limit of messages in allocated memory: two processes without the library that copy the same bytes through a
//! mapping of the same kind.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limits::await_line;
use super::link::WINDOW;
use super::timer::Timer;

/// The bytes before the buffers: one page with the lines that are handed over.
const HEAD: usize = 4096;
/// The distance of two lines, so that no prefetch takes one with the other.
const LINE: usize = 256;
/// Buffers: from which and into which each of the two processes copies.
const BUFFERS: usize = 4;

/// The lines by which the processes wait for each other. The numbers stored in them only grow.
#[derive(Clone, Copy, Debug)]
enum BareLine {
    /// Rank 0 has a message.
    First,
    /// Rank 1 has a message, or has confirmed a window.
    Second,
    /// The sender has copied its half.
    Copied,
}

/// The shared memory, as mapped in one of the two processes.
#[derive(Debug)]
pub(crate) struct BareCopy {
    base: NonNull<u8>,
    len: usize,
    /// The bytes of one buffer.
    most: usize,
    /// Whether the sender copies half of each message.
    both: bool,
    /// The number of the last message or window.
    number: u64,
}

impl BareCopy {
    /// Returns the bytes of memory that buffers of `most` bytes need.
    pub(crate) fn bytes(most: usize) -> usize {
        HEAD + BUFFERS * most.next_multiple_of(HEAD)
    }

    /// Maps the memory. If `both`, the sender of a message copies one half of it.
    ///
    /// # Errors
    /// The system refuses, or the memory is too small.
    pub(crate) fn map(fd: &OwnedFd, most: usize, both: bool) -> io::Result<Self> {
        let len = Self::bytes(most);
        let file = File::from(fd.try_clone()?);
        if file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the file is long enough, and
        // nothing shortens it.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, most: most.next_multiple_of(HEAD), both, number: 0 })
    }

    fn line(&self, line: BareLine) -> &AtomicU64 {
        // SAFETY: in the first page of the mapping, which lives as long as `self`; used through atomics only.
        unsafe { self.base.add(line as usize * LINE).cast::<AtomicU64>().as_ref() }
    }

    /// Copies bytes `start..end` of a message from the rank's buffer into that of the other rank.
    fn copy(&self, sender: usize, (start, end): (usize, usize)) {
        let place = |buffer: usize| HEAD + buffer * self.most + start;
        // SAFETY: both ranges lie in buffers of the mapping, which do not overlap. Only the two processes use them,
        // and each byte is written by one of them at a time.
        unsafe {
            let from = self.base.add(place(sender)).as_ptr();
            let into = self.base.add(place(2 + 1 - sender)).as_ptr();
            std::ptr::copy_nonoverlapping(from, into, end - start);
        }
    }

    fn wait(&self, line: BareLine, number: u64, idle: &mut impl FnMut()) {
        await_line(self.line(line), |value| value >= number, idle);
    }

    /// The receiver's part of `count` copies of a message. The sender has announced them.
    fn receive(&self, sender: usize, bytes: usize, count: usize, idle: &mut impl FnMut()) {
        let end = if self.both { bytes / 2 } else { bytes };
        for _ in 0..count {
            self.copy(sender, (0, end));
        }
        if self.both {
            self.wait(BareLine::Copied, self.number, idle);
        }
    }

    /// The sender's part of `count` copies of a message, which it has announced.
    fn assist(&self, sender: usize, bytes: usize, count: usize) {
        if self.both {
            for _ in 0..count {
                self.copy(sender, (bytes / 2, bytes));
            }
            self.line(BareLine::Copied).store(self.number, Ordering::Release);
        }
    }

    /// Rank 0: exchanges a message each way, once for each place in `samples`, which takes the time.
    pub(crate) fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64], mut idle: impl FnMut()) {
        let mut last = timer.now();
        for sample in samples {
            self.number += 1;
            self.line(BareLine::First).store(self.number, Ordering::Release);
            self.assist(0, bytes, 1);
            self.number += 1;
            self.wait(BareLine::Second, self.number, &mut idle);
            self.receive(1, bytes, 1, &mut idle);
            let now = timer.now();
            *sample = now.saturating_sub(last);
            last = now;
        }
    }

    /// Rank 1's part of [`BareCopy::ping`].
    pub(crate) fn pong(&mut self, bytes: usize, count: usize, mut idle: impl FnMut()) {
        for _ in 0..count {
            self.number += 1;
            self.wait(BareLine::First, self.number, &mut idle);
            self.receive(0, bytes, 1, &mut idle);
            self.number += 1;
            self.line(BareLine::Second).store(self.number, Ordering::Release);
            self.assist(1, bytes, 1);
        }
    }

    /// Rank 0: sends `count` windows of messages.
    pub(crate) fn send_windows(&mut self, bytes: usize, count: usize, mut idle: impl FnMut()) {
        for _ in 0..count {
            self.number += 1;
            self.line(BareLine::First).store(self.number, Ordering::Release);
            self.assist(0, bytes, WINDOW);
            self.wait(BareLine::Second, self.number, &mut idle);
        }
    }

    /// Rank 1's part of [`BareCopy::send_windows`].
    pub(crate) fn recv_windows(&mut self, bytes: usize, count: usize, mut idle: impl FnMut()) {
        for _ in 0..count {
            self.number += 1;
            self.wait(BareLine::First, self.number, &mut idle);
            self.receive(0, bytes, WINDOW, &mut idle);
            self.line(BareLine::Second).store(self.number, Ordering::Release);
        }
    }
}

// SAFETY: the mapping belongs to this value until it is dropped, on whichever thread.
unsafe impl Send for BareCopy {}

impl Drop for BareCopy {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` with this length, and no reference to it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::inherited_memory;
    use super::*;

    #[test]
    fn bare_copies_move_every_byte_in_both_directions() {
        const BYTES: usize = 10_001;
        for both in [false, true] {
            let fd = inherited_memory(BareCopy::bytes(BYTES)).unwrap();
            let [mut one, mut other] = [0, 1].map(|_| BareCopy::map(&fd, BYTES, both).unwrap());
            let buffer = |copy: &BareCopy, buffer: usize| {
                // SAFETY: in the mapping; no process copies now.
                unsafe { NonNull::slice_from_raw_parts(copy.base.add(HEAD + buffer * copy.most), BYTES) }
            };
            for rank in 0..2 {
                // SAFETY: as above.
                unsafe { buffer(&one, rank).as_mut() }.fill(7 + rank as u8);
            }
            let (mut samples, timer) = ([0; 3], Timer::new());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    other.pong(BYTES, 3, || ());
                    other.recv_windows(BYTES, 2, || ());
                });
                one.ping(BYTES, &timer, &mut samples, || ());
                one.send_windows(BYTES, 2, || ());
            });
            for (place, value) in [(2, 8), (3, 7)] {
                // SAFETY: as above.
                let bytes = unsafe { buffer(&one, place).as_ref() };
                assert!(bytes.iter().all(|byte| *byte == value), "{both} {place}");
            }
        }
        assert!(BareCopy::map(&inherited_memory(64).unwrap(), 1, false).is_err());
    }
}
