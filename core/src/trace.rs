//! Entry and exit of functions with times, printed as a call tree (paper 2, section 2.3.6: "the result of a
//! debugging run is a complete work flow of the device structured as a tree").
//!
//! The engine reports its work to a [`Recorder`]. The recorder `()` records nothing and costs nothing.
//! `TraceRing`, with the feature `trace`, keeps the last entries and exits in a ring. The caller lends the
//! ring and the clock. If a function did nothing, such as a poll that found no packet, its entry is removed:
//! the ring holds events, not the waiting for them.
#![forbid(unsafe_code)]

#[cfg(feature = "trace")]
mod ring;

#[cfg(feature = "trace")]
pub use ring::{Record, TraceRing, Tree};

/// The interface to which entries and exits of functions are reported.
pub trait Recorder {
    /// Records the entry of a function, with its most useful argument: a rank or a number of bytes.
    fn enter(&mut self, name: &'static str, value: u64);

    /// Records the exit of the function that was entered last. If the function did nothing (`happened` is
    /// false) and called nothing that was recorded, its entry is removed.
    fn leave(&mut self, happened: bool);

    /// Records an event of negligible duration.
    #[inline(always)]
    fn note(&mut self, name: &'static str, value: u64) {
        self.enter(name, value);
        self.leave(true);
    }
}

/// Records nothing.
impl Recorder for () {
    #[inline(always)]
    fn enter(&mut self, _: &'static str, _: u64) {}

    #[inline(always)]
    fn leave(&mut self, _: bool) {}
}
