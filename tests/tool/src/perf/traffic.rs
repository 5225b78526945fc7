//! What `perf` measures: two processes that exchange bytes, whatever carries them.
#![forbid(unsafe_code)]

use super::link::Command;
use super::timer::Timer;
use super::worker::Seen;

/// One of the two processes. Rank 0 says what comes next; both then call the same pair of functions.
pub(crate) trait Traffic {
    /// 0 or 1.
    fn rank(&self) -> usize;

    /// What is measured, where the name of the port does not say it.
    fn about(&self) -> Option<String> {
        None
    }

    /// What was counted, if that is asked for, and the call tree, if there is one.
    fn seen(&self, counters: bool) -> Seen;

    /// Two buffers, for copies between them.
    fn buffers(&mut self, bytes: usize) -> (&[u8], &mut [u8]);

    /// Moves on what was said, where that needs the processor.
    fn progress(&mut self) {}

    /// Rank 0 says what comes next. It may go out only when this process waits, or calls [`Traffic::progress`].
    fn command(&mut self, command: Command) -> Result<(), String>;

    /// Rank 1 hears what comes next.
    fn await_command(&mut self) -> Result<Command, String>;

    /// Sends a message of bytes that depend on its size, its sender, and their place.
    fn send_pattern(&mut self, bytes: usize) -> Result<(), String>;

    /// Receives what [`Traffic::send_pattern`] sends, and looks at every byte.
    fn recv_pattern(&mut self, bytes: usize) -> Result<(), String>;

    /// One message each way, rank 0's first; each is looked at by its receiver.
    fn check(&mut self, bytes: usize) -> Result<(), String> {
        if self.rank() == 0 {
            self.send_pattern(bytes)?;
            self.recv_pattern(bytes)
        } else {
            self.recv_pattern(bytes)?;
            self.send_pattern(bytes)
        }
    }

    /// Rank 0: sends a message and waits for the answer, as often as there is room in `samples` for the time taken.
    fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String>;

    /// Rank 1's part of [`Traffic::ping`].
    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// Rank 0: so many windows of messages, and the confirmation that they have come.
    fn send_windows(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// Rank 1's part of [`Traffic::send_windows`].
    fn recv_windows(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// Takes leave of the peer.
    fn close(self) -> Result<(), String>;
}
