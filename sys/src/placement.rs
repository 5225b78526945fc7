//! The system's part of software placement: sockets become ready by epoll, keys come from the kernel's random
//! numbers, and storage from the heap. The protocol is [`nemesia_core::port::placement`].

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use nemesia_core::port::memory::{Address, ConnectError, LostError};
pub use nemesia_core::port::placement::PlacementOptions as Options;
use nemesia_core::port::placement::{
    self, ByteStream, Interest, LISTENER, PlacementStorage, StreamResult, StreamTransport,
};

use crate::os::descriptor::own;
use crate::os::shortage::{Shortage, arrived_stream};
use crate::os::{self, ShmError};

/// The number of events taken from the kernel at once.
const EVENTS: usize = 32;
/// The random numbers that one system call draws. Each registration of memory takes one for its key, and over sockets
/// each large message registers memory.
const DRAWN: usize = 32;

/// A memory port by software placement over the streams of a source.
pub type PlacementPort<T> = placement::PlacementPort<PolledStreams<T>, PlacementVectors>;

/// A stream that has a descriptor.
pub trait PolledStream: ByteStream + AsFd {
    /// Returns a descriptor that becomes readable when the process at the other end has ended, if there is one: a child
    /// of that process may hold copies of its sockets.
    fn process(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A source of streams that have descriptors.
pub trait StreamSource {
    /// The type of its streams.
    type Stream: PolledStream;

    /// Its name.
    const NAME: &'static str;

    /// Whether its streams may be able to pull.
    const PULLS: bool = false;

    /// Returns its address for others, without the token.
    fn address(&self) -> Vec<u8>;

    /// Splits an address of this transport into its place and its token.
    fn parse(address: &Address) -> Option<(&[u8], u64)>;

    /// Starts to connect.
    fn connect(&mut self, to: &[u8]) -> Result<Self::Stream, ConnectError>;

    /// Returns the next incoming stream.
    ///
    /// # Errors
    /// There is none (`WouldBlock`), or the next one has ended (`ConnectionAborted`); else the process lacks
    /// descriptors or memory.
    fn accept(&mut self) -> io::Result<Self::Stream>;

    /// Returns a descriptor that is readable when a stream has come in.
    fn listener(&self) -> BorrowedFd<'_>;
}

/// A source of streams, with the epoll descriptor that reports which of them are ready.
#[derive(Debug)]
pub struct PolledStreams<T> {
    source: T,
    epoll: OwnedFd,
    shortage: Shortage,
    /// Random numbers that were drawn and not used. Each is used once.
    drawn: Vec<u64>,
}

/// Opens a port over the streams of a source.
pub(crate) fn open<T: StreamSource>(source: T, options: &Options) -> io::Result<PlacementPort<T>> {
    PlacementPort::new(PolledStreams::new(source)?, options).map_err(io::Error::from_raw_os_error)
}

impl<T: StreamSource> PolledStreams<T> {
    pub(crate) fn new(source: T) -> io::Result<Self> {
        // SAFETY: takes no memory.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: a new descriptor, given to us alone.
        let epoll = unsafe { own(epoll) }?;
        let polled = Self { source, epoll, shortage: Shortage::default(), drawn: Vec::new() };
        polled.control(polled.source.listener(), libc::EPOLL_CTL_ADD, (libc::EPOLLIN, LISTENER))?;
        Ok(polled)
    }

    #[cold]
    fn resume(&mut self) {
        let Self { source, epoll, shortage, .. } = self;
        let listener = source.listener().as_raw_fd();
        shortage.resume(Instant::now(), |listens| listen(epoll, listener, listens));
    }

    /// Returns the next report of a shortage of this process, which keeps it from accepting streams for now.
    pub(crate) const fn next_shortage(&mut self) -> Option<String> {
        self.shortage.next_report()
    }

    /// Returns the number of streams that could not be accepted.
    pub(crate) const fn failed_accepts(&self) -> u64 {
        self.shortage.failed()
    }
}

/// Puts a listener into a set, or takes it out.
fn listen(epoll: &OwnedFd, listener: RawFd, listens: bool) -> Result<(), ShmError> {
    let what = if listens { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_DEL };
    control(epoll, listener, what, (libc::EPOLLIN, LISTENER))
        .map_err(|errno| ShmError::system("waiting for streams", errno))
}

fn control(epoll: &OwnedFd, fd: RawFd, what: i32, (events, word): (i32, u64)) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: word };
    // SAFETY: the event outlives the call.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &raw mut event) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl<T> PolledStreams<T> {
    fn control(&self, fd: BorrowedFd<'_>, what: i32, (events, word): (i32, u64)) -> io::Result<()> {
        control(&self.epoll, fd.as_raw_fd(), what, (events, word))
    }
}

