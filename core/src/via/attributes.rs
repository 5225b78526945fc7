//! Attributes of VIs and of memory, and how those of two VIs match (paper 2, section 1.4.1).
#![forbid(unsafe_code)]

use super::codes::{Reliability, ViaError};

/// Most bytes of one transfer that a VI can permit.
pub const MOST_TRANSFER_BYTES: u64 = 1 << 30;

/// The attributes of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViAttributes {
    /// The reliability level.
    pub reliability: Reliability,
    /// Most bytes of one transfer.
    pub max_transfer: u64,
    /// The quality of service, which this provider compares and does not interpret.
    pub qos: u64,
    /// The protection tag, by the number that the layer above gave it, or [`NO_PTAG`].
    pub ptag: u64,
    /// Whether the other side may write to memory of this VI's protection tag.
    pub rdma_write: bool,
    /// Whether the other side may read such memory.
    pub rdma_read: bool,
}

impl ViAttributes {
    /// Checks the attributes of a VI by themselves.
    ///
    /// # Errors
    /// [`ViaError::InvalidMtu`] and [`ViaError::InvalidRdmaRead`].
    pub fn check(&self) -> Result<(), ViaError> {
        if self.max_transfer == 0 || self.max_transfer > MOST_TRANSFER_BYTES {
            return Err(ViaError::InvalidMtu);
        }
        if self.rdma_read && !self.reliability.is_reliable() {
            return Err(ViaError::InvalidRdmaRead);
        }
        Ok(())
    }

    /// Checks that two VIs can be connected: level, maximum transfer size and quality of service are equal.
    ///
    /// # Errors
    /// The first attribute that differs.
    pub fn match_with(&self, other: &Self) -> Result<(), ViaError> {
        if self.reliability != other.reliability {
            return Err(ViaError::InvalidReliabilityLevel);
        }
        if self.max_transfer != other.max_transfer {
            return Err(ViaError::InvalidMtu);
        }
        if self.qos != other.qos {
            return Err(ViaError::InvalidQos);
        }
        Ok(())
    }
}

/// The protection tag of a VI that has none: it uses memory of every tag.
pub const NO_PTAG: u64 = 0;

/// The attributes of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViaMemAttributes {
    /// The protection tag, by the number that the layer above gave it.
    pub ptag: u64,
    /// Whether VIs of the same tag permit the other side to write here.
    pub rdma_write: bool,
    /// Whether VIs of the same tag permit the other side to read here.
    pub rdma_read: bool,
}

impl ViaMemAttributes {
    /// Returns whether a VI with this protection tag may use the memory.
    #[inline(always)]
    pub const fn is_open_to(&self, ptag: u64) -> bool {
        ptag == self.ptag || ptag == NO_PTAG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VI: ViAttributes = ViAttributes {
        reliability: Reliability::Delivery,
        max_transfer: 4096,
        qos: 0,
        ptag: 3,
        rdma_write: true,
        rdma_read: true,
    };

    #[test]
    fn vis_match_if_level_size_and_quality_are_equal() {
        assert_eq!(VI.match_with(&ViAttributes { ptag: 9, rdma_write: false, ..VI }), Ok(()));
        let level = ViAttributes { reliability: Reliability::Reception, max_transfer: 1, ..VI };
        assert_eq!(VI.match_with(&level), Err(ViaError::InvalidReliabilityLevel));
        assert_eq!(VI.match_with(&ViAttributes { max_transfer: 1, qos: 1, ..VI }), Err(ViaError::InvalidMtu));
        assert_eq!(VI.match_with(&ViAttributes { qos: 1, ..VI }), Err(ViaError::InvalidQos));
    }

    #[test]
    fn attributes_that_no_vi_can_have_are_refused() {
        assert_eq!(VI.check(), Ok(()));
        assert_eq!(ViAttributes { max_transfer: 0, ..VI }.check(), Err(ViaError::InvalidMtu));
        let long = ViAttributes { max_transfer: MOST_TRANSFER_BYTES + 1, ..VI };
        assert_eq!(long.check(), Err(ViaError::InvalidMtu));
        let unreliable = ViAttributes { reliability: Reliability::Unreliable, ..VI };
        assert_eq!(unreliable.check(), Err(ViaError::InvalidRdmaRead));
        assert_eq!(ViAttributes { rdma_read: false, ..unreliable }.check(), Ok(()));
    }
}
