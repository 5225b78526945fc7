//! Rendezvous by RDMA write beside the pipes (paper 1, section 6): the handshake is the caller's, through the pipe.

use nemesia_core::port::memory::{MemoryKey, PortRegion};
pub use nemesia_core::rdma_channel::PastWrite;

use super::{ChannelGroup, ChannelLink};
use crate::error::Error;

/// The bytes of an [`Admission`]'s key.
pub const ADMISSION_BYTES: usize = nemesia_core::port::memory::KEY_BYTES;

/// A buffer into which a peer may write past the pipe, until [`ChannelGroup::end_admission`] has returned `true` or the
/// group is dropped.
#[derive(Debug)]
pub struct Admission {
    rank: usize,
    region: PortRegion,
    key: [u8; ADMISSION_BYTES],
}

impl Admission {
    /// Returns the key, for the peer.
    pub const fn key(&self) -> [u8; ADMISSION_BYTES] {
        self.key
    }
}

impl ChannelGroup {
    /// Admits a rank to a buffer: it may write there past the pipe. The caller puts the key into the pipe, gets the
    /// peer's packet that ends the message, and ends the admission. `None` if the pipe has no port
    /// ([`ChannelDesign::Direct`](crate::ChannelDesign::Direct)) or the buffer cannot be registered: the message goes
    /// through the pipe then.
    ///
    /// # Errors
    /// There is no such rank.
    ///
    /// # Safety
    /// The bytes are initialised and writable, stay at their address, and nothing else uses them until
    /// [`ChannelGroup::end_admission`] of this group has returned `true`, or the group is dropped.
    pub unsafe fn admit_raw(
        &mut self,
        rank: usize,
        base: *mut u8,
        len: usize,
    ) -> Result<Option<Admission>, Error> {
        let last = self.size - 1;
        let admitted = match self.links.get(rank).ok_or(Error::Rank { rank, last })? {
            ChannelLink::Shm(_) => self.shm.as_mut().and_then(|fabric| fabric.admit(base, len)),
            ChannelLink::Tcp(_) => self.tcp.as_mut().and_then(|fabric| fabric.admit(base, len)),
            ChannelLink::Verbs(_) => self.verbs.as_mut().and_then(|fabric| fabric.admit(base, len)),
            ChannelLink::None | ChannelLink::Direct(_) => None,
        };
        Ok(admitted.map(|(region, key)| Admission { rank, region, key: key.to_bytes() }))
    }

    /// Ends an admission. Returns `false` if the peer's bytes are still being placed: the caller tries again, and the
    /// buffer is in use until then.
    pub fn end_admission(&mut self, admission: &Admission) -> bool {
        let region = admission.region;
        match self.links.get(admission.rank) {
            Some(ChannelLink::Shm(_)) => self.shm.as_mut().is_none_or(|it| it.end_admission(region)),
            Some(ChannelLink::Tcp(_)) => self.tcp.as_mut().is_none_or(|it| it.end_admission(region)),
            Some(ChannelLink::Verbs(_)) => self.verbs.as_mut().is_none_or(|it| it.end_admission(region)),
            _ => true,
        }
    }

    /// Writes a buffer past the pipe, into the one to which the peer has admitted this process. The caller repeats the
    /// call with the same arguments until [`PastWrite::Done`]. From [`PastWrite::Posted`] on it may put the packet that
    /// ends the message. Up to eight buffers are written to a rank at the same time, by calls of their own in turn, so
    /// that no write waits for the completion of an earlier one.
    ///
    /// # Errors
    /// There is no such rank, or its pipe has failed.
    ///
    /// # Safety
    /// The bytes are readable, stay at their address and do not change until this function has returned
    /// [`PastWrite::Done`], [`PastWrite::Refused`] or an error, or the group is dropped.
    pub unsafe fn write_raw(
        &mut self,
        rank: usize,
        base: *const u8,
        len: usize,
        key: &[u8; ADMISSION_BYTES],
    ) -> Result<PastWrite, Error> {
        let (key, last) = (MemoryKey::from_bytes(key), self.size - 1);
        let buffer = (base, len);
        let progress = match *self.links.get(rank).ok_or(Error::Rank { rank, last })? {
            ChannelLink::Shm(at) => self.shm.as_mut().map(|fabric| fabric.write_past(at, buffer, key)),
            ChannelLink::Tcp(at) => self.tcp.as_mut().map(|fabric| fabric.write_past(at, buffer, key)),
            ChannelLink::Verbs(at) => self.verbs.as_mut().map(|fabric| fabric.write_past(at, buffer, key)),
            ChannelLink::None | ChannelLink::Direct(_) => None,
        };
        progress.unwrap_or(Ok(PastWrite::Refused)).map_err(|problem| Error::Pipe { rank, problem })
    }
}
