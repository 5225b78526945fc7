//! One connection to each peer of the same machine, over which both exchange a handshake and the descriptors of
//! segments.
//!
//! Peers connect to a Unix socket in the abstract namespace: it has no file and ends with its process. Any
//! process in the same network namespace can connect to it. So both sides ask the kernel for the peer's
//! credentials ([`HandoffConnection::require_same_user`]) before they use any data of the peer. The connection
//! then stays open: its disconnection is one of the two ways in which a [`Watch`](super::Watch) detects a
//! death.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::io;
use std::mem::{self, ManuallyDrop, MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::call::{checked, effective_uid, left, process_id, ready_now, wait_ready};
use super::closer::{self, ForeignFd, Unwanted};
use super::descriptor::{check_accept, own};
use super::error::ShmError;
use super::forked::close_in_children;
use super::message::{self, Packet};
use super::random::random;

/// The largest number of descriptors in one message.
pub const MAX_FDS: usize = message::MAX_FDS;

/// The packet that a process sends before it leaves on purpose. A handshake must not begin with it.
const GOODBYE: &[u8] = b"nemesia:goodbye";
/// The packet that a process sends before it leaves without having finished; as long as a goodbye. A handshake
/// must not begin with it either.
const DROPPED: &[u8] = b"nemesia:dropped";
/// The packet that a process sends to wake one that waits in an event loop; no longer than a goodbye. A
/// handshake must not begin with it either.
const WAKE: &[u8] = b"nemesia:wake";

const PREFIX: &str = "nemesia-";
const NAME_LEN: usize = 32;

/// The credentials of a peer, which the kernel recorded when the peer connected or called `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if the peer lives in a pid namespace that is not visible from this one.
    pub pid: i32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A listening socket. The kernel removes its name with the last descriptor, that is with the process.
///
/// Bind in the process that accepts: the kernel reports the binding process to peers as the owner of every
/// connection.
#[derive(Debug)]
pub struct HandoffListener {
    fd: ManuallyDrop<OwnedFd>,
    name: String,
    /// The process that accepts: a forked child only closes its copy.
    process: i32,
}

impl HandoffListener {
    /// Listens under a fresh random name of 128 bits.
    ///
    /// # Errors
    /// No descriptors are left, or a sandbox refuses Unix sockets.
    pub fn bind() -> Result<Self, ShmError> {
        Self::bind_as(random_name()?)
    }

    /// As [`HandoffListener::bind`], under this name of 32 lower-case hexadecimal digits.
    pub fn bind_as(name: String) -> Result<Self, ShmError> {
        let fd = socket(libc::SOCK_NONBLOCK)?;
        let (address, len) = address(&name);
        // SAFETY: the address outlives the call and has the length announced.
        checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
            .map_err(|errno| ShmError::system("binding the listening socket", errno))?;
        // SAFETY: takes no pointers.
        checked(unsafe { libc::listen(fd.as_raw_fd(), libc::SOMAXCONN) })
            .map_err(|errno| ShmError::system("listening for peers", errno))?;
        check_accept(fd.as_fd()).map_err(|errno| ShmError::system("listening for peers", errno))?;
        Ok(Self { fd: ManuallyDrop::new(fd), name, process: process_id() })
    }

    /// Returns the name that peers pass to [`HandoffConnection::connect`]: 32 hexadecimal digits.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Accepts the next connection. Its peer is not authenticated: check its credentials.
    ///
    /// # Errors
    /// [`ShmError::TimedOut`] at the deadline; no descriptors are left.
    pub fn accept(&self, deadline: Instant) -> Result<HandoffConnection, ShmError> {
        const WHAT: &str = "waiting for a peer to connect";
        loop {
            match accept(self.fd.as_fd()) {
                Ok(connection) => return Ok(connection),
                Err(errno) => match errno.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        let ready = wait_ready(self.fd.as_fd(), libc::POLLIN, deadline);
                        if !ready.map_err(|errno| ShmError::system(WHAT, errno))? {
                            return Err(ShmError::TimedOut { doing: WHAT });
                        }
                    }
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    _ => return Err(ShmError::system("accepting a peer", errno)),
                },
            }
        }
    }
}

