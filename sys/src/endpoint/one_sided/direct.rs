//! The direct path: this process maps regions that a peer has allocated, on first use. Put, get and atomic
//! operations on a mapped region need no progress of the peer.
//!
//! Operations keep their order although there are two paths. If a fence finds operations that are not flushed,
//! all further operations on that peer's regions take packets until they are.
//!
//! A read-only region is mapped if the kernel prevents its owner from taking pages out of it. A get can then
//! not allocate memory. The kernel offers no such protection for a region that peers may write: its owner, or a
//! peer, can take pages out of it. The process that touches these pages next allocates them, charged to its own
//! cgroup, in total at most the mapped bytes. Such a region is therefore mapped in three cases: this process
//! has no memory limit, its owner is under the same limit, or the limit had room for all such regions when it
//! was mapped. Otherwise operations take packets.
//!
//! Memory that is exposed but not allocated takes packets, although the kernel could copy it in one step
//! (`process_vm_writev`, `process_vm_readv`). Its owner may unexpose and reuse the memory at any moment, and
//! such a copy cannot be cancelled. A mapped region that is unexposed remains valid memory for the processes
//! that have mapped it, and nothing else uses that memory. An address in the owner's own memory can be reused
//! at once. After the copy, a get could read the owner's record of the region again and discard the bytes. A
//! put has already written. The owner would have to wait at each `unexpose` until every peer has confirmed that
//! its copy is over. A peer that is stopped, or does not confirm, would block a call that must not wait.

use nemesia_core::engine::StartError;
use nemesia_core::engine::rma::{Access, Datatype, Reduction, Target, combine};
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::wire::rma::RmaOperation;

use crate::endpoint::Endpoint;
use crate::endpoint::RemoteKey;
use crate::error::Error;
use crate::shm::PeerRegion;

/// The path that operations on a region take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// The region belongs to this process.
    Own,
    /// The region is mapped here. Its owner need not make progress.
    Direct,
    /// Operations travel in packets, which the owner executes when it makes progress.
    Packets {
        /// The reason why the region is not mapped.
        why: String,
    },
}

/// The order of operations that take the direct path and those that take packets.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Direct {
    /// The peers for which a fence was requested before all operations were flushed.
    barred: Vec<u32>,
}

impl Direct {
    /// Applies a fence to both paths: until all operations on the peer's regions are flushed, further ones take
    /// packets.
    pub(in crate::endpoint) fn bar(&mut self, peer: u32) {
        if !self.barred.contains(&peer) {
            self.barred.push(peer);
        }
    }
}

/// # Paths to regions
///
/// Operations on an allocated region of a peer on the same machine can go directly through mapped memory.
/// `path` shows whether they do, and why not.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Access, Path};
///
/// let region = endpoint.allocate(8, Access::ReadWrite)?;
/// let key = endpoint.remote_key(region)?;
/// assert_eq!(endpoint.path(&key), Path::Own);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns the path of operations on a region, with the reason if its owner has to take part.
    pub fn path(&mut self, key: &RemoteKey) -> Path {
        if key.rank() == self.rank() {
            return Path::Own;
        }
        match self.window(key) {
            Ok(_) => Path::Direct,
            Err(why) => Path::Packets { why },
        }
    }
}

impl Endpoint {
    /// Returns the window of a region if the operation is valid and the direct path is usable now. Offsets in the
    /// window count from the region's first byte, whatever the addressing.
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

