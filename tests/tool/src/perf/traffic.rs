//! The interface of `perf` to two processes that exchange bytes over any transport.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::command::LinkCommand;
use super::timer::Timer;

/// The error of a transport that measures no lists, or was not asked to.
pub(crate) const NO_LISTS: &str = "there are no buffers for lists";

/// The findings of a process about its own endpoint, as far as they were requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Name, unit and value of each counter.
    pub(crate) counters: Vec<(String, String, u64)>,
    /// The call tree.
    pub(crate) tree: String,
    /// The warnings: preferences that could not be met. They are always reported.
    pub(crate) warnings: Vec<String>,
}

/// One of the two processes. Rank 0 chooses the next exchange; both then call the same pair of functions.
pub(crate) trait Traffic {
    /// Returns 0 or 1.
    fn rank(&self) -> usize;

    /// Describes the measurement, if the name of the port does not.
    fn about(&self) -> Option<String> {
        None
    }

    /// Returns the counters, if they are requested, and the call tree, if there is one.
    fn seen(&self, counters: bool) -> Seen;

    /// Returns two buffers for copies between them.
    fn buffers(&mut self, bytes: usize) -> (&[u8], &mut [u8]);

    /// Makes progress, for a transport that needs the processor.
    fn progress(&mut self) {}

    /// Rank 0: announces the next exchange. The command may leave only when this process waits or calls
    /// [`Traffic::progress`].
    fn command(&mut self, command: LinkCommand) -> Result<(), String>;

    /// Rank 1: waits for the next command.
    fn await_command(&mut self) -> Result<LinkCommand, String>;

    /// Sends a message whose bytes depend on size, sender and position.
    fn send_pattern(&mut self, bytes: usize) -> Result<(), String>;

    /// Receives the message of [`Traffic::send_pattern`], and checks every byte.
    fn recv_pattern(&mut self, bytes: usize) -> Result<(), String>;

    /// Exchanges one message each way, rank 0's first; each receiver checks its message.
    fn check(&mut self, bytes: usize) -> Result<(), String> {
        if self.rank() == 0 {
            self.send_pattern(bytes)?;
            self.recv_pattern(bytes)
        } else {
            self.recv_pattern(bytes)?;
            self.send_pattern(bytes)
        }
    }

    /// Rank 0: sends a message and waits for the answer, once for each place in `samples`, which takes the
    /// time.
    fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String>;

    /// Rank 1's part of [`Traffic::ping`].
    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// As [`Traffic::check`], with lists.
    fn check_lists(&mut self, bytes: usize) -> Result<(), String> {
        let _ = bytes;
        Err(NO_LISTS.to_owned())
    }

    /// As [`Traffic::ping`], with lists.
    fn ping_lists(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String> {
        let _ = (bytes, timer, samples);
        Err(NO_LISTS.to_owned())
    }

    /// Rank 1's part of [`Traffic::ping_lists`].
    fn pong_lists(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let _ = (bytes, count);
        Err(NO_LISTS.to_owned())
    }

    /// Rank 0: sends `count` windows of messages, and waits for the confirmation that they arrived.
    fn send_windows(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// Rank 1's part of [`Traffic::send_windows`].
    fn recv_windows(&mut self, bytes: usize, count: usize) -> Result<(), String>;

    /// Ends the connection.
    fn close(self) -> Result<(), String>;
}
