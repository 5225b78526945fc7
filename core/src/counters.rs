//! Counters: how much was sent and received, by kind and by path, and how often operations had to wait or
//! fail.
//!
//! The counters are plain numbers owned by the thread that owns the engine: no atomics, no allocation. They
//! lie in the storage lent for each peer ([`crate::engine::Peer`], [`crate::shared::port::Link`]). They start
//! at 0, only grow, and survive the failure of the peer.
//!
//! The critical path updates one counter at each end, the bytes of eager messages. All other counts of small
//! messages are derived on request: the port's sequence numbers give the total number of packets, from which
//! the counts of the slower paths (every other kind, every cell, every posted and every unexpected message)
//! are subtracted.
#![forbid(unsafe_code)]

use crate::wire::Kind;

/// A number of events, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of packets, messages or operations.
    pub count: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl Count {
    /// Counts one more event of `bytes` bytes.
    #[inline(always)]
    pub const fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }
}

/// The counters of a port for one peer, returned by [`crate::port::PacketPort::traffic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Packets sent, by any path.
    pub sent: u64,
    /// Packets received, by any path.
    pub received: u64,
    /// Packets sent through cells, and their payload.
    pub cells_sent: Count,
    /// Packets received through cells, and their payload.
    pub cells_received: Count,
    /// Small packets that went through a cell because the fastbox was full.
    pub fastbox_full: u64,
    /// Times that sends began to wait for a cell.
    pub cells_exhausted: u64,
    /// Times that this process woke the peer.
    pub wakes: u64,
    /// Packets sent through cells that were filled with non-temporal stores.
    pub non_temporal: u64,
    /// Packets written into a ring in the peer's memory by RDMA, and their payload.
    pub rings_sent: Count,
    /// Packets that the peer has written into a ring of this process, and their payload.
    pub rings_received: Count,
    /// Small packets that were sent because the ring was full.
    pub rings_full: u64,
}

/// The engine's counters for one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// By [`Kind`]. The number of eager packets is derived, except for messages to this process itself.
    pub(crate) sent: [Count; Kind::COUNT],
    pub(crate) received: [Count; Kind::COUNT],
    /// Messages that matched a posted receive.
    pub(crate) posted: u64,
    /// Messages that matched no receive on arrival.
    pub(crate) unexpected: Count,
    /// New credit totals sent to the peer.
    pub(crate) grants: u64,
    /// Times that sends began to wait for credit, and whether sends wait now.
    pub(crate) holds: u64,
    pub(crate) is_held: bool,
    /// Small messages that were sent by rendezvous for lack of credit.
    pub(crate) demoted: u64,
    /// Large messages received, by protocol.
    pub(crate) pulled: Count,
    pub(crate) assisted: Count,
    pub(crate) streamed: Count,
    /// Streamed messages that began with another protocol.
    pub(crate) fallbacks: u64,
    /// Parts of large messages that this process, as sender, has written (sender-assisted copy).
    pub(crate) pushed: Count,
    /// One-sided operations started, through packets or on this process's own regions.
    pub(crate) puts: Count,
    pub(crate) gets: Count,
    pub(crate) accumulates: Count,
    pub(crate) fetches: Count,
    pub(crate) flushes: u64,
    /// One-sided operations without packets.
    pub(crate) direct: Count,
    /// The port's counters when the peer was released.
    pub(crate) last: Option<TrafficCounters>,
}

impl Tally {
    /// Counts a sent packet of a kind other than eager.
    pub(crate) const fn sent(&mut self, kind: Kind, bytes: usize) {
        self.sent[kind.index()].add(bytes);
    }

    /// Counts the start of waiting for credit, unless sends wait already.
    pub(crate) const fn hold(&mut self) {
        if !self.is_held {
            self.is_held = true;
            self.holds += 1;
        }
    }

    /// Returns the number of packets that are not plain eager messages.
    fn others(counts: &[Count]) -> u64 {
        counts.iter().skip(1).map(|it| it.count).sum()
    }

    /// Returns the sum of all kinds of eager packets.
    fn eager(counts: &[Count]) -> Count {
        let kinds = [Kind::Eager, Kind::EagerImmediate, Kind::EagerAcknowledged, Kind::EagerBoth];
        let each = kinds.into_iter().filter_map(|kind| counts.get(kind.index()));
        each.fold(Count::default(), |sum, it| Count {
            count: sum.count + it.count,
            bytes: sum.bytes + it.bytes,
        })
    }

    /// Returns the number of messages that have come from a peer: whole ones, and announced ones.
    pub(crate) fn heard(&self, traffic: &TrafficCounters) -> u64 {
        let mut received = self.received;
        received[0].count = traffic.received.saturating_sub(Self::others(&received));
        Self::eager(&received).count + received[Kind::Rts.index()].count
    }

