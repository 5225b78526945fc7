//! `impostor KIND`: a process that takes part in the bootstrap and sends the handshake of
//! `sys/src/shm/connect.rs` and `handshake.rs`, except for one deviation. Every byte here is written by hand,
//! from the specification.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia::internals::os::{HandoffConnection, HandoffListener, Segment, SegmentOptions};
use nemesia_core::shared::layout::Geometry;

use super::{Fault, Outcome, broken, ensure, tell};

/// The geometry of the default configuration.
const GEOMETRY: Geometry = Geometry { cells: 64, cell_bytes: 33 << 10, fastbox_slots: 128 };
pub(super) const VERSION: u32 = nemesia_core::wire::LAYOUT_VERSION;
const EPOCH: u64 = 0x1234_5678_9abc_def0;
const PATIENCE: Duration = Duration::from_secs(60);
/// A user that owns nothing.
const NOBODY: u32 = 65534;

pub(super) fn run(kind: &str) -> Outcome {
    if kind == "other-user" {
        // SAFETY: takes no pointers. Only this process changes; the group first, while it may.
        let changed = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
        ensure(changed, || "cannot become another user".into())?;
    }
    let failed = |error: &dyn std::fmt::Display| Fault::Broken(error.to_string());
    let mut exchange = Bootstrap::from_env().map_err(|error| failed(&error))?;
    let listener = HandoffListener::bind().map_err(|error| failed(&error))?;
    let (rank, deadline) = (exchange.rank(), Instant::now() + PATIENCE);
    let address = address(kind, &listener.name());
    exchange.put(&format!("nemesia-{rank}"), &address).map_err(|error| failed(&error))?;
    exchange.barrier().map_err(|error| failed(&error))?;
    let theirs = exchange.get(&format!("nemesia-{}", 1 - rank)).map_err(|error| failed(&error))?;
    if !kind.starts_with("address") {
        let name = theirs.split('.').nth(3).unwrap_or_default();
        let connection =
            if rank == 0 { listener.accept(deadline) } else { HandoffConnection::connect(name, deadline) };
        let connection = connection.map_err(|error| failed(&error))?;
        // The called side sends its handshake first, unless it refuses the caller at once.
        if rank == 1 || connection.recv(&mut [0; 256], 4, deadline).is_ok() {
            answer(kind, rank as u32, &connection, deadline)?;
        }
        if kind == "closes" {
            return Ok(());
        }
        listen(&connection, deadline)?;
    }
    // Stays until the other has ended, which fails the launcher's next barrier.
    let _ = exchange.barrier();
    Ok(())
}

/// Reports what the other side sends until it disconnects.
fn listen(connection: &HandoffConnection, deadline: Instant) -> Outcome {
    let mut words = [0; 512];
    loop {
        match connection.recv(&mut words, 4, deadline) {
            Ok((len, _)) if words.starts_with(b"NEMESIAX") => {
                tell(&format!("refused: {}", String::from_utf8_lossy(&words[8..len])))?;
            }
            Ok(_) => tell("handshake-done")?,
            Err(nemesia::internals::os::ShmError::TimedOut { .. }) => {
                return broken("the other neither answers nor ends");
            }
            Err(_) => return Ok(()),
        }
    }
}

fn address(kind: &str, name: &str) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let network: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    // It wants all connections at the start.
    let Geometry { cells, cell_bytes, fastbox_slots } = GEOMETRY;
    let facts = format!("{EPOCH:032x}.{cells}.{cell_bytes}.{fastbox_slots}.0.1");
    match kind {
        "address-version" => format!("{}.{machine}.{network}.{name}.0.0/{facts}", VERSION + 1),
        "address-machine" => {
            format!("{VERSION}.{}.{network}.{name}.0.0/{facts}", machine.chars().rev().collect::<String>())
        }
        "address-facts" => format!("{VERSION}.{machine}.{network}.{name}.0.0/1.2"),
        "address-garbage" => "neither-here-nor-there".into(),
        "address-name" => format!("{VERSION}.{machine}.{network}.../../etc/passwd.0.0/{facts}"),
        _ => format!("{VERSION}.{machine}.{network}.{name}.0.0/{facts}"),
    }
}

fn handshake(kind: &str, rank: u32) -> Vec<u8> {
    let Geometry { mut cells, cell_bytes, fastbox_slots } = GEOMETRY;
    let mut number = 1 - rank;
    let (mut version, mut says) = (VERSION, rank);
    match kind {
        "handshake-version" => version += 1,
        "handshake-rank" => says += 7,
        "handshake-cells" => cells /= 2,
        "handshake-number" => number = 4096,
        _ => {}
    }
    let mut bytes = b"NEMESIA1".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(says.to_le_bytes());
    bytes.extend(EPOCH.to_le_bytes());
    // A world of two.
    for field in [2, number, cells, cell_bytes, fastbox_slots, 0] {
        bytes.extend(field.to_le_bytes());
    }
    // The processors on which it may run: the first one.
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([0; 56]);
    // Its memory cannot be read; it is a first process and has taken part in no agreement.
    bytes.extend([0; 24]);
    match kind {
        "handshake-garbage" => b"GET / HTTP/1.1".to_vec(),
        "handshake-short" => bytes[..20].to_vec(),
        "handshake-long" => vec![b'N'; 4000],
        _ => bytes,
    }
}

