//! The client side of PMI-1, over the socket that a launcher left open for this process.

use super::error::BootstrapError;
use super::members::{self, Member};
use super::wire::{self, LineBuffer, PmiReply, PmiRequest, excerpt};
use super::{Exchange, poll};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The version of the protocol that this client speaks.
const VERSION: (u32, u32) = (1, 1);

/// Descriptors that [`open_inherited`] has duplicated. Each may have one user in this process.
static OPENED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Whether the connection can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Finalized,
    /// A request failed half-way: the next line could be its answer or the answer to the next request.
    Broken,
}

/// The greatest lengths that the launcher announced, in bytes. They include a terminating zero of C.
#[derive(Debug, Clone, Copy)]
struct Maxes {
    key: usize,
    value: usize,
}

/// A connection to a launcher that implements PMI-1. It owns its descriptor of the socket. The connection ends
/// with [`Exchange::finalize`] or when this value is dropped; most launchers treat the latter as an abnormal
/// end. In a child of `fork`, and after [`Exchange::start_failed`], a drop only closes this descriptor: that which
/// PMI_FD names stays open until the process ends.
///
/// It may move to another thread, but one thread at a time uses it. Every request waits for the launcher's
/// answer, at most for the deadline.
#[derive(Debug)]
pub struct PmiClient {
    socket: Option<OwnedFd>,
    /// The process whose connection this is, once the launcher has answered as one.
    process: Option<u32>,
    lines: LineBuffer,
    rank: usize,
    size: usize,
    kvsname: String,
    maxes: Maxes,
    deadline: Duration,
    state: State,
    /// Whether this process could not join its world.
    has_failed_to_start: bool,
    /// How often this rank was started before; `None` if the launcher restarts no rank.
    incarnation: Option<u64>,
}

impl PmiClient {
    /// Connects to the launcher at the other end of `socket` as process `rank` of `size`, and waits at most
    /// `deadline` for each of its answers, now and later.
    ///
    /// # Errors
    /// [`BootstrapError::RankOutOfRange`], or any failure of an exchange with the launcher.
    pub fn connect(
        socket: OwnedFd,
        rank: usize,
        size: usize,
        deadline: Duration,
    ) -> Result<Self, BootstrapError> {
        Self::connect_as(socket, (rank, size), deadline, false)
    }

    /// Connects as [`PmiClient::connect`] does. With `take_over`, also if the connection is initialised.
    pub(super) fn connect_as(
        socket: OwnedFd,
        (rank, size): (usize, usize),
        deadline: Duration,
        take_over: bool,
    ) -> Result<Self, BootstrapError> {
        if rank >= size {
            return Err(BootstrapError::RankOutOfRange { rank, size });
        }
        let mut client = Self {
            socket: Some(socket),
            process: None,
            lines: LineBuffer::default(),
            rank,
            size,
            kvsname: String::new(),
            maxes: Maxes { key: 0, value: 0 },
            deadline,
            state: State::Open,
            has_failed_to_start: false,
            incarnation: None,
        };
        client.shake_hands(take_over)?;
        client.process = Some(std::process::id());
        Ok(client)
    }

    /// Records that the launcher restarts ranks, and how often it has started this one before. The value counts
    /// only if the launcher is ours.
    pub(super) fn set_incarnation(&mut self, incarnation: u64) {
        // A variable inherited from another launcher's process is ignored.
        self.incarnation = self.kvsname.starts_with(super::KVSNAME).then_some(incarnation);
    }

    /// Sets the time limit of every later request as a whole.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Returns the longest key that [`Exchange::put`] takes, in bytes.
    #[must_use]
    pub fn max_key_len(&self) -> usize {
        self.maxes.key.saturating_sub(1)
    }

    /// Returns the longest value that [`Exchange::put`] takes, in bytes.
    #[must_use]
    pub fn max_value_len(&self) -> usize {
        self.maxes.value.saturating_sub(1)
    }