    /// Returns all counters of a peer except its credits. `traffic` is `None` for this process itself.
    pub(crate) fn snapshot(&self, traffic: Option<TrafficCounters>) -> PeerCounters {
        let (mut sent, mut received) = (self.sent, self.received);
        if let Some(traffic) = traffic {
            // The subtraction saturates, so that a wrong report of a port cannot underflow.
            sent[0].count = traffic.sent.saturating_sub(Self::others(&sent));
            received[0].count = traffic.received.saturating_sub(Self::others(&received));
        }
        let is_own = traffic.is_none();
        let traffic = traffic.unwrap_or_default();
        let fastbox = |packets: u64, counts: &[Count], cells: Count| Count {
            count: packets.saturating_sub(cells.count),
            bytes: counts.iter().map(|it| it.bytes).sum::<u64>().saturating_sub(cells.bytes),
        };
        let (mut box_sent, mut box_received) = Default::default();
        if !is_own {
            let both = |cells: Count, rings: Count| Count {
                count: cells.count + rings.count,
                bytes: cells.bytes + rings.bytes,
            };
            box_sent = fastbox(traffic.sent, &sent, both(traffic.cells_sent, traffic.rings_sent));
            let beside = both(traffic.cells_received, traffic.rings_received);
            box_received = fastbox(traffic.received, &received, beside);
        }
        let come = Self::eager(&received).count + received[Kind::Rts.index()].count;
        PeerCounters {
            matched_posted: self.posted,
            matched_bypass: come.saturating_sub(self.posted + self.unexpected.count),
            unexpected: self.unexpected.count,
            unexpected_bytes: self.unexpected.bytes,
            fastbox_sent: box_sent.count,
            fastbox_sent_bytes: box_sent.bytes,
            fastbox_received: box_received.count,
            fastbox_received_bytes: box_received.bytes,
            cell_sent: traffic.cells_sent.count,
            cell_sent_bytes: traffic.cells_sent.bytes,
            cell_received: traffic.cells_received.count,
            cell_received_bytes: traffic.cells_received.bytes,
            fastbox_full: traffic.fastbox_full,
            cell_exhausted: traffic.cells_exhausted,
            wakes_sent: traffic.wakes,
            cell_non_temporal: traffic.non_temporal,
            ring_sent: traffic.rings_sent.count,
            ring_sent_bytes: traffic.rings_sent.bytes,
            ring_received: traffic.rings_received.count,
            ring_received_bytes: traffic.rings_received.bytes,
            ring_full: traffic.rings_full,
            ..self.by_kind(&sent, &received)
        }
    }

    fn by_kind(&self, sent: &[Count], received: &[Count]) -> PeerCounters {
        let [out, come] = [sent, received].map(|counts| {
            move |kind: Kind| counts.get(kind.index()).map_or((0, 0), |it| (it.count, it.bytes))
        });
        let mut it = self.operations();
        let [eager_out, eager_come] = [sent, received].map(Self::eager);
        (it.eager_sent, it.eager_sent_bytes) = (eager_out.count, eager_out.bytes);
        (it.rts_sent, it.rts_sent_bytes) = out(Kind::Rts);
        (it.cts_sent, it.cts_sent_bytes) = out(Kind::Cts);
        (it.data_sent, it.data_sent_bytes) = out(Kind::Data);
        (it.fin_sent, it.fin_sent_bytes) = out(Kind::Fin);
        (it.active_sent, it.active_sent_bytes) = out(Kind::Active);
        (it.rma_sent, it.rma_sent_bytes) = out(Kind::Rma);
        (it.rma_reply_sent, it.rma_reply_sent_bytes) = out(Kind::RmaReply);
        (it.eager_received, it.eager_received_bytes) = (eager_come.count, eager_come.bytes);
        (it.rts_received, it.rts_received_bytes) = come(Kind::Rts);
        (it.cts_received, it.cts_received_bytes) = come(Kind::Cts);
        (it.data_received, it.data_received_bytes) = come(Kind::Data);
        (it.fin_received, it.fin_received_bytes) = come(Kind::Fin);
        (it.active_received, it.active_received_bytes) = come(Kind::Active);
        (it.rma_received, it.rma_received_bytes) = come(Kind::Rma);
        (it.rma_reply_received, it.rma_reply_received_bytes) = come(Kind::RmaReply);
        it
    }

