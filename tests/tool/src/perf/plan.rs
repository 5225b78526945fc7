//! The plan of a measurement, which `perf` gives its two processes.
#![forbid(unsafe_code)]

use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

use crate::cli::{Memory, Operation, Port, Test};
use crate::shapes::ListShapes;

/// The plan of the two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) port: Port,
    /// The devices of the two ranks, if they were named.
    pub(crate) devices: Vec<String>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) tests: Vec<Test>,
    pub(crate) iterations: Option<u32>,
    pub(crate) rounds: usize,
    /// Whether writes are found by polling on their last byte, whatever the port promises.
    pub(crate) last_byte: bool,
    /// The most bytes of an inline payload, if it was given.
    pub(crate) inline: Option<u32>,
    /// The words that start the second process elsewhere; empty once it is there.
    pub(crate) through: Vec<String>,
    /// Whether to report counters, and from how many entries and exits to make a call tree.
    pub(crate) counters: bool,
    pub(crate) trace: Option<u32>,
    pub(crate) memory: Memory,
    pub(crate) list: Option<ListShapes>,
    pub(crate) operation: Operation,
    /// The descriptor of the shared page.
    pub(crate) page: RawFd,
    /// The descriptor of the memory for copies without the library.
    pub(crate) copies: Option<RawFd>,
    /// The descriptors in which each rank reports.
    pub(crate) reports: [RawFd; 2],
}

impl Plan {
    pub(crate) fn windows(&self) -> bool {
        self.tests.iter().any(|test| matches!(test, Test::Bandwidth | Test::Rate))
    }

    pub(crate) fn latency(&self) -> bool {
        self.tests.contains(&Test::Latency)
    }

    /// Returns the steps of the whole measurement, for the progress display.
    pub(crate) fn steps(&self) -> usize {
        self.rounds * self.sizes.len() * (1 + usize::from(self.latency()) + usize::from(self.windows()))
    }
}
