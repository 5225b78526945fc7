//! The buffer through which exposed memory is read.
#![forbid(unsafe_code)]

use core::mem::MaybeUninit;

/// The largest number of bytes of exposed memory that are read at once, through a buffer of this process.
pub const BOUNCE: usize = 8192;

/// The buffer into which [`Exposed::view`](super::Exposed::view) copies. It is uninitialised at first:
/// initialising it would take longer than most copies.
#[derive(Debug)]
pub struct Bounce(pub(super) [MaybeUninit<u8>; BOUNCE]);

impl Bounce {
    /// Makes a buffer.
    #[inline(always)]
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); BOUNCE])
    }
}

impl Default for Bounce {
    fn default() -> Self {
        Self::new()
    }
}
