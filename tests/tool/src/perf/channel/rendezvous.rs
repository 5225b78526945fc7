//! Rendezvous by RDMA write, as a layer above the five functions has it (paper 1, section 6): packets of fixed size
//! through the pipe, the data past it.
//!
//! The sender announces a message, the receiver admits the sender to its buffer, the sender writes there and then puts
//! a packet that ends the message. Any number of messages may be announced, and the writes follow one another.

use std::collections::VecDeque;

use nemesia::rdma_channel::{ADMISSION_BYTES, Admission, ChannelGroup, PastWrite};
use nemesia::{Error, Segment};

/// The bytes of a packet: as long as the headers of CH3. The first says its kind; a key may follow.
const PACKET: usize = 40;
const ANNOUNCED: u8 = 1;
const ADMITTED: u8 = 2;
const ENDED: u8 = 3;

type Packet = [u8; PACKET];

/// A write in progress.
#[derive(Debug)]
struct PastInProgress {
    key: [u8; ADMISSION_BYTES],
    /// Whether the packet that ends the message is put.
    is_ended: bool,
}

/// The messages in progress with the other process. All have the same buffers, which are leaked.
#[derive(Debug)]
pub(super) struct Rendezvous {
    other: usize,
    bytes: usize,
    from: *const u8,
    into: *mut u8,
    /// Packets to put, and the bytes of the first that are done.
    out: VecDeque<Packet>,
    out_done: usize,
    /// The packet that arrives, and the packets of the messages begun that have not arrived.
    packet: Packet,
    packet_done: usize,
    expected: usize,
    /// Messages to write, and keys for the next of them.
    unsent: usize,
    keys: VecDeque<[u8; ADMISSION_BYTES]>,
    writes: VecDeque<PastInProgress>,
    /// Messages to receive, those of them that are announced and not yet admitted, and the admissions.
    unreceived: usize,
    announced: usize,
    admissions: VecDeque<Admission>,
    ended: usize,
}

fn refused() -> Error {
    Error::Transport {
        transport: "RDMA Channel",
        problem:
            "a buffer cannot be registered for a rendezvous; a device may need a higher limit of locked \
                  memory (ulimit -l)"
                .to_owned(),
    }
}

impl Rendezvous {
    /// Makes the messages of one length between these buffers. Each has at least that length, is leaked, and is used by
    /// nothing else meanwhile.
    pub(super) const fn new(other: usize, bytes: usize, (from, into): (*const u8, *mut u8)) -> Self {
        Self {
            other,
            bytes,
            from,
            into,
            out: VecDeque::new(),
            out_done: 0,
            packet: [0; PACKET],
            packet_done: 0,
            expected: 0,
            unsent: 0,
            keys: VecDeque::new(),
            writes: VecDeque::new(),
            unreceived: 0,
            announced: 0,
            admissions: VecDeque::new(),
            ended: 0,
        }
    }

    /// Sends and receives as many messages, at the same time.
    pub(super) fn run(
        &mut self,
        group: &mut ChannelGroup,
        (sends, receives): (usize, usize),
    ) -> Result<(), Error> {
        (self.unsent, self.unreceived) = (sends, receives);
        self.expected = sends + 2 * receives;
        (0..sends).for_each(|_| self.say(ANNOUNCED, &[]));
        while self.unsent > 0 || self.unreceived > 0 || !self.out.is_empty() {
            self.put_packets(group)?;
            self.get_packets(group)?;
            self.admit(group)?;
            self.write(group)?;
            self.end_admissions(group);
        }
        Ok(())
    }

    fn say(&mut self, kind: u8, key: &[u8]) {
        let mut packet = [0; PACKET];
        packet[0] = kind;
        packet[1..=key.len()].copy_from_slice(key);
        self.out.push_back(packet);
    }

    fn put_packets(&mut self, group: &mut ChannelGroup) -> Result<(), Error> {
        while let Some(packet) = self.out.front() {
            let rest = &packet[self.out_done..];
            let rest = Segment { base: rest.as_ptr().cast_mut(), len: rest.len() };
            // SAFETY: the bytes and the segment outlive the call; they are too few to be lent.
            let done = unsafe { group.put_raw(self.other, &raw const rest, 1) }?;
            if done == 0 {
                break;
            }
            self.out_done += done;
            if self.out_done == PACKET {
                self.out.pop_front();
                self.out_done = 0;
            }
        }
        Ok(())
    }

    fn get_packets(&mut self, group: &mut ChannelGroup) -> Result<(), Error> {
        // What arrives beyond the packets of these messages is not of them.
        while self.expected > 0 {
            let rest = &mut self.packet[self.packet_done..];
            let rest = Segment { base: rest.as_mut_ptr(), len: rest.len() };
            // SAFETY: the bytes and the segment outlive the call; they are too few to be lent.
            let done = unsafe { group.get_raw(self.other, &raw const rest, 1) }?;
            self.packet_done += done;
            if done == 0 || self.packet_done < PACKET {
                break;
            }
            self.packet_done = 0;
            self.expected -= 1;
            match self.packet {
                [ANNOUNCED, ..] => self.announced += 1,
                [ADMITTED, ref rest @ ..] => self.keys.extend(rest.first_chunk::<ADMISSION_BYTES>()),
                _ => self.ended += 1,
            }
        }
        Ok(())
    }

    fn admit(&mut self, group: &mut ChannelGroup) -> Result<(), Error> {
        while self.announced > 0 {
            self.announced -= 1;
            // SAFETY: the bytes are leaked, and nothing else uses them, by the promise of `new`.
            let admission = unsafe { group.admit_raw(self.other, self.into, self.bytes) }?;
            let admission = admission.ok_or_else(refused)?;
            self.say(ADMITTED, &admission.key());
            self.admissions.push_back(admission);
        }
        Ok(())
    }

    /// Makes progress with the writes, in the order of the messages, until one waits.
    fn write(&mut self, group: &mut ChannelGroup) -> Result<(), Error> {
        let mut at = 0;
        loop {
            if at == self.writes.len() {
                let Some(key) = self.keys.pop_front() else { return Ok(()) };
                self.writes.push_back(PastInProgress { key, is_ended: false });
            }
            let write = &mut self.writes[at];
            // SAFETY: the bytes are leaked and do not change, by the promise of `new`.
            let progress = unsafe { group.write_raw(self.other, self.from, self.bytes, &write.key) }?;
            let was_ended = std::mem::replace(&mut write.is_ended, progress != PastWrite::Waiting);
            match progress {
                PastWrite::Refused => return Err(refused()),
                PastWrite::Waiting => return Ok(()),
                PastWrite::Posted => at += 1,
                PastWrite::Done => {
                    self.writes.remove(at);
                    self.unsent -= 1;
                }
            }
            if !was_ended {
                self.say(ENDED, &[]);
            }
        }
    }

    fn end_admissions(&mut self, group: &mut ChannelGroup) {
        while self.ended > 0 && self.admissions.front().is_some_and(|it| group.end_admission(it)) {
            self.admissions.pop_front();
            self.ended -= 1;
            self.unreceived -= 1;
        }
    }
}
