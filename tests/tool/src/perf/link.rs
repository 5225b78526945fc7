//! The measured traffic at both ends: ping-pong, windows, and the check of contents.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nemesia::{Access, Endpoint, Error, MessageBuffer, RecvOp, Request, SendOp, Source, Status, Tag};

use super::command::{COMMAND_BYTES, LinkCommand};
use super::list::ListBuffers;
use super::timer::Timer;
use super::traffic::{NO_LISTS, Seen, Traffic};
use crate::cli::Memory;
use crate::shapes::ListShapes;

/// The number of messages in a window.
pub(crate) const WINDOW: usize = 64;

const COMMAND: u64 = 1;
const DATA: u64 = 2;
const ACKNOWLEDGEMENT: u64 = 3;

/// One of two processes, with its buffers.
#[derive(Debug)]
pub(crate) struct Link {
    // Order matters: the endpoint may hold operations on the buffers, so it is dropped before them.
    pub(super) endpoint: Endpoint,
    pub(super) peer: usize,
    pub(super) out: LinkBuffer,
    pub(super) into: LinkBuffer,
    /// Whether the peer may write into the buffer of a receive through a mapping. No reference to the buffer is then
    /// alive during the receive.
    lent: bool,
    pub(super) requests: Vec<Request>,
    lists: Option<ListBuffers>,
}

impl Link {
    /// Connects the two processes; messages have at most `most` bytes.
    pub(crate) fn new(
        mut endpoint: Endpoint,
        most: usize,
        memory: Memory,
        list: Option<ListShapes>,
    ) -> Result<Self, String> {
        if endpoint.size() != 2 {
            return Err(format!("perf is for two processes, not for {}", endpoint.size()));
        }
        let peer = 1 - endpoint.rank();
        let (out, into) =
            (LinkBuffer::new(&mut endpoint, most, memory)?, LinkBuffer::new(&mut endpoint, most, memory)?);
        let (lent, requests) = (memory == Memory::Lent, Vec::with_capacity(WINDOW));
        let lists = list.map(|shapes| ListBuffers::new(shapes, most));
        Ok(Self { endpoint, peer, out, into, lent, requests, lists })
    }

    /// Receives a message of exactly `bytes` bytes.
    #[inline(always)]
    fn receive(&mut self, bytes: usize) -> Result<Status, String> {
        let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(DATA));
        if !self.lent {
            return self.endpoint.recv(from, tag, &mut self.into[..bytes]).map_err(text);
        }
        let base = self.into[..bytes].as_mut_ptr();
        // SAFETY: `base` names `bytes` initialised bytes of `into`, to which no reference is used in this function. The
        // receive is waited for, or an error ends the use of the link, and the endpoint is dropped before the buffer.
        let request = unsafe { self.endpoint.irecv(from, tag, base, bytes) };
        self.endpoint.wait(request.map_err(text)?).map_err(text)
    }
}

/// A buffer of one of the kinds of memory.
#[derive(Debug)]
pub(super) enum LinkBuffer {
    Own(Vec<u8>),
    Allocated(MessageBuffer),
    Lent(NonNull<u8>, usize),
}

impl LinkBuffer {
    fn new(endpoint: &mut Endpoint, len: usize, memory: Memory) -> Result<Self, String> {
        let mut buffer = match memory {
            Memory::Own => return buffer(len).map(Self::Own),
            Memory::Allocated => Self::Allocated(endpoint.allocate_buffer(len).map_err(text)?),
            Memory::Lent => {
                let region = endpoint.allocate(len, Access::ReadWrite).map_err(text)?;
                let (base, len) =
                    endpoint.region_memory(region).ok_or("an allocated region has no memory")?;
                Self::Lent(NonNull::new(base).ok_or("an allocated region has no memory")?, len)
            }
        };
        buffer.fill(1);
        Ok(buffer)
    }
}

impl Deref for LinkBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Allocated(bytes) => bytes,
            // SAFETY: a region of the endpoint, which lives as long as the link. The peer, another process of this
            // program, writes into it only during a receive, when no reference to it is used.
            Self::Lent(base, len) => unsafe { NonNull::slice_from_raw_parts(*base, *len).as_ref() },
        }
    }
}

impl DerefMut for LinkBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Allocated(bytes) => bytes,
            // SAFETY: as for `deref`.
            Self::Lent(base, len) => unsafe { NonNull::slice_from_raw_parts(*base, *len).as_mut() },
        }
    }
}

impl Traffic for Link {
    fn rank(&self) -> usize {
        self.endpoint.rank()
    }

    fn about(&self) -> Option<String> {
        let route = self.endpoint.explain().routes.into_iter().find(|route| route.rank == self.peer)?;
        let said = |it: &nemesia::Verdict| format!("{}: {}", it.name, it.reason);
        let facilities: Vec<_> = route.facilities.iter().map(said).collect();
        let is_between_machines = route.transport != "shm";
        is_between_machines.then(|| format!("engine over {}; {}", route.transport, facilities.join("; ")))
    }

