//! A connection in shared memory: the records of both directions, and the regions that the other process lent.
//!
//! Each process writes only its own half: a fastbox with its records, and the position up to which it has read those of
//! the other one. The halves are sealed against writing by other processes. Regions arrive over the connection of the
//! meeting, with their descriptors, before the first record that uses them.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::Extent;
use nemesia_core::sync::Word64;
use nemesia_core::via::memory::{ViaRegion, index_of};
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::{ViaMemAttributes, ViaSegment};
use nemesia_core::wire::{Envelope, Kind, SEQUENCE_MASK};

use super::bell::Bell;
use super::region::RegionMemory;
use crate::os::{
    Access, ForeignFd, HandoffConnection, RemoteMemory, Segment, SegmentOptions, ShmError, Watch,
};

/// Slots of a fastbox: the longest record is a receive descriptor with 252 segments.
const SLOTS: usize = 1024;
const SLOTS_AT: usize = 4096;
const LINK_BYTES: usize = SLOTS_AT + SLOTS * size_of::<FastboxSlot>();
/// Regions that one process may lend to a VI.
const MOST_IMPORTS: usize = 1 << 14;
/// Packets that are read in one call.
const MOST_PACKETS: usize = 256;
/// Bytes of the packet that lends a region: letter, handle, base, length, rights, shadow.
const REGION_BYTES: usize = 32;
const REGION_LETTER: u8 = b'R';

/// This process's half of a link.
#[derive(Debug)]
pub(super) struct LinkHalf {
    segment: Segment,
}

impl LinkHalf {
    pub(super) fn create() -> Result<Self, ShmError> {
        Ok(Self { segment: Segment::create_sealed("via-link", LINK_BYTES, &SegmentOptions::default())? })
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(super) fn close_descriptor(&mut self) {
        self.segment.close_descriptor();
    }
}

/// Returns the slots and the position in a half.
///
/// # Safety
/// The segment stays mapped for as long as the result is used.
unsafe fn parts(segment: &Segment) -> Option<(&'static [FastboxSlot], &'static Word64)> {
    // SAFETY: the caller's promise.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), LINK_BYTES) }.ok()?;
    let position = extent.resolve::<Word64>(0, 1).ok()?;
    let slots = extent.resolve::<FastboxSlot>(SLOTS_AT, SLOTS).ok()?;
    // SAFETY: resolved, so mapped and aligned; atomic words, which any bytes are, for as long as the caller promised.
    let slots = unsafe { std::slice::from_raw_parts(slots.as_ptr(), SLOTS) };
    // SAFETY: as above.
    Some((slots, unsafe { position.as_ref() }))
}

/// A region of the other process.
#[derive(Debug)]
pub(super) struct Import {
    handle: u32,
    region: ViaRegion,
    pub(super) is_shadow: bool,
    /// Whether the user memory behind a shadow may be read through the kernel.
    pub(super) is_readable: bool,
    pub(super) segment: Segment,
}

impl Import {
    /// Returns the offset of a range; `None` if it does not lie in the region.
    pub(super) fn offset(&self, segment: ViaSegment) -> Option<usize> {
        self.region.offset(segment.address, segment.length.into()).map(|offset| offset as usize)
    }