/// Connections in the queue of a listener may hold descriptors whose close blocks. So they are accepted before
/// the listener is closed, and each is then closed like any other connection.
impl Drop for HandoffListener {
    fn drop(&mut self) {
        // SAFETY: taken once: the field is not used after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.process != process_id() {
            return;
        }
        // SAFETY: takes no memory. No process can connect after this call.
        unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
        let end = loop {
            match accept(fd.as_fd()) {
                Ok(connection) => drop(connection),
                Err(errno) if matches!(errno.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => {}
                Err(errno) => break errno,
            }
        };
        // The queue is empty, unless too many descriptors are open.
        if !matches!(end.raw_os_error(), Some(libc::EAGAIN | libc::EINVAL)) {
            closer::close(Unwanted::Descriptor(fd));
        }
    }
}

fn accept(listener: BorrowedFd<'_>) -> io::Result<HandoffConnection> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null addresses are allowed.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    // SAFETY: a new descriptor, given to us alone.
    let fd = unsafe { own(fd) }?;
    close_in_children(fd.as_fd());
    HandoffConnection::new(fd)
}

/// Readable when a process wants to connect.
impl AsFd for HandoffListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connection to one peer process, which carries packets with boundaries, in order, with descriptors.
///
/// Any thread may use it; concurrent packets do not mix.
#[derive(Debug)]
pub struct HandoffConnection {
    fd: ManuallyDrop<OwnedFd>,
    peer: Credentials,
    /// The process that uses it: a forked child only closes its copy.
    process: i32,
}

