//! `impostor KIND`: a process that takes part in the bootstrap and calls rank 0, or answers rank 1, by the messages of
//! `core/src/link/wire.rs`, except for one deviation. Its segments are written by hand, from the specification.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia::internals::os::{HandoffConnection, HandoffListener, Segment, SegmentOptions};
use nemesia_core::link::address::{AddressKinds, LinkAddress};
use nemesia_core::link::bytes::LinkBytes;
use nemesia_core::link::offers::{LinkOffer, OfferList, SegmentsOffer};
use nemesia_core::link::proof::{LinkKey, NO_CHALLENGE};
use nemesia_core::link::token::LinkToken;
use nemesia_core::link::wire::{
    LINK_VERSION, LinkAnswer, LinkBody, LinkCall, LinkHeader, LinkMessage, LinkService, MaskedAddress,
};
use nemesia_core::peers::PeerAddress;
use nemesia_core::shared::layout::Geometry;
use nemesia_core::wire::hello::Proof;

use super::{Fault, Outcome, broken, ensure, tell};

/// The geometry of the default configuration.
const GEOMETRY: Geometry = Geometry { cells: 64, cell_bytes: 33 << 10, fastbox_slots: 128 };
const VERSION: u32 = nemesia_core::wire::LAYOUT_VERSION;
/// The number of a link, and of a call.
const NUMBER: u64 = 0x1234_5678_9abc_def0;
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
    let token = LinkToken::from_bytes(std::array::from_fn(|at| std::process::id().to_le_bytes()[at % 4]));
    let listener = HandoffListener::bind_as(socket(&token)).map_err(|error| failed(&error))?;
    let (rank, deadline) = (exchange.rank(), Instant::now() + PATIENCE);
    let card = card(kind, &listener.name(), &token);
    exchange.put(&format!("nemesia-{rank}"), &card).map_err(|error| failed(&error))?;
    exchange.barrier().map_err(|error| failed(&error))?;
    let theirs = exchange.get(&format!("nemesia-{}", 1 - rank)).map_err(|error| failed(&error))?;
    if !kind.starts_with("address") {
        let theirs = address(&theirs).ok_or_else(|| Fault::Broken("no card".into()))?;
        let own = address(&card).ok_or_else(|| Fault::Broken("no card".into()))?;
        let connection = match rank {
            0 => listener.accept(deadline),
            _ => HandoffConnection::connect(&socket(&theirs.token), deadline),
        };
        let connection = connection.map_err(|error| failed(&error))?;
        if rank == 1 {
            say(kind, (&own, 0), &connection, &call(kind, &own, &theirs.encode()), deadline)?;
        } else {
            let mut bytes = [0; 512];
            // The other process sends nothing if the kernel says that this one belongs to another user.
            if let Ok((len, _)) = connection.recv(&mut bytes, 4, deadline) {
                say(kind, (&own, 1), &connection, &answer(kind, &own.encode(), &bytes[..len])?, deadline)?;
            }
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
            Ok((len, _)) => match LinkMessage::decode(&words[..len], LINK_VERSION).map(|it| it.body) {
                Ok(LinkBody::Refuse(refuse)) => tell(&format!("refused: {}", refuse.text.get()))?,
                _ => tell("answered")?,
            },
            Err(nemesia::internals::os::ShmError::TimedOut { .. }) => {
                return broken("the other neither answers nor ends");
            }
            Err(_) => return Ok(()),
        }
    }
}

/// Returns the name of the hand-over socket of the process with this token.
pub(super) fn socket(token: &LinkToken) -> String {
    format!("{:032x}", u128::from_be_bytes(token.hand_off_name()))
}

/// Returns the address of the process that has published this card, in a world that connects at the start.
pub(super) fn address(card: &str) -> Option<LinkAddress> {
    let (host, facts) = card.split_once('/')?;
    let [_, machine, network, _, space, pid] = host.split('.').collect::<Vec<_>>().try_into().ok()?;
    let token = u128::from_str_radix(facts.split('.').next()?, 16).ok()?;
    let network: u32 = network.parse().ok()?;
    Some(LinkAddress {
        kinds: AddressKinds::default(),
        port: 0,
        pid: pid.parse().ok()?,
        token: LinkToken::from_bytes(token.to_be_bytes()),
        machine: u64::from_str_radix(machine.get(..16)?, 16).ok()?
            ^ u64::from(network).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        space: space.parse().ok()?,
        datagrams: (0, 0, 0),
        place: [0; 16],
    })
}

fn card(kind: &str, name: &str, token: &LinkToken) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let network: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    // It wants all connections at the start.
    let Geometry { cells, cell_bytes, fastbox_slots } = GEOMETRY;
    let token = u128::from_be_bytes(*token.bytes());
    let facts = format!("{token:032x}.-.{cells}.{cell_bytes}.{fastbox_slots}.0.1");
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

pub(super) fn header(kind: &str, to: u64) -> LinkHeader {
    let version = LINK_VERSION + u8::from(kind == "message-version");
    LinkHeader { version, service: LinkService::Engine, to, from: NUMBER }
}

