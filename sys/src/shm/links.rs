//! The links of a port, which are none in a forked child: what lies behind them is not mapped there.

use std::borrow::{Borrow, BorrowMut};
use std::sync::Arc;

use nemesia_core::shared::port::Link;

use crate::os::Origin;

/// One element a rank. How many there are is read from a page that is empty in a forked child: every call of the port finds
/// no link there, and does nothing, at no cost beyond that of one load.
#[derive(Debug)]
pub(crate) struct Links {
    links: Box<[Option<Link<'static>>]>,
    count: Arc<Origin>,
}

impl Links {
    /// `count` was made in this process, with the number of links.
    pub(super) fn new(links: Vec<Option<Link<'static>>>, count: Arc<Origin>) -> Self {
        Self { links: links.into_boxed_slice(), count }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        let count = self.count.number();
        debug_assert!(count <= self.links.len(), "the number of links, or 0");
        count
    }
}

impl Borrow<[Option<Link<'static>>]> for Links {
    #[inline(always)]
    fn borrow(&self) -> &[Option<Link<'static>>] {
        self.links.get(..self.count()).unwrap_or_default()
    }
}

impl BorrowMut<[Option<Link<'static>>]> for Links {
    #[inline(always)]
    fn borrow_mut(&mut self) -> &mut [Option<Link<'static>>] {
        let count = self.count();
        self.links.get_mut(..count).unwrap_or_default()
    }
}
