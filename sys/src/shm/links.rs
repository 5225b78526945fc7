//! The links of a port. In a forked child there are none, because the memory behind them is not mapped there.

use std::borrow::{Borrow, BorrowMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nemesia_core::shared::port::Link;

use crate::os::ProcessOrigin;

/// The links, one per number. Their count is read from a page that is empty in a forked child. So every call of the
/// port finds no link there and does nothing, at the cost of one load.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Option<Link<'static>>>,
    /// The number of links, or 0, in the page of `origin`. The pointer is stored here because each message reads it.
    count: NonNull<AtomicUsize>,
    /// Keeps the page mapped.
    origin: Arc<ProcessOrigin>,
}

// SAFETY: `count` is only read, by atomic loads; `origin`, which may move between threads, keeps it mapped.
unsafe impl Send for Links where Link<'static>: Send {}

impl Links {
    /// Returns no links, with a place for each. `origin` was made with their number.
    pub(super) fn new(origin: Arc<ProcessOrigin>) -> Self {
        let links = (0..origin.number()).map(|_| None).collect();
        Self { links, count: origin.place(), origin }
    }

    /// Makes places until there are `count`. In a forked child nothing changes.
    pub(super) fn grow(&mut self, count: usize) {
        if !self.origin.is_elsewhere() && count > self.links.len() {
            self.links.resize_with(count, || None);
            self.origin.renumber(count);
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        // SAFETY: `origin` keeps the page mapped, and all writes to it are atomic stores.
        unsafe { self.count.as_ref() }.load(Ordering::Relaxed)
    }
}

impl Borrow<[Option<Link<'static>>]> for Links {
    #[inline(always)]
    fn borrow(&self) -> &[Option<Link<'static>>] {
        // SAFETY: `new` and `grow` have made as many links as the page says; the page keeps that number, or has 0.
        unsafe { std::slice::from_raw_parts(self.links.as_ptr(), self.count()) }
    }
}

impl BorrowMut<[Option<Link<'static>>]> for Links {
    #[inline(always)]
    fn borrow_mut(&mut self) -> &mut [Option<Link<'static>>] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.links.as_mut_ptr(), self.count()) }
    }
}