fn offers(kind: &str) -> OfferList {
    let Geometry { mut cells, cell_bytes, fastbox_slots } = GEOMETRY;
    if kind == "message-cells" {
        cells /= 2;
    }
    let geometry = [cells, cell_bytes, fastbox_slots];
    let processors = [1, 0, 0, 0, 0, 0, 0, 0];
    let mut offers = OfferList::EMPTY;
    // Its memory cannot be read.
    offers.add(&LinkOffer::Segments(SegmentsOffer { geometry, flags: 0, stamp: 0, processors, credit: 0 }));
    offers
}

/// Returns the number by which it knows the other.
fn number(kind: &str, right: u32) -> u32 {
    if kind == "message-number" { 4096 } else { right }
}

/// Returns the message as it is sent.
fn deviating(kind: &str, message: &LinkBytes) -> Vec<u8> {
    let mut bytes = message.get().to_vec();
    match kind {
        "message-garbage" => b"GET / HTTP/1.1".to_vec(),
        "message-short" => bytes[..20].to_vec(),
        "message-long" => vec![b'N'; 4000],
        "message-proof" => {
            *bytes.last_mut().unwrap_or(&mut 0) ^= 1;
            bytes
        }
        _ => bytes,
    }
}

fn call(kind: &str, own: &LinkAddress, theirs: &PeerAddress) -> Vec<u8> {
    // One more than its rank.
    let instance = if kind == "message-rank" { 9 } else { 2 };
    let (number, offers) = (number(kind, 0), offers(kind));
    let call = LinkCall { number, instance, ..first_call(&offers) };
    deviating(kind, &sealed_call(header(kind, 0), &own.encode(), theirs, call))
}

/// Returns the call of a process that was not started before and claims no rank.
pub(super) fn first_call(offers: &OfferList) -> LinkCall<'_> {
    LinkCall {
        call: NUMBER,
        incarnation: 0,
        number: 0,
        packet_bytes: GEOMETRY.cell_bytes,
        challenge: 0,
        instance: 0,
        nonce: NUMBER,
        address: MaskedAddress([0; 64]),
        offers: offers.get(true),
        proof: Proof::default(),
    }
}

/// Returns the message of a call, with its author's address masked, and with its proof.
pub(super) fn sealed_call(
    header: LinkHeader,
    own: &PeerAddress,
    theirs: &PeerAddress,
    call: LinkCall<'_>,
) -> LinkBytes {
    let key = LinkKey::of(theirs, None);
    let address = MaskedAddress(key.mask(Some(&NO_CHALLENGE), call.nonce, own.bytes()));
    let mut message = LinkMessage { header, body: LinkBody::Call(LinkCall { address, ..call }) }.encode();
    let proof = key.call_proof(&NO_CHALLENGE, theirs, message.get());
    message.seal(&proof);
    message
}

/// Answers a call.
fn answer(kind: &str, own: &PeerAddress, call: &[u8]) -> Outcome<Vec<u8>> {
    let message =
        LinkMessage::decode(call, LINK_VERSION).map_err(|fault| Fault::Broken(fault.to_string()))?;
    let LinkBody::Call(call) = message.body else { return broken(format!("no call: {message:?}")) };
    let offers = offers(kind);
    let answer = LinkAnswer {
        calls: 0,
        incarnation: 0,
        number: number(kind, 1),
        packet_bytes: GEOMETRY.cell_bytes,
        word: 0,
        chosen: 1,
        offers: offers.get(false),
        proof: Proof::default(),
    };
    let header = header(kind, message.header.from);
    let mut message = LinkMessage { header, body: LinkBody::Answer(answer) }.encode();
    let proof = LinkKey::of(own, None).answer_proof(&call.proof, message.get());
    message.seal(&proof);
    Ok(deviating(kind, &message))
}

/// Sends a call or an answer with descriptors that pretend to be segments. `number` is that of the other.
fn say(
    kind: &str,
    (address, number): (&LinkAddress, u32),
    connection: &HandoffConnection,
    message: &[u8],
    deadline: Instant,
) -> Outcome {
    let failed = |error: nemesia::internals::os::ShmError| Fault::Broken(error.to_string());
    if matches!(kind, "closes" | "silent") {
        return Ok(());
    }
    let epoch = address.token.epoch();
    let (own_bytes, inbox_bytes) = (GEOMETRY.own().total, GEOMETRY.inbox(0).total);
    let own = segment(kind, (0, epoch), 1, own_bytes)?;
    let inbox = segment("", (0, epoch), 2, inbox_bytes)?;
    let number = number + u32::from(kind == "header-number");
    let link = segment("", (number, epoch), 3, GEOMETRY.link().total)?;
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
    let sent = connection.send(message, &fds, deadline);
    if kind == "other-user" { Ok(()) } else { sent.map_err(failed) }
}

/// Makes a correct segment, except for one field of its header.
fn segment(kind: &str, (number, epoch): (u32, u64), code: u32, total: usize) -> Outcome<Segment> {
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
    header.extend((epoch + u64::from(kind == "header-epoch")).to_le_bytes());
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