impl HandoffConnection {
    /// Connects to a listener by its name.
    ///
    /// # Errors
    /// [`ShmError::NotListening`] if there is no such listener. [`ShmError::TimedOut`] if its queue of waiting
    /// connections stays full until the deadline.
    pub fn connect(name: &str, deadline: Instant) -> Result<Self, ShmError> {
        if name.len() != NAME_LEN || !name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            let rule = "32 lower-case hexadecimal digits";
            return Err(ShmError::Name {
                what: "meeting place",
                name: name.chars().take(64).collect(),
                rule,
            });
        }
        let fd = socket(0)?;
        let (address, len) = address(name);
        loop {
            // The kernel has no way to wait for a non-blocking connect while the queue is full. A blocking one
            // with a time limit waits.
            set_send_timeout(&fd, left(deadline))?;
            // SAFETY: the address outlives the call and has the length announced.
            let result = checked(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) });
            let Err(errno) = result else { break };
            match errno.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => {
                    return Err(ShmError::TimedOut { doing: "connecting to a peer that is busy" });
                }
                Some(libc::ECONNREFUSED) => return Err(ShmError::NotListening { name: name.into(), errno }),
                _ => return Err(ShmError::system("connecting to a peer", errno)),
            }
        }
        Self::known(fd)
    }

    /// Returns two ends that are connected to each other, both in this process.
    ///
    /// # Errors
    /// No descriptors are left.
    #[cfg(test)]
    pub(crate) fn pair() -> Result<(Self, Self), ShmError> {
        let mut fds: [c_int; 2] = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for the two descriptors.
        checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })
            .map_err(|errno| ShmError::system("making a pair of sockets", errno))?;
        // SAFETY: two new descriptors, given to us alone.
        let [one, other] = fds.map(|fd| unsafe { own(fd) });
        let failed = |errno| ShmError::system("making a pair of sockets", errno);
        Ok((Self::known(one.map_err(failed)?)?, Self::known(other.map_err(failed)?)?))
    }

    fn known(fd: OwnedFd) -> Result<Self, ShmError> {
        Self::new(fd).map_err(|errno| ShmError::system("querying the peer's credentials", errno))
    }

    fn new(fd: OwnedFd) -> io::Result<Self> {
        let peer: libc::ucred = socket_option(&fd, libc::SO_PEERCRED)?;
        let peer = Credentials { pid: peer.pid, uid: peer.uid, gid: peer.gid };
        Ok(Self { fd: ManuallyDrop::new(fd), peer, process: process_id() })
    }

    /// Returns the credentials of the peer, for which the kernel vouches.
    pub fn peer(&self) -> Credentials {
        self.peer
    }

    /// Checks that the peer runs as our effective user.
    ///
    /// # Errors
    /// [`ShmError::OtherUser`].
    pub fn require_same_user(&self) -> Result<(), ShmError> {
        self.require_user(effective_uid())
    }

    fn require_user(&self, ours: u32) -> Result<(), ShmError> {
        let Credentials { pid, uid: theirs, .. } = self.peer;
        if theirs == ours { Ok(()) } else { Err(ShmError::OtherUser { pid, theirs, ours }) }
    }

    /// Sends one packet, with copies of at most [`MAX_FDS`] descriptors. Tries once even if the deadline has
    /// passed.
    ///
    /// # Errors
    /// [`ShmError::TimedOut`] while the peer's queue is full, [`ShmError::PeerGone`], [`ShmError::BadMessage`] for an
    /// empty packet or too many descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), ShmError> {
        const DOING: &str = "sending to a peer";
        if bytes.is_empty() {
            return Err(self.bad("an empty message would look like the end of the connection"));
        }
        if fds.len() > MAX_FDS {
            return Err(self.bad("too many descriptors for one message"));
        }
        loop {
            let Err(errno) = message::send(self.fd.as_fd(), bytes, fds) else { return Ok(()) };
            match errno.raw_os_error() {
                Some(libc::EAGAIN) => self.wait(libc::POLLOUT, DOING, deadline)?,
                Some(libc::EPIPE | libc::ECONNRESET) => return Err(self.gone(DOING)),
                _ => return Err(ShmError::system(DOING, errno)),
            }
        }
    }

    /// Receives one packet: returns its length in `buf`, and its descriptors. Tries once even if the deadline
    /// has passed.
    ///
    /// # Errors
    /// [`ShmError::PeerGone`] at the end of the connection; [`ShmError::TimedOut`]; [`ShmError::BadMessage`] if
    /// the packet is longer than `buf` or carries more than `max_fds` descriptors, which are then closed. If this
    /// process has no room for the descriptors of the packet: [`ShmError::Descriptors`], and the next call receives the
    /// packet, unless `max_fds` is 0.
    pub fn recv(
        &self,
        buf: &mut [u8],
        max_fds: usize,
        deadline: Instant,
    ) -> Result<(usize, Vec<ForeignFd>), ShmError> {
        const DOING: &str = "waiting for a message";
        let mut reset = false;
        loop {
            let received = match max_fds {
                0 => message::receive(self.fd.as_fd(), buf),
                _ => message::receive_whole(self.fd.as_fd(), buf),
            };
            let errno = match received {
                Ok(packet) => return self.judge(packet, max_fds, DOING),
                Err(errno) => errno,
            };
            match errno.raw_os_error() {
                Some(libc::EAGAIN) => self.wait(libc::POLLIN, DOING, deadline)?,
                // The peer left without reading all our packets. The kernel reports this once; the peer's
                // packets follow.
                Some(libc::ECONNRESET) if !reset => reset = true,
                Some(libc::ECONNRESET) => return Err(self.gone(DOING)),
                _ => return Err(ShmError::system(DOING, errno)),
            }
        }
    }

    fn judge(
        &self,
        packet: Packet,
        max_fds: usize,
        doing: &'static str,
    ) -> Result<(usize, Vec<ForeignFd>), ShmError> {
        if packet.lacks_room() {
            let errno = io::Error::from_raw_os_error(libc::EMFILE);
            return Err(ShmError::system("receiving the descriptors of a peer", errno));
        }
        if packet.control_cut || packet.fds.len() > max_fds {
            return Err(self.bad("too many descriptors"));
        }
        if packet.cut {
            return Err(self.bad("too long"));
        }
        if packet.len == 0 {
            return Err(self.gone(doing));
        }
        Ok((packet.len, packet.fds))
    }

    fn wait(&self, events: libc::c_short, doing: &'static str, deadline: Instant) -> Result<(), ShmError> {
        let ready = wait_ready(self.fd.as_fd(), events, deadline);
        if ready.map_err(|errno| ShmError::system(doing, errno))? {
            Ok(())
        } else {
            Err(ShmError::TimedOut { doing })
        }
    }

    fn gone(&self, doing: &'static str) -> ShmError {
        ShmError::PeerGone { pid: self.peer.pid, doing }
    }

    fn bad(&self, why: &'static str) -> ShmError {
        ShmError::BadMessage { pid: self.peer.pid, why }
    }

    /// Sends the peer the packet that announces a finished departure: the peer then reports the disconnection
    /// that follows as [`Departure::Finished`]. Does not wait: if the peer does not read, the packet is lost.
    ///
    /// [`Departure::Finished`]: super::Departure::Finished
    ///
    /// # Errors
    /// The packet could not be sent, in most cases because the peer has already left.
    pub fn send_goodbye(&self) -> Result<(), ShmError> {
        self.send(GOODBYE, &[], Instant::now())
    }

    /// Sends the peer the packet that announces a departure without having finished: the peer then reports the
    /// disconnection that follows as [`Departure::Dropped`]. Does not wait, as
    /// [`HandoffConnection::send_goodbye`].
    ///
    /// [`Departure::Dropped`]: super::Departure::Dropped
    ///
    /// # Errors
    /// As [`HandoffConnection::send_goodbye`].
    pub fn send_dropped(&self) -> Result<(), ShmError> {
        self.send(DROPPED, &[], Instant::now())
    }

    /// Returns the departure that a packet announces, if the packet is that of
    /// [`HandoffConnection::send_goodbye`] or of [`HandoffConnection::send_dropped`].
    pub fn departure_in(packet: &[u8]) -> Option<Departure> {
        match packet {
            GOODBYE => Some(Departure::Finished),
            DROPPED => Some(Departure::Dropped),
            _ => None,
        }
    }

    /// Returns whether a packet only wakes its receiver ([`HandoffConnection::send_wake`]).
    pub fn is_wake(packet: &[u8]) -> bool {
        packet == WAKE
    }

    /// Returns whether the other end is closed, even if unread packets are left.
    pub fn has_disconnected(&self) -> bool {
        let events = ready_now(self.fd.as_fd(), libc::POLLRDHUP);
        events.is_ok_and(|events| events & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0)
    }

    /// Ends the connection for both sides, even if other processes hold our end of it.
    pub fn disconnect(&self) {
        // SAFETY: takes no memory. The call fails only if the peer has already closed its end.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Refuses all further packets of the peer: each [`HandoffConnection::send`] of the peer that begins after this
    /// call fails. The packets that it sent before can still be received.
    pub(crate) fn refuse_packets(&self) {
        // SAFETY: takes no memory. The call fails only if the peer has already closed its end.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RD) };
    }

    /// Wakes the peer, which has announced that its event loop waits for this connection. Does not wait: if the
    /// peer's queue is full, the peer has unread packets that wake it anyway.
    ///
    /// # Errors
    /// The packet could not be sent: the peer is gone, or its queue is full and it is already woken.
    pub fn send_wake(&self) -> Result<(), ShmError> {
        self.send(WAKE, &[], Instant::now())
    }

    /// Returns a descriptor that becomes readable when the peer's process ends, even if other processes hold
    /// its sockets.
    ///
    /// `None` before Linux 5.3, across pid namespaces, in some sandboxes, or if the peer is already dead: the
    /// caller then relies on the disconnection alone.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        match socket_option::<c_int>(&self.fd, SO_PEERPIDFD) {
            // SAFETY: a new descriptor, given to us alone.
            Ok(fd) => unsafe { own(fd) }.ok(),
            Err(errno) if errno.raw_os_error() == Some(libc::ENOPROTOOPT) => self.pidfd_by_number(),
            Err(_) => None,
        }
    }

    /// Returns whether the process at the other end lives. Without a pidfd: whether the connection is up.
    pub(crate) fn is_alive(&self) -> bool {
        match self.pidfd() {
            Some(pidfd) => ready_now(pidfd.as_fd(), libc::POLLIN).is_ok_and(|events| events == 0),
            None => !self.has_disconnected(),
        }
    }

    /// Before Linux 6.5: opens the pidfd by the process number, which may belong to another process by then. It
    /// does not if the connection is still up afterwards: the peer then still exists (or has given its socket
    /// away, which our processes do not do).
    fn pidfd_by_number(&self) -> Option<OwnedFd> {
        if self.peer.pid <= 0 {
            return None;
        }
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.peer.pid, 0) };
        // SAFETY: a new descriptor, given to us alone.
        let fd = unsafe { own(c_int::try_from(fd).ok()?) }.ok()?;
        let disconnected = ready_now(self.fd.as_fd(), libc::POLLRDHUP).ok()?;
        (disconnected & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) == 0).then_some(fd)
    }

    /// Reads the next packet without waiting.
    pub(super) fn glance(&self) -> Glance {
        let mut buf = [0; GOODBYE.len() + 1];
        match message::receive(self.fd.as_fd(), &mut buf) {
            Ok(packet) if packet.len == 0 => Glance::End,
            Ok(packet) if !packet.cut && Self::is_wake(&buf[..packet.len]) => Glance::Wake,
            Ok(packet) if packet.cut => Glance::Stray,
            Ok(packet) => Self::departure_in(&buf[..packet.len]).map_or(Glance::Stray, Glance::Leaving),
            Err(errno) => match errno.raw_os_error() {
                Some(libc::EAGAIN) => Glance::Nothing,
                Some(libc::ECONNRESET) => Glance::Reset,
                _ => Glance::End,
            },
        }
    }
}

