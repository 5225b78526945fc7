//! The core of Nemesia where there is no operating system: proof that it needs none.
//!
//! `tests/tidy/bare.rs` builds this crate, links it without any library, and asserts that nothing is missing
//! but the memory functions that every compiler assumes. Should `nemesia-core` ever pull in std, this crate
//! does not even compile: std brings a panic handler of its own.
#![no_std]

#[cfg(feature = "allocates")]
mod allocates;
mod exercise;
mod world;

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