    /// Requests the launcher to end all processes of this job with exit code `code`, and finalizes this
    /// connection. The launcher does not answer; it ends this process too.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub fn abort(&mut self, code: i32) -> Result<(), BootstrapError> {
        let during = "abort";
        self.check_open(during)?;
        let expires = self.expiry();
        self.send(during, &PmiRequest::Abort { code }.encode(), expires)?;
        self.state = State::Finalized;
        // The socket stays open until this value is dropped: closing it here could look like a crash of this
        // process.
        Ok(())
    }

    fn shake_hands(&mut self, take_over: bool) -> Result<(), BootstrapError> {
        let during = "init";
        let line = self.call(during, PmiRequest::Init { version: VERSION.0, subversion: VERSION.1 })?;
        match self.reply(during, &line)? {
            PmiReply::Init { code: 0, version, .. } if version == VERSION.0 => {}
            // `nemesia run` answers this if the connection is initialised, and then serves it as before.
            PmiReply::Init { code: wire::INITIALIZED, .. } if take_over => {}
            PmiReply::Init { code: wire::INITIALIZED, .. } => {
                return Err(BootstrapError::Owned { by: "the launcher".to_owned() });
            }
            PmiReply::Init { code, version, subversion } => {
                let reason = format!("it speaks PMI {version}.{subversion}, this process 1.1");
                return Err(BootstrapError::Refused { during, code, reason });
            }
            _ => return Err(self.unexpected(during, &line)),
        }
        let during = "get_maxes";
        let line = self.call(during, PmiRequest::GetMaxes)?;
        let PmiReply::Maxes { key, value, .. } = self.reply(during, &line)? else {
            return Err(self.unexpected(during, &line));
        };
        // A whole line must fit, whatever the launcher promises: key, value and name get a quarter each.
        let ceiling = wire::MAX_LINE / 4;
        self.maxes = Maxes { key: key.min(ceiling), value: value.min(ceiling) };
        let during = "get_my_kvsname";
        let line = self.call(during, PmiRequest::GetMyKvsname)?;
        match self.reply(during, &line)? {
            PmiReply::MyKvsname { kvsname } if wire::is_value(kvsname) && kvsname.len() <= ceiling => {
                self.kvsname = kvsname.to_owned();
                Ok(())
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }

    /// Ends the connection, even if other descriptors of it exist: the descriptor that PMI_FD names stays open.
    /// Does nothing before the launcher has answered, because until then the socket may be of any kind. Does
    /// nothing in a forked child, whose parent still uses the connection.
    fn disconnect(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if self.process == Some(std::process::id()) {
            poll::shut_down(socket.as_fd());
        }
    }

    fn expiry(&self) -> Option<Instant> {
        // `None`, which means no limit, only for deadlines beyond the clock's range.
        Instant::now().checked_add(self.deadline)
    }

    fn check_open(&self, during: &'static str) -> Result<(), BootstrapError> {
        match self.state {
            State::Open => Ok(()),
            State::Finalized => Err(BootstrapError::Finalized { during }),
            State::Broken => Err(BootstrapError::Broken { during }),
        }
    }

    /// Sends one request and waits for one line.
    fn call(&mut self, during: &'static str, request: PmiRequest<'_>) -> Result<Vec<u8>, BootstrapError> {
        self.check_open(during)?;
        self.send_and_receive(during, &request.encode()).inspect_err(|_| self.state = State::Broken)
    }

    fn send_and_receive(&mut self, during: &'static str, request: &str) -> Result<Vec<u8>, BootstrapError> {
        let expires = self.expiry();
        self.send(during, request, expires)?;
        let line = self.receive(during, expires)?;
        if !self.lines.is_empty() {
            return Err(self.unexpected(during, b"more than one line"));
        }
        Ok(line)
    }

    /// Decodes an answer. An answer that cannot be decoded breaks the connection.
    fn reply<'a>(&mut self, during: &'static str, line: &'a [u8]) -> Result<PmiReply<'a>, BootstrapError> {
        PmiReply::parse(line).map_err(|source| {
            self.state = State::Broken;
            BootstrapError::Protocol { during, source }
        })
    }

    fn unexpected(&mut self, during: &'static str, line: &[u8]) -> BootstrapError {
        self.state = State::Broken;
        BootstrapError::Unexpected { during, reply: excerpt(&String::from_utf8_lossy(line)) }
    }

    fn socket(&self, during: &'static str) -> Result<BorrowedFd<'_>, BootstrapError> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or(BootstrapError::Finalized { during })
    }

    /// Waits until the socket is ready for `events` or closed.
    fn wait_ready(
        &self,
        during: &'static str,
        events: libc::c_short,
        expires: Option<Instant>,
    ) -> Result<(), BootstrapError> {
        let mut entries = [poll::entry(self.socket(during)?, events)];
        loop {
            let left = expires.map(|at| at.saturating_duration_since(Instant::now()));
            poll::wait(&mut entries, left).map_err(|source| BootstrapError::Io { during, source })?;
            if entries.iter().any(|entry| entry.revents != 0) {
                return Ok(());
            }
            if expires.is_some_and(|at| Instant::now() >= at) {
                return Err(BootstrapError::Timeout { during, deadline: self.deadline });
            }
        }
    }

    fn send(&self, during: &'static str, text: &str, expires: Option<Instant>) -> Result<(), BootstrapError> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match poll::send(self.socket(during)?, rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => self.after_error(during, error, libc::POLLOUT, expires)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, during: &'static str, expires: Option<Instant>) -> Result<Vec<u8>, BootstrapError> {
        let mut piece = [0; 4096];
        loop {
            let line = self.lines.take_line();
            if let Some(line) = line.map_err(|source| BootstrapError::Protocol { during, source })? {
                return Ok(line);
            }
            match poll::receive(self.socket(during)?, &mut piece) {
                Ok(0) => return Err(BootstrapError::LauncherGone { during }),
                Ok(count) => {
                    self.lines.push(piece.get(..count).unwrap_or_default());
                    // A launcher that sends single bytes must not exceed the deadline.
                    if expires.is_some_and(|at| Instant::now() >= at) {
                        self.check_line_is_complete(during)?;
                    }
                }
                Err(error) => self.after_error(during, error, libc::POLLIN, expires)?,
            }
        }
    }

    /// After the deadline, only a complete line still counts.
    fn check_line_is_complete(&self, during: &'static str) -> Result<(), BootstrapError> {
        if self.lines.has_newline() {
            return Ok(());
        }
        Err(BootstrapError::Timeout { during, deadline: self.deadline })
    }

    fn after_error(
        &self,
        during: &'static str,
        error: io::Error,
        events: libc::c_short,
        expires: Option<Instant>,
    ) -> Result<(), BootstrapError> {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.wait_ready(during, events, expires),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Err(BootstrapError::LauncherGone { during })
            }
            _ => Err(BootstrapError::Io { during, source: error }),
        }
    }
}