/// Sends the handshake with descriptors that pretend to be segments.
fn answer(kind: &str, rank: u32, connection: &HandoffConnection, deadline: Instant) -> Outcome {
    let failed = |error: nemesia::internals::os::ShmError| Fault::Broken(error.to_string());
    if matches!(kind, "closes" | "silent") {
        return Ok(());
    }
    let (own_bytes, inbox_bytes) = (GEOMETRY.own().total, GEOMETRY.inbox(0).total);
    let own = segment(kind, 0, 1, own_bytes)?;
    let inbox = segment("", 0, 2, inbox_bytes)?;
    let link = segment("", 1 - rank + u32::from(kind == "header-number"), 3, GEOMETRY.link().total)?;
    let life = Segment::create("impostor", 40, &SegmentOptions::default())
        .map_err(|error| Fault::Broken(error.to_string()))?;
    let stand_in = stand_in(kind, &own, &inbox, own_bytes)?;
    let missing = || Fault::Broken("a segment without descriptor".into());
    let (mut own, mut inbox) = (own.fd().ok_or_else(missing)?, inbox.fd().ok_or_else(missing)?);
    let link = link.fd().ok_or_else(missing)?;
    let life = life.fd().ok_or_else(missing)?;
    match (&stand_in, kind) {
        (Some(fd), "segment-unwritable") => inbox = fd.as_fd(),
        (Some(fd), _) => own = fd.as_fd(),
        (None, "segment-swapped") => (own, inbox) = (inbox, own),
        _ => {}
    }
    let fds: Vec<BorrowedFd<'_>> = match kind {
        "descriptors-none" => Vec::new(),
        "descriptors-many" => vec![own, inbox, own, inbox, own, link],
        "life-writable" => vec![own, inbox, link, life],
        _ => vec![own, inbox, link],
    };
    // A connection of another user is closed before anything is sent.
    let sent = connection.send(&handshake(kind, rank), &fds, deadline);
    if kind == "other-user" { Ok(()) } else { sent.map_err(failed) }
}

/// Makes a correct segment, except for one field of its header.
fn segment(kind: &str, number: u32, code: u32, total: usize) -> Outcome<Segment> {
    let len = if kind == "segment-short" { total / 2 } else { total };
    let segment = Segment::create("impostor", len, &SegmentOptions::default())
        .map_err(|error| Fault::Broken(error.to_string()))?;
    let Geometry { cells, cell_bytes, fastbox_slots } = GEOMETRY;
    let mut header = if kind == "header-magic" { b"NEMESIS!".to_vec() } else { b"NEMESIA1".to_vec() };
    header.extend((total as u64).to_le_bytes());
    let version = VERSION + u32::from(kind == "header-version");
    let ready = u32::from(kind != "header-unready");
    for field in [version, code, number, cells, cell_bytes, fastbox_slots, 0, ready] {
        header.extend(field.to_le_bytes());
    }
    header.extend((EPOCH + u64::from(kind == "header-epoch")).to_le_bytes());
    let from = header.as_ptr();
    // SAFETY: the segment is longer than a header, and no other process has it yet.
    unsafe { segment.as_ptr().as_ptr().copy_from_nonoverlapping(from, header.len()) };
    if code != 2 && kind != "segment-writable" {
        segment.seal_against_foreign_writes().map_err(|error| Fault::Broken(error.to_string()))?;
    }
    Ok(segment)
}

/// Makes something else in place of a segment.
fn stand_in(kind: &str, own: &Segment, inbox: &Segment, len: usize) -> Outcome<Option<OwnedFd>> {
    let again = |segment: &Segment, writable: bool| {
        let fd = segment.fd().map_or(-1, |fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
        let path = format!("/proc/self/fd/{fd}");
        let mut options = std::fs::OpenOptions::new();
        options.read(!writable).write(writable).open(path)
    };
    let file = match kind {
        "segment-unreadable" => again(own, true)?,
        "segment-unwritable" => again(inbox, false)?,
        "segment-file" => std::fs::File::open("/proc/self/exe")?,
        "segment-device" => std::fs::File::open("/dev/zero")?,
        "segment-pipe" => return Ok(Some(std::io::pipe()?.0.into())),
        "segment-sparse" => memfd(len, true)?,
        "segment-unsealed" => {
            let file = memfd(len, false)?;
            // SAFETY: takes no pointers.
            let reserved =
                unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, len as i64) };
            ensure(reserved == 0, || "fallocate failed".into())?;
            file
        }
        _ => return Ok(None),
    };
    Ok(Some(file.into()))
}

/// Makes anonymous memory without pages, sealed correctly or not.
fn memfd(len: usize, sealed: bool) -> Outcome<std::fs::File> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the name ends with zero.
    let fd = unsafe { libc::memfd_create(c"impostor".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    ensure(fd >= 0, || "memfd_create failed".into())?;
    // SAFETY: a new descriptor, given to us alone.
    let file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    let seals = if sealed { libc::F_SEAL_SHRINK | libc::F_SEAL_GROW } else { 0 };
    // SAFETY: takes no pointers.
    ensure(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0, || "no seals".into())?;
    Ok(file)
}
