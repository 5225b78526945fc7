//! Seeing what happens: counters, and the call tree.

use std::ffi::c_char;

use nemesia::Endpoint as Inner;

use crate::boundary::{Versioned, write_text, write_versioned};
use crate::endpoint::{Endpoint, on, rank_in};
use crate::status::NEMESIA_OK;

/// In the place of a rank: the sum over all ranks, and what is not about one of them.
pub const NEMESIA_ALL_RANKS: i32 = -1;

/// What was done since the endpoint was opened, and what it met with. Set `struct_size` and nothing else. The fields
/// have the names that `nemesia perf --counters` prints. Those that this version of the library does not know are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// sizeof(nemesia_counters); later versions have more fields at the end.
    pub struct_size: u64,
    /// Messages sent whole. Unit: packets.
    pub eager_sent: u64,
    /// Their payload. Unit: bytes.
    pub eager_sent_bytes: u64,
    /// Messages announced: large ones, synchronous ones, and those for which there was no credit. Unit: packets.
    pub rts_sent: u64,
    /// Their payload. Unit: bytes.
    pub rts_sent_bytes: u64,
    /// Announced messages of the peer that we asked to be streamed. Unit: packets.
    pub cts_sent: u64,
    /// Their payload. Unit: bytes.
    pub cts_sent_bytes: u64,
    /// Pieces of messages that we streamed. Unit: packets.
    pub data_sent: u64,
    /// Their payload. Unit: bytes.
    pub data_sent_bytes: u64,
    /// Announced messages of the peer of which all bytes are here, but for those streamed. Unit: packets.
    pub fin_sent: u64,
    /// Their payload. Unit: bytes.
    pub fin_sent_bytes: u64,
    /// Active messages. Unit: packets.
    pub active_sent: u64,
    /// Their headers and payload. Unit: bytes.
    pub active_sent_bytes: u64,
    /// Packets of one-sided operations on memory of the peer. Unit: packets.
    pub rma_sent: u64,
    /// Their payload, with what describes the operation. Unit: bytes.
    pub rma_sent_bytes: u64,
    /// Answers to one-sided operations of the peer. Unit: packets.
    pub rma_reply_sent: u64,
    /// Their payload. Unit: bytes.
    pub rma_reply_sent_bytes: u64,
    /// As eager_sent, the other way; so are the next fifteen. Unit: packets.
    pub eager_received: u64,
    /// See eager_sent_bytes. Unit: bytes.
    pub eager_received_bytes: u64,
    /// See rts_sent. Unit: packets.
    pub rts_received: u64,
    /// See rts_sent_bytes. Unit: bytes.
    pub rts_received_bytes: u64,
    /// See cts_sent. Unit: packets.
    pub cts_received: u64,
    /// See cts_sent_bytes. Unit: bytes.
    pub cts_received_bytes: u64,
    /// See data_sent. Unit: packets.
    pub data_received: u64,
    /// See data_sent_bytes. Unit: bytes.
    pub data_received_bytes: u64,
    /// See fin_sent. Unit: packets.
    pub fin_received: u64,
    /// See fin_sent_bytes. Unit: bytes.
    pub fin_received_bytes: u64,
    /// See active_sent. Unit: packets.
    pub active_received: u64,
    /// See active_sent_bytes. Unit: bytes.
    pub active_received_bytes: u64,
    /// See rma_sent. Unit: packets.
    pub rma_received: u64,
    /// See rma_sent_bytes. Unit: bytes.
    pub rma_received_bytes: u64,
    /// See rma_reply_sent. Unit: packets.
    pub rma_reply_received: u64,
    /// See rma_reply_sent_bytes. Unit: bytes.
    pub rma_reply_received_bytes: u64,
    /// Packets sent through the fastbox. Unit: packets.
    pub fastbox_sent: u64,
    /// Their payload. Unit: bytes.
    pub fastbox_sent_bytes: u64,
    /// Packets sent through cells. Unit: packets.
    pub cell_sent: u64,
    /// Their payload. Unit: bytes.
    pub cell_sent_bytes: u64,
    /// Packets received through the fastbox. Unit: packets.
    pub fastbox_received: u64,
    /// Their payload. Unit: bytes.
    pub fastbox_received_bytes: u64,
    /// Packets received through cells. Unit: packets.
    pub cell_received: u64,
    /// Their payload. Unit: bytes.
    pub cell_received_bytes: u64,
    /// Small packets that went through a cell, as the fastbox was full. Unit: packets.
    pub fastbox_full: u64,
    /// Times that sends to the peer began to wait for a cell. Unit: times.
    pub cell_exhausted: u64,
    /// Credit that the peer was given, in all. Of a peer that is gone: what it has used. Unit: units.
    pub credit_granted: u64,
    /// Credit that the peer has used: what its messages would take in the store. Unit: units.
    pub credit_used: u64,
    /// Credit that the peer has given us, as far as we have looked. Unit: units.
    pub credit_received: u64,
    /// Credit that we have used. Unit: units.
    pub credit_spent: u64,
    /// Times that the peer was told a new total. Unit: times.
    pub credit_grants: u64,
    /// Times that sends to the peer began to wait for credit. Unit: times.
    pub credit_holds: u64,
    /// Messages that were announced although they are small, as there was no credit to send them. Unit: messages.
    pub credit_demoted: u64,
    /// Messages that found a posted receive. Unit: messages.
    pub matched_posted: u64,
    /// Messages that went straight to a blocking receive, which was not posted. Unit: messages.
    pub matched_bypass: u64,
    /// Messages that found no receive, and were stored. Unit: messages.
    pub unexpected: u64,
    /// What was stored of them. Unit: bytes.
    pub unexpected_bytes: u64,
    /// Messages received in one copy through the kernel, all of it by us. Unit: messages.
    pub large_pulled: u64,
    /// Their payload. Unit: bytes.
    pub large_pulled_bytes: u64,
    /// Messages received in one copy through the kernel, in which the sender could help. Unit: messages.
    pub large_assisted: u64,
    /// Their payload. Unit: bytes.
    pub large_assisted_bytes: u64,
    /// Messages received as a stream of packets. Unit: messages.
    pub large_streamed: u64,
    /// Their payload. Unit: bytes.
    pub large_streamed_bytes: u64,
    /// Messages that began as a copy through the kernel, which then refused: the rest was streamed. Unit: messages.
    pub large_fallbacks: u64,
    /// Parts of messages to the peer that we wrote into its memory, to help it. Unit: times.
    pub large_pushed: u64,
    /// Their payload. Unit: bytes.
    pub large_pushed_bytes: u64,
    /// Puts on memory of the peer, by whatever path. Unit: operations.
    pub puts: u64,
    /// Their payload. Unit: bytes.
    pub put_bytes: u64,
    /// Gets. Unit: operations.
    pub gets: u64,
    /// Their payload. Unit: bytes.
    pub get_bytes: u64,
    /// Accumulates. Unit: operations.
    pub accumulates: u64,
    /// Their payload. Unit: bytes.
    pub accumulate_bytes: u64,
    /// Operations on one value that return it: fetch and compare-and-swap. Unit: operations.
    pub fetches: u64,
    /// Their payload. Unit: bytes.
    pub fetch_bytes: u64,
    /// Flushes that had to ask the peer. Unit: operations.
    pub flushes: u64,
    /// Those of the operations above that were done on mapped memory, without any packet. Unit: operations.
    pub direct: u64,
    /// Their payload. Unit: bytes.
    pub direct_bytes: u64,
    /// Times that we woke the peer. Unit: times.
    pub wakes_sent: u64,
    /// Packets sent through cells that were filled past the caches (`NEMESIA_CELL_STORES`). Unit: packets.
    pub cell_non_temporal: u64,
    /// Unexpected messages that are stored now; 0 for a single rank. Unit: messages.
    pub unexpected_now: u64,
    /// The most that were ever stored at a time; 0 for a single rank. Unit: messages.
    pub unexpected_most: u64,
    /// The most memory that they ever took; 0 for a single rank. Unit: bytes.
    pub unexpected_most_bytes: u64,
    /// Active messages that were dropped, as no handler had their number; 0 for a single rank. Unit: messages.
    pub active_unhandled: u64,
    /// Peers whose process died; 0 for a single rank. Unit: peers.
    pub peers_died: u64,
    /// Peers that have finished; 0 for a single rank. Unit: peers.
    pub peers_finished: u64,
    /// Peers that broke the rules; 0 for a single rank. Unit: peers.
    pub peers_at_fault: u64,
    /// Times that the core was offered to others; 0 for a single rank. Unit: times.
    pub yields: u64,
    /// Times that the thread slept; 0 for a single rank. Unit: times.
    pub sleeps: u64,
    /// Sleeps that a peer ended; the others ended by themselves; 0 for a single rank. Unit: times.
    pub sleeps_woken: u64,
    /// Time slept; 0 for a single rank. Unit: ns.
    pub slept_ns: u64,
    /// Times that the descriptor for event loops was armed; 0 for a single rank. Unit: times.
    pub armed: u64,
    /// Times that the kernel was asked whether the peers live; 0 for a single rank. Unit: times.
    pub liveness_checks: u64,
    /// Peers that dropped their endpoint without closing it; 0 for a single rank. Unit: peers.
    pub peers_dropped: u64,
}