impl Drop for PmiClient {
    fn drop(&mut self) {
        // Hydra kills all processes of the world as soon as a connection ends. This one has not said why yet.
        if !self.has_failed_to_start {
            self.disconnect();
        }
    }
}

impl Exchange for PmiClient {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        let during = "put";
        self.check_open(during)?;
        check_pair(key, value, self.max_key_len(), self.max_value_len())?;
        let kvsname = self.kvsname.clone();
        let line = self.call(during, PmiRequest::Put { kvsname: &kvsname, key, value })?;
        match self.reply(during, &line)? {
            PmiReply::Put { code: 0, .. } => Ok(()),
            PmiReply::Put { code, message } => {
                Err(BootstrapError::Refused { during, code, reason: excerpt(message) })
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        let during = "get";
        self.check_open(during)?;
        check_key(key, self.max_key_len())?;
        let kvsname = self.kvsname.clone();
        let line = self.call(during, PmiRequest::Get { kvsname: &kvsname, key })?;
        match self.reply(during, &line)? {
            PmiReply::Get { code: 0, value: Some(value), .. } => Ok(value.to_owned()),
            PmiReply::Get { code, message, .. } if code != 0 => {
                Err(BootstrapError::KeyNotFound { key: excerpt(key), reason: excerpt(message) })
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        let during = "barrier";
        let line = self.call(during, PmiRequest::BarrierIn)?;
        match self.reply(during, &line)? {
            PmiReply::BarrierOut { code: 0, .. } => Ok(()),
            PmiReply::BarrierOut { message, .. } => {
                Err(BootstrapError::BarrierFailed { reason: excerpt(message) })
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }

    fn start_failed(&mut self) {
        self.has_failed_to_start = true;
    }

    fn incarnation(&self) -> u64 {
        self.incarnation.unwrap_or(0)
    }

    fn restarts(&self) -> bool {
        self.incarnation.is_some()
    }

    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        let during = "join";
        let incarnation = self.incarnation.ok_or(BootstrapError::NoRestart)?;
        check_value(address, self.max_value_len())?;
        let request = PmiRequest::Join { version: members::VERSION, incarnation, address };
        let line = self.call(during, request)?;
        match self.reply(during, &line)? {
            PmiReply::Joined { code: 0, turn, .. } => {
                NonZeroU64::new(turn).ok_or_else(|| self.unexpected(during, &line))
            }
            PmiReply::Joined { code, message, .. } => {
                Err(BootstrapError::Refused { during, code, reason: excerpt(message) })
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }

    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        let during = "member";
        self.incarnation.ok_or(BootstrapError::NoRestart)?;
        let line = self.call(during, PmiRequest::Member { rank })?;
        match self.reply(during, &line)? {
            PmiReply::Member { incarnation, turn, address } => Ok(NonZeroU64::new(turn)
                .zip(address)
                .map(|(turn, address)| Member { incarnation, turn, address: address.to_owned() })),
            _ => Err(self.unexpected(during, &line)),
        }
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        let during = "finalize";
        if self.state == State::Finalized {
            return Ok(());
        }
        let line = self.call(during, PmiRequest::Finalize)?;
        match self.reply(during, &line)? {
            PmiReply::FinalizeAck { code: 0 } => {
                self.state = State::Finalized;
                self.disconnect();
                Ok(())
            }
            PmiReply::FinalizeAck { code } => {
                let reason = "finalize".to_owned();
                Err(BootstrapError::Refused { during, code, reason })
            }
            _ => Err(self.unexpected(during, &line)),
        }
    }
}

/// Checks that `key` can be carried in at most `limit` bytes.
pub(super) fn check_key(key: &str, limit: usize) -> Result<(), BootstrapError> {
    if wire::is_key(key) && key.len() <= limit {
        return Ok(());
    }
    let without = "no space and no '='";
    Err(BootstrapError::Unencodable { what: "key", text: excerpt(key), limit, without })
}

/// Checks that `key` and `value` can be carried in at most so many bytes each.
pub(super) fn check_pair(
    key: &str,
    value: &str,
    max_key: usize,
    max_value: usize,
) -> Result<(), BootstrapError> {
    check_key(key, max_key)?;
    check_value(value, max_value)
}

fn check_value(value: &str, limit: usize) -> Result<(), BootstrapError> {
    if wire::is_value(value) && value.len() <= limit {
        return Ok(());
    }
    Err(BootstrapError::Unencodable { what: "value", text: excerpt(value), limit, without: "no space" })
}

/// Duplicates the socket that a launcher announced as PMI_FD, checks its kind, and hides it from programs that
/// this process starts. The number comes from the environment, so it may name a descriptor of other code in this
/// process: the descriptor itself is therefore never closed, nor given away.
pub(super) fn open_inherited(fd: RawFd) -> Result<OwnedFd, BootstrapError> {
    let bad = |reason: String| BootstrapError::BadDescriptor { fd, reason };
    if fd <= libc::STDERR_FILENO {
        return Err(bad("is a standard stream".to_owned()));
    }
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes numbers and touches no memory of this process; a descriptor that is not open is an error (EBADF).
    let ours = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if ours < 0 {
        let error = io::Error::last_os_error();
        return Err(bad(match error.raw_os_error() {
            Some(libc::EBADF) => format!("is not open ({error})"),
            _ => format!("cannot be duplicated ({error})"),
        }));
    }
    // SAFETY: the kernel has just opened it for this call.
    let ours = unsafe { OwnedFd::from_raw_fd(ours) };
    check_socket(&ours).map_err(bad)?;
    if opened.contains(&fd) {
        return Err(BootstrapError::AlreadyOpened { fd });
    }
    // SAFETY: F_SETFD takes an int and touches no memory of this process.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(bad(format!("cannot be marked close-on-exec ({})", io::Error::last_os_error())));
    }
    opened.push(fd);
    Ok(ours)
}

/// Permits another attempt with a descriptor whose connection other code of this process owns.
pub(super) fn forget_inherited(fd: RawFd) {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).retain(|opened| *opened != fd);
    // As it was found: `check_inherited` refuses descriptors with this flag.
    // SAFETY: F_SETFD takes an int and touches no memory of this process.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
}

/// Checks that the connection that PMI_FD names can be a launcher's: another process made it, and it was open when this
/// program was started. A program whose parent closed PMI_FD may have a connection of its own under that number, and a
/// request to the launcher would be written to it. Launchers (Hydra, Slurm, Flux, `nemesia run`) pass one end of a
/// socketpair.
pub(super) fn check_inherited(fd: RawFd) -> Result<(), BootstrapError> {
    if OPENED.lock().unwrap_or_else(PoisonError::into_inner).contains(&fd) {
        return Ok(());
    }
    // SAFETY: F_GETFD touches no memory of this process; a descriptor that is not open is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    let (family, named) = unix_pair(fd).unwrap_or((libc::AF_UNIX, false));
    let found = if flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
        "this program opened it after its start (it is close-on-exec)"
    } else if family != libc::AF_UNIX {
        "it is a network connection"
    } else if named {
        "it is a connection to a service"
    } else if maker(fd).is_some_and(|pid| pid == std::process::id()) {
        "this process made it"
    } else {
        return Ok(());
    };
    Err(BootstrapError::BadDescriptor { fd, reason: format!("is not a launcher's connection: {found}") })
}

/// Returns the family of a connected stream, and whether one of its ends has a name, which those of a socketpair do
/// not. `None` for any other descriptor, about which [`open_inherited`] reports more.
fn unix_pair(fd: RawFd) -> Option<(i32, bool)> {
    let name = |ask: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32| {
        // SAFETY: zeros are a value of every field.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: `name` has as many bytes as `len` says, and both outlive the call.
        let got = unsafe { ask(fd, (&raw mut name).cast(), &raw mut len) };
        (got == 0).then_some((i32::from(name.ss_family), len as usize > size_of::<libc::sa_family_t>()))
    };
    let ((family, own), (_, peer)) = (name(libc::getsockname)?, name(libc::getpeername)?);
    Some((family, own || peer))
}

/// Returns the process that made a socketpair; `None` if the kernel does not report it.
fn maker(fd: RawFd) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: `peer` has as many bytes as `len` says, and both outlive the call.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    u32::try_from(peer.pid).ok().filter(|_| got == 0)
}

/// Checks that a descriptor is a connected stream socket; else returns what is wrong. A pipe carries bytes in
/// one direction only, so it cannot carry requests and answers.
fn check_socket(socket: &OwnedFd) -> Result<(), String> {
    let (mut kind, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    let fd = socket.as_raw_fd();
    // SAFETY: `kind` has as many bytes as `len` says, and both outlive the call.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len)
    };
    if got != 0 {
        return Err("is not a socket".to_owned());
    }
    if kind != libc::SOCK_STREAM {
        return Err("is a socket for packets, not for a stream".to_owned());
    }
    // SAFETY: zeros are a value of every field.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: `name` has as many bytes as `len` says, and both outlive the call.
    if unsafe { libc::getpeername(fd, (&raw mut name).cast(), &raw mut len) } != 0 {
        return Err(format!("is not a connected socket ({})", io::Error::last_os_error()));
    }
    Ok(())
}
