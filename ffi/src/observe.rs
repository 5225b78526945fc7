//! Observation: counters, and the call tree.

use std::ffi::c_char;

use nemesia::Endpoint as Inner;

use crate::boundary::{Versioned, write_text, write_versioned};
use crate::endpoint::{Endpoint, on};
use crate::rank::rank_in;
use crate::status::NEMESIA_OK;

/// In place of a rank: the sums over all ranks, and the counters that concern no single rank.
pub const NEMESIA_ALL_RANKS: i32 = -1;

/// The counters of an endpoint since it was opened. The caller sets `struct_size` and nothing else. The
/// fields have the names that `nemesia perf --counters` prints. Fields that this version of the library does
/// not know are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// sizeof(nemesia_counters); later versions have more fields at the end.
    pub struct_size: u64,
    /// Messages sent eagerly, as a whole. Unit: packets.
    pub eager_sent: u64,
    /// Their payload. Unit: bytes.
    pub eager_sent_bytes: u64,
    /// Messages announced for rendezvous: large ones, synchronous ones, and those without credit. Unit:
    /// packets.
    pub rts_sent: u64,
    /// Their payload. Unit: bytes.
    pub rts_sent_bytes: u64,
    /// Announced messages of the peer that this process asked to be streamed. Unit: packets.
    pub cts_sent: u64,
    /// Their payload. Unit: bytes.
    pub cts_sent_bytes: u64,
    /// Pieces of streamed messages. Unit: packets.
    pub data_sent: u64,
    /// Their payload. Unit: bytes.
    pub data_sent_bytes: u64,
    /// Announced messages of the peer that this process has received completely, except streamed ones. Unit:
    /// packets.
    pub fin_sent: u64,
    /// Their payload. Unit: bytes.
    pub fin_sent_bytes: u64,
    /// Active messages sent. Unit: packets.
    pub active_sent: u64,
    /// Their headers and payload. Unit: bytes.
    pub active_sent_bytes: u64,
    /// Packets of one-sided operations on memory of the peer. Unit: packets.
    pub rma_sent: u64,
    /// Their payload, with the description of the operation. Unit: bytes.
    pub rma_sent_bytes: u64,
    /// Replies to one-sided operations of the peer. Unit: packets.
    pub rma_reply_sent: u64,
    /// Their payload. Unit: bytes.
    pub rma_reply_sent_bytes: u64,
    /// As eager_sent, in the other direction; likewise the next fifteen fields. Unit: packets.
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
    /// Small packets that went through a cell because the fastbox was full. Unit: packets.
    pub fastbox_full: u64,
    /// Times that sends to the peer began to wait for a cell. Unit: times.
    pub cell_exhausted: u64,
    /// Credit granted to the peer in total. For a failed peer: the credit that it has used. Unit: units.
    pub credit_granted: u64,
    /// Credit that the peer has used: the size that its messages would have in the store. Unit: units.
    pub credit_used: u64,
    /// Credit that the peer has granted, as far as this process has read it. Unit: units.
    pub credit_received: u64,
    /// Credit that this process has used. Unit: units.
    pub credit_spent: u64,
    /// Times that a new credit total was sent to the peer. Unit: times.
    pub credit_grants: u64,
    /// Times that sends to the peer began to wait for credit. Unit: times.
    pub credit_holds: u64,
    /// Small messages that were sent by rendezvous for lack of credit. Unit: messages.
    pub credit_demoted: u64,
    /// Messages that matched a posted receive. Unit: messages.
    pub matched_posted: u64,
    /// Messages that went directly to a blocking receive, which was not posted. Unit: messages.
    pub matched_bypass: u64,
    /// Messages that matched no receive on arrival, and were stored. Unit: messages.
    pub unexpected: u64,
    /// Their stored part. Unit: bytes.
    pub unexpected_bytes: u64,
    /// Messages received in one copy through the kernel, all of it by this process. Unit: messages.
    pub large_pulled: u64,
    /// Their payload. Unit: bytes.
    pub large_pulled_bytes: u64,
    /// Messages received in one copy through the kernel, which the sender could assist. Unit: messages.
    pub large_assisted: u64,
    /// Their payload. Unit: bytes.
    pub large_assisted_bytes: u64,
    /// Messages received as a stream of packets. Unit: messages.
    pub large_streamed: u64,
    /// Their payload. Unit: bytes.
    pub large_streamed_bytes: u64,
    /// Messages that began as a copy through the kernel, which then refused; the rest was streamed. Unit:
    /// messages.
    pub large_fallbacks: u64,
    /// Parts of messages that this process, as sender, wrote into the peer's memory (sender-assisted copy).
    /// Unit: times.
    pub large_pushed: u64,
    /// Their payload. Unit: bytes.
    pub large_pushed_bytes: u64,
    /// Puts on memory of the peer, by any path. Unit: operations.
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
    /// Operations on one value that return the old value: fetch and compare-and-swap. Unit: operations.
    pub fetches: u64,
    /// Their payload. Unit: bytes.
    pub fetch_bytes: u64,
    /// Flushes that required a reply of the peer. Unit: operations.
    pub flushes: u64,
    /// Those of the operations above that were executed on mapped memory, without packets. Unit: operations.
    pub direct: u64,
    /// Their payload. Unit: bytes.
    pub direct_bytes: u64,
    /// Times that this process woke the peer. Unit: times.
    pub wakes_sent: u64,
    /// Packets sent through cells that were filled with non-temporal stores (`NEMESIA_CELL_STORES`). Unit:
    /// packets.
    pub cell_non_temporal: u64,
    /// Packets that this process has written into a ring in the memory of a peer on another machine (fast path).
    /// Unit: packets.
    pub ring_sent: u64,
    /// Their payload. Unit: bytes.
    pub ring_sent_bytes: u64,
    /// Packets that the peer has written into a ring in the memory of this process. Unit: packets.
    pub ring_received: u64,
    /// Their payload. Unit: bytes.
    pub ring_received_bytes: u64,
    /// Small packets that were sent because the ring was full. Unit: packets.
    pub ring_full: u64,
    /// Unexpected messages in the store now; 0 for a single rank. Unit: messages.
    pub unexpected_now: u64,
    /// Maximum number of messages in the store at a time; 0 for a single rank. Unit: messages.
    pub unexpected_most: u64,
    /// Maximum memory of the store; 0 for a single rank. Unit: bytes.
    pub unexpected_most_bytes: u64,
    /// Active messages that were dropped because their number had no handler; 0 for a single rank. Unit:
    /// messages.
    pub active_unhandled: u64,
    /// Peers whose process died; 0 for a single rank. Unit: peers.
    pub peers_died: u64,
    /// Peers that have finished; 0 for a single rank. Unit: peers.
    pub peers_finished: u64,
    /// Peers that violated the protocol; 0 for a single rank. Unit: peers.
    pub peers_at_fault: u64,
    /// Times that this thread yielded its core; 0 for a single rank. Unit: times.
    pub yields: u64,
    /// Times that this thread slept; 0 for a single rank. Unit: times.
    pub sleeps: u64,
    /// Sleeps that a peer ended; the others ended without a peer; 0 for a single rank. Unit: times.
    pub sleeps_woken: u64,
    /// Time slept; 0 for a single rank. Unit: ns.
    pub slept_ns: u64,
    /// Times that the descriptor for event loops was armed; 0 for a single rank. Unit: times.
    pub armed: u64,
    /// Times that this process checked the peers' liveness through the kernel; 0 for a single rank. Unit:
    /// times.
    pub liveness_checks: u64,
    /// Peers that dropped their endpoint without closing it; 0 for a single rank. Unit: peers.
    pub peers_dropped: u64,
    /// Uses, by large messages between machines, of memory that was registered with the fabric before; 0 for a single
    /// rank. Unit: times.
    pub registration_hits: u64,
    /// Uses of memory that was not registered; 0 for a single rank. Unit: times.
    pub registration_misses: u64,
    /// Unused registrations that were given up for others; 0 for a single rank. Unit: times.
    pub registration_evicted: u64,
    /// Connections of other processes that could not be accepted for lack of descriptors or memory, and wait; 0 for a
    /// single rank. Unit: times.
    pub failed_accepts: u64,
}

