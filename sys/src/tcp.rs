//! A memory port over TCP, for machines without an RDMA device: software placement over sockets.
//!
//! Sockets never block. Bulk data go directly from and to user memory; small data leave at once (TCP_NODELAY).
//! If a peer's process ends, the kernel closes its sockets and the end is noticed; if its machine or network is
//! gone, within a limit ([`Config::net_silence`](crate::Config::net_silence)).
//!
//! An address is that of the listening socket and a random token, which a connecting peer must present. Nothing
//! is encrypted: use it where the network is as trusted as an RDMA fabric must be.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nemesia_core::payload::{GatherList, ScatterList, Segment};
use nemesia_core::port::memory::{Address, ConnectError, Origin};
use nemesia_core::port::placement::{ByteStream, StreamResult};

use crate::os;
use crate::os::descriptor::{above_standard, accept, own};
pub use crate::placement::{Options, PlacementPort};
use crate::placement::{PolledStream, StreamSource, count_call, open, transferred};

/// The default of the time after which a host that does not answer counts as gone.
pub(crate) const DEFAULT_SILENCE: Duration = Duration::from_secs(10);
/// The limits of that time in seconds. The kernel probes a connection at most once a second, and takes no longer pause
/// before the first probe than 32767 s.
pub(crate) const SILENCE_SECONDS: RangeInclusive<u64> = 2..=3600;
/// The prefix of an address.
const MARK: &[u8; 4] = b"tcp1";
/// The bytes of an address without prefix and token: family, 0, port, scope, IP address.
const PLACE_BYTES: usize = 24;

/// A memory port over TCP.
pub type TcpPort = PlacementPort<Tcp>;

/// Listens on an address of this machine that others can reach; port 0 takes a free one.
///
/// # Errors
/// The system's reason. A wildcard (`0.0.0.0`) is an error, because peers cannot connect to it.
pub fn listen(at: SocketAddr, options: &Options) -> io::Result<TcpPort> {
    listen_as(at, SocketOptions::default(), options)
}

/// As [`listen`], with these options of its sockets.
///
/// # Errors
/// See [`listen`].
pub(crate) fn listen_as(at: SocketAddr, sockets: SocketOptions, options: &Options) -> io::Result<TcpPort> {
    if at.ip().is_unspecified() {
        let why = "name the address of an interface, which others can connect to, not the unspecified one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // With the short queue of the standard library: a peer waits behind all strangers in it.
    let listener = TcpListener::bind(at).and_then(above_standard)?;
    listener.set_nonblocking(true)?;
    os::close_in_children(listener.as_fd());
    set_traffic_class(listener.as_fd(), at, sockets.class)?;
    let address = listener.local_addr()?;
    open(Tcp { listener, address, sockets }, options)
}

/// Options of every socket of a port or of a process's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// The traffic class of packets; `None`: that of the system.
    pub(crate) class: Option<u8>,
    /// The time without an answer of the other host's kernel after which a connection is lost: whole seconds within
    /// [`SILENCE_SECONDS`].
    pub(crate) silence: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self { class: None, silence: DEFAULT_SILENCE }
    }
}

/// The transport over sockets.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    address: SocketAddr,
    sockets: SocketOptions,
}

/// A connected socket, or one that is being connected.
///
/// While data wait for an answer, the kernel sends no probes. Its own limit (TCP_USER_TIMEOUT) also ends connections to
/// machines that answer, if the process there takes nothing and its kernel has no more room (`tcp(7)`). So that limit
/// holds only until the connection is ready ([`ByteStream::was_opened`]). Then this process looks whether the other
/// kernel answers ([`ByteStream::is_silent`]). A connection without data is probed by the kernel.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    silence: Duration,
    /// The time from which on written bytes have waited without an answer.
    waiting: Option<Duration>,
}

