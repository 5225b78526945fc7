//! The critical path of a pair: that of the local port.
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use super::{Either, Pair, Route, of};
use crate::payload::BorrowedRecv;
use crate::port::{Arrival, PeerId, ShortPath};
use crate::wire::Envelope;
use crate::wire::prefix::PrefixWords;

impl<L: ShortPath, R: ShortPath, T: Borrow<[Route]>> ShortPath for Pair<L, R, T> {
    #[inline(always)]
    fn short_bytes(&self) -> usize {
        self.local.short_bytes()
    }

    #[inline(always)]
    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        self.local.send_short(peer, context, tag, bytes)
    }

    #[inline(always)]
    fn send_immediate(&mut self, peer: PeerId, context: u16, words: [u64; 2], bytes: &[u8]) -> Option<bool> {
        self.local.send_immediate(peer, context, words, bytes)
    }

    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        self.local.send_copy(peer, context, tag, bytes)
    }

    #[inline(always)]
    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        self.local.send_prefixed(peer, envelope, words, body)
    }

    #[inline(always)]
    fn settle_send(&mut self, peer: PeerId) {
        self.local.settle_send(peer);
    }

    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let taken = self.local.take(wanted, to)?;
        self.is_remote_recent = false;
        Some(taken)
    }

    #[inline(always)]
    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        self.local.take_prefixed(wanted, to)
    }

    #[inline(always)]
    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        self.local.take_short(from, context, wanted, to)
    }

    #[inline(always)]
    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        self.local.take_into(place).inspect(|_| self.is_remote_recent = false)
    }

    #[inline(always)]
    fn settle_take(&mut self, peer: PeerId) {
        self.local.settle_take(peer);
    }

    #[inline(always)]
    fn has_next(&self) -> bool {
        self.local.has_next()
    }

    #[inline(always)]
    fn expects_next(&self) -> bool {
        !self.is_remote_recent && self.local.expects_next()
    }

    #[inline(always)]
    fn is_quiet(&mut self) -> bool {
        !self.is_remote_recent && self.local.is_quiet()
    }

    #[inline(always)]
    fn pause(&mut self) {
        self.local.pause();
    }

    #[inline(always)]
    fn prioritize(&mut self, peer: PeerId) {
        self.local.prioritize(peer);
    }

    fn read_non_temporal(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool {
        match arrival.token {
            Either::Local(token) => self.local.read_non_temporal(&of(arrival, token), at, to),
            Either::Remote(token) => self
                .remote
                .as_ref()
                .is_some_and(|remote| remote.read_non_temporal(&of(arrival, token), at, to)),
        }
    }
}
