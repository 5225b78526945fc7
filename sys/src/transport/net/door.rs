//! Calls between machines: the messages of links over TCP.
//!
//! The connection of a call is that of the packets once the link is open. A process is called at the place that its
//! address names, and calls from the IP address of its own. So an endpoint has its place from the start, but listens
//! there only when others may know it.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nemesia_core::flow::posted::{LEAST, MOST};
use nemesia_core::job_key::JobKey;
use nemesia_core::link::bytes::{LinkBytes, MOST_LINK_BYTES};
use nemesia_core::link::offers::{LinkOffer, LinkOffers, StreamOffer};
use nemesia_core::link::wire::{LINK_HEADER_BYTES, length_of};
use nemesia_core::port::memory::{Address, ConnectError};
use nemesia_core::port::placement::ByteStream as _;
use nemesia_core::wire::placement::PLACEMENT_VERSION;

use super::choice::{socket_options, tcp_address};
use crate::config::{Config, NetChoice};
use crate::error::Error;
use crate::os::descriptor::{accept, begin_listening};
use crate::os::shortage::{Shortage, arrived_stream, listening};
use crate::os::{ShmError, Watch};
use crate::tcp::{self, Socket, SocketOptions, set_traffic_class};

/// The code of the offer.
pub(crate) const STREAM: u8 = 2;
/// The most connections for departures at the same time.
const AT_ONCE: usize = 256;
/// The first and the longest pause between two looks at the connections of departures.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];
/// The other remedy, if the network lets connections through in one direction only.
pub(crate) const OTHER_DIRECTION: &str = "; if only connections from there to here are let through, an operation \
                                          there that names this process connects both";

/// Where a process takes calls from other machines, and how it calls there.
#[derive(Debug)]
pub(crate) struct StreamDoor {
    listener: TcpListener,
    /// Whether the socket listens.
    is_open: Mutex<bool>,
    at: SocketAddr,
    sockets: SocketOptions,
    /// The most streams with a peer.
    streams: u8,
    packet_bytes: u32,
    key: Option<JobKey>,
    shortage: Shortage,
}

impl StreamDoor {
    /// Reserves a place, where the settings permit it; else returns why other machines are not reached. It is closed:
    /// see [`StreamDoor::open`]. If the settings ask for other machines, and there is no place, a warning is added.
    ///
    /// # Errors
    /// The key of the job cannot be read. In strict mode, what would be a warning.
    pub(crate) fn find(config: &Config, warnings: &mut Vec<String>) -> Result<Result<Self, String>, Error> {
        let key =
            config.job_key.key().map_err(|problem| Error::Transport { transport: "network", problem })?;
        let is_wished = config.job_key.is_given() || config.net_address.is_some();
        let found = match config.net {
            NetChoice::Off => return Ok(Err("NEMESIA_NET is off: use auto or tcp".into())),
            NetChoice::Verbs => {
                Err("NEMESIA_NET is verbs, which such calls do not use: use auto or tcp".into())
            }
            NetChoice::Auto | NetChoice::Tcp => match tcp_address(config, warnings) {
                Ok(chosen) => Self::reserve(config, key, chosen.address),
                Err(not_open) => Err(not_open.reason()?),
            },
        };
        if let Err(why) = &found
            && (is_wished || config.net == NetChoice::Tcp)
        {
            config.give_up(format!("other machines are not reached: {why}"), warnings)?;
        }
        Ok(found)
    }

    /// Reserves a place at this address of this machine, for calls of processes with the same key of the job, or
    /// without one if this has none. The error is one line.
    pub(crate) fn reserve(config: &Config, key: Option<JobKey>, ip: IpAddr) -> Result<Self, String> {
        let refused = |error: io::Error| format!("reserving a port for calls at {ip}: {error}");
        let listener = tcp::reserve(ip).map_err(refused)?;
        let at = listener.local_addr().map_err(refused)?;
        let sockets = socket_options(config);
        set_traffic_class(listener.as_fd(), at, sockets.class).map_err(refused)?;
        Ok(Self {
            listener,
            is_open: Mutex::new(false),
            at,
            sockets,
            streams: config.net_streams as u8,
            packet_bytes: config.net_packet_bytes(true),
            key,
            shortage: Shortage::default(),
        })
    }