    /// Returns the window of a region, and maps the region if it was not mapped; or the reason why there is
    /// none.
    #[inline]
    fn window(&mut self, key: &RemoteKey) -> Result<&SharedWindow<'static>, String> {
        self.check_origin().map_err(|error| error.to_string())?;
        if key.rank() >= self.numbers() {
            return Err("there is no such rank".into());
        }
        let Self { engine, waiter, .. } = self;
        let regions = &mut engine.port_mut().local_mut().host_mut().regions;
        regions.window(&PeerRegion::of_key(&key.0), || waiter.pid(key.rank()))
    }

    /// Puts by the direct path. Returns false if the put has to take packets.
    #[inline]
    pub(in crate::endpoint) fn put_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, Error> {
        let non_temporal = bytes.len() as u64 >= self.non_temporal_bytes;
        let window = self.window_for(key, (offset, bytes.len()), Access::Write, None)?;
        let offset = offset.wrapping_sub(key.0.base);
        let done = window.is_some_and(|window| match non_temporal {
            false => window.put(offset, bytes),
            true => window.put_non_temporal(offset, bytes),
        });
        Ok(done && self.count(key, RmaOperation::Put, bytes.len()))
    }

    /// Gets by the direct path. Returns false if the get has to take packets.
    #[inline]
    pub(in crate::endpoint) fn get_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<bool, Error> {
        let non_temporal = buf.len() as u64 >= self.non_temporal_bytes;
        let window = self.window_for(key, (offset, buf.len()), Access::Read, None)?;
        let offset = offset.wrapping_sub(key.0.base);
        let done = window.is_some_and(|window| match non_temporal {
            false => window.get(offset, buf),
            true => window.get_non_temporal(offset, buf),
        });
        Ok(done && self.count(key, RmaOperation::Get, buf.len()))
    }

    /// Accumulates by the direct path. Returns false if the operation has to take packets; then nothing was
    /// changed.
    pub(in crate::endpoint) fn accumulate_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        operands: &[u8],
    ) -> Result<bool, Error> {
        let (len, atomic) = (datatype.bytes(), Some((datatype, reduction)));
        let window = self.window_for(key, (offset, operands.len()), Access::ReadWrite, atomic)?;
        let offset = offset.wrapping_sub(key.0.base);
        // The owner refuses operands that are not aligned, with its reason.
        let Some(window) = window.filter(|_| offset.is_multiple_of(len as u64)) else { return Ok(false) };
        for (operand, at) in operands.chunks_exact(len).zip((offset..).step_by(len)) {
            let mut word = [0; 8];
            word[..len].copy_from_slice(operand);
            let operand = u64::from_le_bytes(word);
            window.update(at, len, |old| combine(datatype, reduction, old, operand));
        }
        Ok(self.count(key, RmaOperation::Accumulate, operands.len()))
    }

    /// Executes an atomic operation on one value by the direct path, and returns the previous value. `None` if
    /// the operation has to take packets.
    #[inline]
    pub(in crate::endpoint) fn change_directly(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        change: impl Fn(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let (len, atomic) = (datatype.bytes(), Some((datatype, reduction)));
        let window = self.window_for(key, (offset, len), Access::ReadWrite, atomic)?;
        let offset = offset.wrapping_sub(key.0.base);
        let old = window.and_then(|window| window.update(offset, len, change));
        if old.is_some() {
            self.count(key, RmaOperation::Fetch, len);
        }
        Ok(old)
    }

    /// Fetches and accumulates by the direct path; `old` receives the previous values. Returns false if the
    /// operation has to take packets; then nothing was changed.
    pub(in crate::endpoint) fn exchange_directly(
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
        let offset = offset.wrapping_sub(key.0.base);
        // The owner refuses operands that are not aligned, with its reason.
        let Some(window) = window.filter(|_| offset.is_multiple_of(len as u64)) else { return Ok(false) };
        let mut operands = operands.chunks_exact(len);
        for (old, at) in old.chunks_exact_mut(len).zip((offset..).step_by(len)) {
            let mut word = [0; 8];
            word[..len].copy_from_slice(operands.next().unwrap_or(&[0; 8][..len]));
            let operand = u64::from_le_bytes(word);
            let value = window.update(at, len, |old| combine(datatype, reduction, old, operand));
            // The window contains all values, and they are aligned.
            old.copy_from_slice(&value.unwrap_or_default().to_le_bytes()[..len]);
        }
        Ok(self.count(key, RmaOperation::FetchAccumulate, old.len()))
    }

    /// Counts an operation that was executed here. Returns true.
    #[inline]
    fn count(&mut self, key: &RemoteKey, operation: RmaOperation, bytes: usize) -> bool {
        self.engine.count_direct(key.0.rank, operation, bytes);
        true
    }

    /// Makes room as `make_room` does. An error names the region's owner.
    #[cold]
    pub(in crate::endpoint) fn make_remote_room(
        &mut self,
        key: &RemoteKey,
        error: StartError,
    ) -> Result<(), Error> {
        self.make_room(error).map_err(|error| match error {
            Error::Refused { refusal, count, .. } => Error::Refused { rank: key.rank(), refusal, count },
            other => other,
        })
    }
}
