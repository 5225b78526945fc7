//! Services: endpoints that are found by a host and a TCP port, as applications of libfabric name a server.
//!
//! An address of Nemesia has neither host nor port. So an endpoint that was opened for a service listens there, and
//! passes its address to each process that connects: whoever reaches that port may call. `fi_getinfo` returns the
//! place of a service in the form of an address ([`ServicePlace`]). `fi_endpoint` takes it as the place to listen at,
//! and `fi_av_insert` exchanges it for the address of the endpoint that listens there.
//!
//! On a connection the listener sends [`PREFACE`] and its 64 bytes, and closes.

use std::ffi::{CStr, c_char};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use nemesia::{ADDRESS_BYTES, PeerAddress};

use crate::bindings as fi;
use crate::descriptor::above_standard;
use crate::note;
use crate::object::Errno;

/// The first bytes of a place, where an address of an endpoint has the version of its form.
const MARK: [u8; 2] = [0xff; 2];
/// What a listener sends first, with the version of this protocol.
const PREFACE: [u8; 8] = *b"nemesia1";
/// The time for which a client waits for a service: the server may be starting.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// The place of a service: the address and the port at which an endpoint listens. Port 0 names no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServicePlace(SocketAddr);

impl ServicePlace {
    /// Returns the place that an application names, of which at most one part is null. `is_source`: this process
    /// listens there. `None`: a node that is known, whose port is left out, names no endpoint of another process.
    ///
    /// # Safety
    /// The pointers are null or lead to strings.
    pub(crate) unsafe fn named(
        node: *const c_char,
        service: *const c_char,
        is_source: bool,
    ) -> Result<Option<Self>, Errno> {
        // SAFETY: the caller's promise.
        let [node, service] =
            [node, service].map(|text| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }));
        let [node, service] = [node, service].map(|text| text.map(CStr::to_string_lossy));
        let missing = |what: &str| {
            note::warn(format_args!("fi_getinfo: {what}"));
            Errno::NO_DATA
        };
        let port = match service.as_deref().map(str::parse) {
            None => 0,
            Some(Ok(port)) => port,
            Some(Err(_)) => return Err(missing("a service must be the number of a port")),
        };
        let Some(node) = node else {
            let ip = if is_source { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
            return Ok(Some(Self(SocketAddr::new(ip.into(), port))));
        };
        match (&*node, port).to_socket_addrs().map(|mut found| found.next()) {
            Ok(Some(place)) => Ok((is_source || service.is_some()).then_some(Self(place))),
            Ok(None) => Err(missing(&format!("the node {node} has no address"))),
            Err(error) => Err(missing(&format!("the node {node} is not known: {error}"))),
        }
    }

    /// Returns the 64 bytes.
    pub(crate) fn encode(self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let ip = match self.0.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[..2].copy_from_slice(&MARK);
        bytes[2..4].copy_from_slice(&self.0.port().to_le_bytes());
        bytes[48..].copy_from_slice(&ip.octets());
        bytes
    }

    /// Returns the place; `None` if the bytes are no place, but may be the address of an endpoint.
    pub(crate) fn decode(bytes: &[u8; ADDRESS_BYTES]) -> Option<Self> {
        let (head, ip) = bytes.split_last_chunk::<16>()?;
        let [first, second, low, high, rest @ ..] = head else { return None };
        let is_place = [*first, *second] == MARK && rest.iter().all(|byte| *byte == 0);
        let place = SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), u16::from_le_bytes([*low, *high]));
        is_place.then_some(Self(place))
    }

    /// Returns the address of the endpoint that listens here. Waits for a server that is starting.
    pub(crate) fn find(self) -> Result<PeerAddress, Errno> {
        self.find_within(PATIENCE).map_err(|(number, reason)| {
            note::warn(format_args!(
                "no endpoint is found at {}: {reason}; start its server first, with the same host and port",
                self.0
            ));
            Errno(number)
        })
    }

    fn find_within(self, limit: Duration) -> Result<PeerAddress, (u32, String)> {
        let begun = Instant::now();
        if self.0.port() == 0 {
            return Err((fi::FI_EINVAL, "port 0 names no service".to_owned()));
        }
        let mut stream = loop {
            let left = limit.saturating_sub(begun.elapsed()).max(PAUSE);
            match TcpStream::connect_timeout(&self.0, left).and_then(above_standard) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < limit => {
                    sleep(PAUSE);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err((fi::FI_ECONNREFUSED, error.to_string()));
                }
                Err(error) => return Err((fi::FI_EHOSTUNREACH, error.to_string())),
            }
        };
        let mut bytes = [0; PREFACE.len() + ADDRESS_BYTES];
        let read = stream.set_read_timeout(Some(limit)).and_then(|()| stream.read_exact(&mut bytes));
        read.map_err(|error| (fi::FI_ECONNABORTED, format!("it has sent no address: {error}")))?;
        match bytes.split_first_chunk() {
            Some((&PREFACE, address)) => Ok(PeerAddress::from_bytes(std::array::from_fn(|at| address[at]))),
            _ => Err((fi::FI_ECONNABORTED, "what listens there is no endpoint of Nemesia".to_owned())),
        }
    }
}

