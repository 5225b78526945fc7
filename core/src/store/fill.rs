//! Messages of which the store holds the place before their bytes have come.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{BODY, LEN, LINK, Store, UnitMemory, first_len, word};

impl<U: UnitMemory, B: BorrowMut<[u32]>> Store<U, B> {
    /// Replaces `len` bytes of the body from byte `at` on, as far as there are so many. `read` copies bytes from an
    /// offset among them, in pieces and in order.
    pub fn fill(&mut self, id: u32, at: usize, len: usize, mut read: impl FnMut(usize, &mut [u8])) {
        let body = word(self.unit(id), LEN) as usize;
        let (end, first) = (at.saturating_add(len).min(body), first_len(body));
        let mut done = at;
        if done < end.min(first) {
            let here = end.min(first);
            read(0, &mut self.unit_mut(id)[BODY + done..BODY + here]);
            done = here;
        }
        if done >= end {
            return;
        }
        let mut unit = word(self.unit(id), LINK);
        for _ in 0..(done - first) / LINK {
            unit = word(self.unit(unit), LINK);
        }
        let mut offset = (done - first) % LINK;
        loop {
            let count = (LINK - offset).min(end - done);
            read(done - at, &mut self.unit_mut(unit)[offset..offset + count]);
            (done, offset) = (done + count, 0);
            if done >= end {
                return;
            }
            unit = word(self.unit(unit), LINK);
        }
    }
}