impl<T: StreamSource> StreamTransport for PolledStreams<T> {
    type Stream = T::Stream;

    const NAME: &'static str = T::NAME;

    const PULLS: bool = T::PULLS;

    fn address(&self, token: u64) -> Option<Address> {
        let mut bytes = self.source.address();
        bytes.extend_from_slice(&token.to_le_bytes());
        Address::new(&bytes)
    }

    fn parse(address: &Address) -> Option<(&[u8], u64)> {
        T::parse(address)
    }

    fn connect(&mut self, to: &[u8]) -> Result<T::Stream, ConnectError> {
        self.source.connect(to)
    }

    fn accept(&mut self) -> Option<T::Stream> {
        let Self { source, epoll, shortage, .. } = self;
        let listener = source.listener().as_raw_fd();
        let listen = |listens| listen(epoll, listener, listens);
        shortage.next_connection(Instant::now(), listen, || arrived_stream(source.accept()))
    }

    fn watch(&mut self, stream: &T::Stream, word: u64, interest: Interest) {
        let events = libc::EPOLLIN | libc::EPOLLRDHUP | if interest.writable { libc::EPOLLOUT } else { 0 };
        let what = if interest.new { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        // This fails only for lack of memory; the stream then seems silent, and deadlines end it.
        let _ = self.control(stream.as_fd(), what, (events, word));
        if let Some(process) = stream.process() {
            // Reported once: if a child of this process holds a copy, it stays in the set when it is closed.
            let _ = self.control(process, what, (libc::EPOLLIN | libc::EPOLLONESHOT, word));
        }
    }

    fn unwatch(&mut self, stream: &T::Stream) {
        // It is registered, so that this does not fail.
        for fd in [Some(stream.as_fd()), stream.process()].into_iter().flatten() {
            let _ = self.control(fd, libc::EPOLL_CTL_DEL, (0, LISTENER));
        }
    }

    fn ready(&mut self, words: &mut [u64]) -> usize {
        if self.shortage.is_paused() {
            self.resume();
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let most = words.len().min(EVENTS);
        count_call();
        // SAFETY: there is room for the announced number of events.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), most as i32, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        for (word, event) in words.iter_mut().zip(events).take(count) {
            *word = event.u64;
        }
        count
    }

    fn random(&mut self) -> Result<u64, i32> {
        if let Some(number) = self.drawn.pop() {
            return Ok(number);
        }
        count_call();
        let bytes = os::random::<{ 8 * DRAWN }>().map_err(|_| libc::EAGAIN)?;
        self.drawn.extend(bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        self.drawn.pop().ok_or(libc::EAGAIN)
    }

    fn descriptor(&self) -> Option<i32> {
        Some(self.epoll.as_raw_fd())
    }
}

/// Counts a call of the system that polls, sends or receives, for tests.
#[cfg(test)]
pub(crate) fn count_call() {
    CALLS.set(CALLS.get() + 1);
}

#[cfg(not(test))]
pub(crate) const fn count_call() {}

#[cfg(test)]
thread_local! {
    /// The calls that [`count_call`] has counted in this thread.
    pub(crate) static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The storage of a port, on the heap.
#[derive(Debug)]
pub struct PlacementVectors;

impl PlacementStorage for PlacementVectors {
    type Table<V> = Vec<V>;
}

/// Returns the result of a system call that has transferred `count` bytes.
pub(crate) fn transferred(count: io::Result<usize>) -> StreamResult {
    match count {
        Ok(0) => StreamResult::Ended,
        Ok(count) => StreamResult::Bytes(count),
        // After a signal, the kernel reports the stream again.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            StreamResult::Blocked
        }
        Err(error) => StreamResult::Failed(lost(&error)),
    }
}

/// Returns why a stream has ended.
fn lost(error: &io::Error) -> LostError {
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED) => LostError::Closed,
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN) => {
            LostError::Unreachable
        }
        // The kernel has met memory that a call of this process named.
        Some(libc::EFAULT) => LostError::Buffer,
        Some(code) => LostError::Unknown(code.unsigned_abs()),
        None => LostError::Closed,
    }
}
