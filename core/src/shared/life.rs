//! The life of a process, as others see it in a word that the kernel changes.
//!
//! A process holds a robust mutex for as long as it lives. The kernel takes the mutex from the thread that holds it
//! when this thread ends or its process executes another program, before the thread's memory goes. So bytes that were
//! read from the memory of that process number are those of the process, if the word is the same before and after. If
//! it is not, the process may still live without that thread, and the reader must find out in another way.
//!
//! The word lies in memory that only the process itself can write. One that sets it falsely gives its readers bytes of
//! its own choice, as it always can. (The idea is in none of the papers.)
#![forbid(unsafe_code)]

use crate::sync::{Word32, withdrawn_fence};

/// The bit that the kernel sets when it takes a robust mutex from a thread (`FUTEX_OWNER_DIED`).
pub const OWNER_DIED: u32 = 1 << 30;

/// Returns the value by which a thread holds the mutex of this word now; `None` if none does.
pub fn holder_of(word: &Word32) -> Option<u32> {
    Some(word.load_relaxed()).filter(|holder| *holder != 0 && holder & OWNER_DIED == 0)
}

/// Returns whether the thread with this value still holds the mutex. What was read of its process before this call is
/// then of that process: see [`Edge::Withdrawal`](crate::sync::Edge::Withdrawal), whose other side is the kernel.
#[inline]
pub fn is_held_by(word: &Word32, holder: u32) -> bool {
    withdrawn_fence();
    word.load_relaxed() == holder
}
