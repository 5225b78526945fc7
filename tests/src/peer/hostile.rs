//! Hostile processes: they hand over descriptors that block, and remove the pages of memory that they have
//! lent. The other processes neither wait nor die.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use nemesia::internals::os::{HandoffConnection, ShmError};
use nemesia::{Access, Error, Path, RemoteKey, Source, Tag};

use super::{Fault, Outcome, barrier, broken, ensure, open, tell};

/// The longest time that a call may take. The operations that a call must not wait for take longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The bytes of a key. Four of them are the number of one of its owner's descriptors, counted from one.
const KEY_BYTES: usize = nemesia::KEY_BYTES;
const SHARE: std::ops::Range<usize> = 4..8;
const MIB: usize = 1 << 20;
const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// `stranger NAME SILENT LINGERING UID`: opens `SILENT` connections to the listener of this name without
/// sending anything, and `LINGERING` connections that send a descriptor whose close blocks for minutes. Runs
/// until it is killed.
pub(super) fn stranger(words: &[&str]) -> Outcome {
    let [name, numbers @ ..] = words else { return Err(Fault::Usage("no name".into())) };
    let number = |text: &&str| text.parse().map_err(|_| Fault::Usage(format!("{text} is not a number")));
    let numbers = numbers.iter().map(number).collect::<Outcome<Vec<u32>>>()?;
    let [silent, lingering, uid] = numbers[..] else { return Err(Fault::Usage("three numbers".into())) };
    let sockets = (0..lingering).map(|_| slow_to_close()).collect::<Outcome<Vec<_>>>()?;
    // SAFETY: takes no pointers. Only this process changes. The group is changed first, while that is
    // permitted.
    let changed = uid == 0 || unsafe { libc::setgid(uid) == 0 && libc::setuid(uid) == 0 };
    ensure(changed, || "cannot become another user".into())?;
    let call = || HandoffConnection::connect(name, Instant::now() + PATIENCE).map_err(Error::from);
    let mut kept = Vec::new();
    for (slow, _) in &sockets {
        let connection = call()?;
        connection.send(b"nonsense", &[slow.as_fd()], Instant::now()).map_err(Error::from)?;
        kept.push(connection);
    }
    // The receiving side has the last references now.
    let others: Vec<_> = sockets.into_iter().map(|(_, other)| other).collect();
    for _ in 0..silent {
        match HandoffConnection::connect(name, Instant::now()) {
            Ok(connection) => kept.push(connection),
            Err(ShmError::TimedOut { .. }) => break,
            Err(error) => return Err(Error::from(error).into()),
        }
    }
    tell(&format!("called {} times", kept.len()))?;
    std::thread::sleep(10 * PATIENCE);
    drop((kept, others));
    Ok(())
}

/// Makes a socket with unread data, whose last close blocks for ten minutes. Returns it and its other end.
fn slow_to_close() -> Outcome<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    for _ in 0..2 {
        while stream.write(&[1; 1 << 16]).is_ok() {}
        std::thread::sleep(Duration::from_millis(100));
    }
    let linger = libc::linger { l_onoff: 1, l_linger: 600 };
    let (level, len) = (libc::SOL_SOCKET, size_of_val(&linger) as libc::socklen_t);
    // SAFETY: the value is alive and of the length that is passed.
    let result = unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, libc::SO_LINGER, (&raw const linger).cast(), len)
    };
    ensure(result == 0, || "no SO_LINGER".into())?;
    Ok((stream, other))
}

