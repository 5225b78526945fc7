//! The packets that two processes exchange before they share memory.
//!
//! The connecting side sends a *handshake* with the descriptors of its segments. The other side answers with its own
//! handshake, or with a *refusal* in text. Handshake, little-endian: magic (8 bytes), layout version (4), rank (4),
//! epoch (8), processes of the world (4), the number by which it knows the receiver (4), cells (4), cell bytes (4),
//! fastbox slots (4), flags (4: bit 0, registered for `membarrier`), processors on which it may run (64, one bit each,
//! modulo 512), address of a copy of the epoch in its memory (8; 0 if it must not be read), incarnation (8), number of
//! the next agreement (8). The last descriptor is that of the life mark, if the process has one. Refusal: magic
//! "NEMESIAX", then at most 240 bytes of UTF-8.

use nemesia_core::shared::layout::{Geometry, MAGIC, MAX_PEERS};
use nemesia_core::wire::LAYOUT_VERSION;

use crate::transport::hosts::version_mismatch;

/// The largest packet of either kind, in bytes.
pub(super) const MOST_BYTES: usize = 256;
const HANDSHAKE_BYTES: usize = 72 + size_of::<Cpus>();
const REFUSAL: u64 = u64::from_le_bytes(*b"NEMESIAX");

/// A set of processors by number, modulo 512.
pub(crate) type Cpus = [u64; 8];

/// The content of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShmHandshake {
    pub(super) rank: u32,
    pub(super) epoch: u64,
    /// The number of processes of its world.
    pub(super) size: u32,
    /// The number by which it knows the receiver of the handshake: less than [`MAX_PEERS`].
    pub(super) number: u32,
    pub(super) geometry: Geometry,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// The address of the epoch in the process's memory, by which that memory is read in one copy.
    pub(super) stamp: u64,
    /// The number of previous starts of its rank.
    pub(super) incarnation: u64,
    /// In an answer: the number of agreements so far.
    pub(super) agreements: u64,
}

impl ShmHandshake {
    pub(super) fn encode(&self) -> Vec<u8> {
        let g = &self.geometry;
        let mut bytes = Vec::with_capacity(HANDSHAKE_BYTES);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(LAYOUT_VERSION.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.epoch.to_le_bytes());
        let flags = u32::from(self.expedited);
        for field in [self.size, self.number, g.cells, g.cell_bytes, g.fastbox_slots, flags] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(self.cpus.iter().flat_map(|word| word.to_le_bytes()));
        for field in [self.stamp, self.incarnation, self.agreements] {
            bytes.extend(field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a packet from a peer, or returns what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (magic, rest) = word(bytes)?;
        if magic == REFUSAL {
            return Err(format!("it refused the connection: {}", String::from_utf8_lossy(rest)));
        }
        if magic != MAGIC {
            return Err("it sent no nemesia handshake".into());
        }
        let (version, rest) = half(rest)?;
        if version != LAYOUT_VERSION {
            return Err(version_mismatch(version));
        }
        let (rank, rest) = half(rest)?;
        let (epoch, rest) = word(rest)?;
        let (size, rest) = half(rest)?;
        let (number, rest) = half(rest)?;
        let (cells, rest) = half(rest)?;
        let (cell_bytes, rest) = half(rest)?;
        let (fastbox_slots, rest) = half(rest)?;
        let (flags, mut rest) = half(rest)?;
        let mut cpus = Cpus::default();
        for cpus in &mut cpus {
            (*cpus, rest) = word(rest)?;
        }
        let (stamp, rest) = word(rest)?;
        let (incarnation, rest) = word(rest)?;
        let (agreements, _) = word(rest)?;
        let geometry = Geometry { cells, cell_bytes, fastbox_slots };
        let expedited = flags & 1 == 1;
        let said =
            Self { rank, epoch, size, number, geometry, expedited, cpus, stamp, incarnation, agreements };
        said.check_number().map(|()| said)
    }

    /// Checks the number by which the sender knows this process.
    pub(super) fn check_number(&self) -> Result<(), String> {
        let (number, most) = (self.number, MAX_PEERS - 1);
        if number > most {
            return Err(format!("it knows this process by the number {number}, but the largest is {most}"));
        }
        Ok(())
    }
}

/// Compares the number of processes and the sizes, of ranks of one world. The error has both values of the first one
/// that differs.
pub(super) fn compare(ours: (u32, &Geometry), handshake: &ShmHandshake) -> Result<(), String> {
    let (size, sizes) = ours;
    check_equal(("the number of processes", size, handshake.size, "start all with one launcher"))?;
    compare_sizes(sizes, handshake)
}

/// Compares the sizes. The error has both values of the first one that differs.
pub(super) fn compare_sizes(ours: &Geometry, handshake: &ShmHandshake) -> Result<(), String> {
    let theirs = &handshake.geometry;
    let fields = [
        ("NEMESIA_CELLS", ours.cells, theirs.cells, "set it alike"),
        ("NEMESIA_CELL_BYTES", ours.cell_bytes, theirs.cell_bytes, "set it alike"),
        ("NEMESIA_FASTBOX_SLOTS", ours.fastbox_slots, theirs.fastbox_slots, "set it alike"),
    ];
    fields.into_iter().try_for_each(check_equal)
}

fn check_equal((field, ours, theirs, remedy): (&str, u32, u32, &str)) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("{field} is {theirs} there, and {ours} here: {remedy} in all processes")),
    }
}