/// The count of numbers in the first version, including `struct_size`.
const FIRST_NUMBERS: usize = 88;

// SAFETY: numbers of one size; the first holds the size in bytes.
unsafe impl Versioned for Counters {
    const NAME: &'static str = "nemesia_counters";
    const FIRST: usize = FIRST_NUMBERS * size_of::<u64>();
    const UNSET: u8 = 0;
}

/// Makes a structure with these fields copied from another one.
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
            cell_non_temporal ring_sent ring_sent_bytes ring_received ring_received_bytes ring_full
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
            registration_hits: it.registrations.registration_hits,
            registration_misses: it.registrations.registration_misses,
            registration_evicted: it.registrations.registration_evicted,
            failed_accepts: it.waits.failed_accepts,
            ..Self::of_rank(&it.all)
        }
    }
}

/// Writes the counters for one rank, which may have failed or be this process itself, or the sums over all
/// ranks. The sums include the counters that concern no single rank.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: a rank, or NEMESIA_ALL_RANKS.
/// - `out_counters`: the caller sets its `struct_size`; all other fields are written on success.
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
        // SAFETY: the caller's structure, of the size that it states.
        unsafe { write_versioned(out_counters, &counters) }?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the functions that were entered and left recently, with times, as a tree. The tree is empty unless
/// the library was built with the feature `trace` and NEMESIA_TRACE sets the number of entries and exits to
/// keep.
///
/// - `endpoint`: an open endpoint.
/// - `bytes`: the size of `out_text`.
/// - `out_text`: lines of text, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: the length of the whole text without its terminator; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if `out_text` is too small: the part that fits is written,
/// terminated, and `out_len` is written; NEMESIA_ERR_ARGUMENT or _PANIC.
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
    use nemesia::{EngineCounters, PeerCounters, RegistrationCounters, WaitCounters};

    #[test]
    fn fields_are_those_of_the_library_and_later_ones_are_appended() {
        let source = include_str!("observe.rs");
        let body = source.split("pub struct Counters {").nth(1).and_then(|rest| rest.split("\n}\n").next());
        let names = body.unwrap().lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let names: Vec<_> = names.map(|line| line.split(':').next().unwrap()).collect();
        let waits = [WaitCounters::FIELDS, RegistrationCounters::FIELDS].concat();
        let all = [PeerCounters::FIELDS, EngineCounters::FIELDS, &waits].concat();
        let expected: Vec<_> =
            std::iter::once("struct_size").chain(all.iter().map(|field| field.name)).collect();
        assert!(expected.len() >= FIRST_NUMBERS);
        let later = &names[FIRST_NUMBERS..];
        let first: Vec<_> = expected.iter().copied().filter(|name| !later.contains(name)).collect();
        assert_eq!(names[..FIRST_NUMBERS], first);
        assert_eq!(names.len(), expected.len());
        assert_eq!(size_of::<Counters>(), expected.len() * 8);
        let copied = source.split("copied!(struct_size, it:").nth(1).and_then(|rest| rest.split(')').next());
        let copied: Vec<_> = copied.unwrap().split_whitespace().collect();
        assert_eq!(copied, PeerCounters::FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
    }
}