    /// Begins to listen for calls, unless this process does: others may know its place from now on. A call ends a
    /// sleep by this set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open(&self, watch: &Watch) -> Result<(), ShmError> {
        // What a thread that panicked has left counts: it is a number.
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_open {
            let listening = begin_listening(&self.listener);
            listening.map_err(|error| ShmError::system("listening for calls of other machines", error))?;
            watch.attend(self.listener.as_fd())?;
            *is_open = true;
        }
        Ok(())
    }

    /// Returns the key of the job, if this process has one.
    pub(crate) const fn key(&self) -> Option<JobKey> {
        self.key
    }

    /// Returns the place.
    pub(crate) const fn place(&self) -> SocketAddr {
        self.at
    }

    /// This process may connect with so many peers, as far as it knows.
    pub(crate) fn expect(&mut self, peers: u64) {
        self.shortage = Shortage::among(peers);
    }

    pub(crate) const fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    pub(crate) const fn shortage_mut(&mut self) -> &mut Shortage {
        &mut self.shortage
    }

    /// Returns the next connection of another process; `None` if there is none, or if descriptors lack.
    pub(crate) fn accept(&mut self, now: Instant, watch: &Watch) -> Option<StreamLine> {
        let Self { listener, shortage, sockets, is_open, .. } = self;
        if !*is_open.get_mut().unwrap_or_else(PoisonError::into_inner) {
            return None;
        }
        let listen = listening(watch, listener.as_fd());
        loop {
            let (stream, from) =
                shortage.next_connection(now, &listen, || arrived_stream(accept(listener)))?;
            // One that has ended before is not heard.
            if let Ok(socket) = Socket::new(stream, from, *sockets) {
                return Some(StreamLine::new(socket, from.ip().to_canonical()));
            }
        }
    }

    /// Begins to connect to a place.
    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<StreamLine> {
        let socket = tcp::connect_from(self.at.ip(), to, self.sockets)?;
        Ok(StreamLine::new(socket, to.ip().to_canonical()))
    }

    /// Returns what this process offers, which takes further streams of a peer at this address, and the bytes of its
    /// packets. The error is one line.
    pub(crate) fn offer(&self, further: &Address) -> Result<(LinkOffer, u32), String> {
        let (port, token) = tcp::port_of(further).ok_or("the network is not TCP")?;
        let (version, receives) = (PLACEMENT_VERSION as u8, LEAST as u16);
        let offer = StreamOffer { version, streams: self.streams, receives, port, token };
        Ok((LinkOffer::Stream(offer), self.packet_bytes))
    }

    /// Checks what a peer at this place offers, whose packets have this size.
    pub(crate) fn check(
        &self,
        offers: LinkOffers<'_>,
        packet_bytes: u32,
        at: Option<SocketAddr>,
    ) -> Result<StreamPeer, String> {
        let offer = offers.iter().find_map(|offer| match offer {
            LinkOffer::Stream(offer) => Some(offer),
            _ => None,
        });
        let offer = offer.ok_or("it offers no stream")?;
        let StreamOffer { version, receives, port, token, .. } = offer;
        let ours = PLACEMENT_VERSION as u8;
        if version != ours {
            return Err(format!("its streams have version {version}, ours {ours}: use the same nemesia"));
        }
        if packet_bytes != self.packet_bytes {
            return Err(
                "packets have another size: set NEMESIA_NET_PACKET_BYTES alike in both processes".into()
            );
        }
        let receives = u32::from(receives);
        if !(LEAST..=MOST).contains(&receives) {
            return Err(format!("it has {receives} receives, which are too few or too many"));
        }
        let further = at.and_then(|at| tcp::address_at(SocketAddr::new(at.ip(), port), token));
        Ok(StreamPeer { receives, further })
    }

    /// Sends these departures to these places. Returns when the kernels there have them, at the latest at the deadline.
    pub(crate) fn depart(&self, mut to: impl Iterator<Item = (SocketAddr, LinkBytes)>, deadline: Instant) {
        let (mut sockets, [mut pause, longest]) = (Vec::new(), PAUSES);
        loop {
            let room = AT_ONCE - sockets.len();
            sockets.extend(to.by_ref().take(room).filter_map(|(at, message)| {
                // A process that cannot be reached sees a death when it calls.
                Some(Departing { line: self.connect(at).ok()?, message, is_sent: false })
            }));
            let before = sockets.len();
            sockets.retain_mut(|socket| !socket.is_done());
            if before == 0 || Instant::now() >= deadline {
                return;
            }
            if sockets.len() == before {
                std::thread::sleep(pause);
                pause = longest.min(2 * pause);
            }
        }
    }
}