    fn operations(&self) -> PeerCounters {
        PeerCounters {
            credit_grants: self.grants,
            credit_holds: self.holds,
            credit_demoted: self.demoted,
            large_pulled: self.pulled.count,
            large_pulled_bytes: self.pulled.bytes,
            large_assisted: self.assisted.count,
            large_assisted_bytes: self.assisted.bytes,
            large_streamed: self.streamed.count,
            large_streamed_bytes: self.streamed.bytes,
            large_fallbacks: self.fallbacks,
            large_pushed: self.pushed.count,
            large_pushed_bytes: self.pushed.bytes,
            puts: self.puts.count,
            put_bytes: self.puts.bytes,
            gets: self.gets.count,
            get_bytes: self.gets.bytes,
            accumulates: self.accumulates.count,
            accumulate_bytes: self.accumulates.bytes,
            fetches: self.fetches.count,
            fetch_bytes: self.fetches.bytes,
            flushes: self.flushes,
            direct: self.direct.count,
            direct_bytes: self.direct.bytes,
            ..PeerCounters::default()
        }
    }
}

/// The name and unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in Rust, C and JSON.
    pub name: &'static str,
    /// Unit: `packets`, `messages`, `bytes`, `units` (of 64 bytes), `operations`, `times`, `peers`, `ns`.
    pub unit: &'static str,
}

/// Defines a struct of counters that can also be visited as a list.
#[macro_export]
#[doc(hidden)]
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $unit:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* #[doc = concat!("\n\nUnit: ", $unit, ".")] pub $field: u64,)+
        }

        impl $name {
            /// All counters, in order.
            pub const FIELDS: &'static [$crate::counters::Field] =
                &[$($crate::counters::Field { name: stringify!($field), unit: $unit }),+];

            /// Visits name, unit and value of each counter, in the order of `FIELDS`.
            pub fn each(&self, mut visit: impl FnMut(&'static $crate::counters::Field, u64)) {
                let values = [$(self.$field),+];
                for (field, value) in Self::FIELDS.iter().zip(values) {
                    visit(field, value);
                }
            }

            /// Returns the sum of both, counter by counter.
            #[must_use]
            pub const fn plus(mut self, other: &Self) -> Self {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
                self
            }
        }
    };
}