impl Socket {
    /// Returns the stream, which never blocks.
    pub(crate) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Prepares a socket of the family of this address, with these options.
    pub(crate) fn new(stream: TcpStream, of: SocketAddr, sockets: SocketOptions) -> io::Result<Self> {
        os::close_in_children(stream.as_fd());
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        set_traffic_class(stream.as_fd(), of, sockets.class)?;
        set_silence(stream.as_fd(), sockets.silence)?;
        Ok(Self { stream, silence: sockets.silence, waiting: None })
    }
}

fn set_option<T: Copy>(socket: BorrowedFd<'_>, (level, name): (c_int, c_int), value: T) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is as large as announced and outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the time without an answer after which the kernel ends a connection. A connection without traffic is probed at
/// most five times, beginning in the middle of that time; the last probe ends with it.
fn set_silence(socket: BorrowedFd<'_>, silence: Duration) -> io::Result<()> {
    let seconds = silence.as_secs().clamp(*SILENCE_SECONDS.start(), *SILENCE_SECONDS.end()) as c_int;
    let (every, probes) = ((seconds / 10).max(1), (seconds / 2).min(5));
    let option = |level, name, value: c_int| set_option(socket, (level, name), value);
    option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds - probes * every)?;
    option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, every)?;
    option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
    // The limit of data that the other kernel has not confirmed, until the connection is ready.
    option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1000 * seconds)
}

/// Makes the kernel drop what it has not sent when the socket is closed.
fn set_linger(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, (libc::SOL_SOCKET, libc::SO_LINGER), libc::linger { l_onoff: 1, l_linger: 0 })
}

/// What the kernel knows about the answers of the other one.
#[derive(Clone, Copy, Debug)]
struct KernelAnswers {
    /// The time since the last one.
    since: Duration,
    /// Whether the kernel has tried to get one since then, without result.
    is_unanswered: bool,
}

impl KernelAnswers {
    fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        // SAFETY: zeros are a value of every field.
        let mut info: libc::tcp_info = unsafe { mem::zeroed() };
        let mut len = size_of_val(&info) as libc::socklen_t;
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        // SAFETY: the kernel writes at most as many bytes as announced, and both variables outlive the call.
        let result = unsafe {
            libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut info).cast(), &raw mut len)
        };
        // Every kernel that this library runs on has more fields than these.
        let is_whole = len as usize == size_of_val(&info);
        (result == 0 && is_whole).then(|| Self::from_info(&info))
    }

    /// Without room at the other end nothing is in flight: the kernel then sends probes, which are answered like data.
    /// One may be under way just now.
    fn from_info(info: &libc::tcp_info) -> Self {
        let is_unanswered =
            if info.tcpi_unacked > 0 { info.tcpi_retransmits > 0 } else { info.tcpi_probes > 1 };
        Self { since: Duration::from_millis(info.tcpi_last_ack_recv.into()), is_unanswered }
    }
}

