//! The side that calls (paper 2, section 1.4.1): it looks for a process at the remote address that waits under the
//! discriminator, by TCP, and then goes to the meeting place that this process names.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nemesia_core::via::setup::{SetupFrame, SetupKind};
use nemesia_core::via::{ViAttributes, ViaError};

use super::listener::{FrameInbox, Inbound};
use super::objects::NewViLink;
use super::provider::Shared;
use super::{listener, meeting, network_connect};
use crate::os::close_in_children;
use crate::tcp;

/// The pause after an attempt at all ports.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The time in which a process must answer first: one that is stopped is left out.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The pause between two looks at the processes that were asked.
const POLL_PAUSE: Duration = Duration::from_micros(100);
/// The limit of the TCP connections to all ports: a kernel whose process has a full queue of connections takes the next
/// attempt after one second.
const STEP_LIMIT: Duration = Duration::from_secs(2);
/// The limit of the meeting.
const MEETING_LIMIT: Duration = Duration::from_secs(30);
/// The least time for the connection of the memory ports, which the other process has accepted.
const LAST_STEP: Duration = Duration::from_secs(2);

/// What an attempt at all ports found.
enum Round {
    /// A process accepted. It waits as long as the stream exists.
    Accepted(Box<SetupFrame>, TcpStream),
    /// A process refused, with this reason.
    Refused(ViaError),
    /// No process waits under the address.
    Nothing,
    /// A process says that its own call has precedence.
    Busy,
}

/// Calls until a process accepts or refuses, or the deadline passes, while `waits` returns true. If `is_once`, tries
/// each port only once, and returns [`ViaError::NoMatch`] if no process waits.
pub(super) fn call(
    shared: &Shared,
    frame: &SetupFrame,
    deadline: Option<Instant>,
    is_once: bool,
    waits: impl Fn() -> bool,
) -> Result<(NewViLink, ViAttributes), ViaError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match round(shared, frame, deadline, &waits)? {
            Round::Accepted(answer, _stream) => {
                let limit = Instant::now() + MEETING_LIMIT;
                let link = if shared.trust.is_elsewhere(&answer) {
                    // The caller's limit counts, but what the other process has accepted gets a little time.
                    let end = deadline.map_or(limit, |end| end.max(Instant::now() + LAST_STEP).min(limit));
                    network_connect::go(shared, &answer, end, &waits)?
                } else {
                    NewViLink::Shared(Box::new(meeting::go(answer.meeting, &shared.bell, limit)?))
                };
                return Ok((link, answer.attributes));
            }
            Round::Refused(reason) => return Err(reason),
            Round::Nothing | Round::Busy if is_once => return Err(ViaError::NoMatch),
            Round::Nothing | Round::Busy => {}
        }
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ViaError::Timeout);
        }
        if !waits() {
            return Err(ViaError::InvalidState);
        }
        std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A port that was called, and whose process has not answered.
struct Asked {
    stream: TcpStream,
    inbox: FrameInbox,
    /// The request was sent: the connection is made.
    is_sent: bool,
}

impl Asked {
    /// Sends the request if the connection is made, and reads the answer.
    fn advance(&mut self, frame: &SetupFrame) -> Result<Inbound, ViaError> {
        if !self.is_sent {
            match tcp::connected(&self.stream) {
                Ok(false) => return Ok(Inbound::Partial),
                Ok(true) => {}
                Err(error) if is_unreachable(&error) => return Err(ViaError::NotReachable),
                Err(_) => return Ok(Inbound::Closed),
            }
            if listener::send_now(&mut self.stream, frame).is_err() {
                return Ok(Inbound::Closed);
            }
            self.is_sent = true;
        }
        Ok(self.inbox.read(&mut self.stream))
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable)
}

/// Asks all processes at the remote host. Returns what the one in which a call waits says in the end.
fn round(
    shared: &Shared,
    frame: &SetupFrame,
    deadline: Option<Instant>,
    waits: &impl Fn() -> bool,
) -> Result<Round, ViaError> {
    let mut asked = ask(frame.remote.host.into(), shared.settings.ports())?;
    let (start, mut is_busy, mut is_refused, mut lost) = (Instant::now(), false, false, None);
    let limit = |asked: &[Asked]| {
        if asked.iter().all(|process| process.is_sent) { FIRST_ANSWER } else { STEP_LIMIT }
    };
    while !asked.is_empty() && start.elapsed() < limit(&asked) && waits() {
        let mut found = None;
        asked.retain_mut(|process| match process.advance(frame) {
            Err(error) => {
                lost = Some(error);
                false
            }
            Ok(Inbound::Partial) => true,
            Ok(Inbound::Closed) => false,
            Ok(Inbound::Frame(answer)) => {
                let kind = match shared.trust.believe(&answer, frame, &process.stream) {
                    Ok(()) => answer.kind,
                    Err(ViaError::NotReachable) => SetupKind::Refused,
                    Err(_) => SetupKind::NoMatch,
                };
                is_busy |= kind == SetupKind::Busy;
                is_refused |= kind == SetupKind::Refused;
                if kind == SetupKind::Pending && found.is_none() {
                    found = process.stream.try_clone().ok().map(|stream| (stream, answer));
                    found.iter().for_each(|(stream, _)| close_in_children(stream.as_fd()));
                }
                false
            }
        });
        if let Some(error) = lost {
            return Err(error);
        }
        if let Some((stream, pending)) = found {
            // The others are released before this one is confirmed.
            asked.clear();
            match confirm(shared, (stream, &pending), frame, deadline, waits)? {
                Round::Nothing => {}
                round => return Ok(round),
            }
        }
        if deadline.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        std::thread::sleep(POLL_PAUSE);
    }
    Ok(match (is_busy, is_refused) {
        (true, _) => Round::Busy,
        // A process waits there, and connects no process of this machine.
        (false, true) => Round::Refused(ViaError::NotReachable),
        (false, false) => Round::Nothing,
    })
}

