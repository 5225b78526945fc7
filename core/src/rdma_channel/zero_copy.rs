//! The zero-copy design (paper 1, section 5): short runs go through the ring as in the pipelined design. For a long run
//! the sender exposes the caller's buffer and puts its key into the pipe; the receiver reads from the buffer into the
//! other caller's buffer, and acknowledges.
//!
//! The sender exposes one buffer at a time, because what follows in the pipe may not overtake. The acknowledgement is a
//! pointer ([`Pointer::Acks`]) and needs no chunk, so a ring that is full of unread data cannot hold it back.
//!
//! The receiver reads into the caller's buffer only if the run there is long too. Otherwise it reads into a bounce
//! buffer and copies: the address of a short buffer may change between two calls.
//!
//! [`Design::ZeroCopyPush`] adds that the sender writes into the other caller's buffer if a get has advertised it
//! ([`super::push`]). [`Design::Learned`] adds that the sender chooses ([`super::learned`]).
#![forbid(unsafe_code)]

use super::chunk::ChunkKind;
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::learned::{AdvertisingPause, LearnedWays, RunWay};
use super::link::{PipeLink, PipeWork, posted};
use super::pipelined::Pipelined;
use super::pointer::Pointer;
use super::pointers::Pointers;
use super::push::{PushReceiver, PushSender};
use super::shape::{Design, RING_AT};
use super::{PipeError, PipeHost, RunCounts, checked};
use crate::payload::{Gather, Scatter};
use crate::port::memory::{KEY_BYTES, MemoryKey, MemoryPort, PortRegion, Slice, Work};

/// Both directions of a pipe of a zero-copy design, at one end.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    pub(super) pipe: Pipelined,
    /// The caller's buffer that is exposed: its region, and the number of bytes.
    exposed: Option<(PortRegion, usize)>,
    /// Buffers that were exposed, and those that were acknowledged.
    exposures: u64,
    acked: u64,
    /// The peer's buffer from which this end reads.
    source: Option<ReadSource>,
    /// Buffers that were read.
    read: u64,
    /// Bytes of a long run that are still to be copied, and runs that were copied.
    copying: usize,
    copied: u64,
    learned: LearnedWays,
    pause: AdvertisingPause,
    /// Positions in the streams: bytes that were staged, exposed or pushed, and bytes that were got.
    committed: u64,
    got: u64,
    pub(super) push: PushSender,
    advertised: PushReceiver,
}

/// A buffer of the peer.
#[derive(Debug)]
struct ReadSource {
    key: MemoryKey,
    /// Bytes whose read was posted.
    posted: u64,
    read: Option<PostedRead>,
}

/// A read that was posted.
#[derive(Debug)]
struct PostedRead {
    len: u32,
    /// Whether it is complete: `None` until its completion, which reports success or failure.
    done: Option<bool>,
    /// The caller's region into which it goes; `None` for the bounce buffer.
    region: Option<PortRegion>,
    /// Bytes that were copied out of the bounce buffer.
    copied: u32,
}

