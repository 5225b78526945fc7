//! This process as its peers see it, and the segments of a peer that are mapped.

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::token::LinkToken;
use nemesia_core::shared::layout::{Geometry, MAX_PEERS};

use super::address;
use super::segments::{Expected, PeerSegments, Unjoined};
use crate::config::Config;
use crate::os::{ForeignFd, HandoffConnection, HandoffListener, IdentityStamp, RemoteMemory, ShmError};
use crate::transport::hosts::HostAddress;

/// A set of processors by number, modulo 512.
pub(crate) type Cpus = [u64; 8];

/// The facts about this process that its calls contain.
#[derive(Debug)]
pub(super) struct ShmWorld {
    pub(super) config: Config,
    pub(super) geometry: Geometry,
    pub(super) rank: u32,
    /// The number of processes of the world.
    pub(super) size: u32,
    /// The token of this process, from which its epoch is derived.
    pub(super) token: LinkToken,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// The address of a copy of the epoch in our memory, if the peers may read it.
    pub(super) stamp: u64,
    /// The number of previous starts of our rank.
    pub(super) incarnation: u64,
    /// The launcher restarts ranks.
    pub(super) restarts: bool,
    /// Our own segment is sealed against writing, so this kernel can seal the peers' as well.
    pub(super) sealed: bool,
}

impl ShmWorld {
    /// Returns the address of this process, which listens here and takes no calls of other machines.
    pub(super) fn address(&self, listener: &HandoffListener) -> LinkAddress {
        address::address_at(&HostAddress::of(listener.name(), &self.config), self.token)
    }

    /// Listens under the name that the token of this process has.
    pub(super) fn bind(&self) -> Result<HandoffListener, ShmError> {
        HandoffListener::bind_as(address::socket(&self.token))
    }
}

/// What a process has said in a call or an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaidProcess {
    pub(super) epoch: u64,
    /// The number by which it knows this process: less than [`MAX_PEERS`].
    pub(super) number: u32,
    pub(super) geometry: Geometry,
    /// It is registered for `membarrier`.
    pub(super) expedited: bool,
    /// The address of the epoch in the process's memory, by which that memory is read in one copy; 0 if it must not be
    /// read.
    pub(super) stamp: u64,
    /// The number of previous starts of its rank.
    pub(super) incarnation: u64,
    /// In an answer: the number of agreements so far.
    pub(super) agreements: u64,
}

impl SaidProcess {
    /// Checks the number by which the process knows this one.
    pub(super) fn check_number(&self) -> Result<(), String> {
        let (number, most) = (self.number, MAX_PEERS - 1);
        if number > most {
            return Err(format!("it knows this process by the number {number}, but the largest is {most}"));
        }
        Ok(())
    }
}

/// What a process has sent to join, mapped in this process.
#[derive(Debug)]
pub(super) struct MappedPeer {
    pub(super) segments: PeerSegments,
    /// Its memory, if it can be identified.
    pub(super) memory: Option<RemoteMemory>,
}

/// Maps and validates the segments of a peer. After a shortage this function may be called again.
pub(super) fn map(
    world: &ShmWorld,
    connection: &HandoffConnection,
    said: &SaidProcess,
    fds: &[ForeignFd],
) -> Result<MappedPeer, Unjoined> {
    compare(&world.geometry, &said.geometry)?;
    let SaidProcess { epoch, number, .. } = *said;
    let expected =
        Expected { config: &world.config, sizes: world.geometry, sealed: world.sealed, epoch, number };
    let (segments, life) = PeerSegments::attach(&expected, fds)?;
    let stamp = IdentityStamp { address: said.stamp, value: epoch };
    let memory = RemoteMemory::of_living(connection.peer().pid, stamp, life);
    Ok(MappedPeer { segments, memory })
}

/// Compares the sizes. The error has both values of the first one that differs.
pub(super) fn compare(ours: &Geometry, theirs: &Geometry) -> Result<(), String> {
    let fields = [
        ("NEMESIA_CELLS", ours.cells, theirs.cells),
        ("NEMESIA_CELL_BYTES", ours.cell_bytes, theirs.cell_bytes),
        ("NEMESIA_FASTBOX_SLOTS", ours.fastbox_slots, theirs.fastbox_slots),
    ];
    fields.into_iter().try_for_each(|(field, ours, theirs)| match ours == theirs {
        true => Ok(()),
        false => Err(format!("{field} is {theirs} there, and {ours} here: set it alike in all processes")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { cells: 64, cell_bytes: 4096, fastbox_slots: 64 };

    #[test]
    fn a_number_that_no_process_can_choose_is_refused() {
        let number = MAX_PEERS;
        let (epoch, expedited, stamp, incarnation, agreements) = (9, true, 64, 0, 0);
        let said =
            SaidProcess { epoch, number, geometry: GEOMETRY, expedited, stamp, incarnation, agreements };
        let error = said.check_number().unwrap_err();
        assert!(error.contains("number 4096") && error.contains("4095"), "{error}");
        assert_eq!(SaidProcess { number: number - 1, ..said }.check_number(), Ok(()));
    }

    #[test]
    fn differing_sizes_are_named_with_both_values() {
        let error = compare(&GEOMETRY, &Geometry { cells: 32, ..GEOMETRY }).unwrap_err();
        assert!(error.contains("32") && error.contains("64") && error.contains("NEMESIA_CELLS"), "{error}");
        assert_eq!(compare(&GEOMETRY, &GEOMETRY), Ok(()));
    }
}