/// Numbers in the first version, `struct_size` among them.
const FIRST_NUMBERS: usize = 88;

// SAFETY: numbers of one size, of which the first says how many bytes there are.
unsafe impl Versioned for Counters {
    const NAME: &'static str = "nemesia_counters";
    const FIRST: usize = FIRST_NUMBERS * size_of::<u64>();
    const UNSET: u8 = 0;
}

/// A structure with these counters of another.
macro_rules! copied {
    ($struct_size:ident, $from:ident: $($field:ident)+) => {
        Counters { $struct_size, $($field: $from.$field,)+ ..Counters::default() }
    };
}

impl Counters {
    fn of_rank(it: &nemesia::PeerCounters) -> Self {
        let struct_size = size_of::<Self>() as u64;
        copied!(struct_size, it:
            eager_sent eager_sent_bytes rts_sent rts_sent_bytes cts_sent cts_sent_bytes data_sent data_sent_bytes
            fin_sent fin_sent_bytes active_sent active_sent_bytes rma_sent rma_sent_bytes rma_reply_sent
            rma_reply_sent_bytes eager_received eager_received_bytes rts_received rts_received_bytes cts_received
            cts_received_bytes data_received data_received_bytes fin_received fin_received_bytes active_received
            active_received_bytes rma_received rma_received_bytes rma_reply_received rma_reply_received_bytes
            fastbox_sent fastbox_sent_bytes cell_sent cell_sent_bytes fastbox_received fastbox_received_bytes
            cell_received cell_received_bytes fastbox_full cell_exhausted credit_granted credit_used credit_received
            credit_spent credit_grants credit_holds credit_demoted matched_posted matched_bypass unexpected
            unexpected_bytes large_pulled large_pulled_bytes large_assisted large_assisted_bytes large_streamed
            large_streamed_bytes large_fallbacks large_pushed large_pushed_bytes puts put_bytes gets get_bytes
            accumulates accumulate_bytes fetches fetch_bytes flushes direct direct_bytes wakes_sent
            cell_non_temporal
        )
    }