pub(super) fn refusal(reason: &str) -> Vec<u8> {
    let mut bytes = REFUSAL.to_le_bytes().to_vec();
    bytes.extend(reason.bytes().take(MOST_BYTES - 16));
    bytes
}

fn half(bytes: &[u8]) -> Result<(u32, &[u8]), String> {
    let (field, rest) = bytes.split_first_chunk::<4>().ok_or("its handshake is too short")?;
    Ok((u32::from_le_bytes(*field), rest))
}

fn word(bytes: &[u8]) -> Result<(u64, &[u8]), String> {
    let (field, rest) = bytes.split_first_chunk::<8>().ok_or("its handshake is too short")?;
    Ok((u64::from_le_bytes(*field), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { cells: 64, cell_bytes: 4096, fastbox_slots: 64 };

    const HANDSHAKE: ShmHandshake = ShmHandshake {
        rank: 3,
        epoch: 9,
        size: 4,
        number: 2,
        geometry: GEOMETRY,
        expedited: true,
        cpus: [1, 2, 3, 4, 5, 6, 7, u64::MAX],
        stamp: 64,
        incarnation: 5,
        agreements: 6,
    };

    #[test]
    fn a_handshake_survives_the_wire() {
        assert_eq!(HANDSHAKE.encode().len(), HANDSHAKE_BYTES);
        assert_eq!(ShmHandshake::decode(&HANDSHAKE.encode()), Ok(HANDSHAKE));
    }

    #[test]
    fn any_prefix_and_any_flip_is_refused_or_understood_but_never_panics() {
        let bytes = HANDSHAKE.encode();
        for end in 0..bytes.len() {
            assert!(ShmHandshake::decode(&bytes[..end]).is_err());
            let mut flipped = bytes.clone();
            flipped[end] ^= 0x40;
            let _ = ShmHandshake::decode(&flipped);
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = HANDSHAKE.encode();
        bytes[8] = 99;
        let error = ShmHandshake::decode(&bytes).unwrap_err();
        assert!(error.contains("version 99") && error.contains("same nemesia"), "{error}");
    }

    #[test]
    fn a_refusal_reaches_the_other_side_in_words() {
        let error = ShmHandshake::decode(&refusal("because")).unwrap_err();
        assert_eq!(error, "it refused the connection: because");
    }

    #[test]
    fn a_number_that_no_process_can_choose_is_refused() {
        let error =
            ShmHandshake::decode(&ShmHandshake { number: MAX_PEERS, ..HANDSHAKE }.encode()).unwrap_err();
        assert!(error.contains("number 4096") && error.contains("4095"), "{error}");
    }

    #[test]
    fn differing_sizes_are_named_with_both_values() {
        let theirs = ShmHandshake { geometry: Geometry { cells: 32, ..GEOMETRY }, ..HANDSHAKE };
        let error = compare((4, &GEOMETRY), &theirs).unwrap_err();
        assert!(error.contains("32") && error.contains("64") && error.contains("NEMESIA_CELLS"), "{error}");
    }
}
