//! One packet with descriptors over a Unix socket: the only place that touches control messages.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::call::{checked_long, uninterrupted};
use super::closer::{self, ForeignFd, Unwanted};
use super::descriptor::above_standard;

/// The largest number of descriptors in one packet.
pub(super) const MAX_FDS: usize = 8;

/// Room for `MAX_FDS` descriptors and one more, so that a surplus is detected; aligned for the headers in it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A packet as it was received.
pub(super) struct Packet {
    pub(super) len: usize,
    pub(super) fds: Vec<ForeignFd>,
    /// The packet was longer than the buffer.
    pub(super) cut: bool,
    /// The packet carried more descriptors than fit here or in this process's table; the kernel dropped the
    /// surplus.
    pub(super) control_cut: bool,
}

impl Packet {
    /// Returns whether descriptors of the packet lack, although there is room for more in the buffer: the kernel had no
    /// numbers for them.
    pub(super) const fn lacks_room(&self) -> bool {
        self.control_cut && self.fds.len() <= MAX_FDS
    }
}

fn empty_header(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all zeroes is a valid msghdr: null pointers with zero lengths.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    header
}

#[expect(clippy::cast_possible_truncation, reason = "at most MAX_FDS descriptors of four bytes")]
const fn payload(fds: usize) -> u32 {
    (fds * size_of::<RawFd>()) as u32
}

/// Sends one packet without waiting, with at most `MAX_FDS` descriptors. It is sent whole or not at all.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut header = empty_header(&mut iov);
    if !fds.is_empty() {
        header.msg_control = (&raw mut control).cast();
        // SAFETY: arithmetic only.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(payload(fds.len())) } as _;
        // SAFETY: `control` is aligned and has room for one header and MAX_FDS descriptors. So the first header
        // exists, and all of it and its data lies inside.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(payload(fds.len())) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the header describes buffers that outlive the call and that it only reads.
    let send = || unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    uninterrupted(|| checked_long(send() as _)).map(|_| ())
}

