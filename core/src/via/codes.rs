//! Return codes, status bits, error codes and states of the VI Provider Library (paper 2, section 1.3.1).
//!
//! The numbers are those of `vipl.h`, which programs were compiled with.
#![forbid(unsafe_code)]

/// The reason for which a call fails; the number is the return code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(i32)]
pub enum ViaError {
    /// Nothing is complete yet.
    #[error("nothing is complete")]
    NotDone = 1,
    /// A parameter is invalid.
    #[error("a parameter is invalid")]
    InvalidParameter = 2,
    /// A limit is reached, or the object is in use.
    #[error("a limit is reached, or the object is in use")]
    ErrorResource = 3,
    /// The time limit has passed.
    #[error("the time limit has passed")]
    Timeout = 4,
    /// The other side has rejected the connection.
    #[error("the other side has rejected the connection")]
    Reject = 5,
    /// The reliability levels of the two VIs differ.
    #[error("the reliability levels differ")]
    InvalidReliabilityLevel = 6,
    /// The maximum transfer sizes of the two VIs differ, or one is too large.
    #[error("the maximum transfer size is invalid")]
    InvalidMtu = 7,
    /// The qualities of service of the two VIs differ.
    #[error("the qualities of service differ")]
    InvalidQos = 8,
    /// The protection tag is invalid.
    #[error("the protection tag is invalid")]
    InvalidPtag = 9,
    /// RDMA reads are not possible at this reliability level.
    #[error("RDMA reads are not possible at this reliability level")]
    InvalidRdmaRead = 10,
    /// The descriptor is complete with an error, or the queue is empty.
    #[error("the descriptor is complete with an error")]
    DescriptorError = 11,
    /// The VI is in a state that does not permit the call.
    #[error("the state of the VI does not permit the call")]
    InvalidState = 12,
    /// The name service has no such name.
    #[error("the name service failed")]
    ErrorNameservice = 13,
    /// Nothing matches.
    #[error("nothing matches")]
    NoMatch = 14,
    /// The remote address cannot be reached.
    #[error("the remote address cannot be reached")]
    NotReachable = 15,
    /// The call is not supported.
    #[error("the call is not supported")]
    NotSupported = 16,
}

impl ViaError {
    /// Returns the return code of `vipl.h`.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

/// The descriptor is complete.
pub const STATUS_DONE: u32 = 1;
/// The descriptor has an invalid format.
pub const STATUS_FORMAT: u32 = 2;
/// A local segment is not registered, or has another protection tag.
pub const STATUS_PROTECTION: u32 = 4;
/// The message is longer than the segments, or than the maximum transfer size.
pub const STATUS_LENGTH: u32 = 8;
/// A transfer ended before all bytes had moved.
pub const STATUS_PARTIAL: u32 = 0x10;
/// The descriptor was taken back because of a disconnect or an error.
pub const STATUS_FLUSHED: u32 = 0x20;
/// The connection was lost during the transfer.
pub const STATUS_TRANSPORT: u32 = 0x40;
/// The remote memory does not permit the RDMA operation.
pub const STATUS_RDMA_PROTECTION: u32 = 0x80;
/// The remote side has no receive descriptor for the message, or an erroneous one.
pub const STATUS_REMOTE_DESCRIPTOR: u32 = 0x100;
/// All bits that mean an error.
pub const STATUS_ERRORS: u32 = 0x1fe;
/// The descriptor has immediate data.
pub const STATUS_IMMEDIATE: u32 = 0x80000;
/// A send.
pub const OPERATION_SEND: u32 = 0;
/// A receive of a message.
pub const OPERATION_RECEIVE: u32 = 0x10000;
/// An RDMA write of this side.
pub const OPERATION_RDMA_WRITE: u32 = 0x20000;
/// A receive that an RDMA write of the other side consumed.
pub const OPERATION_REMOTE_RDMA_WRITE: u32 = 0x30000;
/// An RDMA read of this side.
pub const OPERATION_RDMA_READ: u32 = 0x40000;

/// An error that no descriptor reports; the number is the error code of `vipl.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AsyncError {
    /// A descriptor could not be read.
    PostDescriptor = 0,
    /// The connection is lost.
    ConnectionLost = 1,
    /// A message arrived, and no receive descriptor was posted.
    ReceiveQueueEmpty = 2,
    /// A completion queue is full.
    Overrun = 3,
    /// The other side tried to write to memory without permission.
    RdmaWriteProtection = 4,
    /// The data of an RDMA write of the other side are damaged.
    RdmaWriteData = 5,
    /// An RDMA write of the other side was aborted.
    RdmaWriteAbort = 6,
    /// The other side tried to read memory without permission.
    RdmaReadProtection = 7,
    /// A finished descriptor could not be written back.
    CompletionProtection = 8,
    /// An RDMA operation failed in the transport.
    RdmaTransport = 9,
    /// The provider cannot continue.
    Catastrophic = 10,
}

