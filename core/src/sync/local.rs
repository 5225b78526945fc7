//! A value that one thread changes through a shared reference.
#![forbid(unsafe_code)]

use core::cell::Cell;

/// A value that one thread changes through a shared reference. It can't be shared between threads, so no model has to
/// see it.
#[derive(Debug, Default)]
pub struct Local<T: Copy>(Cell<T>);

impl<T: Copy> Local<T> {
    /// Returns a value.
    pub const fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    /// Returns the value.
    #[inline(always)]
    pub const fn get(&self) -> T {
        self.0.get()
    }

    /// Changes the value.
    #[inline(always)]
    pub fn set(&self, value: T) {
        self.0.set(value);
    }
}