/// Receives one packet, without waiting. Length 0 without descriptors is the end of the connection.
pub(super) fn receive(socket: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Packet> {
    receive_as(socket, buf, 0)
}

/// As [`receive`]. But if this process has no room for the descriptors of the packet ([`Packet::lacks_room`]), the
/// packet stays in the queue.
pub(super) fn receive_whole(socket: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Packet> {
    let packet = receive_as(socket, buf, libc::MSG_PEEK)?;
    if !packet.lacks_room() {
        // The packet's own descriptors are dropped; this process has others for the same files.
        look(socket, 0)?;
    }
    Ok(packet)
}

fn receive_as(socket: BorrowedFd<'_>, buf: &mut [u8], flags: c_int) -> io::Result<Packet> {
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut header = empty_header(&mut iov);
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let len = uninterrupted(|| {
        // SAFETY: the header describes buffers that outlive the call, which writes at most their lengths.
        checked_long(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } as _)
    })?;
    let (fds, complete) = descriptors(&header);
    Ok(Packet {
        len: usize::try_from(len).unwrap_or(0),
        fds,
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        control_cut: !complete || header.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

/// The packets of one socket whose descriptors [`receive_all`] closes; the kernel closes those of the others.
const MOST_PACKETS: usize = 1024;

/// Shuts a Unix socket of ours down for both sides and closes it: in this thread if its queue is empty or holds
/// plain bytes, else in a helper thread.
pub(super) fn close_socket(socket: OwnedFd) {
    // From here on the peer can queue nothing more.
    // SAFETY: takes no memory. The call fails only if the peer has already closed its end.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    if !drop_plain_packets(socket.as_fd()) {
        closer::close(Unwanted::Queue(socket, receive_all));
    }
}

/// Receives the packets of a socket and closes their descriptors, which may block.
fn receive_all(socket: BorrowedFd<'_>) {
    for _ in 0..MOST_PACKETS {
        match receive(socket, &mut [0]) {
            Ok(packet) if packet.len == 0 && packet.fds.is_empty() => break,
            Ok(packet) => packet.fds.into_iter().for_each(|fd| closer::close_soon(&fd.into_inner())),
            Err(errno) if errno.raw_os_error() == Some(libc::EAGAIN) => break,
            // The kernel reports a reset once, before the data that the peer had sent.
            Err(_) => {}
        }
    }
}

/// The number of packets that [`drop_plain_packets`] receives.
const PLAIN_PACKETS: usize = 64;

/// Receives the packets that carry no descriptors, up to the first that does. True if the queue is then empty.
/// The caller has shut the receiving side down.
fn drop_plain_packets(socket: BorrowedFd<'_>) -> bool {
    for _ in 0..PLAIN_PACKETS {
        match peek(socket) {
            Ok((_, true)) => return false,
            // The end, or a packet without bytes: with credentials requested, the kernel attaches them to every
            // packet.
            Ok((0, false)) => return want_credentials(socket) && matches!(peek(socket), Ok((0, false))),
            Ok(_) => drop(receive(socket, &mut [0])),
            // The kernel reports a reset once, before the data that the peer had sent.
            Err(errno) if errno.raw_os_error() == Some(libc::ECONNRESET) => {}
            Err(errno) => return errno.raw_os_error() == Some(libc::EAGAIN),
        }
    }
    false
}

/// Returns the length of the next packet, one byte at most, and whether the packet carries control data that
/// has no room here. The packet stays in the queue, with its descriptors.
fn peek(socket: BorrowedFd<'_>) -> io::Result<(usize, bool)> {
    look(socket, libc::MSG_PEEK)
}

/// As [`peek`]. Without that flag the packet leaves the queue, and the kernel closes its descriptors.
fn look(socket: BorrowedFd<'_>, flags: c_int) -> io::Result<(usize, bool)> {
    let mut byte = [0_u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut header = empty_header(&mut iov);
    let flags = flags | libc::MSG_DONTWAIT;
    let len = uninterrupted(|| {
        // SAFETY: the header describes a buffer that outlives the call, which writes at most its length.
        checked_long(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } as _)
    })?;
    Ok((usize::try_from(len).unwrap_or(0), header.msg_flags & libc::MSG_CTRUNC != 0))
}

fn want_credentials(socket: BorrowedFd<'_>) -> bool {
    let yes: c_int = 1;
    let len = size_of_val(&yes) as libc::socklen_t;
    // SAFETY: the value is alive and of the length that is passed.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const yes).cast(),
            len,
        )
    };
    set == 0
}

/// Takes ownership of every descriptor that the kernel has installed for this message. `false`: one of them lacks,
/// because it has the number of a standard stream, and no other number is free.
fn descriptors(header: &libc::msghdr) -> (Vec<ForeignFd>, bool) {
    let (mut fds, mut complete) = (Vec::new(), true);
    // SAFETY: the kernel wrote `header` and the control buffer it points to, which is alive in our caller.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null or a header inside the buffer, by the contract of the CMSG macros.
    while let Some(control) = unsafe { next.as_ref() } {
        if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: arithmetic only.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            #[allow(clippy::unnecessary_cast, reason = "not a usize with every C library")]
            let count = (control.cmsg_len as usize).saturating_sub(overhead) / size_of::<RawFd>();
            for index in 0..count {
                // SAFETY: the kernel put `count` descriptors there.
                let fd = unsafe {
                    libc::CMSG_DATA(ptr::from_ref(control)).cast::<RawFd>().add(index).read_unaligned()
                };
                // SAFETY: a new descriptor, given to us alone.
                match above_standard(ForeignFd::from(unsafe { OwnedFd::from_raw_fd(fd) })) {
                    Ok(fd) => fds.push(fd),
                    Err(_) => complete = false,
                }
            }
        }
        // SAFETY: `next` is a header of `header`'s buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    (fds, complete)
}