counters! {
    /// The counters between an endpoint and one peer, or the sum over all peers, since the endpoint was
    /// opened.
    ///
    /// Packets and their payload are counted by kind (from `eager` to `rma_reply`; see [`crate::wire`]), and
    /// again by path (`fastbox` and `cell`). Messages of a process to itself travel in no packets: they count
    /// as `eager`, whatever their size, and under no path.
    PeerCounters {
        /// Messages sent whole.
        eager_sent: "packets",
        /// Their payload, immediate data and requests for acknowledgement (8 bytes each) included.
        eager_sent_bytes: "bytes",
        /// Announced messages: large ones, and those without credit.
        rts_sent: "packets",
        /// Their payload.
        rts_sent_bytes: "bytes",
        /// Announced messages of the peer that this process requested as a stream.
        cts_sent: "packets",
        /// Their payload.
        cts_sent_bytes: "bytes",
        /// Pieces of messages that this process streamed.
        data_sent: "packets",
        /// Their payload.
        data_sent_bytes: "bytes",
        /// Announced or acknowledged messages of the peer that were received completely, except streamed ones.
        fin_sent: "packets",
        /// Their payload.
        fin_sent_bytes: "bytes",
        /// Active messages.
        active_sent: "packets",
        /// Their headers and payload.
        active_sent_bytes: "bytes",
        /// Packets of one-sided operations on memory of the peer.
        rma_sent: "packets",
        /// Their payload, including the description of the operation.
        rma_sent_bytes: "bytes",
        /// Answers to one-sided operations of the peer.
        rma_reply_sent: "packets",
        /// Their payload.
        rma_reply_sent_bytes: "bytes",
        /// As `eager_sent`, for the opposite direction; likewise the next fifteen counters.
        eager_received: "packets",
        /// See `eager_sent_bytes`.
        eager_received_bytes: "bytes",
        /// See `rts_sent`.
        rts_received: "packets",
        /// See `rts_sent_bytes`.
        rts_received_bytes: "bytes",
        /// See `cts_sent`.
        cts_received: "packets",
        /// See `cts_sent_bytes`.
        cts_received_bytes: "bytes",
        /// See `data_sent`.
        data_received: "packets",
        /// See `data_sent_bytes`.
        data_received_bytes: "bytes",
        /// See `fin_sent`.
        fin_received: "packets",
        /// See `fin_sent_bytes`.
        fin_received_bytes: "bytes",
        /// See `active_sent`.
        active_received: "packets",
        /// See `active_sent_bytes`.
        active_received_bytes: "bytes",
        /// See `rma_sent`.
        rma_received: "packets",
        /// See `rma_sent_bytes`.
        rma_received_bytes: "bytes",
        /// See `rma_reply_sent`.
        rma_reply_received: "packets",
        /// See `rma_reply_sent_bytes`.
        rma_reply_received_bytes: "bytes",
        /// Packets sent through the fastbox.
        fastbox_sent: "packets",
        /// Their payload.
        fastbox_sent_bytes: "bytes",
        /// Packets sent through cells.
        cell_sent: "packets",
        /// Their payload.
        cell_sent_bytes: "bytes",
        /// Packets received through the fastbox.
        fastbox_received: "packets",
        /// Their payload.
        fastbox_received_bytes: "bytes",
        /// Packets received through cells.
        cell_received: "packets",
        /// Their payload.
        cell_received_bytes: "bytes",
        /// Small packets that went through a cell because the fastbox was full.
        fastbox_full: "packets",
        /// Times that sends to the peer began to wait for a cell.
        cell_exhausted: "times",
        /// Total credit granted to the peer. After a failure of the peer: the credit that it used.
        credit_granted: "units",
        /// Credit that the peer has used: the memory that its messages would occupy in the store.
        credit_used: "units",
        /// Credit that the peer has granted, as last read.
        credit_received: "units",
        /// Credit that this process has used.
        credit_spent: "units",
        /// Times that a new total was sent to the peer.
        credit_grants: "times",
        /// Times that sends to the peer began to wait for credit.
        credit_holds: "times",
        /// Small messages that were sent by rendezvous for lack of credit.
        credit_demoted: "messages",
        /// Messages that matched a posted receive.
        matched_posted: "messages",
        /// Messages that went directly to a blocking receive, without a posted receive.
        matched_bypass: "messages",
        /// Messages that matched no receive on arrival and were stored.
        unexpected: "messages",
        /// Bytes of them that were stored.
        unexpected_bytes: "bytes",
        /// Messages received in one copy, through the kernel or a mapping, made by this process alone.
        large_pulled: "messages",
        /// Their payload.
        large_pulled_bytes: "bytes",
        /// Messages received in one copy, through the kernel or a mapping, with sender-assisted copy enabled.
        large_assisted: "messages",
        /// Their payload.
        large_assisted_bytes: "bytes",
        /// Messages received as a stream of packets.
        large_streamed: "messages",
        /// Their payload.
        large_streamed_bytes: "bytes",
        /// Messages that began as one copy, and were streamed after the kernel refused.
        large_fallbacks: "messages",
        /// Parts of messages that this process, as sender, wrote into the peer's memory (sender-assisted
        /// copy).
        large_pushed: "times",
        /// Their payload.
        large_pushed_bytes: "bytes",
        /// Puts on memory of the peer, by whatever path.
        puts: "operations",
        /// Their payload.
        put_bytes: "bytes",
        /// Gets.
        gets: "operations",
        /// Their payload.
        get_bytes: "bytes",
        /// Accumulates.
        accumulates: "operations",
        /// Their payload.
        accumulate_bytes: "bytes",
        /// Operations on one value that return it: fetch and compare-and-swap.
        fetches: "operations",
        /// Their payload.
        fetch_bytes: "bytes",
        /// Flushes that needed a request to the peer.
        flushes: "operations",
        /// Operations, of those above, that were done on mapped memory, or by remote memory access, without packets for
        /// their bytes.
        direct: "operations",
        /// Their payload.
        direct_bytes: "bytes",
        /// Times that this process woke the peer.
        wakes_sent: "times",
        /// Packets sent through cells that were filled with non-temporal stores (`NEMESIA_CELL_STORES`).
        cell_non_temporal: "packets",
        /// Packets that this process has written into a ring in the memory of a peer on another machine (fast path).
        ring_sent: "packets",
        /// Their payload.
        ring_sent_bytes: "bytes",
        /// Packets that the peer has written into a ring in the memory of this process.
        ring_received: "packets",
        /// Their payload.
        ring_received_bytes: "bytes",
        /// Small packets that were sent because the ring was full.
        ring_full: "packets",
    }
}

counters! {
    /// The counters of an engine as a whole.
    EngineCounters {
        /// Unexpected messages stored now.
        unexpected_now: "messages",
        /// Peak number of unexpected messages stored.
        unexpected_most: "messages",
        /// Peak memory of unexpected messages.
        unexpected_most_bytes: "bytes",
        /// Active messages that were dropped because no handler has their number.
        active_unhandled: "messages",
        /// Peers whose process died.
        peers_died: "peers",
        /// Peers that closed their endpoint.
        peers_finished: "peers",
        /// Peers that violated the protocol.
        peers_at_fault: "peers",
        /// Peers that dropped their endpoint without closing it.
        peers_dropped: "peers",
    }
}