    fn seen(&self, counters: bool) -> Seen {
        let tree = self.endpoint.call_tree().unwrap_or_default();
        let mut seen = Seen { tree, warnings: self.endpoint.warnings().to_vec(), ..Seen::default() };
        if counters {
            let all = self.endpoint.counters();
            let line = |field: &nemesia::Field, value| (field.name.to_owned(), field.unit.to_owned(), value);
            all.each(|field, value| seen.counters.push(line(field, value)));
        }
        seen
    }

    fn buffers(&mut self, bytes: usize) -> (&[u8], &mut [u8]) {
        (&self.out[..bytes], &mut self.into[..bytes])
    }

    fn command(&mut self, command: LinkCommand) -> Result<(), String> {
        self.endpoint.send(self.peer, COMMAND, &command.encode()).map_err(text)
    }

    fn await_command(&mut self) -> Result<LinkCommand, String> {
        let mut packet = [0; COMMAND_BYTES];
        let status =
            self.endpoint.recv(Source::Rank(self.peer), Tag::Exactly(COMMAND), &mut packet).map_err(text)?;
        let most = self.out.len();
        LinkCommand::decode(&packet)
            .filter(|_| status.len == packet.len())
            .filter(|command| command.most() <= most)
            .ok_or_else(|| "rank 0 asked for something unknown".to_owned())
    }

    fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String> {
        let mut last = timer.now();
        for sample in samples {
            self.endpoint.send(self.peer, DATA, &self.out[..bytes]).map_err(text)?;
            self.receive(bytes)?;
            let now = timer.now();
            *sample = now.saturating_sub(last);
            last = now;
        }
        Ok(())
    }

    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        for _ in 0..count {
            self.receive(bytes)?;
            self.endpoint.send(self.peer, DATA, &self.out[..bytes]).map_err(text)?;
        }
        Ok(())
    }

    fn check_lists(&mut self, bytes: usize) -> Result<(), String> {
        let Self { endpoint, peer, lists, .. } = self;
        let (lists, rank) = (lists.as_mut().ok_or(NO_LISTS)?, endpoint.rank());
        for sender in [0, 1] {
            let seed = seed(bytes, sender);
            if sender == rank {
                lists.out(bytes).enumerate().for_each(|(at, byte)| *byte = pattern(seed, at));
                endpoint.send_op(SendOp::list(*peer, DATA, &lists.lists(bytes).0)).map_err(text)?;
                continue;
            }
            lists.blank();
            let (source, tag) = (Source::Rank(*peer), Tag::Exactly(DATA));
            let status =
                endpoint.recv_op(RecvOp::list(source, tag, &mut lists.lists(bytes).1)).map_err(text)?;
            if status.len != bytes {
                return Err(format!("a list of {bytes} bytes arrived with {} bytes", status.len));
            }
            intact("list", seed, &lists.received(bytes))?;
        }
        Ok(())
    }

    fn ping_lists(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String> {
        let Self { endpoint, peer, lists, .. } = self;
        let (out, mut into) = lists.as_mut().ok_or(NO_LISTS)?.lists(bytes);
        let mut last = timer.now();
        for sample in samples {
            endpoint.send_op(SendOp::list(*peer, DATA, &out)).map_err(text)?;
            endpoint
                .recv_op(RecvOp::list(Source::Rank(*peer), Tag::Exactly(DATA), &mut into))
                .map_err(text)?;
            let now = timer.now();
            *sample = now.saturating_sub(last);
            last = now;
        }
        Ok(())
    }

    fn pong_lists(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let Self { endpoint, peer, lists, .. } = self;
        let (out, mut into) = lists.as_mut().ok_or(NO_LISTS)?.lists(bytes);
        for _ in 0..count {
            endpoint
                .recv_op(RecvOp::list(Source::Rank(*peer), Tag::Exactly(DATA), &mut into))
                .map_err(text)?;
            endpoint.send_op(SendOp::list(*peer, DATA, &out)).map_err(text)?;
        }
        Ok(())
    }

    /// An empty message acknowledges each window.
    fn send_windows(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let base = self.out[..bytes].as_ptr();
        for _ in 0..count {
            self.requests.clear();
            for _ in 0..WINDOW {
                // SAFETY: `base` names `bytes` bytes of `out`, which nothing changes in this function. All
                // sends are waited for below, or an error ends the use of the link, and the endpoint is
                // dropped before the buffer.
                let request = unsafe { self.endpoint.isend(self.peer, DATA, base, bytes) };
                self.requests.push(request.map_err(text)?);
            }
            for request in &self.requests {
                self.endpoint.wait(*request).map_err(text)?;
            }
            let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(ACKNOWLEDGEMENT));
            self.endpoint.recv(from, tag, &mut []).map_err(text)?;
        }
        Ok(())
    }

    fn recv_windows(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(DATA));
        let base = self.into[..bytes].as_mut_ptr();
        for _ in 0..count {
            self.requests.clear();
            for _ in 0..WINDOW {
                // SAFETY: `base` names `bytes` initialised bytes of `into`, to which no reference is used in
                // this function. All receives may write there, because nothing reads it. They are waited for
                // below, or an error ends the use of the link, and the endpoint is dropped before the buffer.
                let request = unsafe { self.endpoint.irecv(from, tag, base, bytes) };
                self.requests.push(request.map_err(text)?);
            }
            for request in &self.requests {
                let status = self.endpoint.wait(*request).map_err(text)?;
                if status.len != bytes {
                    return Err(format!("a message of {bytes} bytes arrived with {} bytes", status.len));
                }
            }
            self.endpoint.send(self.peer, ACKNOWLEDGEMENT, &[]).map_err(text)?;
        }
        Ok(())
    }

    fn send_pattern(&mut self, bytes: usize) -> Result<(), String> {
        let seed = seed(bytes, self.rank());
        for (at, byte) in self.out[..bytes].iter_mut().enumerate() {
            *byte = pattern(seed, at);
        }
        self.endpoint.send(self.peer, DATA, &self.out[..bytes]).map_err(text)
    }

    fn recv_pattern(&mut self, bytes: usize) -> Result<(), String> {
        let seed = seed(bytes, self.peer);
        self.into[..bytes].fill(0);
        let status = self.receive(bytes)?;
        if status.len != bytes {
            return Err(format!("a message of {bytes} bytes arrived with {} bytes", status.len));
        }
        intact("message", seed, &self.into[..bytes])
    }

    fn close(self) -> Result<(), String> {
        self.endpoint.close().map_err(text)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
pub(super) fn text(error: Error) -> String {
    error.to_string()
}

/// Returns the seed of a pattern.
pub(crate) fn seed(bytes: usize, sender: usize) -> u64 {
    (bytes * 2 + sender) as u64
}

/// Returns a byte that depends on the message and on its position.
pub(crate) fn pattern(seed: u64, at: usize) -> u8 {
    ((at as u64).wrapping_add(seed << 32 | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Checks that the received bytes are the pattern of `seed`.
pub(crate) fn intact(what: &str, seed: u64, come: &[u8]) -> Result<(), String> {
    match come.iter().enumerate().find(|(at, byte)| **byte != pattern(seed, *at)) {
        None => Ok(()),
        Some((at, byte)) => Err(format!(
            "a {what} of {} bytes arrived damaged: byte {at} is {byte}, not {}",
            come.len(),
            pattern(seed, at)
        )),
    }
}

fn buffer(len: usize) -> Result<Vec<u8>, String> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| format!("there is no memory for a message of {len} bytes"))?;
    // Not zero, so that every page is present before the measurement.
    buffer.resize(len, 1);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arrive_as_they_were_given() {
        for command in [
            LinkCommand::HandOver,
            LinkCommand::Check { bytes: 7 },
            LinkCommand::Trips { bytes: 1 << 30, count: 9 },
            LinkCommand::Windows { bytes: 0, count: 1 },
            LinkCommand::BareTrips { bytes: 8, count: 2 },
            LinkCommand::BareWindows { bytes: 9, count: 3 },
            LinkCommand::ListCheck { bytes: 5 },
            LinkCommand::ListTrips { bytes: 10, count: 4 },
            LinkCommand::Finish,
        ] {
            assert_eq!(LinkCommand::decode(&command.encode()), Some(command));
        }
        assert_eq!(LinkCommand::decode(&[0; 24]), None);
        assert_eq!(LinkCommand::decode(&[255; 24]), None);
    }

    #[test]
    fn one_byte_that_differs_is_found() {
        let mut come: Vec<u8> = (0..64).map(|at| pattern(seed(64, 0), at)).collect();
        assert_eq!(intact("message", seed(64, 0), &come), Ok(()));
        come[63] ^= 1;
        let said = intact("message", seed(64, 0), &come).unwrap_err();
        assert!(said.starts_with("a message of 64 bytes arrived damaged: byte 63 is "), "{said}");
    }

    #[test]
    fn patterns_differ_by_place_size_and_sender() {
        let bytes = |seed| (0..64).map(|at| pattern(seed, at)).collect::<Vec<_>>();
        assert_ne!(bytes(seed(64, 0)), bytes(seed(64, 1)));
        assert_ne!(bytes(seed(64, 0)), bytes(seed(128, 0)));
        assert!(bytes(seed(64, 0)).windows(2).any(|pair| pair[0] != pair[1]));
    }
}
