//! Opening the two libraries.

use crate::functions::{Cm, Verbs};
use crate::load::{Library, OpenError};

impl Verbs {
    /// Opens libibverbs and looks up its functions. The library is never closed; opening it again is cheap.
    ///
    /// # Errors
    /// The library cannot be opened, or lacks a function that every release since 2006 has.
    pub fn open() -> Result<Self, OpenError> {
        let library = Library::open(Self::LIBRARY)?;
        // SAFETY: the library is the one that the constant names.
        unsafe { Self::look_up(&library) }
    }
}

impl Cm {
    /// Opens librdmacm and looks up its functions. The library is never closed; opening it again is cheap.
    ///
    /// # Errors
    /// The library cannot be opened, or lacks a function that every release since 2013 has.
    pub fn open() -> Result<Self, OpenError> {
        let library = Library::open(Self::LIBRARY)?;
        // SAFETY: the library is the one that the constant names.
        unsafe { Self::look_up(&library) }
    }
}
