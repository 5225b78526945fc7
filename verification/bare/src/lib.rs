//! The core of Nemesia without an operating system: proof that it needs none.
//!
//! `tests/tidy/bare.rs` builds this crate, links it without any library, and asserts that only the memory
//! functions are missing that every compiler assumes. If `nemesia-core` ever used std, this crate would not
//! compile, because std brings a panic handler of its own.
#![no_std]

#[cfg(feature = "allocates")]
mod allocates;
#[cfg(not(feature = "allocates"))]
mod exercise;
#[cfg(not(feature = "allocates"))]
mod world;

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
