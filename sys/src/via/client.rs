//! The side that calls (paper 2, section 1.4.1): it looks for a process at the remote address that waits under the
//! discriminator, by TCP, and then goes to the meeting place that this process names.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nemesia_core::via::setup::{SetupFrame, SetupKind};
use nemesia_core::via::{ViAttributes, ViaError};

use super::link::Link;
use super::provider::Shared;
use super::{listener, meeting};

/// The pause after an attempt at all ports.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The limit of a TCP connection to one port, and of the meeting.
const STEP_LIMIT: Duration = Duration::from_secs(2);
const MEETING_LIMIT: Duration = Duration::from_secs(30);

/// What an attempt at all ports found.
enum Round {
    /// A process accepted.
    Accepted(Box<SetupFrame>),
    /// A process refused, with this reason.
    Refused(ViaError),
    /// No process waits under the address.
    Nothing,
    /// A process says that its own call has precedence.
    Busy,
}

/// Calls until a process accepts or refuses, or the deadline passes, while `waits` returns true. If `is_once`, tries each
/// port only once, and returns [`ViaError::NoMatch`] if no process waits.
pub(super) fn call(
    shared: &Shared,
    frame: &SetupFrame,
    deadline: Option<Instant>,
    is_once: bool,
    waits: impl Fn() -> bool,
) -> Result<(Link, ViAttributes), ViaError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match round(shared, frame, deadline, &waits)? {
            Round::Accepted(answer) => {
                let link = meeting::go(answer.meeting, &shared.bell, Instant::now() + MEETING_LIMIT)?;
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

fn round(
    shared: &Shared,
    frame: &SetupFrame,
    deadline: Option<Instant>,
    waits: &impl Fn() -> bool,
) -> Result<Round, ViaError> {
    let host = Ipv4Addr::from(frame.remote.host);
    let mut is_busy = false;
    for port in shared.settings.ports() {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.map_or(STEP_LIMIT, |left| left.min(STEP_LIMIT));
        if limit.is_zero() || !waits() {
            break;
        }
        let mut stream = match TcpStream::connect_timeout(&SocketAddr::from((host, port)), limit) {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                    return Err(ViaError::NotReachable);
                }
                _ => continue,
            },
        };
        if listener::send(&mut stream, frame).is_err() {
            continue;
        }
        let Some(answer) = listener::receive(&mut stream, deadline, waits)? else { continue };
        match answer.kind {
            SetupKind::Accepted => return Ok(Round::Accepted(Box::new(answer))),
            SetupKind::Refused => return Ok(Round::Refused(refusal(answer.reason))),
            SetupKind::Busy => is_busy = true,
            _ => {}
        }
    }
    Ok(if is_busy { Round::Busy } else { Round::Nothing })
}

/// Returns the reason in a refusal; an unknown number is a rejection.
fn refusal(code: u8) -> ViaError {
    [ViaError::InvalidReliabilityLevel, ViaError::InvalidMtu, ViaError::InvalidQos]
        .into_iter()
        .find(|reason| reason.code() == i32::from(code))
        .unwrap_or(ViaError::Reject)
}