impl ZeroCopy {
    /// Puts the list's bytes from its beginning. Returns how many.
    pub(super) fn put<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        from: &mut Gather,
    ) -> Result<usize, PipeError> {
        let mut done = 0;
        if let Some((region, len)) = self.exposed {
            let acked = pointers.theirs(link, Pointer::Acks);
            self.acked = checked("acknowledged buffers", acked, (self.acked, self.exposures))?;
            #[cfg(nemesia_injected_fault)]
            if injected(PipeFault::CountEarly) {
                self.acked = self.exposures;
            }
            if self.acked < self.exposures || !host.release(region) {
                self.post(host, link, pointers)?;
                return Ok(0);
            }
            self.exposed = None;
            done = counted(from, len)?;
        }
        if self.push.is_writing() {
            let Some(len) = self.go_on(host, (link, pointers))? else { return Ok(0) };
            done = counted(from, len as usize)?;
        }
        loop {
            let (short, long) = divide(from, done, link.shape.zero_copy_from as usize);
            let part = short.max(self.copying.min(from.buf().len() - done));
            let count = self.pipe.put(host.port(), (link, pointers), from, (done, part))?;
            (done, self.committed) = (done + count, self.committed + count as u64);
            self.copying = self.copying.saturating_sub(count);
            if count < part {
                return Ok(done);
            }
            if part > short {
                // What follows may be another long run.
                continue;
            }
            let Some(run) = long else { return Ok(done) };
            if self.pipe.sender.room(link, pointers, 1)? == 0 {
                return Ok(done);
            }
            match self.begin_run(host, (link, pointers), run)? {
                Some(len) => done += len as usize,
                None => return Ok(done),
            }
        }
    }

    /// Begins to put a long run, for which there is room for a chunk. Returns how many of its bytes are done: the
    /// caller goes on after them. `None` if a later call must go on with the run.
    fn begin_run<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        (address, len): (u64, usize),
    ) -> Result<Option<u64>, PipeError> {
        let design = link.shape.design;
        let way = match design {
            Design::Learned => {
                let ring = link.shape.ring_bytes.into();
                self.learned.begin(len as u64, self.got, ring, host.ticks())
            }
            _ => RunWay::Written,
        };
        if design.advertises() {
            self.learn(link, pointers)?;
        }
        if way == RunWay::Written
            && design.advertises()
            && let Some(len) = self.push.begin(host, self.committed, (address, len))
        {
            self.committed += len;
            // A port that places at once may be done.
            return self.go_on(host, (link, pointers));
        }
        if way != RunWay::Copied
            && let Some((region, key)) = host.expose(address, len as u64)
        {
            self.exposed = Some((region, len));
            (self.exposures, self.committed) = (self.exposures + 1, self.committed + len as u64);
            let tail = self.pipe.receiver.carry_tail();
            self.pipe.sender.stage_bytes(link, tail, (ChunkKind::Exposed, &key.to_bytes()))?;
            self.post(host, link, pointers)?;
            return Ok(None);
        }
        // Or the buffer cannot be registered.
        (self.copying, self.copied) = (len, self.copied + 1);
        Ok(Some(0))
    }

    /// Takes the advertisements that nothing unread precedes.
    fn learn(&mut self, link: &PipeLink, pointers: &mut Pointers) -> Result<(), PipeError> {
        self.pipe.sender.on_tail(self.pipe.receiver.look(link, pointers)?)?;
        while let Some(chunk) = self.pipe.receiver.open(link, false)?
            && chunk.kind == ChunkKind::Advertised
        {
            self.push.learn(link, chunk, self.committed)?;
            self.pipe.receiver.release();
            self.pipe.receiver.publish_tail(link, pointers);
        }
        Ok(())
    }

    /// Goes on with the run that is pushed. Returns its length once it belongs to the caller again.
    fn go_on<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
    ) -> Result<Option<u64>, PipeError> {
        let len = self.push.go_on(host, (link, pointers), &mut self.pipe)?;
        self.post(host, link, pointers)?;
        Ok(len)
    }

    fn post<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        pointers: &mut Pointers,
    ) -> Result<(), PipeError> {
        if self.pipe.sender.is_posted() && pointers.is_clean() {
            return Ok(());
        }
        self.pipe.sender.post(host.port(), link, pointers)
    }

    /// Returns whether a get has something to do: a chunk is there, or bytes of the peer's buffer are being read.
    pub(super) fn has_bytes(&mut self, link: &PipeLink, pointers: &mut Pointers) -> bool {
        self.source.is_some() || self.pipe.receiver.has_chunk(link, pointers)
    }

    /// Gets bytes into the list, from its beginning. Returns how many.
    pub(super) fn get<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        into: &mut Scatter,
    ) -> Result<usize, PipeError> {
        let mut done = 0;
        loop {
            let tail = self.pipe.receiver.look(link, pointers)?;
            self.pipe.sender.on_tail(tail)?;
            if self.source.is_some() {
                let (count, is_over) = self.read(host, link, into, done)?;
                (done, self.got) = (done + count, self.got + count as u64);
                if !is_over {
                    break;
                }
                (self.source, self.read) = (None, self.read + 1);
                pointers.publish(Pointer::Acks, self.read);
                continue;
            }
            match self.pipe.receiver.open(link, false)? {
                Some(chunk) if chunk.kind == ChunkKind::Advertised => {
                    self.push.learn(link, chunk, self.committed)?;
                    self.pipe.receiver.release();
                }
                Some(chunk) if chunk.kind == ChunkKind::Pushed => {
                    if done == into.len() {
                        break;
                    }
                    let run = first_run(into, done);
                    let Some((count, is_over)) = self.advertised.take(host, link, chunk, run)? else { break };
                    (done, self.got) = (done + count, self.got + count as u64);
                    if is_over {
                        self.pause.on_used();
                        self.pipe.receiver.release();
                    }
                }
                // The put came before the get.
                Some(_) if self.advertised.has_lent() => {
                    if self.advertised.withdraw(host).is_none() {
                        break;
                    }
                    self.pause.on_withdrawn();
                }
                Some(chunk) if chunk.kind == ChunkKind::Exposed => {
                    self.source = Some(ReadSource::new(link, (chunk.payload, chunk.len))?);
                    self.pipe.receiver.release();
                }
                Some(_) if done < into.len() => {
                    let count = self.pipe.receiver.copy(link, into, done);
                    (done, self.got) = (done + count, self.got + count as u64);
                }
                _ => break,
            }
            self.pipe.receiver.publish_tail(link, pointers);
        }
        if link.shape.design.advertises() {
            self.advertise(host, (link, pointers), into, done)?;
        }
        self.pipe.receiver.publish_tail(link, pointers);
        self.post(host, link, pointers)?;
        Ok(done)
    }

    /// Advertises the run with which a list continues, if the run is long and nothing has arrived for it.
    fn advertise<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        into: &mut Scatter,
        done: usize,
    ) -> Result<(), PipeError> {
        let is_due = done < into.len() && self.source.is_none() && self.advertised.may_advertise(self.got);
        if !is_due || !pointers.may_speak() || self.pipe.receiver.open(link, false)?.is_some() {
            return Ok(());
        }
        let (address, len) = first_run(into, done);
        if (len as u64) < link.shape.zero_copy_from.into() || self.pipe.sender.room(link, pointers, 1)? == 0 {
            return Ok(());
        }
        if link.shape.design == Design::Learned && self.pause.passes(self.got, len as u64) {
            return Ok(());
        }
        self.advertised.advertise(host, link, &mut self.pipe, (self.got, address, len))
    }

    /// Returns how long runs have moved.
    pub(super) const fn run_counts(&self) -> RunCounts {
        let (pushed, (advertised, withdrawn)) = (self.push.count(), self.advertised.counts());
        RunCounts { copied: self.copied, exposed: self.exposures, pushed, advertised, withdrawn }
    }

    /// Reads from the peer's buffer into the list from `at` on. Returns the number of bytes, and whether the buffer was
    /// read to its end.
    fn read<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        into: &mut Scatter,
        at: usize,
    ) -> Result<(usize, bool), PipeError> {
        let Some(source) = &mut self.source else { return Ok((0, true)) };
        let mut count = 0;
        if source.read.is_some() {
            let (more, is_over) = source.take(host, link, into, at)?;
            count = more;
            if !is_over {
                return Ok((count, false));
            }
            source.read = None;
        }
        if source.posted == source.key.len {
            return Ok((count, true));
        }
        if at + count < into.len() && source.post(host, link, into, at + count)? {
            #[cfg(nemesia_injected_fault)]
            if injected(PipeFault::AckUnread) && source.posted == source.key.len {
                let len = source.read.take().map_or(0, |read| read.len as usize);
                return Ok((count + len.min(into.len() - at - count), true));
            }
            #[cfg(nemesia_injected_fault)]
            if injected(PipeFault::SkipRest) {
                source.posted = source.key.len;
            }
        }
        // A later call finds the read complete.
        Ok((count, false))
    }

    /// Takes note that the read is complete.
    pub(super) const fn on_read(&mut self, well: bool) {
        if let Some(ReadSource { read: Some(read), .. }) = &mut self.source {
            read.done = Some(well);
        }
    }

    /// Counts the exposed buffer after the connection was lost, if the peer acknowledged the buffer before. `None` if
    /// it did not, or if the buffer is still in use.
    pub(super) fn acknowledged<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        from: &Gather,
    ) -> Option<usize> {
        let (region, len) = self.exposed?;
        let is_read = pointers.theirs(link, Pointer::Acks) == self.exposures && from.buf().len() >= len;
        if !is_read || !host.release(region) {
            return None;
        }
        (self.exposed, self.acked) = (None, self.exposures);
        Some(len)
    }

    /// Ends the exposure after the connection was lost. `None` if the buffer is still in use.
    pub(super) fn abandon_put<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        if self.exposed.is_some_and(|(region, _)| !host.release(region)) {
            return None;
        }
        self.exposed = None;
        self.push.abandon(host)
    }

    /// Ends the read after the connection was lost. `None` if the buffer is still in use.
    pub(super) fn abandon_get<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        if let Some(ReadSource { read: Some(read), .. }) = &mut self.source {
            read.done?;
            if read.region.is_some_and(|region| !host.release(region)) {
                return None;
            }
        }
        self.source = None;
        self.advertised.withdraw(host)
    }
}

