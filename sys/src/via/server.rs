//! The side that answers (paper 2, section 1.4.1): it opens a meeting place, names it by TCP, and waits there.

use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nemesia_core::via::setup::{SetupFrame, SetupKind, SetupNetwork};
use nemesia_core::via::{ViAttributes, ViaError};

use super::network::PortTicket;
use super::objects::NewViLink;
use super::provider::Shared;
use super::{listener, meeting, network, network_connect};
use crate::os::{self, HandoffListener};

/// The limit of a meeting.
const MEETING_LIMIT: Duration = Duration::from_secs(30);

/// Returns the answer to a request, without a meeting place.
pub(super) fn answer(shared: &Shared, request: &SetupFrame, kind: SetupKind, reason: u8) -> SetupFrame {
    SetupFrame {
        kind,
        reason,
        process: shared.process,
        vi: 0,
        meeting: [0; 16],
        local: request.remote,
        remote: request.local,
        network: shared.trust.plain(),
        ..*request
    }
}

/// Accepts a request, and waits at the meeting place or at the memory port.
///
/// # Errors
/// [`ViaError::Timeout`] if the other side does not come: in most cases because its time limit has passed.
pub(super) fn accept(
    shared: &Shared,
    stream: &mut TcpStream,
    request: &SetupFrame,
    (vi, attributes): (u64, ViAttributes),
) -> Result<NewViLink, ViaError> {
    if shared.trust.is_elsewhere(request) {
        return accept_elsewhere(shared, stream, request, (vi, attributes));
    }
    let place = HandoffListener::bind().map_err(|_| ViaError::ErrorResource)?;
    let accepted = SetupFrame {
        vi,
        attributes: ViAttributes { ptag: 0, ..attributes },
        meeting: meeting::bytes_of(&place.name()),
        ..answer(shared, request, SetupKind::Accepted, 0)
    };
    if has_left(stream) || listener::send(stream, &accepted).is_err() {
        return Err(ViaError::Timeout);
    }
    let deadline = Instant::now() + MEETING_LIMIT;
    // The other side may have left just before it could read the answer: then it never comes, and closes its end.
    loop {
        let step = Instant::now() + Duration::from_millis(20);
        match meeting::receive(&place, &shared.bell, step.min(deadline), deadline) {
            Err(ViaError::Timeout) if Instant::now() < deadline && !has_left(stream) => {}
            Err(ViaError::Timeout) => {
                let link = meeting::receive(&place, &shared.bell, Instant::now(), deadline)?;
                return Ok(NewViLink::Shared(Box::new(link)));
            }
            result => return result.map(|link| NewViLink::Shared(Box::new(link))),
        }
    }
}

/// Accepts a request of another machine.
fn accept_elsewhere(
    shared: &Shared,
    stream: &mut TcpStream,
    request: &SetupFrame,
    (vi, attributes): (u64, ViAttributes),
) -> Result<NewViLink, ViaError> {
    let ticket = os::random().map_err(|_| ViaError::ErrorResource)?;
    let answer = SetupFrame {
        vi,
        attributes: ViAttributes { ptag: 0, ..attributes },
        meeting: ticket,
        ..answer(shared, request, SetupKind::Accepted, 0)
    };
    let transport = shared.lock().networks.choose(&request.network).ok_or(ViaError::NotReachable)?;
    let mut sender = stream.try_clone().map_err(|_| ViaError::ErrorResource)?;
    os::close_in_children(sender.as_fd());
    let accept = |port| {
        let ports = network::code_of(transport);
        let network = SetupNetwork { ports, port: Some(port), ..answer.network };
        let accepted = shared.trust.prove(SetupFrame { network, ..answer }, request);
        let has_gone = has_left(&sender) || listener::send(&mut sender, &accepted).is_err();
        if has_gone { Err(ViaError::Timeout) } else { Ok(()) }
    };
    let deadline = Instant::now() + MEETING_LIMIT;
    let place = PortTicket { transport, ticket };
    let theirs = Some(&request.network);
    network_connect::receive(shared, (place, theirs), deadline, accept, || !has_left(stream))
}

/// Returns whether the other side has closed its end.
fn has_left(stream: &TcpStream) -> bool {
    let mut byte = [0];
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let has_left = matches!(stream.peek(&mut byte), Ok(0));
    stream.set_nonblocking(false).is_err() || has_left
}
