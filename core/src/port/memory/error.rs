//! What can go wrong at a memory port.
#![forbid(unsafe_code)]

/// Why memory could not be registered or deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// No more regions fit: deregister one.
    #[error("all {limit} regions are in use: deregister some, or open the port with more")]
    Full {
        /// How many there can be.
        limit: u32,
    },
    /// So much memory can't be pinned now (`ENOMEM` in `ibv_reg_mr(3)`).
    #[error(
        "{bytes} bytes can't be pinned: raise the limit of locked memory, `ulimit -l`, or deregister some"
    )]
    Pinned {
        /// How many bytes were to be.
        bytes: u64,
    },
    /// Peers may write what the port itself may not, or the port what was lent to be read only.
    #[error("rights to write need memory that was lent to be written, and those of peers need `local_write`")]
    Rights,
    /// The fabric does not have that right (atomic operations).
    #[error("the fabric does not have these rights")]
    Unsupported,
    /// There is no such region.
    #[error("no such region is registered")]
    Unknown,
    /// An access to it is under way: ask again.
    #[error("an access to the region is under way: ask again")]
    Busy,
    /// The system's reason, as an error number.
    #[error("the system refused, with error {0}")]
    System(i32),
}

/// Why a work request was not posted. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll completions, then try again.
    #[error("the queue is full: poll, then try again")]
    QueueFull,
    /// The connection does not exist, or is not ready for that, or no longer.
    #[error("the connection is not ready for it")]
    NotReady,
    /// A region is not registered, or no longer.
    #[error("part {part} is of no registered region")]
    Region {
        /// Which part of the list.
        part: u32,
    },
    /// A part does not lie in its region.
    #[error("part {part} does not lie in its region")]
    Bounds {
        /// Which part of the list.
        part: u32,
    },
    /// A region is to be written whose rights do not allow that.
    #[error("part {part} is of a region that may not be written")]
    Access {
        /// Which part of the list.
        part: u32,
    },
    /// Too many parts.
    #[error("more than {limit} parts")]
    Slices {
        /// How many there may be.
        limit: u32,
    },
    /// Too many bytes.
    #[error("more than {limit} bytes")]
    Length {
        /// How many there may be.
        limit: u32,
    },
    /// A value of an atomic operation is not eight bytes at a multiple of eight.
    #[error("the value is not eight bytes at a multiple of eight")]
    Alignment,
    /// The fabric does not have it: see the facts.
    #[error("the fabric does not have this operation")]
    Unsupported,
    /// The system's reason, as an error number.
    #[error("the system refused, with error {0}")]
    System(i32),
}

/// Why a work request failed (`ibv_wc_status` in `ibv_poll_cq(3)`; RFC 5040, "Terminate Header").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// Our own memory: the region was deregistered meanwhile, or does not allow it.
    #[error("local memory can't be used: it was deregistered, or its rights don't allow it")]
    Local,
    /// The message is longer than the receive.
    #[error("the message is longer than the receive")]
    Length,
    /// The target does not allow it: wrong key, not in the region, or rights.
    #[error("the peer refused the access: wrong key, out of bounds, or not allowed")]
    Refused,
    /// The target does not understand it: alignment, or it had a receive that was too short.
    #[error("the peer refused the operation")]
    Invalid,
    /// The target failed while it executed it.
    #[error("the peer failed to execute it")]
    RemoteOperation,
    /// The peer had no receive posted, for too long.
    #[error("the peer posted no receive")]
    NoReceive,
    /// The peer does not answer.
    #[error("the peer is lost")]
    PeerLost,
    /// The connection ended, for another reason, before this was executed, or while it was.
    #[error("the connection ended before")]
    Flushed,
    /// The device failed it without a more exact reason (`IBV_WC_GENERAL_ERR`, 21). Soft iWARP reports so, among
    /// other causes, an answer of the wrong length.
    #[error("the device failed it with a general error and gave no reason; the kernel's log may have one")]
    General,
    /// Something else; the fabric's code.
    #[error("it failed, with code {0}")]
    Unknown(u32),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostError {
    /// The peer closed it, or its process has ended.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Unreachable,
    /// A work request of ours failed; its completion says why.
    #[error("a work request failed")]
    Work,
    /// The peer asked for what it may not have.
    #[error("the peer asked for memory that it may not use")]
    Access,
    /// The peer sent what no honest peer sends.
    #[error("the peer broke the protocol")]
    Protocol,
    /// The port failed.
    #[error("the port failed")]
    Port,
    /// Something else; the fabric's code.
    #[error("the connection ended, with code {0}")]
    Unknown(u32),
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No more connections fit: close one.
    #[error("all {limit} connections are in use: close some, or open the port with more")]
    Full {
        /// How many there can be.
        limit: u32,
    },
    /// The address is not one of this fabric.
    #[error("the address is not one of this fabric")]
    Address,
    /// The fabric has no shared receive queue.
    #[error("the fabric has no shared receive queue")]
    Unsupported,
    /// The connection is not in a state for that.
    #[error("the connection is not waiting for that")]
    State,
    /// Nobody listens there.
    #[error("nobody listens at the address")]
    NotListening,
    /// The peer refused.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs}, we speak {ours}: use the same release on both sides")]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// The peer said what nobody says who speaks this protocol.
    #[error("what answers does not speak the protocol")]
    Protocol,
    /// The deadline passed.
    #[error("the connection was not ready in time")]
    TimedOut,
    /// There is no way there.
    #[error("the address can't be reached")]
    Unreachable,
    /// The system's reason, as an error number.
    #[error("the system refused, with error {0}")]
    System(i32),
}
