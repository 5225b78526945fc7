//! How memory ports differ.
#![forbid(unsafe_code)]

/// What a fabric can do. Counts are of what may be under way at once; sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it is called in explanations.
    pub name: &'static str,
    /// The bytes of a write become visible at the target in the order of their addresses: a target may poll on the last one.
    /// True of reliable connections on most InfiniBand devices, asked for by `ibv_query_qp_data_in_order(3)`; iWARP says
    /// no (RFC 5040, "Ordering and Completions").
    pub ordered_placement: bool,
    /// Only the side that connected may send, write or read first; the other waits until something has come (RFC 5044,
    /// "Connection Startup Rules").
    pub active_speaks_first: bool,
    /// A write's completion proves that its bytes are placed, and that the target allowed it.
    pub write_proves_placement: bool,
    /// A message for which no receive is posted waits for one. Otherwise it ends the connection, as on iWARP.
    pub waits_for_receive: bool,
    /// Reads land only in regions that allow `remote_write` (iWARP: a read's response is placed by a steering tag, as
    /// a write is; RFC 5040, "RDMA Read Operation").
    pub read_needs_remote_write: bool,
    /// Sends and writes may have an immediate.
    pub immediates: bool,
    /// Atomic operations of eight bytes.
    pub atomics: bool,
    /// They exclude atomic operations of the target's processors (`IBV_ATOMIC_GLOB`), not only those of this port.
    pub atomics_exclude_processor: bool,
    /// The most bytes of an inline source; 0 when there is none.
    pub inline_bytes: u32,
    /// The most bytes of one message: of a send.
    pub message_bytes: u32,
    /// The most bytes of one write or read; at least [`Facts::message_bytes`]. The port may carry out what is longer than that as
    /// several work requests: it completes as one, takes a place of the send queue for each `message_bytes` begun, and is refused
    /// ([`PostError::QueueFull`](super::PostError::QueueFull)) until there are so many.
    pub transfer_bytes: u32,
    /// The most parts of a source, or of a receive; at least 1.
    pub slices: u32,
    /// The most parts that a read goes to; at least 1.
    pub read_slices: u32,
    /// Work requests in a connection's send queue: at least so many fit.
    pub send_depth: u32,
    /// Receives in a connection's own queue: at least so many fit.
    pub receive_depth: u32,
    /// Receives in the shared queue; 0 when there is none.
    pub shared_receive_depth: u32,
    /// Connections.
    pub connections: u32,
    /// Regions.
    pub regions: u32,
}