    fn of_all(it: &nemesia::Counters) -> Self {
        Self {
            unexpected_now: it.engine.unexpected_now,
            unexpected_most: it.engine.unexpected_most,
            unexpected_most_bytes: it.engine.unexpected_most_bytes,
            active_unhandled: it.engine.active_unhandled,
            peers_died: it.engine.peers_died,
            peers_finished: it.engine.peers_finished,
            peers_at_fault: it.engine.peers_at_fault,
            yields: it.waits.yields,
            sleeps: it.waits.sleeps,
            sleeps_woken: it.waits.sleeps_woken,
            slept_ns: it.waits.slept_ns,
            armed: it.waits.armed,
            liveness_checks: it.waits.liveness_checks,
            peers_dropped: it.engine.peers_dropped,
            ..Self::of_rank(&it.all)
        }
    }
}

/// What was done so far, and what it met with: with one rank, which may be gone or this process itself, or with all.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: a rank, or NEMESIA_ALL_RANKS.
/// - `out_counters`: its `struct_size` is set by the caller; all else is written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK or _PANIC.
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_counters(
    endpoint: *mut Endpoint,
    rank: i32,
    out_counters: *mut Counters,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        let counters = if rank == NEMESIA_ALL_RANKS {
            Counters::of_all(&endpoint.counters())
        } else {
            let rank = rank_in(endpoint, rank)?;
            Counters::of_rank(&endpoint.peer_counters(rank).unwrap_or_default())
        };
        // SAFETY: the caller's structure, of the size that it says.
        unsafe { write_versioned(out_counters, &counters) }?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// The functions that were entered and left lately, with times, as a tree. Empty unless the library was built with the
/// feature `trace` and NEMESIA_TRACE says how many entries and exits to keep.
///
/// - `endpoint`: an open endpoint.
/// - `bytes`: room in `out_text`.
/// - `out_text`: lines of text, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: bytes of the whole text, without its end; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if there is too little room: what fits is written, terminated, and
/// `out_len` is; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_call_tree(
    endpoint: *mut Endpoint,
    bytes: usize,
    out_text: *mut c_char,
    out_len: *mut usize,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        let text = endpoint.call_tree().unwrap_or_default();
        // SAFETY: the caller's buffer of this size.
        unsafe { write_text(&text, bytes, out_text, out_len, "out_text") }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nemesia::{EngineCounters, PeerCounters, WaitCounters};

    #[test]
    fn fields_are_those_of_the_library_in_their_order() {
        let source = include_str!("observe.rs");
        let body = source.split("pub struct Counters {").nth(1).and_then(|rest| rest.split("\n}\n").next());
        let names = body.unwrap().lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let names: Vec<_> = names.map(|line| line.split(':').next().unwrap()).collect();
        let all = [PeerCounters::FIELDS, EngineCounters::FIELDS, WaitCounters::FIELDS].concat();
        let expected: Vec<_> =
            std::iter::once("struct_size").chain(all.iter().map(|field| field.name)).collect();
        assert_eq!(names, expected);
        assert_eq!(size_of::<Counters>(), expected.len() * 8);
        let copied = source.split("copied!(struct_size, it:").nth(1).and_then(|rest| rest.split(')').next());
        let copied: Vec<_> = copied.unwrap().split_whitespace().collect();
        assert_eq!(copied, PeerCounters::FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
        assert!(expected.len() >= FIRST_NUMBERS);
    }
}
