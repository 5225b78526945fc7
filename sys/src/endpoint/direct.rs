//! The direct path: regions that a peer has allocated are mapped here on first use, and put, get and atomic operations
//! then need nothing of the peer.
//!
//! Operations keep their order although there are two paths: what was not flushed when a fence was asked for goes on
//! through packets until it is, and all else to that peer with it.
//!
//! A region that peers may only read is mapped when the kernel keeps its pages where they are. Nobody can then make a
//! get allocate memory. A region that peers may write cannot be protected like that: its owner, or a peer, can take
//! pages out of it, and the process that touches them next allocates them, charged to its own cgroup. In total that is
//! no more than what was mapped. So such a region is mapped if this process has no memory limit, if its owner is under
//! the same one, or if there was room below the limit for all such regions when it was mapped. Otherwise it takes
//! packets.
//!
//! Memory that is exposed and not allocated takes packets, although the kernel could copy it in one step
//! (`process_vm_writev`, `process_vm_readv`): its owner may unexpose and reuse it at any moment, and such a copy can't
//! be called back. A mapped region that is unexposed stays what it was for whoever has it mapped, and is nobody's
//! memory; an address of the owner is somebody's at once. A get could look at the owner's record of the region again
//! when it has copied, and forget what it has read. A put has written. Its owner would have to wait, whenever it
//! unexposes a region, for every peer to say that it has left, and a peer that is stopped, or does not say so, would
//! hold up a call that never waits.

mod known;

use nemesia_core::engine::StartError;
use nemesia_core::engine::rma::{Access, Datatype, Reduction, Target, combine};
use nemesia_core::shared::layout::Extent;
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::wire::rma::{RmaOperation, SHARED_BYTES};

use self::known::KnownRegions;
use super::Endpoint;
use super::RemoteKey;
use crate::error::Error;
use crate::os::borrow::open_foreign;
use crate::os::{self, AttachLimits, Segment, SegmentBacking};

/// Slack in a segment's size: it may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;

/// How operations on a region travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// The region is this process's own.
    Own,
    /// It is mapped here: its owner need not make progress.
    Direct,
    /// In packets, which its owner executes when it makes progress.
    Packets {
        /// Why it is not mapped.
        why: String,
    },
}

/// A region of a peer, mapped; the window points into the segment, so it is dropped first.
#[derive(Debug)]
struct Mapped {
    window: SharedWindow<'static>,
    segment: Segment,
    /// The owner could have its pages charged to this process.
    punchable: bool,
}

/// The regions of peers that were used, and how.
#[derive(Debug, Default)]
pub(super) struct Direct {
    known: KnownRegions,
    /// Peers for which a fence was asked for before all was flushed.
    barred: Vec<u32>,
}

impl Direct {
    /// What a fence means for two paths: until all is flushed, everything takes the one on which something is under
    /// way.
    pub(super) fn bar(&mut self, peer: u32) {
        if !self.barred.contains(&peer) {
            self.barred.push(peer);
        }
    }

    /// Returns the number of bytes that peers could have charged to this process: those of mapped regions from
    /// which peers can take pages.
    fn punchable_bytes(&self) -> u64 {
        let mapped = self.known.all_mapped().filter(|mapped| mapped.punchable);
        mapped.map(|mapped| mapped.segment.len() as u64).sum()
    }

    /// Returns how many mappings and refusals are remembered.
    #[cfg(test)]
    pub(super) fn known(&self) -> (usize, usize) {
        self.known.count()
    }

    /// A peer is gone: its regions are unmapped.
    pub(super) fn forget(&mut self, peer: u32) {
        self.known.forget(peer);
    }
}

impl Endpoint {
    /// How operations on a region travel, and why if its owner has to take part.
    pub fn path(&mut self, key: &RemoteKey) -> Path {
        if key.rank() == self.rank() {
            return Path::Own;
        }
        match self.window(key) {
            Ok(_) => Path::Direct,
            Err(why) => Path::Packets { why },
        }
    }

