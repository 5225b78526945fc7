//! Entry and exit of functions with times, printed as a call tree (paper 2, section 2.3.6: "the result of a debugging run
//! is a complete work flow of the device structured as a tree").
//!
//! The engine tells a [`Recorder`] of what it does. `()` is one, writes nothing down and costs nothing; `Ring`, with
//! the feature `trace`, keeps the last entries and exits in a ring that the caller lends, with times by a clock that the
//! caller lends as well. An entry of which nothing came, such as a poll that found nothing, is taken back: the ring
//! holds what happened, and not that it was waited for.
#![forbid(unsafe_code)]

#[cfg(feature = "trace")]
mod ring;

#[cfg(feature = "trace")]
pub use ring::{Record, Ring, Tree};

/// What is told of the functions that are entered and left.
pub trait Recorder {
    /// A function is entered, with what is worth knowing of its arguments: a rank or bytes.
    fn enter(&mut self, name: &'static str, value: u64);

    /// The function entered last, and not left, is left. If it has done nothing (`happened` is false) and called nothing
    /// that was written down, it is forgotten.
    fn leave(&mut self, happened: bool);

    /// Something that takes no time to speak of.
    #[inline(always)]
    fn note(&mut self, name: &'static str, value: u64) {
        self.enter(name, value);
        self.leave(true);
    }
}

/// Writes nothing down.
impl Recorder for () {
    #[inline(always)]
    fn enter(&mut self, _: &'static str, _: u64) {}

    #[inline(always)]
    fn leave(&mut self, _: bool) {}
}
