//! The exchange of segments by two connecting processes (paper 2, section 1.4.1: the connection setup creates the
//! shared resources).
//!
//! The accepting process opens a meeting place of a random name, and sends the name by TCP. The other process connects
//! to it, over a Unix socket without a name in a file system. Both check that the other process runs as the same user.
//! Each sends a hello with two descriptors: its half of the link, and its bell.

use std::os::fd::AsFd;
use std::time::Instant;

use nemesia_core::via::ViaError;

use super::bell::Bell;
use super::link::{Link, LinkHalf};
use crate::os::{HandoffConnection, HandoffListener, IdentityStamp, RemoteMemory, ShmError};

/// The first bytes of a hello.
const HELLO: &[u8; 8] = b"viahello";
const HELLO_BYTES: usize = 32;

/// A value by which another process recognises the memory of this one.
static STAMP: std::sync::OnceLock<u64> = std::sync::OnceLock::new();

/// Returns the name of a meeting place in hexadecimal digits.
pub(super) fn name_of(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of a name of a listener.
pub(super) fn bytes_of(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (byte, digits) in bytes.iter_mut().zip(name.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or("0");
        *byte = u8::from_str_radix(digits, 16).unwrap_or(0);
    }
    bytes
}

/// Waits at a meeting place for the other process: until `step` for its connection, then until the deadline.
pub(super) fn receive(
    place: &HandoffListener,
    bell: &Bell,
    step: Instant,
    deadline: Instant,
) -> Result<Link, ViaError> {
    let connection = place.accept(step);
    exchange(connection, bell, deadline)
}

/// Goes to the meeting place of the other process.
pub(super) fn go(name: [u8; 16], bell: &Bell, deadline: Instant) -> Result<Link, ViaError> {
    exchange(HandoffConnection::connect(&name_of(name), deadline), bell, deadline)
}

fn exchange(
    connection: Result<HandoffConnection, ShmError>,
    bell: &Bell,
    deadline: Instant,
) -> Result<Link, ViaError> {
    let connection = connection.map_err(|error| reason(&error))?;
    connection.require_same_user().map_err(|_| ViaError::NotReachable)?;
    let mut half = LinkHalf::create().map_err(|_| ViaError::ErrorResource)?;
    let (Some(own), Some(own_bell)) = (half.segment().fd(), bell.segment().fd()) else {
        return Err(ViaError::ErrorResource);
    };
    connection.send(&hello(), &[own.as_fd(), own_bell.as_fd()], deadline).map_err(|error| reason(&error))?;
    let mut bytes = [0; HELLO_BYTES];
    let (len, fds) = connection.recv(&mut bytes, 2, deadline).map_err(|error| reason(&error))?;
    let Ok([theirs, their_bell]) = <[_; 2]>::try_from(fds) else { return Err(ViaError::NotReachable) };
    let stamp = stamp_in(&bytes[..len]).ok_or(ViaError::NotReachable)?;
    let their_bell = Bell::attach(their_bell).map_err(|_| ViaError::NotReachable)?;
    let memory = RemoteMemory::new(connection.peer().pid, stamp).filter(|memory| memory.permitted().is_ok());
    half.close_descriptor();
    Link::new(half, theirs, their_bell, connection, memory).map_err(|_| ViaError::NotReachable)
}

fn reason(error: &ShmError) -> ViaError {
    match error {
        ShmError::TimedOut { .. } => ViaError::Timeout,
        _ => ViaError::NotReachable,
    }
}

fn hello() -> [u8; HELLO_BYTES] {
    let stamp = STAMP.get_or_init(|| crate::os::random().map_or(1, u64::from_le_bytes));
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(HELLO);
    bytes[8..16].copy_from_slice(&(std::ptr::from_ref(stamp) as u64).to_le_bytes());
    bytes[16..24].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

/// Returns the stamp of a hello; `None` if the bytes are none.
fn stamp_in(bytes: &[u8]) -> Option<IdentityStamp> {
    let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
    (bytes[..8] == HELLO[..] && word(24)? == 0)
        .then_some(IdentityStamp { address: word(8)?, value: word(16)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_bytes_are_equivalent() {
        let bytes = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(bytes_of(&name_of(bytes)), bytes);
        assert_eq!(bytes_of("zz"), [0; 16]);
    }

    #[test]
    fn only_a_hello_has_a_stamp() {
        assert!(stamp_in(&hello()).is_some());
        assert!(stamp_in(&hello()[..31]).is_none() && stamp_in(&[]).is_none());
        for at in (0..8).chain(24..32) {
            let mut bytes = hello();
            bytes[at] ^= 1;
            assert!(stamp_in(&bytes).is_none(), "byte {at}");
        }
    }
}