/// What a peer on another machine has offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPeer {
    /// The receives that it posts.
    pub(crate) receives: u32,
    /// The address at which it takes further streams.
    pub(crate) further: Option<Address>,
}

/// Why nothing more comes from a connection.
#[derive(Debug)]
pub(crate) enum StreamLoss {
    /// The other process has closed the connection, or has died.
    Ended,
    /// The network has lost the connection.
    Network(io::Error),
}

/// A connection over TCP, as it carries messages of a link. It never blocks.
#[derive(Debug)]
pub(crate) struct StreamLine {
    socket: Socket,
    /// The IP address of the other end.
    pub(crate) from: IpAddr,
    bytes: [u8; MOST_LINK_BYTES],
    /// The bytes of the next message that have come.
    have: usize,
}

impl StreamLine {
    const fn new(socket: Socket, from: IpAddr) -> Self {
        Self { socket, from, bytes: [0; MOST_LINK_BYTES], have: 0 }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the socket. The next bytes in it are no message of a link.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Returns the result of connecting; `None` if it is not known yet.
    pub(crate) fn is_connected(&mut self) -> Option<Result<(), ConnectError>> {
        self.socket.is_connected()
    }

    /// Returns whether a part of a message has come.
    pub(crate) const fn has_part(&self) -> bool {
        self.have > 0
    }

    /// Returns the next message, and nothing that follows it; `None` if it has not come whole.
    pub(crate) fn receive(&mut self) -> Result<Option<LinkBytes>, StreamLoss> {
        loop {
            let head = self.bytes.first_chunk::<LINK_HEADER_BYTES>();
            let whole = match head.filter(|_| self.have >= LINK_HEADER_BYTES) {
                // What is none is read no further.
                Some(head) => length_of(head).unwrap_or(LINK_HEADER_BYTES),
                None => LINK_HEADER_BYTES,
            };
            if self.have >= whole {
                let message = LinkBytes::copied(&self.bytes[..self.have]);
                self.have = 0;
                return Ok(Some(message));
            }
            match self.socket.stream().read(&mut self.bytes[self.have..whole]) {
                Ok(0) => return Err(StreamLoss::Ended),
                Ok(count) => self.have += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Err(StreamLoss::Ended),
                    _ => return Err(StreamLoss::Network(error)),
                },
            }
        }
    }

    /// Sends a message. Returns `false` if the connection does not take it at once: it is lost, or its other end reads
    /// nothing.
    pub(crate) fn send(&mut self, message: &[u8]) -> bool {
        matches!(self.socket.stream().write(message), Ok(count) if count == message.len())
    }

    /// Returns whether the other end has closed the connection, or the network has lost it.
    fn is_over(&mut self) -> bool {
        // It may have sent a challenge before. Who sends more delays only itself.
        self.receive().is_err() || self.receive().is_err()
    }

    /// Ends the connection after what was sent.
    pub(crate) fn finish(&self) {
        let _ = self.socket.stream().shutdown(Shutdown::Write);
    }
}

/// A connection for one departure.
struct Departing {
    line: StreamLine,
    message: LinkBytes,
    is_sent: bool,
}

impl Departing {
    /// Makes progress. Returns whether nothing is left to do: the message is in the other kernel, or never will be.
    fn is_done(&mut self) -> bool {
        if !self.is_sent {
            match self.line.is_connected() {
                None => return false,
                Some(Err(_)) => return true,
                Some(Ok(())) => {}
            }
            if !self.line.send(self.message.get()) {
                return true;
            }
            self.line.finish();
            self.is_sent = true;
        }
        // After a reset, what the other kernel has not confirmed stays so.
        self.line.socket.unconfirmed() == 0 || self.line.is_over()
    }
}

/// Returns the possible causes of a refused connection, which only its user can tell apart.
pub(crate) fn refused_connection(at: SocketAddr) -> String {
    format!(
        "{at} refuses the connection: its process has ended, or a firewall rejects it, or another machine has the \
         address as well (docker0, virbr0: set NEMESIA_NET_ADDRESS to another network)"
    )
}