/// Closing never blocks, whatever the peer has sent: see [`ForeignFd`].
impl Drop for HandoffConnection {
    fn drop(&mut self) {
        // SAFETY: taken once: the field is not used after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.process == process_id() {
            message::close_socket(fd);
        }
    }
}

/// Readable at a packet or at the end of the connection.
impl AsFd for HandoffConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The way in which a peer left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Without announcing it, or after it violated the protocol.
    Died,
    /// After announcing that it has finished ([`HandoffConnection::send_goodbye`]).
    Finished,
    /// After announcing that it leaves without having finished ([`HandoffConnection::send_dropped`]).
    Dropped,
}

/// The result of [`HandoffConnection::glance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glance {
    Nothing,
    /// The peer has announced how it leaves.
    Leaving(Departure),
    Wake,
    /// A packet that is not expected.
    Stray,
    /// The peer has left without reading all our packets; its own packets may still follow.
    Reset,
    End,
}

// From asm/socket.h; some C libraries lack it.
#[cfg(any(target_arch = "sparc", target_arch = "sparc64"))]
const SO_PEERPIDFD: c_int = 0x0056;
#[cfg(not(any(target_arch = "sparc", target_arch = "sparc64")))]
const SO_PEERPIDFD: c_int = 77;

/// # Safety
/// All zeroes, and any bytes that the kernel writes for its options, are a valid value.
unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: three integers.
unsafe impl Plain for libc::ucred {}

