//! The measured traffic at both ends: ping-pong, windows, and the check of contents.

use nemesia::{Endpoint, Error, Request, Source, Tag};

use super::timer::Timer;
use super::traffic::Traffic;
use super::worker::Seen;

/// The number of messages in a window.
pub(crate) const WINDOW: usize = 64;

const COMMAND: u64 = 1;
const DATA: u64 = 2;
const ACKNOWLEDGEMENT: u64 = 3;

/// A command from rank 0 to rank 1: the exchange in which rank 1 takes part next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkCommand {
    /// Hand-over of a cache line.
    HandOver,
    /// One message each way, with a check of the contents.
    Check { bytes: usize },
    /// `count` round trips.
    Trips { bytes: usize, count: usize },
    /// `count` windows.
    Windows { bytes: usize, count: usize },
    /// The end.
    Finish,
}

/// The length of an encoded command in bytes.
pub(crate) const COMMAND_BYTES: usize = 24;

impl LinkCommand {
    /// Encodes the command.
    pub(crate) fn encode(self) -> [u8; COMMAND_BYTES] {
        let [kind, bytes, count] = match self {
            Self::HandOver => [1, 0, 0],
            Self::Check { bytes } => [2, bytes, 0],
            Self::Trips { bytes, count } => [3, bytes, count],
            Self::Windows { bytes, count } => [4, bytes, count],
            Self::Finish => [5, 0, 0],
        };
        let mut packet = [0; COMMAND_BYTES];
        for (field, value) in packet.chunks_exact_mut(8).zip([kind, bytes, count]) {
            field.copy_from_slice(&(value as u64).to_le_bytes());
        }
        packet
    }

    /// Decodes a packet; `None` if it is no command.
    pub(crate) fn decode(packet: &[u8; COMMAND_BYTES]) -> Option<Self> {
        let mut fields =
            packet.as_chunks().0.iter().map(|field| usize::try_from(u64::from_le_bytes(*field)).ok());
        let (kind, bytes, count) = (fields.next()??, fields.next()??, fields.next()??);
        Some(match kind {
            1 => Self::HandOver,
            2 => Self::Check { bytes },
            3 => Self::Trips { bytes, count },
            4 => Self::Windows { bytes, count },
            5 => Self::Finish,
            _ => return None,
        })
    }

    /// Returns the largest message that the command needs, in bytes.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Check { bytes } | Self::Trips { bytes, .. } | Self::Windows { bytes, .. } => bytes,
            Self::HandOver | Self::Finish => 0,
        }
    }
}

/// One of two processes, with its buffers.
#[derive(Debug)]
pub(crate) struct Link {
    // Order matters: the endpoint may hold operations on the buffers, so it is dropped before them.
    endpoint: Endpoint,
    peer: usize,
    out: Vec<u8>,
    into: Vec<u8>,
    requests: Vec<Request>,
}

impl Link {
    /// Connects the two processes; messages have at most `most` bytes.
    pub(crate) fn new(endpoint: Endpoint, most: usize) -> Result<Self, String> {
        if endpoint.size() != 2 {
            return Err(format!("perf is for two processes, not for {}", endpoint.size()));
        }
        let peer = 1 - endpoint.rank();
        let (out, into) = (buffer(most)?, buffer(most)?);
        Ok(Self { endpoint, peer, out, into, requests: Vec::with_capacity(WINDOW) })
    }
}

impl Traffic for Link {
    fn rank(&self) -> usize {
        self.endpoint.rank()
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
        let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(DATA));
        let (out, into) = (&self.out[..bytes], &mut self.into[..bytes]);
        let mut last = timer.now();
        for sample in samples {
            self.endpoint.send(self.peer, DATA, out).map_err(text)?;
            self.endpoint.recv(from, tag, into).map_err(text)?;
            let now = timer.now();
            *sample = now.saturating_sub(last);
            last = now;
        }
        Ok(())
    }

    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(DATA));
        let (out, into) = (&self.out[..bytes], &mut self.into[..bytes]);
        for _ in 0..count {
            self.endpoint.recv(from, tag, into).map_err(text)?;
            self.endpoint.send(self.peer, DATA, out).map_err(text)?;
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
        let (from, tag) = (Source::Rank(self.peer), Tag::Exactly(DATA));
        let status = self.endpoint.recv(from, tag, &mut self.into[..bytes]).map_err(text)?;
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
fn text(error: Error) -> String {
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