impl AsyncError {
    /// All errors, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::PostDescriptor,
        Self::ConnectionLost,
        Self::ReceiveQueueEmpty,
        Self::Overrun,
        Self::RdmaWriteProtection,
        Self::RdmaWriteData,
        Self::RdmaWriteAbort,
        Self::RdmaReadProtection,
        Self::CompletionProtection,
        Self::RdmaTransport,
        Self::Catastrophic,
    ];
}

/// The state of a VI; the number is that of `vipl.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViState {
    /// Not connected.
    #[default]
    Idle = 0,
    /// Connected to one other VI.
    Connected = 1,
    /// A connection is being established.
    ConnectPending = 2,
    /// The connection failed; a disconnect leads back to idle.
    Error = 3,
}

/// The reliability level of a VI; the number is the bit of `vipl.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reliability {
    /// Messages without a receive descriptor are dropped, and the connection stays.
    Unreliable = 1,
    /// Every message arrives, or the connection fails. A send is complete when its bytes are on their way.
    Delivery = 2,
    /// As delivery; a send is complete when its bytes lie in the memory of the other side.
    Reception = 4,
}

impl Reliability {
    /// The bits of all levels.
    pub const ALL_BITS: u16 = 7;
    /// The bits of the levels that permit RDMA reads.
    pub const READ_BITS: u16 = 6;

    /// Returns the level with this bit; `None` for any other number.
    pub const fn from_bits(bits: u16) -> Option<Self> {
        match bits {
            1 => Some(Self::Unreliable),
            2 => Some(Self::Delivery),
            4 => Some(Self::Reception),
            _ => None,
        }
    }

    /// Returns whether an error of a transfer ends the connection.
    pub fn is_reliable(self) -> bool {
        self != Self::Unreliable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!((ViaError::NotDone.code(), ViaError::NoMatch.code()), (1, 14));
        assert_eq!((ViaError::NotReachable.code(), ViaError::NotSupported.code()), (15, 16));
        assert_eq!(AsyncError::ALL.map(|error| error as u8), core::array::from_fn(|at| at as u8));
        let errors = STATUS_FORMAT
            | STATUS_PROTECTION
            | STATUS_LENGTH
            | STATUS_PARTIAL
            | STATUS_FLUSHED
            | STATUS_TRANSPORT
            | STATUS_RDMA_PROTECTION
            | STATUS_REMOTE_DESCRIPTOR;
        assert_eq!(errors, STATUS_ERRORS);
    }

    #[test]
    fn a_reliability_level_is_exactly_one_bit() {
        for bits in 0..=u16::MAX {
            let level = Reliability::from_bits(bits);
            assert_eq!(level.is_some(), [1, 2, 4].contains(&bits), "{bits}");
            assert!(level.is_none_or(|level| level as u16 == bits));
        }
    }
}