/// Sets the traffic class of the packets of a socket of the family of this address.
pub(crate) fn set_traffic_class(socket: BorrowedFd<'_>, of: SocketAddr, class: Option<u8>) -> io::Result<()> {
    let Some(class) = class else { return Ok(()) };
    let option =
        if of.is_ipv4() { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    set_option(socket, option, c_int::from(class))
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn counted(result: isize) -> io::Result<usize> {
    let count = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    count_call();
    Ok(count)
}

/// Returns a message header over these parts.
fn header(parts: &[Segment]) -> libc::msghdr {
    // SAFETY: zeros are a header of nothing.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    // A segment has the layout of `struct iovec`.
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    header
}

const _: () = assert!(size_of::<Segment>() == size_of::<libc::iovec>());

// SAFETY: the kernel touches only what the lists name, and only during the call. Nothing is pulled.
unsafe impl ByteStream for Socket {
    // epoll reports what can be read, and not only what has come in.
    const REPORTS_REST: bool = true;

    fn is_connected(&mut self) -> Option<Result<(), ConnectError>> {
        match connected(&self.stream) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(unreached(&error))),
        }
    }

    fn read(&mut self, into: &mut ScatterList<'_>) -> StreamResult {
        let fd = self.stream.as_raw_fd();
        if let [piece] = into.pieces() {
            // SAFETY: `ScatterList` guarantees that its pieces may be written.
            return transferred(counted(unsafe { libc::recv(fd, piece.base.cast(), piece.len, 0) }));
        }
        let mut header = header(into.pieces());
        // SAFETY: `ScatterList` guarantees that its pieces may be written; the header outlives the call.
        transferred(counted(unsafe { libc::recvmsg(fd, &raw mut header, 0) }))
    }

    fn write(&mut self, from: &GatherList<'_>) -> StreamResult {
        let fd = self.stream.as_raw_fd();
        if let [piece] = from.pieces() {
            // SAFETY: `GatherList` guarantees that its pieces may be read. No signal is raised if the peer is gone.
            return transferred(counted(unsafe {
                libc::send(fd, piece.base.cast(), piece.len, libc::MSG_NOSIGNAL)
            }));
        }
        let header = header(from.pieces());
        // SAFETY: `GatherList` guarantees that its pieces may be read; the header outlives the call. No signal
        // is raised if the peer is gone.
        transferred(counted(unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) }))
    }

    fn unconfirmed(&self) -> usize {
        let mut bytes: c_int = 0;
        // SAFETY: the kernel writes one int. If it refuses, the socket is at its end and nothing can be confirmed.
        unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if bytes > 0 {
            // The peer may wait as this process does, while each kernel confirms what has come up to 40 ms late. This
            // one does so now; if it refuses, later.
            let _ = set_option(self.as_fd(), (libc::IPPROTO_TCP, libc::TCP_QUICKACK), 1 as c_int);
        }
        usize::try_from(bytes).unwrap_or(0)
    }

    fn was_opened(&mut self) {
        // If the kernel refuses it, its own limit stays.
        let _ = set_option(self.as_fd(), (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 0);
    }

    fn is_silent(&mut self, now: Duration) -> bool {
        if self.unconfirmed() == 0 {
            self.waiting = None;
            return false;
        }
        let since = *self.waiting.get_or_insert(now);
        if now.saturating_sub(since) < self.silence {
            return false;
        }
        let Some(answers) = KernelAnswers::of(self.as_fd()) else { return false };
        if answers.since < self.silence {
            self.waiting = Some(now.saturating_sub(answers.since));
            return false;
        }
        if answers.is_unanswered {
            // The kernel shall not send on after the end.
            let _ = set_linger(self.as_fd());
        }
        answers.is_unanswered
    }

    fn origin(&self) -> Option<Origin> {
        // An IPv4 address is the same for every kind of socket.
        Some(Origin::Host(self.stream.peer_addr().ok()?.ip().to_canonical()))
    }

    fn finish(&mut self) {
        // A socket that is gone has nothing to finish.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

fn unreached(error: &io::Error) -> ConnectError {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => ConnectError::NotListening,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::EADDRNOTAVAIL) => {
            ConnectError::Unreachable
        }
        Some(code) => ConnectError::System(code),
        None => ConnectError::Unreachable,
    }
}

impl PolledStream for Socket {}

impl StreamSource for Tcp {
    type Stream = Socket;

    const NAME: &'static str = "TCP";

    fn address(&self) -> Vec<u8> {
        encode(self.address)
    }

    fn connect(&mut self, to: &[u8]) -> Result<Socket, ConnectError> {
        let to = decode(to).ok_or(ConnectError::Address)?;
        connect(to, self.sockets).map_err(|error| unreached(&error))
    }