    pub(super) const fn rights(&self) -> RegionRights {
        RegionRights { write: self.region.attributes.rdma_write, read: self.region.attributes.rdma_read }
    }
}

/// A record that was read, in private memory.
pub(super) struct ReadRecord {
    pub(super) code: u16,
    pub(super) word: u64,
    pub(super) len: usize,
}

/// The connection to the VI of another process.
#[derive(Debug)]
pub(super) struct Link {
    // The ends point into the segments below, which are therefore dropped later.
    sender: FastboxSender<'static>,
    receiver: FastboxReceiver<'static>,
    _own: Segment,
    _theirs: Segment,
    bell: Bell,
    pub(super) connection: HandoffConnection,
    /// Shows the end of the other process, of whose socket a child may hold a copy.
    pidfd: Option<OwnedFd>,
    pub(super) memory: Option<RemoteMemory>,
    imports: Vec<Option<Import>>,
    /// Own regions that the other process has, with the rights that it knows.
    lent: HashMap<u32, RegionRights>,
    /// The region that was asked for last and is lent; 0 if there is none.
    last_lent: u32,
    /// Changes of lent regions that could not be sent yet.
    changes: Vec<(u32, Option<RegionRights>)>,
    sent: u64,
    /// Whether the other process must be woken: its waiting threads, its service thread.
    wakes: (bool, bool),
    /// Whether the other process waits for an answer of this one.
    pub(super) peer_waits: bool,
    /// Whether a thread of the program has read a wake-up that was meant for the service thread.
    pub(super) has_taken_wake: bool,
    /// A region that could not be mapped for a shortage of this process.
    unmapped: Option<([u8; REGION_BYTES], ForeignFd)>,
    /// Whether a shortage of this process keeps packets from being read.
    pub(super) is_short: bool,
    /// Whether the connection is over.
    pub(super) is_cut: bool,
}

impl Link {
    pub(super) fn new(
        half: LinkHalf,
        theirs: ForeignFd,
        bell: Bell,
        connection: HandoffConnection,
        memory: Option<RemoteMemory>,
    ) -> Result<Self, ShmError> {
        let lengths = LINK_BYTES..=LINK_BYTES + (1 << 17);
        let theirs = Segment::attach(theirs, Access::ReadOnly, lengths)?;
        let own = half.segment;
        let broken = || ShmError::Length { len: theirs.len() as u64, why: "not a half of a link".into() };
        // SAFETY: the ends are dropped before the segments, which are fields of the same structure.
        let (own_slots, own_position) = unsafe { parts(&own) }.ok_or_else(broken)?;
        // SAFETY: as above.
        let (their_slots, their_position) = unsafe { parts(&theirs) }.ok_or_else(broken)?;
        Ok(Self {
            sender: FastboxSender::new(own_slots, their_position),
            receiver: FastboxReceiver::new(their_slots, own_position),
            _own: own,
            _theirs: theirs,
            bell,
            pidfd: connection.pidfd(),
            connection,
            memory,
            imports: Vec::new(),
            lent: HashMap::new(),
            last_lent: 0,
            changes: Vec::new(),
            sent: 0,
            wakes: (false, false),
            peer_waits: false,
            has_taken_wake: false,
            unmapped: None,
            is_short: false,
            is_cut: false,
        })
    }

    /// Sends a record. Returns whether there was room.
    #[inline(always)]
    pub(super) fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        let encoded = record.encode();
        let bytes = encoded.bytes();
        let envelope = Envelope {
            kind: Kind::Eager,
            context: encoded.code,
            tag: encoded.word,
            total: bytes.len() as u64,
        };
        match self.sender.push_or_sleep(self.sent & SEQUENCE_MASK, &envelope, bytes) {
            Ok(true) => {
                self.sent += 1;
                self.wakes.0 = true;
                self.wakes.1 |= needs_service(record, self.peer_waits);
                if let ViaRecord::Mirror { .. } | ViaRecord::Empty { .. } = record {
                    self.peer_waits = false;
                }
                true
            }
            Ok(false) => false,
            Err(_) => {
                self.is_cut = true;
                false
            }
        }
    }

    /// Returns whether [`Link::wake`] is due.
    pub(super) fn must_wake(&self) -> bool {
        self.wakes.0 || self.wakes.1
    }

    /// Wakes the other process if that is needed after what was sent.
    #[inline(always)]
    pub(super) fn wake(&mut self) {
        let (waiters, service) = std::mem::take(&mut self.wakes);
        if waiters {
            self.bell.wake_waiters();
        }
        if service && self.bell.must_wake_service() {
            // If its queue is full, unread packets wake it anyway.
            let _ = self.connection.send_wake();
        }
    }

    /// Returns whether a record of the other process is there.
    pub(super) fn has_next(&self) -> bool {
        self.receiver.has_next()
    }

    /// Takes the next record if it is a message without bytes: its code and its word. `None` in all other cases.
    #[inline(always)]
    pub(super) fn next_message(&mut self) -> Option<(u16, u64)> {
        let packet = self.receiver.peek().ok()??;
        let is_plain = packet.len == 0 && packet.cell.is_none() && packet.envelope.kind == Kind::Eager;
        if !is_plain || !ViaRecord::is_message(packet.envelope.context) {
            return None;
        }
        if self.receiver.advance(0) {
            self.wake_if_full();
        }
        Some((packet.envelope.context, packet.envelope.tag))
    }

    /// After half of the ring was released: wakes the other process, if it may wait for that.
    #[cold]
    fn wake_if_full(&mut self) {
        if self.receiver.must_wake_sender() {
            self.wakes = (true, true);
        }
    }