/// Returns the address of the endpoint that these bytes name: its address, or the place of its service.
pub(crate) fn endpoint_at(bytes: [u8; ADDRESS_BYTES]) -> Result<PeerAddress, Errno> {
    ServicePlace::decode(&bytes).map_or(Ok(PeerAddress::from_bytes(bytes)), ServicePlace::find)
}

/// Passes the address of an endpoint to those that connect, until it is dropped.
#[derive(Debug)]
pub(crate) struct ServiceListener {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl ServiceListener {
    /// Listens at a place; `None` if it names no service.
    pub(crate) fn open(
        ServicePlace(place): ServicePlace,
        address: &PeerAddress,
    ) -> Result<Option<Self>, Errno> {
        if place.port() == 0 {
            return Ok(None);
        }
        let failed = |error: std::io::Error| {
            note::warn(format_args!("no endpoint at {place}: {error}; choose another port"));
            match error.kind() {
                ErrorKind::AddrInUse => Errno(fi::FI_EADDRINUSE),
                ErrorKind::AddrNotAvailable => Errno(fi::FI_EADDRNOTAVAIL),
                _ => Errno::OTHER,
            }
        };
        let listener = TcpListener::bind(place).and_then(above_standard).map_err(failed)?;
        let accepting = listener.try_clone().map_err(failed)?;
        let answer = [&PREFACE[..], address.bytes()].concat();
        let thread =
            Builder::new().name("nemesia-service".to_owned()).spawn(move || answer_all(&accepting, &answer));
        Ok(Some(Self { listener, thread: Some(thread.map_err(failed)?) }))
    }
}

impl Drop for ServiceListener {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open. The thread's wait for a connection ends with an error.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Sends the answer to each process that connects, until the listener is shut down.
fn answer_all(listener: &TcpListener, answer: &[u8]) {
    loop {
        match listener.accept().and_then(|(stream, _)| above_standard(stream)) {
            // The answer fits the buffer of a new connection. A client that is gone does not need it.
            Ok(mut stream) => drop(stream.write_all(answer)),
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            // The client has given up, or descriptors are lacking for now.
            Err(_) => sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Named = Result<Option<ServicePlace>, Errno>;

    fn place(node: Option<&CStr>, service: Option<&CStr>, is_source: bool) -> Named {
        let [node, service] = [node, service].map(|text| text.map_or(std::ptr::null(), CStr::as_ptr));
        // SAFETY: null, or strings.
        unsafe { ServicePlace::named(node, service, is_source) }
    }

    #[test]
    fn a_place_has_the_form_of_an_address_and_no_address_is_a_place() {
        for text in [c"127.0.0.1", c"::1", c"10.255.0.7"] {
            let place = place(Some(text), Some(c"4711"), false).unwrap().unwrap();
            assert_eq!(ServicePlace::decode(&place.encode()), Some(place));
            assert_eq!(place.0.port(), 4711);
        }
        assert_eq!(ServicePlace::decode(&[0; ADDRESS_BYTES]), None);
        assert_eq!(ServicePlace::decode(&[0xff; ADDRESS_BYTES]), None);
        let endpoint = nemesia::Endpoint::alone(&nemesia::Config::default()).unwrap();
        assert_eq!(ServicePlace::decode(endpoint.address().unwrap().bytes()), None);
    }

    #[test]
    fn what_is_left_out_is_any_address_of_a_server_and_this_machine_for_a_client() {
        let at = |text: &str| Ok(Some(ServicePlace(text.parse().unwrap())));
        assert_eq!(place(None, Some(c"9"), true), at("0.0.0.0:9"));
        assert_eq!(place(None, Some(c"9"), false), at("127.0.0.1:9"));
        assert_eq!(place(Some(c"127.0.0.1"), None, true), at("127.0.0.1:0"));
        assert_eq!(place(Some(c"127.0.0.1"), None, false), Ok(None));
        for (node, service) in [(Some(c"host.invalid"), None), (None, Some(c"http")), (None, Some(c"65536"))]
        {
            assert_eq!(place(node, service, false), Err(Errno::NO_DATA));
        }
    }

    #[test]
    fn an_endpoint_is_found_at_its_place_until_it_is_closed() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (place, address) = (ServicePlace(free), PeerAddress::from_bytes([7; ADDRESS_BYTES]));
        let listener = ServiceListener::open(place, &address).unwrap().unwrap();
        assert_eq!(ServiceListener::open(place, &address).unwrap_err(), Errno(fi::FI_EADDRINUSE));
        for _ in 0..3 {
            assert_eq!(endpoint_at(place.encode()), Ok(address));
        }
        assert_eq!(endpoint_at(*address.bytes()), Ok(address));
        drop(listener);
        assert_eq!(place.find_within(Duration::ZERO).unwrap_err().0, fi::FI_ECONNREFUSED);
        assert!(
            ServiceListener::open(ServicePlace("0.0.0.0:0".parse().unwrap()), &address).unwrap().is_none()
        );
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = ServicePlace(other.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            for answer in [&[b'x'; 72][..], b"short"] {
                other.accept().unwrap().0.write_all(answer).unwrap();
            }
        });
        for _ in 0..2 {
            assert_eq!(place.find_within(Duration::from_secs(30)).unwrap_err().0, fi::FI_ECONNABORTED);
        }
        thread.join().unwrap();
    }
}