    fn accept(&mut self) -> io::Result<Socket> {
        let (stream, from) = accept(&self.listener)?;
        // A stream that has left before is not accepted.
        Socket::new(stream, from, self.sockets).map_err(|_| io::ErrorKind::ConnectionAborted.into())
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn parse(address: &Address) -> Option<(&[u8], u64)> {
        let rest = address.bytes().strip_prefix(MARK.as_slice())?;
        let (place, token) = rest.split_at_checked(PLACE_BYTES)?;
        decode(place)?;
        Some((place, u64::from_le_bytes(token.try_into().ok()?)))
    }
}

/// Returns the IP address in an address of a port over TCP.
pub(crate) fn ip_of(address: &Address) -> Option<IpAddr> {
    decode(Tcp::parse(address)?.0).map(|place| place.ip())
}

/// Returns the port and the token in an address of a port over TCP.
pub(crate) fn port_of(address: &Address) -> Option<(u16, u64)> {
    let (place, token) = Tcp::parse(address)?;
    Some((decode(place)?.port(), token))
}

/// Returns the address of the port over TCP at this place, with this token.
pub(crate) fn address_at(place: SocketAddr, token: u64) -> Option<Address> {
    Address::new(&[encode(place).as_slice(), &token.to_le_bytes()].concat())
}

fn encode(at: SocketAddr) -> Vec<u8> {
    let mut place = [0; PLACE_BYTES];
    place[2..4].copy_from_slice(&at.port().to_le_bytes());
    match at {
        SocketAddr::V4(at) => {
            place[0] = 4;
            place[8..12].copy_from_slice(&at.ip().octets());
        }
        SocketAddr::V6(at) => {
            place[0] = 6;
            place[4..8].copy_from_slice(&at.scope_id().to_le_bytes());
            place[8..].copy_from_slice(&at.ip().octets());
        }
    }
    [MARK.as_slice(), &place].concat()
}

fn decode(place: &[u8]) -> Option<SocketAddr> {
    let place: &[u8; PLACE_BYTES] = place.try_into().ok()?;
    let port = u16::from_le_bytes([place[2], place[3]]);
    let scope = u32::from_le_bytes([place[4], place[5], place[6], place[7]]);
    let ip: [u8; 16] = place[8..].try_into().ok()?;
    match place[0] {
        4 => Some(SocketAddr::from((IpAddr::from(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3])), port))),
        6 => Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope))),
        _ => None,
    }
}

/// Starts to connect, with these options of the socket.
pub(crate) fn connect(to: SocketAddr, sockets: SocketOptions) -> io::Result<Socket> {
    let socket = Socket::new(unconnected(to)?, to, sockets)?;
    start(&socket.stream, to)?;
    Ok(socket)
}

/// As [`connect`], from this IP address of this machine, if it is of the same family: the other end compares it with
/// the one that this process claims.
pub(crate) fn connect_from(ip: IpAddr, to: SocketAddr, sockets: SocketOptions) -> io::Result<Socket> {
    let socket = Socket::new(unconnected(to)?, to, sockets)?;
    if ip.is_ipv4() == to.is_ipv4() {
        // Without this, `bind` would choose a port, and the kernel could use each once only.
        set_option(socket.as_fd(), (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), 1 as c_int)?;
        with_name(libc::bind, &socket.stream, SocketAddr::new(ip, 0))?;
    }
    start(&socket.stream, to)?;
    Ok(socket)
}

/// Reserves a port of this IP address of this machine for a socket that listens later
/// ([`begin_listening`](os::descriptor::begin_listening)). Until then the kernel refuses connections, and it gives the
/// port to no other socket. The standard library would set `SO_REUSEADDR`, with which it may.
pub(crate) fn reserve(ip: IpAddr) -> io::Result<TcpListener> {
    let at = SocketAddr::new(ip, 0);
    let socket = unconnected(at)?;
    os::close_in_children(socket.as_fd());
    with_name(libc::bind, &socket, at)?;
    Ok(TcpListener::from(OwnedFd::from(socket)))
}

/// As [`connect`], for a socket without options.
#[cfg(any(test, feature = "internals"))]
pub(crate) fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = unconnected(to)?;
    os::close_in_children(stream.as_fd());
    start(&stream, to)?;
    Ok(stream)
}