fn socket_option<T: Plain>(fd: &OwnedFd, option: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = socket_len::<T>();
    // SAFETY: the kernel writes at most `len` bytes to a value of that size.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    })?;
    // SAFETY: zeroed, then written by the kernel: a valid value in both cases, by `Plain`.
    Ok(unsafe { value.assume_init() })
}

#[expect(clippy::cast_possible_truncation, reason = "sizes of small structures")]
const fn socket_len<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

fn set_send_timeout(fd: &OwnedFd, timeout: Duration) -> Result<(), ShmError> {
    // The kernel takes zero as no limit.
    let timeout = timeout.clamp(Duration::from_micros(1), Duration::from_secs(1 << 30));
    let value = libc::timeval {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: timeout.subsec_micros().into(),
    };
    let len = socket_len::<libc::timeval>();
    // SAFETY: the value outlives the call and has the length announced.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw const value).cast(), len)
    })
    .map(|_| ())
    .map_err(|errno| ShmError::system("limiting the time to connect", errno))
}

fn socket(flags: c_int) -> Result<OwnedFd, ShmError> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    // SAFETY: a new descriptor, given to us alone.
    let fd = unsafe { own(fd) }.map_err(|errno| ShmError::system("making a Unix socket", errno))?;
    close_in_children(fd.as_fd());
    Ok(fd)
}

