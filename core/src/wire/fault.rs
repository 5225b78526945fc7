//! Violations of the layout of shared memory that a process finds in what a peer has written.
#![forbid(unsafe_code)]

/// A fastbox value or position that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FastboxFault {
    /// The receiver's position went back, or beyond the packets sent.
    #[error("fastbox position {found} is outside {low}..={high}")]
    Position {
        /// The position that the peer wrote.
        found: u64,
        /// The last valid position that the peer wrote.
        low: u64,
        /// The position of the next send.
        high: u64,
    },
    /// A stamp has an unknown kind.
    #[error("fastbox stamp {0:#x} has an unknown kind")]
    Kind(u64),
    /// A packet claims more bytes than a fastbox can carry.
    #[error("fastbox packet claims {len} bytes, but the limit is {most}")]
    Length {
        /// The claimed length.
        len: usize,
        /// The largest payload of this ring.
        most: usize,
    },
}

/// A peer returned a cell that it did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a peer returned cell {cell}, which it does not hold")]
pub struct ReturnFault {
    /// The cell number that the peer wrote.
    pub cell: u32,
}