impl ReadSource {
    /// Takes the key out of a chunk.
    fn new(link: &PipeLink, (payload, len): (u64, u32)) -> Result<Self, PipeError> {
        let mut bytes = [0; KEY_BYTES];
        if len as usize != KEY_BYTES {
            let (found, limit) = (len.into(), KEY_BYTES as u64);
            return Err(PipeError::Violated { what: "length of a key", found, limit });
        }
        if !link.inbox.view.read(RING_AT + payload, &mut bytes) {
            return Err(PipeError::Memory);
        }
        let key = MemoryKey::from_bytes(&bytes);
        if key.len == 0 || key.address.checked_add(key.len).is_none() {
            let (found, limit) = (key.len, u64::MAX - key.address);
            return Err(PipeError::Violated { what: "length of an exposed buffer", found, limit });
        }
        Ok(Self { key, posted: 0, read: None })
    }

    /// Posts a read for the list from `at` on. Returns `false` if the queue is full.
    fn post<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        into: &mut Scatter,
        at: usize,
    ) -> Result<bool, PipeError> {
        let most = (self.key.len - self.posted).min(link.most_bytes.into());
        let (address, run) = first_run(into, at);
        let len = most.min(run as u64) as u32;
        let threshold = link.shape.zero_copy_from;
        let long = run as u64 >= u64::from(threshold) && len >= threshold.min(link.most_bytes);
        let lent = if long { host.lend(address, len) } else { None };
        let (slice, region) = match lent {
            Some(slice) => (slice, Some(slice.region)),
            None => {
                let len = most.min(link.shape.bounce_bytes()) as u32;
                let region = link.inbox.region;
                (Slice { region, offset: link.shape.bounce_at(), len }, None)
            }
        };
        let work = Work::new(link.connection, PipeWork::Read.id(0));
        if !posted(host.port().read(work, &[slice], self.key.at(self.posted)))? {
            if let Some(region) = region {
                // Nothing uses the region; a host that cannot release it now does so later.
                let _ = host.release(region);
            }
            return Ok(false);
        }
        self.posted += u64::from(slice.len);
        self.read = Some(PostedRead { len: slice.len, done: None, region, copied: 0 });
        Ok(true)
    }

    /// Takes what the read has brought into the list from `at` on. Returns the number of bytes, and whether the read is
    /// over.
    fn take<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        into: &mut Scatter,
        at: usize,
    ) -> Result<(usize, bool), PipeError> {
        let Some(read) = self.read.as_mut().filter(|read| read.done == Some(true)) else {
            return Ok((0, false));
        };
        let room = into.len() - at;
        if let Some(region) = read.region {
            if room < read.len as usize {
                return Err(PipeError::List { found: room, needed: read.len as usize });
            }
            return Ok(if host.release(region) { (read.len as usize, true) } else { (0, false) });
        }
        let len = room.min((read.len - read.copied) as usize);
        let from = u64::from(link.shape.ring_bytes) + u64::from(read.copied);
        link.unstage(from, into, (at, len));
        read.copied += len as u32;
        Ok((len, read.copied == read.len))
    }
}

/// Returns `len` if the list has so many bytes.
fn counted(from: &Gather, len: usize) -> Result<usize, PipeError> {
    let found = from.buf().len();
    if found < len { Err(PipeError::List { found, needed: len }) } else { Ok(len) }
}

/// Returns the number of bytes from `at` on before the next long run, and the run.
fn divide(from: &mut Gather, at: usize, long: usize) -> (usize, Option<(u64, usize)>) {
    let rest = from.buf().len() - at;
    let (mut short, mut found) = (rest, None);
    from.each(at, rest, |done, part| {
        if found.is_none() && part.len() >= long {
            (short, found) = (done, Some((part.as_ptr().addr() as u64, part.len())));
        }
    });
    (short, found)
}

/// Returns address and length of the contiguous run of a list that begins at `at`.
fn first_run(into: &mut Scatter, at: usize) -> (u64, usize) {
    let (len, mut found) = (into.len() - at, (0, 0));
    into.each(at, len, |done, part| {
        if done == 0 {
            found = (part.as_ptr().addr() as u64, part.len());
        }
    });
    found
}
