//! The properties in which memory ports differ.
#![forbid(unsafe_code)]

/// The capabilities of a fabric. Counts are limits of simultaneous use; sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The name of the fabric in explanations.
    pub name: &'static str,
    /// Order within a write: the bytes of a write become visible at the target in the order of their addresses, so
    /// the target may poll on the last byte. Many InfiniBand devices promise this for reliable connections
    /// (`ibv_query_qp_data_in_order(3)`); iWARP does not (RFC 5040, "Ordering and Completions").
    pub ordered_within_write: bool,
    /// Order among writes: the bytes of a write become visible only after those of all earlier writes of the
    /// same connection, so that a byte of a later write proves that an earlier one is placed. No device reports this,
    /// and it does not follow from the order within a write.
    pub ordered_among_writes: bool,
    /// Only the side that connected may send, write or read first. The other side must wait until something
    /// has arrived (RFC 5044, "Connection Startup Rules").
    pub active_speaks_first: bool,
    /// The completion of a write proves that its bytes are placed, and that the target allowed it.
    pub write_proves_placement: bool,
    /// A message for which no receive is posted waits for one. If false, the message ends the connection, as
    /// on iWARP.
    pub waits_for_receive: bool,
    /// Reads are placed only in regions that allow `remote_write` (on iWARP a steering tag places a read's
    /// response, as it does a write; RFC 5040, "RDMA Read Operation").
    pub read_needs_remote_write: bool,
    /// Registering memory pins its pages and takes time, so that registrations are worth keeping. The memory may
    /// then be unmapped while it is registered. If false, peers' accesses to unmapped memory end this process.
    pub registration_pins: bool,
    /// Sends and writes may carry an immediate.
    pub immediates: bool,
    /// Atomic operations of eight bytes are available.
    pub atomics: bool,
    /// Atomic operations exclude those of the target's processors (`IBV_ATOMIC_GLOB`), not only those of this
    /// port.
    pub atomics_exclude_processor: bool,
    /// Most bytes of an inline source; 0 if inline sources are unsupported.
    pub inline_bytes: u32,
    /// Most bytes of one send.
    pub message_bytes: u32,
    /// Most bytes of one write or read; at least [`Facts::message_bytes`]. The port may split a longer
    /// transfer into several work requests. The transfer still completes as one. It takes one place of the
    /// send queue for each `message_bytes` begun, and is refused
    /// ([`PostError::QueueFull`](super::PostError::QueueFull)) until there are enough places.
    pub transfer_bytes: u32,
    /// Most parts of a source, or of a receive; at least 1.
    pub slices: u32,
    /// Most parts of the destination of a read; at least 1.
    pub read_slices: u32,
    /// Guaranteed places for work requests in the send queue of a connection.
    pub send_depth: u32,
    /// Guaranteed places for receives in a connection's own queue.
    pub receive_depth: u32,
    /// Receives in the shared queue; 0 if there is none.
    pub shared_receive_depth: u32,
    /// Most connections.
    pub connections: u32,
    /// Most regions.
    pub regions: u32,
}