    /// The window of a region that can be used directly now, when what is asked for is in order.
    fn window_for(
        &mut self,
        key: &RemoteKey,
        (offset, len): (u64, usize),
        wanted: Access,
        atomic: Option<(Datatype, Reduction)>,
    ) -> Result<Option<&SharedWindow<'static>>, Error> {
        self.check_origin()?;
        if key.0.share == 0 || key.0.rank == self.engine.rank() {
            return Ok(None);
        }
        let target = Target { key: &key.0, offset };
        if let Err(error) = self.engine.check_remote(&target, len, wanted, atomic) {
            self.make_remote_room(key, error)?;
        }
        if !self.direct.barred.is_empty() && self.is_barred(key.0.rank) {
            return Ok(None);
        }
        Ok(self.window(key).ok())
    }

    #[cold]
    fn is_barred(&mut self, peer: u32) -> bool {
        let engine = &self.engine;
        self.direct.barred.retain(|barred| engine.is_unflushed(*barred));
        self.direct.barred.contains(&peer)
    }

    /// The window of a region, mapped now if it was not; or why there is none.
    #[inline]
    fn window(&mut self, key: &RemoteKey) -> Result<&SharedWindow<'static>, String> {
        self.check_origin().map_err(|error| error.to_string())?;
        if !self.direct.known.mapped(&key.0).is_some_and(|mapped| mapped.window.is_open(key.0.key)) {
            self.find_window(key)?;
        }
        let mapped = self.direct.known.mapped(&key.0);
        mapped.map(|mapped| &mapped.window).ok_or_else(|| "it was unexposed".into())
    }

    #[cold]
    fn find_window(&mut self, key: &RemoteKey) -> Result<(), String> {
        if key.rank() >= self.size() {
            return Err("there is no such rank".into());
        }
        if let Some(why) = self.direct.known.refused(&key.0) {
            return Err(why.clone());
        }
        // Unexposed: its memory is nobody's, and its owner refuses what comes in packets.
        if self.direct.known.unmap(&key.0) {
            return Err("it was unexposed".into());
        }
        let is_open = |mapped: &Mapped| mapped.window.is_open(key.0.key);
        let mapped = match self.map(key) {
            Ok(mapped) if !is_open(&mapped) => Err("it was unexposed, or the key is not its key".into()),
            mapped => mapped,
        };
        let refused = mapped.as_ref().err().cloned();
        self.direct.known.remember(&key.0, mapped);
        refused.map_or(Ok(()), Err)
    }

    fn map(&self, key: &RemoteKey) -> Result<Mapped, String> {
        let Some(descriptor) = key.0.share.checked_sub(1) else {
            return Err("its owner has not allocated it with nemesia".into());
        };
        let pid = self.waiter.pid(key.rank()).ok_or("its owner's process can't be named from here")?;
        let writable = key.0.access != Access::Read;
        let access = if writable { os::Access::ReadWrite } else { os::Access::ReadOnly };
        let len = usize::try_from(key.0.len).ok().filter(|len| *len <= isize::MAX as usize / 2);
        let len = len.ok_or("it is longer than memory can be")?;
        let allow_unsealed = writable && self.config.segments.backing == SegmentBacking::DevShm;
        let lengths = SHARED_BYTES + len..=SHARED_BYTES + len + ROUNDING;
        let limits = AttachLimits { lengths, allow_unsealed, keeps_pages: !writable };
        let fd = open_foreign(pid, descriptor).map_err(|error| error.to_string())?;
        let segment = Segment::attach(fd, access, limits).map_err(|error| error.to_string())?;
        if writable {
            os::limits::require_to_bear(pid, self.direct.punchable_bytes() + segment.len() as u64)?;
        }
        let window = window_of(&segment, len, writable).map_err(|error| error.to_string())?;
        Ok(Mapped { window, segment, punchable: writable })
    }

    /// A put by the direct path. False when it has to take the other.
    #[inline]
    pub(super) fn put_directly(&mut self, key: &RemoteKey, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let non_temporal = bytes.len() as u64 >= self.non_temporal_bytes;
        let window = self.window_for(key, (offset, bytes.len()), Access::Write, None)?;
        let done = window.is_some_and(|window| match non_temporal {
            false => window.put(offset, bytes),
            true => window.put_non_temporal(offset, bytes),
        });
        Ok(done && self.count(key, RmaOperation::Put, bytes.len()))
    }

    /// A get by the direct path. False when it has to take the other.
    #[inline]
    pub(super) fn get_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<bool, Error> {
        let non_temporal = buf.len() as u64 >= self.non_temporal_bytes;
        let window = self.window_for(key, (offset, buf.len()), Access::Read, None)?;
        let done = window.is_some_and(|window| match non_temporal {
            false => window.get(offset, buf),
            true => window.get_non_temporal(offset, buf),
        });
        Ok(done && self.count(key, RmaOperation::Get, buf.len()))
    }

    /// An accumulate by the direct path. False when it has to take the other; then nothing is done.
    pub(super) fn accumulate_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        operands: &[u8],
    ) -> Result<bool, Error> {
        let (len, atomic) = (datatype.bytes(), Some((datatype, reduction)));
        let window = self.window_for(key, (offset, operands.len()), Access::ReadWrite, atomic)?;
        // The owner says why what is not aligned is refused.
        let Some(window) = window.filter(|_| offset.is_multiple_of(len as u64)) else { return Ok(false) };
        for (operand, at) in operands.chunks_exact(len).zip((offset..).step_by(len)) {
            let mut word = [0; 8];
            word[..len].copy_from_slice(operand);
            let operand = u64::from_le_bytes(word);
            window.update(at, len, |old| combine(datatype, reduction, old, operand));
        }
        Ok(self.count(key, RmaOperation::Accumulate, operands.len()))
    }

    /// An atomic operation on one value by the direct path: what it was. `None` when it has to take the other.
    #[inline]
    pub(super) fn change_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        change: impl Fn(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let (len, atomic) = (datatype.bytes(), Some((datatype, reduction)));
        let window = self.window_for(key, (offset, len), Access::ReadWrite, atomic)?;
        let old = window.and_then(|window| window.update(offset, len, change));
        if old.is_some() {
            self.count(key, RmaOperation::Fetch, len);
        }
        Ok(old)
    }

    /// A fetch and accumulate by the direct path: `old` has what the values were. False when it has to take the other;
    /// then nothing is done.
    pub(super) fn exchange_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        operands: &[u8],
        old: &mut [u8],
    ) -> Result<bool, Error> {
        let (len, atomic) = (datatype.bytes(), Some((datatype, reduction)));
        let none = reduction == Reduction::Nothing && operands.is_empty();
        if operands.len() != old.len() && !none {
            return Ok(false);
        }
        let window = self.window_for(key, (offset, old.len()), Access::ReadWrite, atomic)?;
        // The owner says why what is not aligned is refused.
        let Some(window) = window.filter(|_| offset.is_multiple_of(len as u64)) else { return Ok(false) };
        let mut operands = operands.chunks_exact(len);
        for (old, at) in old.chunks_exact_mut(len).zip((offset..).step_by(len)) {
            let mut word = [0; 8];
            word[..len].copy_from_slice(operands.next().unwrap_or(&[0; 8][..len]));
            let operand = u64::from_le_bytes(word);
            let value = window.update(at, len, |old| combine(datatype, reduction, old, operand));
            // The window has them all, and they are aligned.
            old.copy_from_slice(&value.unwrap_or_default().to_le_bytes()[..len]);
        }
        Ok(self.count(key, RmaOperation::FetchAccumulate, old.len()))
    }

    /// Counts an operation that was done here: true.
    #[inline]
    fn count(&mut self, key: &RemoteKey, operation: RmaOperation, bytes: usize) -> bool {
        self.engine.count_direct(key.0.rank, operation, bytes);
        true
    }

    /// As `make_room`, and names the region's owner.
    #[cold]
    pub(super) fn make_remote_room(&mut self, key: &RemoteKey, error: StartError) -> Result<(), Error> {
        self.make_room(error).map_err(|error| match error {
            Error::Refused { refusal, count, .. } => Error::Refused { rank: key.rank(), refusal, count },
            other => other,
        })
    }
}

/// The region in a segment.
pub(super) fn window_of(
    segment: &Segment,
    len: usize,
    writable: bool,
) -> Result<SharedWindow<'static>, nemesia_core::shared::layout::LayoutError> {
    // SAFETY: the segment is mapped until it is dropped, which all callers do after the window.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), SHARED_BYTES + len) }?;
    // SAFETY: as above; mapped for writing if the caller asked for that, and used by copies and atomics only.
    unsafe { SharedWindow::new(&extent, len, writable) }
}