/// `leased`: rank 1 gives rank 0 a key to a file on which rank 1 holds a lease.
pub(super) fn leased() -> Outcome {
    let mut endpoint = open()?;
    if endpoint.rank() == 0 {
        let mut key = [0; KEY_BYTES];
        endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut key)?;
        let key = RemoteKey::from_bytes(1, &key).ok_or_else(|| Fault::Broken("no key".into()))?;
        let began = Instant::now();
        let path = endpoint.path(&key);
        let took = began.elapsed();
        ensure(took < Duration::from_secs(30), || format!("the lease held us up for {took:?}"))?;
        ensure(matches!(path, Path::Packets { .. }), || format!("{path:?}"))?;
        endpoint.put(&key, 0, b"by packets")?;
        endpoint.flush(1)?;
        endpoint.send(1, 2, &[])?;
        return Ok(endpoint.close()?);
    }
    let region = endpoint.allocate(4096, Access::ReadWrite)?;
    let path = std::env::temp_dir().join(format!("nemesia-leased-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    // SAFETY: takes no pointers. The signal that asks for the lease back would end this process.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    ensure(leased == 0, || "no lease".into())?;
    let mut key = endpoint.remote_key(region)?.to_bytes();
    let number = file.as_raw_fd().cast_unsigned() + 1;
    key[SHARE].copy_from_slice(&number.to_le_bytes());
    endpoint.send(0, 1, &key)?;
    endpoint.recv(Source::Rank(0), Tag::Exactly(2), &mut [])?;
    let mut bytes = [0; 10];
    endpoint.read_region(region, 0, &mut bytes)?;
    ensure(&bytes == b"by packets", || format!("{bytes:?}"))?;
    Ok(endpoint.close()?)
}

/// `holes`: rank 1 removes the pages of rank 0's inbox while rank 0 uses it, and takes all free huge pages.
pub(super) fn holes() -> Outcome {
    let mut endpoint = open()?;
    let mut bytes = [0; 8];
    if endpoint.rank() == 0 {
        endpoint.send(1, 1, &std::process::id().to_le_bytes())?;
        // Messages in the holes are lost. The test is that no process is killed by an access to a hole.
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            endpoint.progress();
        }
        tell("survived")?;
        std::process::exit(0);
    }
    endpoint.recv(Source::Rank(0), Tag::Exactly(1), &mut bytes[..4])?;
    let [pid @ .., _, _, _, _] = bytes;
    let mut punched = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", u32::from_le_bytes(pid)))? {
        let path = entry?.path();
        let inbox =
            std::fs::read_link(&path).is_ok_and(|link| link.to_string_lossy().contains("nemesia-inbox"));
        let Some(file) = inbox.then(|| std::fs::File::options().read(true).write(true).open(&path)) else {
            continue;
        };
        let file = file?;
        let len = file.metadata()?.len();
        while grab_huge_page() {}
        for _ in 0..2000 {
            // SAFETY: takes no pointers.
            punched += i32::from(unsafe { libc::fallocate(file.as_raw_fd(), HOLE, 0, len as i64) } == 0);
            grab_huge_page();
        }
    }
    tell(&format!("punched {punched} times"))?;
    std::thread::sleep(Duration::from_secs(3));
    std::process::exit(i32::from(punched == 0));
}

fn grab_huge_page() -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice; kept until the process ends.
    unsafe { libc::mmap(std::ptr::null_mut(), 2 * MIB, access, kind, -1, 0) != libc::MAP_FAILED }
}

/// `lent MIB`: rank 1 lends that much memory, twice, and removes all its pages before rank 0 reads it. If the
/// environment variable `NEMESIA_TEST_CGROUP` is set, rank 0 runs in that group.
pub(super) fn lent(mib: usize) -> Outcome {
    let mut endpoint = open()?;
    let len = mib * MIB;
    if endpoint.rank() == 1 {
        for access in [Access::Read, Access::ReadWrite] {
            let region = endpoint.allocate(len, access)?;
            let key = endpoint.remote_key(region)?.to_bytes();
            endpoint.send(0, 1, &key)?;
            endpoint.recv(Source::Rank(0), Tag::Exactly(2), &mut [])?;
            let [a, b, c, d] = key[SHARE] else { return broken("a key without a descriptor") };
            let number = u32::from_le_bytes([a, b, c, d]).wrapping_sub(1).cast_signed();
            // SAFETY: takes no pointers.
            let punched = unsafe { libc::fallocate(number, HOLE, 4096, len as i64) } == 0;
            ensure(punched == (access == Access::ReadWrite), || format!("{access:?}: punched: {punched}"))?;
            endpoint.send(0, 3, &[])?;
            endpoint.recv(Source::Rank(0), Tag::Exactly(4), &mut [])?;
            endpoint.unexpose(region)?;
        }
        return Ok(endpoint.close()?);
    }
    let group = std::env::var("NEMESIA_TEST_CGROUP").ok();
    if let Some(group) = &group {
        std::fs::write(format!("{group}/cgroup.procs"), std::process::id().to_string())?;
    }
    for access in [Access::Read, Access::ReadWrite] {
        let mut key = [0; KEY_BYTES];
        endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut key)?;
        let key = RemoteKey::from_bytes(1, &key).ok_or_else(|| Fault::Broken("no key".into()))?;
        let path = endpoint.path(&key);
        let direct = access == Access::Read || group.is_none();
        ensure((path == Path::Direct) == direct, || format!("{access:?}: {path:?}"))?;
        tell(&format!("{access:?}: {path:?}"))?;
        let mut bytes = vec![1; MIB];
        endpoint.get(&key, 0, &mut bytes[..8])?;
        endpoint.send(1, 2, &[])?;
        endpoint.recv(Source::Rank(1), Tag::Exactly(3), &mut [])?;
        for at in 0..mib {
            endpoint.get(&key, (at * MIB) as u64, &mut bytes)?;
            ensure(bytes.iter().all(|byte| *byte == 0), || format!("{access:?}: not zeroed at {at} MiB"))?;
        }
        endpoint.send(1, 4, &[])?;
    }
    Ok(endpoint.close()?)
}

/// `late MILLIS`: the last rank starts that much later. Then all ranks meet.
pub(super) fn late(millis: u64) -> Outcome {
    if std::env::var("PMI_RANK").is_ok_and(|rank| rank == "1") {
        std::thread::sleep(Duration::from_millis(millis));
    }
    let mut endpoint = open()?;
    barrier(&mut endpoint, 1)?;
    Ok(endpoint.close()?)
}