/// Calls all ports at the same time: one whose process has a full queue of connections delays no other.
fn ask(host: Ipv4Addr, ports: impl Iterator<Item = u16>) -> Result<Vec<Asked>, ViaError> {
    let mut asked = Vec::new();
    for port in ports {
        match tcp::begin(SocketAddr::from((host, port))) {
            Ok(stream) => asked.push(Asked { stream, inbox: FrameInbox::default(), is_sent: false }),
            Err(error) if is_unreachable(&error) => return Err(ViaError::NotReachable),
            Err(_) => {}
        }
    }
    Ok(asked)
}

/// Confirms the request to a process in which a call waits, and waits for the decision of its program.
fn confirm(
    shared: &Shared,
    (mut stream, pending): (TcpStream, &SetupFrame),
    frame: &SetupFrame,
    deadline: Option<Instant>,
    waits: &impl Fn() -> bool,
) -> Result<Round, ViaError> {
    let kind = match frame.kind {
        SetupKind::PeerRequest => SetupKind::PeerConfirm,
        _ => SetupKind::Confirm,
    };
    let is_elsewhere = shared.trust.is_elsewhere(pending);
    let own = |network| shared.lock().networks.offer(network);
    let confirm = shared.trust.confirm(&SetupFrame { kind, ..*frame }, pending, own)?;
    let is_sent = stream.set_nonblocking(false).is_ok() && listener::send(&mut stream, &confirm).is_ok();
    if !is_sent {
        return Ok(Round::Nothing);
    }
    let Some(answer) = listener::receive(&mut stream, deadline, waits)? else { return Ok(Round::Nothing) };
    Ok(match answer.kind {
        SetupKind::Accepted => {
            shared.trust.check_answer(&answer, &confirm, is_elsewhere)?;
            Round::Accepted(Box::new(answer), stream)
        }
        SetupKind::Refused => Round::Refused(refusal(answer.reason)),
        SetupKind::Busy => Round::Busy,
        _ => Round::Nothing,
    })
}

/// Returns the reason in a refusal; an unknown number is a rejection.
fn refusal(code: u8) -> ViaError {
    [ViaError::InvalidReliabilityLevel, ViaError::InvalidMtu, ViaError::InvalidQos, ViaError::NotReachable]
        .into_iter()
        .find(|reason| reason.code() == i32::from(code))
        .unwrap_or(ViaError::Reject)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nemesia_core::via::setup::{SetupNetwork, ViaAddress};

    use super::*;

    fn frame() -> SetupFrame {
        let local = ViaAddress::new([127, 0, 0, 1], b"here").unwrap();
        SetupFrame {
            kind: SetupKind::Request,
            reason: 0,
            process: [1; 16],
            vi: 7,
            attributes: ViAttributes {
                reliability: nemesia_core::via::codes::Reliability::Delivery,
                max_transfer: 64,
                qos: 0,
                ptag: 0,
                rdma_write: false,
                rdma_read: false,
            },
            meeting: [0; 16],
            local,
            remote: local,
            network: SetupNetwork::new([2; 16]),
        }
    }

    /// Returns connections that fill the queue of a listener, the last of which is not made.
    fn fill(listener: &TcpListener) -> Vec<TcpStream> {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(listener), 0) }, 0);
        let mut all = Vec::new();
        loop {
            let stream = tcp::begin(listener.local_addr().unwrap()).unwrap();
            let since = Instant::now();
            while !tcp::connected(&stream).unwrap() {
                if since.elapsed() > Duration::from_millis(100) {
                    all.push(stream);
                    return all;
                }
            }
            all.push(stream);
        }
    }

    #[test]
    fn a_port_whose_queue_is_full_delays_no_other_port() {
        let [full, open] = [0; 2].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let _queue = fill(&full);
        let ports = [&full, &open].map(|it| it.local_addr().unwrap().port());
        let mut asked = ask(Ipv4Addr::LOCALHOST, ports.into_iter()).unwrap();
        assert_eq!(asked.len(), 2);
        let (mut stream, _) = loop {
            for process in &mut asked {
                assert!(matches!(process.advance(&frame()), Ok(Inbound::Partial)));
            }
            if asked[1].is_sent {
                break open.accept().unwrap();
            }
        };
        assert!(!asked[0].is_sent);
        listener::send(&mut stream, &SetupFrame { vi: 8, ..frame() }).unwrap();
        loop {
            match asked[1].advance(&frame()).unwrap() {
                Inbound::Partial => {}
                Inbound::Frame(answer) => break assert_eq!(answer.vi, 8),
                Inbound::Closed => panic!("the connection has ended"),
            }
        }
    }
}