    /// Copies the next record to private memory and removes it.
    ///
    /// # Errors
    /// The other process violated the protocol.
    pub(super) fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<ReadRecord>, ()> {
        let Some(packet) = self.receiver.peek().map_err(|_| ())? else { return Ok(None) };
        if packet.cell.is_some() || packet.envelope.kind != Kind::Eager {
            return Err(());
        }
        if bytes.len() < packet.len {
            bytes.resize(packet.len, 0);
        }
        self.receiver.read(packet.len, 0, &mut bytes[..packet.len]);
        if self.receiver.advance(packet.len) {
            self.wake_if_full();
        }
        Ok(Some(ReadRecord { code: packet.envelope.context, word: packet.envelope.tag, len: packet.len }))
    }

    /// Reads the packets that are there: regions, and wake-ups. Returns whether a wake-up was among them, which is
    /// meant for the service thread.
    pub(super) fn read_packets(&mut self) -> bool {
        let mut is_woken = false;
        for _ in 0..MOST_PACKETS {
            match self.read_packet() {
                Ok(is_wake) => is_woken |= is_wake,
                Err(ShmError::TimedOut { .. }) => {
                    self.is_short = false;
                    break;
                }
                Err(error) => {
                    self.is_short = error.is_shortage();
                    self.is_cut |= !self.is_short;
                    break;
                }
            }
        }
        is_woken
    }

    /// Reads a packet. After a shortage of this process the next call reads it again.
    fn read_packet(&mut self) -> Result<bool, ShmError> {
        if let Some((packet, fd)) = self.unmapped.take() {
            return self.import(packet, fd).map(|()| false);
        }
        let mut packet = [0; REGION_BYTES];
        let (len, fds) = self.connection.recv(&mut packet, 1, Instant::now())?;
        if HandoffConnection::is_wake(&packet[..len]) && fds.is_empty() {
            return Ok(true);
        }
        match <[_; 1]>::try_from(fds) {
            Ok([fd]) if len == REGION_BYTES => self.import(packet, fd).map(|()| false),
            _ => Err(not_a_region()),
        }
    }

    /// Returns a descriptor that becomes readable when the other process ends, if the kernel has one.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    /// Ends the connection if the other process has ended.
    pub(super) fn look(&mut self) {
        self.is_cut |= self.pidfd().is_some_and(Watch::has_ended);
    }

    /// Maps a region that the other process lends. What a shortage of this process prevents is kept for later.
    fn import(&mut self, packet: [u8; REGION_BYTES], fd: ForeignFd) -> Result<(), ShmError> {
        let (handle, region, (is_shadow, is_readable)) = decode_region(&packet).ok_or_else(not_a_region)?;
        let least = usize::try_from(region.len).map_err(|_| not_a_region())?;
        let most = least.checked_add(1 << 31).ok_or_else(not_a_region)?;
        let index = index_of(handle);
        if index >= MOST_IMPORTS {
            return Err(not_a_region());
        }
        let copy = fd.try_clone().map_err(|errno| ShmError::system("copying a region's descriptor", errno));
        let attached = copy.and_then(|copy| Segment::attach(copy, Access::ReadWrite, least..=most));
        if attached.as_ref().is_err_and(ShmError::is_shortage) {
            self.unmapped = Some((packet, fd));
        }
        let segment = attached?;
        if index >= self.imports.len() {
            self.imports.resize_with(index + 1, || None);
        }
        self.imports[index] = Some(Import { handle, region, is_shadow, is_readable, segment });
        Ok(())
    }

    /// Returns a region of the other process. Reads the packets if it is not known yet.
    #[inline(always)]
    pub(super) fn import_of(&mut self, handle: u32) -> Option<&Import> {
        if self.known(handle).is_none() {
            self.has_taken_wake |= self.read_packets();
        }
        self.known(handle)
    }

    #[inline(always)]
    fn known(&self, handle: u32) -> Option<&Import> {
        self.imports.get(index_of(handle))?.as_ref().filter(|import| import.handle == handle)
    }

    /// Changes the rights of a region of the other process, or removes it.
    pub(super) fn change_import(&mut self, handle: u32, rights: Option<RegionRights>) {
        let Some(place) = self.imports.get_mut(index_of(handle)) else { return };
        let Some(import) = place.as_mut().filter(|import| import.handle == handle) else { return };
        match rights {
            Some(rights) => {
                import.region.attributes.rdma_write = rights.write;
                import.region.attributes.rdma_read = rights.read;
            }
            None => *place = None,
        }
    }

    /// Returns whether the other process has this region.
    pub(super) fn has_lent(&mut self, handle: u32) -> bool {
        if self.last_lent != handle && self.lent.contains_key(&handle) {
            self.last_lent = handle;
        }
        self.last_lent == handle
    }