/// Returns whether the connection is made.
///
/// # Errors
/// It cannot be made.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    if unsafe { libc::poll(&raw mut poll, 1, 0) } == 0 {
        return Ok(false);
    }
    stream.take_error()?.map_or(Ok(true), Err)
}

fn unconnected(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no memory.
    let fd = unsafe { libc::socket(family, kind, 0) };
    // SAFETY: a new descriptor, given to us alone.
    Ok(TcpStream::from(unsafe { own(fd) }?))
}

/// Calls a function of the system that takes a socket and a name of it, as `connect(2)` and `bind(2)` do.
fn with_name(
    call: unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
    stream: &TcpStream,
    name: SocketAddr,
) -> io::Result<()> {
    let fd = stream.as_raw_fd();
    let result = match name {
        SocketAddr::V4(at) => {
            let sin_addr = libc::in_addr { s_addr: u32::from_ne_bytes(at.ip().octets()) };
            let family = libc::AF_INET as libc::sa_family_t;
            let name = libc::sockaddr_in {
                sin_family: family,
                sin_port: at.port().to_be(),
                sin_addr,
                sin_zero: [0; 8],
            };
            // SAFETY: the name is as long as announced and outlives the call.
            unsafe { call(fd, (&raw const name).cast(), size_of_val(&name) as libc::socklen_t) }
        }
        SocketAddr::V6(at) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: at.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: at.ip().octets() },
                sin6_scope_id: at.scope_id(),
            };
            // SAFETY: the name is as long as announced and outlives the call.
            unsafe { call(fd, (&raw const name).cast(), size_of_val(&name) as libc::socklen_t) }
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn start(stream: &TcpStream, to: SocketAddr) -> io::Result<()> {
    match with_name(libc::connect, stream, to) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        started => started,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nemesia_core::payload::LentMemory;
    use nemesia_core::port::memory::{
        Completion, Connection, Event, MemoryPort as _, Offer, PortRegion, Private, ReceiveQueue,
        RegionAccess, Slice, Work, WorkOutcome,
    };
    use nemesia_core::port::placement::StreamTransport;

    use super::*;
    use crate::os::testing;
    use crate::placement::{CALLS, PolledStreams};

    fn option_of(socket: BorrowedFd<'_>, option: (c_int, c_int)) -> c_int {
        let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
        let (fd, (level, name)) = (socket.as_raw_fd(), option);
        // SAFETY: the value is as large as announced and outlives the call.
        let result = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        value
    }

    #[test]
    fn a_port_without_descriptors_may_sleep_and_accepts_later() {
        const NAME: &str =
            concat!(module_path!(), "::a_port_without_descriptors_may_sleep_and_accepts_later");
        if !testing::is_child() {
            return testing::run_again(NAME, || Ok(()));
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut streams =
            PolledStreams::new(Tcp { listener, address, sockets: SocketOptions::default() }).unwrap();
        let _caller = TcpStream::connect(address).unwrap();
        let (taken, mut words) = (testing::take_descriptors(), [0; 4]);
        while streams.ready(&mut words) == 0 {}
        assert!(streams.accept().is_none());
        assert_eq!(streams.ready(&mut words), 0, "the listener is left out");
        drop(taken);
        while streams.ready(&mut words) == 0 {}
        assert!(streams.accept().is_some());
    }

    #[test]
    fn keys_are_drawn_many_at_once_and_none_is_drawn_twice() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut streams =
            PolledStreams::new(Tcp { listener, address, sockets: SocketOptions::default() }).unwrap();
        let before = CALLS.get();
        let drawn: BTreeSet<u64> = (0..1000).map(|_| streams.random().unwrap()).collect();
        assert_eq!((drawn.len(), (CALLS.get() - before).min(100)), (1000, 32));
    }

    /// Bytes of the memory of a port: for receives, and for a message.
    const ROOM: usize = 1 << 20;

    fn offer() -> Offer {
        Offer { private: Private::EMPTY, shared_receive: false, deadline: Duration::from_secs(60) }
    }

    /// Returns two ports of this thread that read ahead, with a connection and registered memory.
    fn connected_ports() -> [(TcpPort, Connection, PortRegion); 2] {
        let options = Options { reads_ahead: true, ..Options::default() };
        let mut ports = [(), ()].map(|()| listen("127.0.0.1:0".parse().unwrap(), &options).unwrap());
        let to = ports[1].address().unwrap();
        let mut found = [Some(ports[0].connect(&to, &offer()).unwrap()), None];
        let mut established = [false; 2];
        while established != [true; 2] {
            for (at, port) in ports.iter_mut().enumerate() {
                port.poll(&mut [Completion::EMPTY; 4]);
                match port.poll_event(Duration::ZERO) {
                    Some(Event::Requested { connection, .. }) => {
                        port.accept(connection, &offer()).unwrap();
                        found[at] = Some(connection);
                    }
                    Some(Event::Established { .. }) => established[at] = true,
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
        }
        let mut found = found.into_iter();
        ports.map(|mut port| {
            let base = Vec::leak(vec![0_u64; ROOM / 8]).as_mut_ptr().cast::<u8>();
            // SAFETY: never freed, and the only reference to it has ended.
            let region = port.register(unsafe { LentMemory::from_raw(base, ROOM) }, RegionAccess::LOCAL);
            (port, found.next().flatten().unwrap(), region.unwrap())
        })
    }

    #[test]
    fn a_message_of_a_conversation_takes_one_call_at_each_end() {
        const MESSAGES: u64 = 64;
        for len in [8, 1500, 5000, 15_000, 16_384, 40_000] {
            let mut ends = connected_ports();
            let receive = |(port, connection, region): &mut (TcpPort, Connection, PortRegion)| {
                let into = [Slice { region: *region, offset: 0, len: 100_000 }];
                port.receive(ReceiveQueue::Of(*connection), 1, &into).unwrap();
            };
            for _ in 0..4 {
                ends.iter_mut().for_each(receive);
            }
            let (bytes, mut before) = (vec![7; len], 0);
            for message in 0..2 * MESSAGES {
                if message == MESSAGES {
                    before = CALLS.get();
                }
                let from = message % 2;
                let [first, second] = &mut ends;
                let ((port, connection, region), (other, ..)) =
                    if from == 0 { (first, second) } else { (second, first) };
                let room = Slice { region: *region, offset: 1 << 19, len: len as u32 };
                let mut list = GatherList::new();
                list.push(&bytes);
                // The first polls tell each end that the other one has receives.
                while port.send_at_once(Work::new(*connection, 2), &list, room).unwrap() != Some(len) {
                    assert!(message < 2, "{len} bytes, message {message}");
                    port.poll(&mut []);
                    other.poll(&mut []);
                }
                port.push_out();
                let has_come = |done: &Completion| matches!(done.outcome, WorkOutcome::Received { .. });
                let mut done = [Completion::EMPTY; 8];
                loop {
                    let count = other.poll(&mut done);
                    if done[..count].iter().any(has_come) {
                        break;
                    }
                }
                receive(&mut ends[1 - from as usize]);
            }
            // Now and then epoll is asked for other connections, and the kernel may deliver a message in parts.
            let calls = CALLS.get() - before;
            assert!(
                calls <= 2 * MESSAGES + MESSAGES / 4,
                "{len} bytes: {calls} calls for {MESSAGES} messages"
            );
        }
    }

    #[test]
    fn both_ends_of_a_connection_and_the_listener_have_the_traffic_class() {
        let ipv4 = (libc::IPPROTO_IP, libc::IP_TOS);
        let ipv6 = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
        for (at, option) in [("127.0.0.1:0", ipv4), ("[::1]:0", ipv6)] {
            let at: SocketAddr = at.parse().unwrap();
            if TcpListener::bind(at).is_err() {
                testing::skipped("this machine has no IPv6");
                continue;
            }
            for class in [None, Some(0x68)] {
                let listener = TcpListener::bind(at).unwrap();
                set_traffic_class(listener.as_fd(), at, class).unwrap();
                let address = listener.local_addr().unwrap();
                let options = SocketOptions { class, ..SocketOptions::default() };
                let mut tcp = Tcp { listener, address, sockets: options };
                let active = connect(address, options).unwrap();
                // The listener blocks.
                let passive = tcp.accept().unwrap();
                let sockets = [active.as_fd(), passive.as_fd(), tcp.listener()];
                let found = sockets.map(|socket| option_of(socket, option));
                assert_eq!(found, [class.unwrap_or(0).into(); 3], "{at}");
            }
        }
    }

    #[test]
    fn both_ends_of_a_connection_have_the_silence_limit_and_probe_within_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for (seconds, limit) in
            [(0, 2), (2, 2), (3, 3), (9, 9), (10, 10), (77, 77), (3600, 3600), (u64::MAX, 3600)]
        {
            let options = SocketOptions { silence: Duration::from_secs(seconds), ..SocketOptions::default() };
            let mut tcp = Tcp { listener: listener.try_clone().unwrap(), address, sockets: options };
            let active = connect(address, options).unwrap();
            // The listener blocks.
            let passive = tcp.accept().unwrap();
            for socket in [active.as_fd(), passive.as_fd()] {
                let tcp = |name| option_of(socket, (libc::IPPROTO_TCP, name));
                let [idle, every, count] =
                    [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT].map(tcp);
                assert_eq!(option_of(socket, (libc::SOL_SOCKET, libc::SO_KEEPALIVE)), 1);
                assert_eq!(tcp(libc::TCP_USER_TIMEOUT), 1000 * limit, "{seconds}");
                assert_eq!(idle + every * count, limit, "{seconds}: {idle} + {every} * {count}");
            }
        }
    }
    #[test]
    fn a_machine_is_silent_if_the_kernel_has_asked_it_without_result_since_its_last_answer() {
        // SAFETY: zeros are a value of every field.
        let mut info: libc::tcp_info = unsafe { mem::zeroed() };
        info.tcpi_last_ack_recv = 2500;
        for (unacked, retransmits, probes, is_unanswered) in [
            // Idle for long, and just sent.
            (3, 0, 0, false),
            (3, 1, 0, true),
            // No room at the other end: an answer to one probe may be on its way.
            (0, 0, 1, false),
            (0, 0, 2, true),
        ] {
            (info.tcpi_unacked, info.tcpi_retransmits, info.tcpi_probes) = (unacked, retransmits, probes);
            let answers = KernelAnswers::from_info(&info);
            assert_eq!((answers.since, answers.is_unanswered), (Duration::from_millis(2500), is_unanswered));
        }
    }

    #[test]
    fn a_machine_that_answers_is_not_silent_although_it_has_no_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = SocketOptions { silence: Duration::from_secs(2), ..SocketOptions::default() };
        let mut tcp = Tcp { listener, address, sockets: options };
        let mut active = connect(address, options).unwrap();
        let _passive = tcp.accept().unwrap();
        while active.is_connected().is_none() {
            std::thread::yield_now();
        }
        active.was_opened();
        assert_eq!(option_of(active.as_fd(), (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT)), 0);
        assert!(!active.is_silent(Duration::ZERO), "nothing was written");
        let bytes = vec![0; 1 << 20];
        while io::Write::write(&mut active.stream(), &bytes).is_ok() {}
        assert!(active.unconfirmed() > 0);
        // The time of the port passes much faster than that of the kernel, whose last answer is recent.
        for second in 0..100 {
            assert!(!active.is_silent(Duration::from_secs(second)), "{second}");
        }
    }
}
