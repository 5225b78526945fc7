//! Requests for connections that arrive by TCP (paper 2, section 1.4.1).
//!
//! Any process can connect. Each connection may send one frame of a fixed size, within a time limit, and there are only
//! so many at once: a new one takes the place of the oldest that has not sent its frame, after that one was read once
//! more. So processes that send nothing, or little at a time, keep no other process out.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd};
use std::time::{Duration, Instant};

use nemesia_core::via::ViaError;
use nemesia_core::via::setup::{SETUP_BYTES, SetupFrame};

use super::settings::Settings;
use crate::os::close_in_children;
use crate::os::descriptor::{accept, listen};
use crate::os::shortage::{Shortage, arrived_stream};

/// Unauthenticated connections at once, and those that are accepted before they are read.
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
    /// In the order in which they were accepted, or sent their last frame.
    unauthenticated: Vec<UnauthenticatedStream>,
    shortage: Shortage,
}

impl Listener {
    /// Listens on the first free port.
    pub(super) fn bind(settings: Settings) -> Result<Self, ViaError> {
        for port in settings.ports() {
            let place = SocketAddr::from((settings.address, port));
            let Ok(socket) = listen(place) else { continue };
            close_in_children(socket.as_fd());
            return Ok(Self::new(socket));
        }
        Err(ViaError::ErrorResource)
    }

    fn new(socket: TcpListener) -> Self {
        Self { socket, unauthenticated: Vec::new(), shortage: Shortage::default() }
    }

    /// Returns the descriptors that become readable when something arrives. While descriptors lack for the connections
    /// that have come, the listener is not among them.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let unauthenticated = self.unauthenticated.iter().map(|waiting| waiting.stream.as_raw_fd());
        unauthenticated.chain((!self.shortage.is_paused()).then(|| self.socket.as_raw_fd()))
    }

    /// Accepts connections and reads what is there. Returns the frames that are complete; the streams do not block.
    pub(super) fn read(&mut self) -> Vec<(TcpStream, SetupFrame)> {
        for _ in 0..MOST_UNAUTHENTICATED {
            let Self { socket, shortage, .. } = self;
            let accept = || arrived_stream(accept(socket));
            // The caller asks for the descriptors each time.
            let Some((stream, _)) = shortage.next_connection(Instant::now(), |_| Ok(()), accept) else {
                break;
            };
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
        let excess = self.unauthenticated.len().saturating_sub(MOST_UNAUTHENTICATED);
        self.unauthenticated.drain(..excess);
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use nemesia_core::via::ViAttributes;
    use nemesia_core::via::codes::Reliability;
    use nemesia_core::via::setup::{SetupKind, SetupNetwork, ViaAddress};

    use super::*;
    use crate::os::testing;

    const LIMIT: Duration = Duration::from_secs(60);

    fn listener() -> (Listener, SocketAddr) {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        (Listener::new(socket), address)
    }

    fn frame(vi: u64) -> SetupFrame {
        let attributes = ViAttributes {
            reliability: Reliability::Delivery,
            max_transfer: 64,
            qos: 0,
            ptag: 0,
            rdma_write: false,
            rdma_read: false,
        };
        let address = ViaAddress::new([127, 0, 0, 1], b"here").unwrap();
        SetupFrame {
            kind: SetupKind::Request,
            reason: 0,
            process: [1; 16],
            vi,
            attributes,
            meeting: [0; 16],
            local: address,
            remote: address,
            network: SetupNetwork::new([2; 16]),
        }
    }

    /// Reads until a frame of this VI arrives.
    fn wait_for(listener: &mut Listener, vi: u64) -> TcpStream {
        let limit = Instant::now() + LIMIT;
        while Instant::now() < limit {
            if let Some((stream, _)) = listener.read().into_iter().find(|(_, frame)| frame.vi == vi) {
                return stream;
            }
        }
        panic!("the frame of VI {vi} does not arrive");
    }

    #[test]
    fn connections_that_send_nothing_or_little_at_a_time_keep_nobody_out() {
        let (mut listener, address) = listener();
        let mut silent = Vec::new();
        for round in 0..3 {
            for number in 0..MOST_UNAUTHENTICATED {
                let mut stream = TcpStream::connect(address).unwrap();
                if number % 2 == 0 {
                    stream.write_all(&frame(0).encode()[..7]).unwrap();
                }
                silent.push(stream);
                listener.read();
            }
            let mut honest = TcpStream::connect(address).unwrap();
            honest.write_all(&frame(7 + round).encode()).unwrap();
            let stream = wait_for(&mut listener, 7 + round);
            // Its next frame is read, too.
            listener.keep(stream);
            honest.write_all(&frame(70 + round).encode()).unwrap();
            wait_for(&mut listener, 70 + round);
            assert!(listener.unauthenticated.len() <= MOST_UNAUTHENTICATED);
        }
    }

    #[test]
    fn a_listener_without_descriptors_is_left_out_for_a_while_and_accepts_later() {
        const NAME: &str = concat!(
            module_path!(),
            "::a_listener_without_descriptors_is_left_out_for_a_while_and_accepts_later"
        );
        if !testing::is_child() {
            return testing::run_again(NAME, || Ok(()));
        }
        let (mut listener, address) = listener();
        let mut honest = TcpStream::connect(address).unwrap();
        honest.write_all(&frame(3).encode()).unwrap();
        let taken = testing::take_descriptors();
        assert!(listener.read().is_empty());
        assert_eq!(listener.descriptors().count(), 0, "its service would not sleep");
        drop(taken);
        wait_for(&mut listener, 3);
        assert_eq!(listener.descriptors().count(), 1);
    }

    #[test]
    fn a_frame_that_is_there_is_read_before_its_connection_makes_room() {
        let (mut listener, address) = listener();
        let mut honest = TcpStream::connect(address).unwrap();
        listener.read();
        honest.write_all(&frame(9).encode()).unwrap();
        // Without a read in between, more connections than there is room for.
        let silent: Vec<TcpStream> =
            (0..MOST_UNAUTHENTICATED).map(|_| TcpStream::connect(address).unwrap()).collect();
        wait_for(&mut listener, 9);
        drop(silent);
    }
}
