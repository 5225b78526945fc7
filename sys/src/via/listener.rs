//! Requests for connections that arrive by TCP (paper 2, section 1.4.1).
//!
//! Any process can connect. Each connection may send one frame of a fixed size, within a time limit, and there are only
//! so many at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd};
use std::time::{Duration, Instant};

use nemesia_core::via::ViaError;
use nemesia_core::via::setup::{SETUP_BYTES, SetupFrame};

use super::settings::Settings;
use crate::os::close_in_children;

/// Unauthenticated connections at once.
const MOST_UNAUTHENTICATED: usize = 128;
/// The time in which a connection must send its frame.
const FRAME_LIMIT: Duration = Duration::from_secs(10);
/// The time for which a frame may wait in the socket buffer.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for bytes before the caller is asked whether it still waits.
const READ_STEP: Duration = Duration::from_millis(50);

/// A connection that has not sent a whole frame.
#[derive(Debug)]
struct UnauthenticatedStream {
    stream: TcpStream,
    inbox: FrameInbox,
    since: Instant,
}

/// The listener of a process.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
    unauthenticated: Vec<UnauthenticatedStream>,
}

impl Listener {
    /// Listens on the first free port.
    pub(super) fn bind(settings: Settings) -> Result<Self, ViaError> {
        for port in settings.ports() {
            let Ok(socket) = TcpListener::bind(SocketAddr::from((settings.address, port))) else { continue };
            close_in_children(socket.as_fd());
            socket.set_nonblocking(true).map_err(|_| ViaError::ErrorResource)?;
            return Ok(Self { socket, unauthenticated: Vec::new() });
        }
        Err(ViaError::ErrorResource)
    }

    /// Returns the descriptors that become readable when something arrives.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let unauthenticated = self.unauthenticated.iter().map(|waiting| waiting.stream.as_raw_fd());
        // While there are too many, nothing is accepted, so new ones must not end the sleep.
        let can_accept = self.unauthenticated.len() < MOST_UNAUTHENTICATED;
        unauthenticated.chain(can_accept.then(|| self.socket.as_raw_fd()))
    }

    /// Accepts connections and reads what is there. Returns the frames that are complete; the streams do not block.
    pub(super) fn read(&mut self) -> Vec<(TcpStream, SetupFrame)> {
        while self.unauthenticated.len() < MOST_UNAUTHENTICATED
            && let Ok((stream, _)) = self.socket.accept()
        {
            close_in_children(stream.as_fd());
            if stream.set_nonblocking(true).is_ok() {
                self.keep(stream);
            }
        }
        let mut frames = Vec::new();
        self.unauthenticated = std::mem::take(&mut self.unauthenticated)
            .into_iter()
            .filter_map(|mut waiting| match waiting.inbox.read(&mut waiting.stream) {
                Inbound::Closed => None,
                Inbound::Partial => (waiting.since.elapsed() < FRAME_LIMIT).then_some(waiting),
                Inbound::Frame(frame) => {
                    frames.push((waiting.stream, *frame));
                    None
                }
            })
            .collect();
        frames
    }

    /// Waits for a further frame of a connection.
    pub(super) fn keep(&mut self, stream: TcpStream) {
        self.unauthenticated.push(UnauthenticatedStream {
            stream,
            inbox: FrameInbox::default(),
            since: Instant::now(),
        });
    }
}

/// What was found in a stream that does not block.
pub(super) enum Inbound {
    /// A frame.
    Frame(Box<SetupFrame>),
    /// Not a whole frame yet.
    Partial,
    /// The end, or bytes that are no frame.
    Closed,
}

/// The part of a frame that has arrived.
#[derive(Debug)]
pub(super) struct FrameInbox {
    bytes: [u8; SETUP_BYTES],
    filled: usize,
}

impl Default for FrameInbox {
    fn default() -> Self {
        Self { bytes: [0; SETUP_BYTES], filled: 0 }
    }
}

impl FrameInbox {
    /// Reads what is there.
    pub(super) fn read(&mut self, stream: &mut TcpStream) -> Inbound {
        while self.filled < SETUP_BYTES {
            match stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Inbound::Closed,
                Ok(count) => self.filled += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Inbound::Partial;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Inbound::Closed,
            }
        }
        self.filled = 0;
        SetupFrame::decode(&self.bytes).map_or(Inbound::Closed, |frame| Inbound::Frame(Box::new(frame)))
    }
}

/// Sends a frame to a stream that does not block: it fits into the buffer of the socket.
pub(super) fn send_now(stream: &mut TcpStream, frame: &SetupFrame) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(&frame.encode())
}

/// Sends a frame.
pub(super) fn send(stream: &mut TcpStream, frame: &SetupFrame) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    stream.write_all(&frame.encode())
}

/// Receives a frame, while `waits` returns true. `None` if the other side has closed, or what it sent is no frame.
///
/// # Errors
/// The time limit has passed, or the caller does not wait any longer.
pub(super) fn receive(
    stream: &mut TcpStream,
    deadline: Option<Instant>,
    waits: impl Fn() -> bool,
) -> Result<Option<SetupFrame>, ViaError> {
    let mut inbox = FrameInbox::default();
    loop {
        if !waits() {
            return Err(ViaError::InvalidState);
        }
        let left =
            deadline.map_or(READ_STEP, |end| end.saturating_duration_since(Instant::now()).min(READ_STEP));
        if left.is_zero() {
            return Err(ViaError::Timeout);
        }
        if stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).is_err() {
            return Ok(None);
        }
        match inbox.read(stream) {
            Inbound::Frame(frame) => return Ok(Some(*frame)),
            Inbound::Closed => return Ok(None),
            Inbound::Partial => {}
        }
    }
}
