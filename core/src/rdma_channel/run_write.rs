//! A run of the caller's bytes that is written into a buffer of the peer, in as many work requests as it takes.
#![forbid(unsafe_code)]

use super::link::{PipeLink, PipeWork, posted};
use super::{PipeError, PipeHost};
use crate::port::memory::{CompletionSource, MemoryKey, MemoryPort, PortRegion, Slice, Work};

/// A write that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunWrite {
    pub(super) to: MemoryKey,
    region: PortRegion,
    /// Offset of the run in the region.
    offset: u64,
    pub(super) len: u64,
    /// The number that the work requests of this kind begin with: the bytes of earlier runs.
    base: u64,
    /// Bytes that were posted, and bytes that the port no longer reads.
    posted: u64,
    written: u64,
}

impl RunWrite {
    /// Begins to write `len` bytes at an address, after `base` bytes of earlier runs whose work requests may be in
    /// progress; `None` if the bytes cannot be registered.
    pub(super) fn begin<H: PipeHost>(
        host: &mut H,
        (address, len): (u64, u64),
        to: MemoryKey,
        base: u64,
    ) -> Option<Self> {
        let (region, offset) = host.source(address, len)?;
        Some(Self { to, region, offset, len, base, posted: 0, written: 0 })
    }

    /// Returns whether all is posted.
    pub(super) const fn is_posted(&self) -> bool {
        self.posted == self.len
    }

    /// Posts what has room in the queue. Returns whether all is posted.
    pub(super) fn post<P: MemoryPort>(
        &mut self,
        port: &mut P,
        link: &PipeLink,
        kind: PipeWork,
    ) -> Result<bool, PipeError> {
        while self.posted < self.len {
            let count = (self.len - self.posted).min(link.most_bytes.into());
            let part = [Slice { region: self.region, offset: self.offset + self.posted, len: count as u32 }];
            let work = Work::new(link.connection, kind.id(self.base + self.posted + count));
            let to = self.to.at(self.posted);
            if !posted(port.write(work, CompletionSource::Gather(&part), to, None))? {
                return Ok(false);
            }
            self.posted += count;
        }
        Ok(true)
    }

    /// Takes note that the port no longer reads the bytes before a position, which counts those of earlier runs.
    pub(super) const fn on_written(&mut self, position: u64) {
        let written = position.saturating_sub(self.base);
        self.written = if written < self.len { written } else { self.len };
    }

    /// Returns whether the port no longer reads any byte.
    pub(super) const fn is_written(&self) -> bool {
        self.written == self.len
    }

    /// Ends the use of the run. Returns `false` if it is still in use.
    pub(super) fn release<H: PipeHost>(&self, host: &mut H) -> bool {
        host.release(self.region)
    }
}
