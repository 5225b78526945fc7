//! The errors of a memory port.
#![forbid(unsafe_code)]

/// The reason why memory could not be registered or deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// All regions are in use; the caller must deregister one.
    #[error("all {limit} regions are in use: deregister some, or open the port with more")]
    Full {
        /// The limit of regions.
        limit: u32,
    },
    /// The memory cannot be pinned now (`ENOMEM` in `ibv_reg_mr(3)`).
    #[error(
        "{bytes} bytes cannot be pinned: raise the limit of locked memory, `ulimit -l`, or deregister some"
    )]
    Pinned {
        /// Size of the memory in bytes.
        bytes: u64,
    },
    /// Peers would have the right to write where the port itself has not, or the port where the memory was
    /// lent to be read only.
    #[error("rights to write need memory that was lent to be written, and those of peers need `local_write`")]
    Rights,
    /// The fabric does not support these rights (atomic operations).
    #[error("the fabric does not support these rights")]
    Unsupported,
    /// The region does not exist.
    #[error("the region is not registered")]
    Unknown,
    /// An access to the region is in progress; the caller must try again.
    #[error("an access to the region is in progress: try again")]
    Busy,
    /// The error number that the system returned.
    #[error("the system refused, with error {0}")]
    System(i32),
}

/// The reason why a work request was not posted. The call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full; the caller must poll completions and try again.
    #[error("the queue is full: poll completions, then try again")]
    QueueFull,
    /// The connection does not exist, or its state does not allow the request.
    #[error("the state of the connection does not allow the request")]
    NotReady,
    /// A part refers to a region that is not registered.
    #[error("part {part} refers to a region that is not registered")]
    Region {
        /// Index of the part in the list.
        part: u32,
    },
    /// A part does not lie in its region.
    #[error("part {part} does not lie in its region")]
    Bounds {
        /// Index of the part in the list.
        part: u32,
    },
    /// The rights of a region do not allow writing to it.
    #[error("part {part} refers to a region without the right `local_write`")]
    Access {
        /// Index of the part in the list.
        part: u32,
    },
    /// The list has too many parts.
    #[error("the list has more than {limit} parts")]
    Slices {
        /// The limit of parts.
        limit: u32,
    },
    /// The list has too many bytes.
    #[error("the list has more than {limit} bytes")]
    Length {
        /// The limit of bytes.
        limit: u32,
    },
    /// A value of an atomic operation is not eight bytes at a multiple of eight.
    #[error("the value is not eight bytes at a multiple of eight")]
    Alignment,
    /// The fabric does not support the operation; see its [`Facts`](super::Facts).
    #[error("the fabric does not support this operation")]
    Unsupported,
    /// The error number that the system returned.
    #[error("the system refused, with error {0}")]
    System(i32),
}

/// The reason why a work request failed (`ibv_wc_status` in `ibv_poll_cq(3)`; RFC 5040, "Terminate Header").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// Local memory: the region was deregistered meanwhile, or its rights do not allow the access.
    #[error("local memory is not accessible: it was deregistered, or its rights do not allow the access")]
    Local,
    /// The message is longer than the receive.
    #[error("the message is longer than the receive")]
    Length,
    /// The target refused the access: wrong key, outside the region, or insufficient rights.
    #[error("the peer refused the access: wrong key, out of bounds, or not allowed")]
    Refused,
    /// The target rejected the operation as invalid: alignment, or its receive was too short.
    #[error("the peer rejected the operation as invalid")]
    Invalid,
    /// The target failed during the execution.
    #[error("the peer failed to execute the operation")]
    RemoteOperation,
    /// The peer had no receive posted for too long.
    #[error("the peer posted no receive")]
    NoReceive,
    /// The peer does not respond.
    #[error("the peer does not respond")]
    PeerLost,
    /// The connection ended for another reason before or during the execution.
    #[error("the connection ended before the work request completed")]
    Flushed,
    /// The device failed the request without a more exact reason (`IBV_WC_GENERAL_ERR`, 21). Soft iWARP
    /// reports so, among other causes, an answer of the wrong length.
    #[error("the device failed it with a general error and gave no reason; the kernel's log may have one")]
    General,
    /// Another error, with the fabric's code.
    #[error("the work request failed with code {0}")]
    Unknown(u32),
}

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostError {
    /// The peer closed the connection, or its process ended.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not respond.
    #[error(
        "the peer does not respond: its machine is gone, or the network loses its packets (only large ones, if an MTU \
         on the way is smaller than those of both machines)"
    )]
    Unreachable,
    /// The memory of a call cannot be read or written.
    #[error(
        "a buffer of a call of this process lies in memory that cannot be read or written: check its address and \
         length, and whether it was freed before the call was complete"
    )]
    Buffer,
    /// A work request of this process failed; its completion gives the reason.
    #[error("a work request failed")]
    Work,
    /// The peer requested memory without access rights.
    #[error("the peer requested memory without access rights")]
    Access,
    /// The peer violated the protocol.
    #[error("the peer violated the protocol")]
    Protocol,
    /// The port failed.
    #[error("the port failed")]
    Port,
    /// Another reason, with the fabric's code.
    #[error("the connection ended with code {0}")]
    Unknown(u32),
}

/// The reason why a connection could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// All connections are in use; the caller must close one.
    #[error("all {limit} connections are in use: close some, or open the port with more")]
    Full {
        /// The limit of connections.
        limit: u32,
    },
    /// The address does not belong to this fabric.
    #[error("the address does not belong to this fabric")]
    Address,
    /// The fabric has no shared receive queue.
    #[error("the fabric has no shared receive queue")]
    Unsupported,
    /// The state of the connection does not allow the call.
    #[error("the state of the connection does not allow this")]
    State,
    /// No process listens at the address, as far as its machine says.
    #[error("no process listens at the address, or a firewall rejects connections to it")]
    NotListening,
    /// The peer refused the connection.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer uses another protocol version.
    #[error(
        "the peer uses version {theirs}, this process version {ours}: use the same release on both sides"
    )]
    Version {
        /// The version of this process.
        ours: u32,
        /// The version of the peer.
        theirs: u32,
    },
    /// The answer does not follow this protocol.
    #[error("the process at the address does not speak this protocol")]
    Protocol,
    /// The deadline passed.
    #[error("the connection was not ready in time")]
    TimedOut,
    /// There is no route to the address.
    #[error("the address is unreachable")]
    Unreachable,
    /// The error number that the system returned.
    #[error("the system refused, with error {0}")]
    System(i32),
}
