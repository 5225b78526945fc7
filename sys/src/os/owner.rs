//! The user of the other end of a TCP connection inside of this network namespace, as the kernel knows it.
//!
//! The kernel is asked for one socket by its two addresses (`sock_diag(7)`), or, where it does not offer that, the list
//! of all sockets is read. An end in another machine or namespace is not found.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;

use super::call::effective_uid;
use super::descriptor::{above_standard, own};

/// `TCP_ESTABLISHED`, the state of a connection that neither end has closed.
const ESTABLISHED: u8 = 1;
/// `SOCK_DIAG_BY_FAMILY`, the type of a question and of its answer.
const BY_FAMILY: u16 = 20;
/// Bytes of a question: a header of netlink and `struct inet_diag_req_v2`.
const ASK_BYTES: usize = 16 + 56;
/// Bytes of an answer: a header of netlink and `struct inet_diag_msg`.
const ANSWER_BYTES: usize = 16 + 72;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TcpEnd {
    state: u8,
    user: u32,
    /// The number of the open socket; 0 if no process has it any more. Such an end has no user.
    inode: u64,
}

/// Returns whether the other end of a connection is a socket of this user in this network namespace.
pub(crate) fn is_peer_of_same_user(stream: &TcpStream) -> bool {
    let (Ok(SocketAddr::V4(own)), Ok(SocketAddr::V4(peer))) = (stream.local_addr(), stream.peer_addr())
    else {
        return false;
    };
    // The own end exists: if the kernel does not find it, it does not offer the question.
    let found = if ask(own, peer).is_some() { ask(peer, own) } else { listed(peer, own) };
    found.is_some_and(|end| end.state == ESTABLISHED && end.inode != 0 && end.user == effective_uid())
}

/// Asks the kernel for the end with these addresses.
fn ask(local: SocketAddrV4, remote: SocketAddrV4) -> Option<TcpEnd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
    // SAFETY: a new descriptor, given to us alone.
    let socket = unsafe { own(fd) }.ok()?;
    let question = question(local, remote);
    // SAFETY: an array of this length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), question.as_ptr().cast(), ASK_BYTES, 0) };
    let mut answer = [0_u8; 512];
    // SAFETY: an array of this length. The answer is there when the question was accepted.
    let len = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    let is_whole = usize::try_from(len).is_ok_and(|len| len >= ANSWER_BYTES);
    if usize::try_from(sent) == Ok(ASK_BYTES) && is_whole { decode(&answer, local) } else { None }
}

fn question(local: SocketAddrV4, remote: SocketAddrV4) -> [u8; ASK_BYTES] {
    let mut bytes = [0; ASK_BYTES];
    bytes[..4].copy_from_slice(&(ASK_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    (bytes[16], bytes[17]) = (libc::AF_INET as u8, libc::IPPROTO_TCP as u8);
    // All states.
    bytes[20..24].fill(0xff);
    bytes[24..26].copy_from_slice(&local.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&remote.port().to_be_bytes());
    bytes[28..32].copy_from_slice(&local.ip().octets());
    bytes[44..48].copy_from_slice(&remote.ip().octets());
    // Any socket with these addresses, whatever its cookie.
    bytes[64..72].fill(0xff);
    bytes
}

fn decode(answer: &[u8], local: SocketAddrV4) -> Option<TcpEnd> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let is_answer = answer.get(4..6)? == BY_FAMILY.to_ne_bytes();
    let is_same = answer.get(20..22)? == local.port().to_be_bytes();
    let end = TcpEnd { state: *answer.get(17)?, user: word(80)?, inode: word(84)?.into() };
    (is_answer && is_same).then_some(end)
}

/// Looks for the end with these addresses in the list of all sockets.
fn listed(local: SocketAddrV4, remote: SocketAddrV4) -> Option<TcpEnd> {
    let file = std::fs::File::open("/proc/net/tcp").and_then(above_standard).ok()?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    lines.skip(1).find_map(|line| parse(&line, local, remote))
}

fn parse(line: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<TcpEnd> {
    let text = |at: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(at.ip().octets()), at.port());
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != text(local) || words.next()? != text(remote) {
        return None;
    }
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    // The lengths of both queues, a timer, and the number of repetitions come before the user.
    let user = words.nth(3)?.parse().ok()?;
    Some(TcpEnd { state, user, inode: words.nth(1)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::os::testing::skipped;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    fn addresses(stream: &TcpStream) -> (SocketAddrV4, SocketAddrV4) {
        match (stream.local_addr().unwrap(), stream.peer_addr().unwrap()) {
            (SocketAddr::V4(own), SocketAddr::V4(peer)) => (own, peer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ends_of_a_connection_are_of_this_user_until_they_are_closed() {
        let (caller, called) = pair();
        assert!(is_peer_of_same_user(&caller) && is_peer_of_same_user(&called));
        let (own, peer) = addresses(&called);
        assert_eq!(listed(peer, own).map(|end| (end.state, end.user)), Some((ESTABLISHED, effective_uid())));
        if ask(own, peer).is_some() {
            assert_eq!(ask(peer, own), listed(peer, own));
            assert_eq!(ask(peer, SocketAddrV4::new(*own.ip(), own.port() ^ 1)), None);
        }
        // The kernel reports user 0 for an end that no process has. A child that another test starts at this moment has
        // this end until it runs its program.
        drop(caller);
        while is_peer_of_same_user(&called) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_end_of_another_user_is_not_of_this_one() {
        if effective_uid() != 0 {
            return skipped("only root can become another user");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, ask_for) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            // SAFETY: takes no pointers. The system call itself changes the user of this thread only.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
            let stream = TcpStream::connect(address).unwrap();
            let _ = ask_for.recv();
            drop(stream);
        });
        let called = listener.accept().unwrap().0;
        assert!(!is_peer_of_same_user(&called));
        let (own, peer) = addresses(&called);
        assert_eq!(listed(peer, own).map(|end| end.user), Some(65534));
        drop(tell);
        other.join().unwrap();
    }
}