fn random_name() -> Result<String, ShmError> {
    let random: [u8; NAME_LEN / 2] = random()?;
    Ok(random.iter().fold(String::with_capacity(NAME_LEN), |mut name, byte| {
        let _ = write!(name, "{byte:02x}"); // writing to a string does not fail
        name
    }))
}

#[expect(clippy::cast_possible_truncation, reason = "it is 1")]
const AF_UNIX: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;

/// Returns the address of a name. It begins with a zero byte, so it is abstract.
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid address structure.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = AF_UNIX;
    let mut len = offset_of!(libc::sockaddr_un, sun_path) + 1;
    for (slot, byte) in address.sun_path[1..].iter_mut().zip(PREFIX.bytes().chain(name.bytes())) {
        *slot = byte as libc::c_char;
        len += 1;
    }
    (address, libc::socklen_t::try_from(len).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::call::process_id;
    use crate::os::testing;
    use std::fs::File;
    use std::io::Read;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn two_sides_connect_by_name_and_have_each_others_credentials() {
        let listener = HandoffListener::bind().unwrap();
        assert_eq!(listener.name().len(), 32);
        let ours = HandoffConnection::connect(&listener.name(), soon()).unwrap();
        let theirs = listener.accept(soon()).unwrap();
        for side in [&ours, &theirs] {
            assert_eq!(side.peer().pid, process_id());
            assert_eq!(side.peer().uid, effective_uid());
            side.require_same_user().unwrap();
        }
        let error = ours.require_user(ours.peer().uid + 1).unwrap_err().to_string();
        let (pid, uid) = (process_id(), effective_uid());
        assert_eq!(
            error,
            format!("process {pid} refused: it runs as uid {uid}, this process as uid {}", uid + 1)
        );
        ours.send(b"hello", &[], soon()).unwrap();
        let mut buf = [0; 16];
        assert_eq!(theirs.recv(&mut buf, 0, soon()).unwrap().0, 5);
        assert_eq!(&buf[..5], b"hello");
    }

    #[test]
    fn every_name_is_another_and_dies_with_its_listener() {
        let (one, other) = (HandoffListener::bind().unwrap(), HandoffListener::bind().unwrap());
        assert_ne!(one.name(), other.name());
        let name = one.name();
        let unix = || std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(unix().contains(&name));
        drop(one);
        testing::eventually(|| !unix().contains(&name));
        let error = HandoffConnection::connect(&name, soon()).unwrap_err();
        assert!(matches!(error, ShmError::NotListening { .. }), "{error}");
    }

    #[test]
    fn a_bad_name_is_refused() {
        for name in ["", "../../etc", &"g".repeat(32), &"0".repeat(33), "\0"] {
            let error = HandoffConnection::connect(name, soon()).unwrap_err();
            assert!(matches!(error, ShmError::Name { .. }), "{error}");
        }
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let listener = HandoffListener::bind().unwrap();
        let error = listener.accept(Instant::now()).unwrap_err();
        assert!(matches!(error, ShmError::TimedOut { .. }), "{error}");
        let (ours, _theirs) = HandoffConnection::pair().unwrap();
        let error = ours.recv(&mut [0; 8], 0, Instant::now() + Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, ShmError::TimedOut { .. }), "{error}");
        let full = loop {
            if let Err(error) = ours.send(&[1; 4096], &[], Instant::now()) {
                break error;
            }
        };
        assert!(matches!(full, ShmError::TimedOut { .. }), "{full}");
    }

    #[test]
    fn connecting_to_a_full_queue_ends_at_the_deadline() {
        let listener = HandoffListener::bind().unwrap();
        // SAFETY: takes no pointers.
        checked(unsafe { libc::listen(listener.fd.as_raw_fd(), 0) }).unwrap();
        let _first = HandoffConnection::connect(&listener.name(), soon()).unwrap();
        let error = HandoffConnection::connect(&listener.name(), Instant::now()).unwrap_err();
        assert!(matches!(error, ShmError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn descriptors_travel_and_are_closed_on_exec() {
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        let (read, write) = io::pipe().unwrap();
        ours.send(b"x", &[read.as_fd(), write.as_fd()], soon()).unwrap();
        drop((read, write));
        let (len, fds) = theirs.recv(&mut [0; 4], 2, soon()).unwrap();
        assert_eq!((len, fds.len()), (1, 2));
        for fd in &fds {
            // SAFETY: takes no pointers.
            let flags = checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) }).unwrap();
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
        let [read, write] = <[ForeignFd; 2]>::try_from(fds).unwrap().map(ForeignFd::into_inner);
        io::Write::write_all(&mut File::from(write), b"through").unwrap();
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    /// The read end of a pipe reports the end of file only after every copy of the write end is closed.
    #[test]
    fn surplus_descriptors_are_closed() {
        for (sent, accepted) in [(1, 0), (3, 2), (MAX_FDS, 0), (MAX_FDS, MAX_FDS - 1)] {
            let (ours, theirs) = HandoffConnection::pair().unwrap();
            let (mut read, write) = io::pipe().unwrap();
            ours.send(b"x", &vec![write.as_fd(); sent], soon()).unwrap();
            drop(write);
            let error = theirs.recv(&mut [0; 4], accepted, soon()).unwrap_err();
            assert!(matches!(error, ShmError::BadMessage { .. }), "{error}");
            assert_eq!(read.read(&mut [0; 1]).unwrap(), 0);
        }
        let (ours, _theirs) = HandoffConnection::pair().unwrap();
        let many = vec![ours.as_fd(); MAX_FDS + 1];
        assert!(matches!(ours.send(b"x", &many, soon()), Err(ShmError::BadMessage { .. })));
    }

    #[test]
    fn a_message_that_does_not_fit_is_an_error_and_not_a_part() {
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        ours.send(&[1; 9], &[], soon()).unwrap();
        ours.send(&[2; 8], &[], soon()).unwrap();
        let error = theirs.recv(&mut [0; 8], 0, soon()).unwrap_err();
        assert!(matches!(error, ShmError::BadMessage { why: "too long", .. }), "{error}");
        assert_eq!(theirs.recv(&mut [0; 8], 0, soon()).unwrap().0, 8);
        assert!(matches!(ours.send(&[], &[], soon()), Err(ShmError::BadMessage { .. })));
    }

    #[test]
    fn the_end_names_the_process_after_everything_it_sent() {
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        theirs.send(b"last", &[], soon()).unwrap();
        ours.send(b"never read", &[], soon()).unwrap(); // so that the end is a reset
        drop(theirs);
        let mut buf = [0; 8];
        assert_eq!(ours.recv(&mut buf, 0, soon()).unwrap().0, 4);
        let error = ours.recv(&mut buf, 0, soon()).unwrap_err();
        let pid = process_id();
        assert_eq!(error.to_string(), format!("peer process {pid} is gone (while waiting for a message)"));
        assert!(matches!(ours.send(b"x", &[], soon()), Err(ShmError::PeerGone { .. })));
    }

    #[test]
    fn a_pidfd_reports_the_peers_end() {
        let listener = HandoffListener::bind().unwrap();
        let (address, len) = address(&listener.name());
        let child = testing::fork(|| {
            // SAFETY: system calls on local variables; SEQPACKET as in `socket`.
            unsafe {
                let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
                if libc::connect(fd, (&raw const address).cast(), len) != 0 {
                    return 1;
                }
            }
            testing::sleep_forever()
        });
        let theirs = listener.accept(soon()).unwrap();
        assert_eq!(theirs.peer().pid, child.pid());
        let pidfds = [theirs.pidfd(), theirs.pidfd_by_number()];
        for fd in pidfds.iter().flatten() {
            assert_eq!(ready_now(fd.as_fd(), libc::POLLIN).unwrap(), 0);
        }
        child.kill();
        if pidfds.iter().flatten().count() < 2 {
            testing::skipped("no pidfds here");
        }
        for fd in pidfds.iter().flatten() {
            assert!(wait_ready(fd.as_fd(), libc::POLLIN, soon()).unwrap());
        }
    }

    #[test]
    fn a_pidfd_by_number_is_not_taken_once_the_peer_has_disconnected() {
        let (ours, theirs) = HandoffConnection::pair().unwrap();
        drop(theirs);
        testing::eventually(|| ours.pidfd_by_number().is_none());
    }
}