    /// Lends a region to the other process. False if its queue is full.
    pub(super) fn lend(
        &mut self,
        handle: u32,
        region: &ViaRegion,
        memory: &RegionMemory,
        rights: RegionRights,
    ) -> bool {
        let bytes = encode_region(handle, region, rights, (memory.is_shadow(), memory.is_readable));
        let Some(fd) = memory.segment().fd() else { return false };
        match self.connection.send(&bytes, &[fd], Instant::now()) {
            Ok(()) => {
                self.lent.insert(handle, rights);
                true
            }
            Err(ShmError::TimedOut { .. }) => false,
            Err(_) => {
                self.is_cut = true;
                false
            }
        }
    }

    /// Informs the other process of changed rights of a region that it has, or that the region is gone.
    pub(super) fn change_lent(&mut self, handle: u32, rights: Option<RegionRights>) {
        let Some(known) = self.lent.get_mut(&handle) else { return };
        match rights {
            Some(rights) if *known == rights => return,
            Some(rights) => *known = rights,
            None => {
                self.lent.remove(&handle);
                self.last_lent = 0;
            }
        }
        self.changes.push((handle, rights));
        self.send_changes();
    }

    /// Sends the changes that could not be sent before.
    pub(super) fn send_changes(&mut self) {
        while let Some((handle, rights)) = self.changes.first().copied() {
            let record = match rights {
                Some(rights) => ViaRecord::RegionRights { handle, rights },
                None => ViaRecord::RegionGone { handle },
            };
            if !self.push(&record) {
                return;
            }
            self.changes.remove(0);
        }
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }
}

fn not_a_region() -> ShmError {
    ShmError::Untrustworthy("the packet describes no region".into())
}

/// Returns whether the other library must act on a record while its program does something else.
fn needs_service(record: &ViaRecord<'_>, peer_waits: bool) -> bool {
    match record {
        ViaRecord::Message { wants_ack, .. } => *wants_ack,
        ViaRecord::Mirror { .. } => peer_waits,
        ViaRecord::RegionRights { .. } => false,
        _ => true,
    }
}

fn encode_region(
    handle: u32,
    region: &ViaRegion,
    rights: RegionRights,
    (is_shadow, is_readable): (bool, bool),
) -> [u8; REGION_BYTES] {
    let mut bytes = [0; REGION_BYTES];
    bytes[0] = REGION_LETTER;
    (bytes[1], bytes[2]) = (rights.bits() as u8, u8::from(is_shadow) | u8::from(is_readable) << 1);
    bytes[4..8].copy_from_slice(&handle.to_le_bytes());
    bytes[8..16].copy_from_slice(&region.base.to_le_bytes());
    bytes[16..24].copy_from_slice(&region.len.to_le_bytes());
    bytes
}

/// Returns the handle and the region of a packet, whether it is a shadow, and whether the user memory can be read;
/// `None` if the bytes are none.
fn decode_region(bytes: &[u8]) -> Option<(u32, ViaRegion, (bool, bool))> {
    let bytes: &[u8; REGION_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
    let handle = u32::from_le_bytes(*bytes[4..].first_chunk()?);
    let rights = RegionRights::from_bits(bytes[1].into())?;
    let attributes = ViaMemAttributes { ptag: 0, rdma_write: rights.write, rdma_read: rights.read };
    let region = ViaRegion { base: word(8)?, len: word(16)?, attributes };
    let is_valid = bytes[0] == REGION_LETTER && bytes[2] <= 3 && region.len > 0 && handle != 0;
    let kind = (bytes[2] & 1 != 0, bytes[2] & 2 != 0);
    let is_same = is_valid && encode_region(handle, &region, rights, kind) == *bytes;
    is_same.then_some((handle, region, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_decoded_as_it_was_encoded_and_other_bytes_are_refused() {
        let attributes = ViaMemAttributes { ptag: 0, rdma_write: true, rdma_read: false };
        let region = ViaRegion { base: 0x7000, len: 99, attributes };
        let rights = RegionRights { write: true, read: false };
        let bytes = encode_region(7, &region, rights, (true, false));
        assert_eq!(decode_region(&bytes), Some((7, region, (true, false))));
        assert_eq!(decode_region(&bytes[..31]), None);
        for at in [0, 2, 3, 24, 31] {
            let mut other = bytes;
            other[at] ^= 4;
            assert_eq!(decode_region(&other), None, "byte {at}");
        }
    }
}
