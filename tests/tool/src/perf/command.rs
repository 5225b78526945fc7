//! The commands by which rank 0 leads rank 1 through a measurement.
#![forbid(unsafe_code)]

/// A command from rank 0 to rank 1: the exchange in which rank 1 takes part next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkCommand {
    /// Hand-over of a cache line.
    HandOver,
    /// One message each way, with a check of the contents.
    Check { bytes: usize },
    /// `count` round trips.
    Trips { bytes: usize, count: usize },
    /// `count` windows.
    Windows { bytes: usize, count: usize },
    /// As `Check`, with a list.
    ListCheck { bytes: usize },
    /// As `Trips`, with lists.
    ListTrips { bytes: usize, count: usize },
    /// As `Trips`, without the library.
    BareTrips { bytes: usize, count: usize },
    /// As `Windows`, without the library.
    BareWindows { bytes: usize, count: usize },
    /// The end.
    Finish,
}

/// The length of an encoded command in bytes.
pub(crate) const COMMAND_BYTES: usize = 24;

impl LinkCommand {
    /// Encodes the command.
    pub(crate) fn encode(self) -> [u8; COMMAND_BYTES] {
        let [kind, bytes, count] = match self {
            Self::HandOver => [1, 0, 0],
            Self::Check { bytes } => [2, bytes, 0],
            Self::Trips { bytes, count } => [3, bytes, count],
            Self::Windows { bytes, count } => [4, bytes, count],
            Self::Finish => [5, 0, 0],
            Self::BareTrips { bytes, count } => [6, bytes, count],
            Self::BareWindows { bytes, count } => [7, bytes, count],
            Self::ListCheck { bytes } => [8, bytes, 0],
            Self::ListTrips { bytes, count } => [9, bytes, count],
        };
        let mut packet = [0; COMMAND_BYTES];
        for (field, value) in packet.chunks_exact_mut(8).zip([kind, bytes, count]) {
            field.copy_from_slice(&(value as u64).to_le_bytes());
        }
        packet
    }

    /// Decodes a packet; `None` if it is no command.
    pub(crate) fn decode(packet: &[u8; COMMAND_BYTES]) -> Option<Self> {
        let mut fields =
            packet.as_chunks().0.iter().map(|field| usize::try_from(u64::from_le_bytes(*field)).ok());
        let (kind, bytes, count) = (fields.next()??, fields.next()??, fields.next()??);
        Some(match kind {
            1 => Self::HandOver,
            2 => Self::Check { bytes },
            3 => Self::Trips { bytes, count },
            4 => Self::Windows { bytes, count },
            5 => Self::Finish,
            6 => Self::BareTrips { bytes, count },
            7 => Self::BareWindows { bytes, count },
            8 => Self::ListCheck { bytes },
            9 => Self::ListTrips { bytes, count },
            _ => return None,
        })
    }

    /// Returns the largest message that the command needs, in bytes.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Check { bytes }
            | Self::Trips { bytes, .. }
            | Self::Windows { bytes, .. }
            | Self::ListCheck { bytes }
            | Self::ListTrips { bytes, .. }
            | Self::BareTrips { bytes, .. }
            | Self::BareWindows { bytes, .. } => bytes,
            Self::HandOver | Self::Finish => 0,
        }
    }
}
