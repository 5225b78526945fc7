//! The descriptor that PMI_FD names.

use super::*;

#[test]
fn a_descriptor_that_is_no_socket_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = pmi::open_inherited(file.as_raw_fd()).unwrap_err();
    assert!(error.to_string().contains("is not a socket"), "{error}");
}

/// A number that was a launcher's socket, was closed, and was reused, is judged by its present file.
#[test]
fn a_reused_descriptor_number_is_checked_again() {
    // A high number, away from other tests, which open and close descriptors concurrently.
    let high = |file: std::os::fd::RawFd| {
        // SAFETY: takes numbers and touches no memory of this process.
        let fd = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 700) };
        assert!(fd >= 700, "{}", std::io::Error::last_os_error());
        fd
    };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = high(theirs.as_raw_fd());
    drop(pmi::open_inherited(fd).unwrap());
    assert!(matches!(pmi::open_inherited(fd), Err(BootstrapError::AlreadyOpened { .. })), "it is open");
    // SAFETY: this test made it, and only this test has it.
    drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
    let closed = pmi::open_inherited(fd).unwrap_err();
    assert!(closed.to_string().contains("is not open"), "{closed}");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(high(file.as_raw_fd()), fd);
    let error = pmi::open_inherited(fd).unwrap_err();
    assert!(error.to_string().contains("is not a socket"), "{error}");
    // SAFETY: this test made it, and only this test has it.
    let owned: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    drop((ours, owned));
}

#[test]
fn a_descriptor_has_one_owner() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(theirs);
    let owned = pmi::open_inherited(fd).unwrap();
    assert!(matches!(pmi::open_inherited(fd), Err(BootstrapError::AlreadyOpened { .. })));
    drop((ours, owned));
}

/// PMI_FD may name a descriptor of other code in this process, which continues to use it.
#[test]
fn the_descriptor_that_the_environment_names_is_never_closed() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    drop(pmi::open_inherited(theirs.as_raw_fd()).unwrap());
    ours.write_all(b"still here").unwrap();
    let mut bytes = [0; 10];
    theirs.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
    // A socket that is no launcher's does not lose its connection either.
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let named = theirs.try_clone().unwrap();
    theirs.write_all(b"HTTP/1.1 400 Bad Request\n").unwrap();
    let socket = pmi::open_inherited(ours.as_raw_fd()).unwrap();
    assert!(PmiClient::connect(socket, 0, 1, LONG).is_err());
    theirs.write_all(b"x").unwrap();
    ours.read_exact(&mut bytes[..1]).unwrap();
    drop(named);
}

#[test]
fn only_a_connected_stream_is_taken_for_a_launcher() {
    let (packets, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let error = pmi::open_inherited(packets.as_raw_fd()).unwrap_err().to_string();
    assert!(error.contains("is a socket for packets"), "{error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = pmi::open_inherited(listener.as_raw_fd()).unwrap_err().to_string();
    assert!(error.contains("is not a connected socket"), "{error}");
}

/// The descriptor that PMI_FD names stays open, so the launcher must detect the end by the shutdown of the
/// connection.
#[test]
fn a_client_that_is_dropped_ends_its_connection_for_every_descriptor() {
    let mut world = BootstrapWorld::new(1);
    let socket = world.sockets.remove(0);
    let other = socket.try_clone().unwrap();
    drop(PmiClient::connect(socket, 0, 1, LONG).unwrap());
    let mut other = UnixStream::from(other);
    assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "the stream has ended");
}

/// A process that cannot join its world still has to report why, before the launcher ends it.
#[test]
fn a_client_of_a_failed_start_keeps_its_connection_until_the_process_ends() {
    let mut world = BootstrapWorld::new(1);
    let socket = world.sockets.remove(0);
    let other = socket.try_clone().unwrap();
    let mut client = PmiClient::connect(socket, 0, 1, LONG).unwrap();
    client.start_failed();
    drop(client);
    let other = UnixStream::from(other);
    other.set_nonblocking(true).unwrap();
    let error = (&other).read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the stream has not ended");
}

/// A program whose parent closed PMI_FD may have a connection of its own under that number.
#[test]
fn a_connection_that_this_program_made_is_not_taken_for_the_launchers() {
    use std::os::unix::net::UnixListener;
    let inheritable = |fd: &dyn AsRawFd| {
        // SAFETY: F_SETFD takes an int and touches no memory of this process.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        fd.as_raw_fd()
    };
    let refusal = |fd: i32| {
        let lookup = move |name: &str| match name {
            "PMI_FD" => Some(fd.to_string().into()),
            "PMI_RANK" => Some("0".into()),
            "PMI_SIZE" => Some("1".into()),
            _ => None,
        };
        Bootstrap::from_lookup(lookup, LONG, false).unwrap_err().to_string()
    };
    let (pair, mut other) = UnixStream::pair().unwrap();
    let message = refusal(pair.as_raw_fd());
    assert!(message.contains("close-on-exec") && message.contains("nemesia run"), "{message}");
    let message = refusal(inheritable(&pair));
    assert!(message.contains("this process made it"), "{message}");
    let directory = scratch("service");
    let service = UnixListener::bind(directory.join("socket")).unwrap();
    let named = UnixStream::connect(directory.join("socket")).unwrap();
    let message = refusal(inheritable(&named));
    assert!(message.contains("a connection to a service"), "{message}");
    let accepted = service.accept().unwrap().0;
    assert!(refusal(inheritable(&accepted)).contains("a connection to a service"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let message = refusal(inheritable(&tcp));
    assert!(message.contains("a network connection"), "{message}");
    // Nothing was written to any of them.
    other.set_nonblocking(true).unwrap();
    let mut far = listener.accept().unwrap().0;
    far.set_nonblocking(true).unwrap();
    accepted.set_nonblocking(true).unwrap();
    for end in [&mut other as &mut dyn Read, &mut far, &mut &accepted] {
        assert_eq!(end.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
