//! The links of a port, which are none in a forked child: what lies behind them is not mapped there.

use std::borrow::{Borrow, BorrowMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nemesia_core::shared::port::Link;

use crate::os::ProcessOrigin;

/// One element a rank. How many there are is read from a page that is empty in a forked child: every call of the port
/// finds no link there, and does nothing, at no cost beyond that of one load.
#[derive(Debug)]
pub(crate) struct Links {
    links: Box<[Option<Link<'static>>]>,
    /// In the page of `origin`: the number of links, or 0. Here, as each message reads it.
    count: NonNull<AtomicUsize>,
    /// Holds the page.
    _origin: Arc<ProcessOrigin>,
}

// SAFETY: `count` is only read, by atomic loads, and `_origin`, which may move between threads, keeps it mapped.
unsafe impl Send for Links where Link<'static>: Send {}

impl Links {
    /// `origin` was made with the number of ranks; each has an element, if need be an empty one.
    pub(super) fn new(mut links: Vec<Option<Link<'static>>>, origin: Arc<ProcessOrigin>) -> Self {
        links.resize_with(origin.number(), || None);
        Self { links: links.into_boxed_slice(), count: origin.place(), _origin: origin }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        // SAFETY: `_origin` keeps the page mapped, and nobody writes there but by atomic stores.
        unsafe { self.count.as_ref() }.load(Ordering::Relaxed)
    }
}

impl Borrow<[Option<Link<'static>>]> for Links {
    #[inline(always)]
    fn borrow(&self) -> &[Option<Link<'static>>] {
        // SAFETY: `new` has made as many links as the page says, and the page keeps that number, or has 0.
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
