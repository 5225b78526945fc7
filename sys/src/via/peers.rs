//! Requests that arrived (paper 2, section 1.4.1): those of clients go to the calls that wait, those of peers to the
//! peer-to-peer requests of this process.
//!
//! A peer-to-peer request is registered first, then this side calls the other one. So of two requests the later one
//! always finds the earlier one, which is buffered here until then. If both sides call at the same time, the call of
//! the process with the larger number has precedence.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::via::setup::{SetupFrame, SetupKind};
use nemesia_core::via::{ViAttributes, ViState, ViaError};

use super::objects::{ConnectWaiter, NewViLink, PeerAttempt};
use super::provider::Shared;
use super::state::ViaState;
use super::{client, listener, server};

/// The pause between two calls of a request that found nothing.
const RETRY: Duration = Duration::from_millis(100);

/// The provider, for threads that answer peers.
static SHARED: std::sync::OnceLock<Arc<Shared>> = std::sync::OnceLock::new();

/// Stores the provider for the threads that this module starts.
pub(super) fn register(shared: &Arc<Shared>) {
    SHARED.get_or_init(|| shared.clone());
}

/// Service thread: reads requests, and passes each to the call or to the VI that it is for.
pub(super) fn serve_requests(shared: &Shared, state: &mut ViaState) {
    let Some(listener) = &mut state.listener else { return };
    for (mut stream, frame) in listener.read() {
        let is_confirmation = matches!(frame.kind, SetupKind::Confirm | SetupKind::PeerConfirm);
        let is_refused = is_confirmation
            && (shared.trust.check(&frame, &stream).is_err()
                || shared.trust.is_elsewhere(&frame) && state.networks.choose(&frame.network).is_none());
        if is_refused {
            refuse(shared, &mut stream, &frame);
            continue;
        }
        let kind = match frame.kind {
            SetupKind::Request if waiter(state, &frame).is_some() => SetupKind::Pending,
            SetupKind::PeerRequest => {
                find_peer(shared, state, &frame).map_or_else(|kind| kind, |_| SetupKind::Pending)
            }
            SetupKind::Confirm if waiter(state, &frame).is_some() => {
                deliver(state, stream, frame);
                continue;
            }
            SetupKind::PeerConfirm => match find_peer(shared, state, &frame) {
                Ok(vi) => {
                    start_answer(state, vi, stream, frame);
                    continue;
                }
                Err(kind) => kind,
            },
            _ => SetupKind::NoMatch,
        };
        let network = match kind {
            SetupKind::Pending => shared.trust.challenge(&frame),
            _ => Ok(shared.trust.plain()),
        };
        let Ok(network) = network else {
            refuse(shared, &mut stream, &frame);
            continue;
        };
        let answer = SetupFrame { network, ..server::answer(shared, &frame, kind, 0) };
        let is_checked = kind == SetupKind::Pending && shared.trust.is_elsewhere(&frame);
        let answer = if is_checked { shared.trust.prove(answer, &frame) } else { answer };
        let is_sent = listener::send_now(&mut stream, &answer).is_ok();
        if kind == SetupKind::Pending
            && is_sent
            && let Some(listener) = &mut state.listener
        {
            listener.keep(stream);
        }
    }
}

/// Refuses a process of another user, one of another machine that has not proven that it knows the key of the job, or
/// one that has no memory port which this process can use.
fn refuse(shared: &Shared, stream: &mut TcpStream, frame: &SetupFrame) {
    let reason = ViaError::NotReachable.code() as u8;
    // A process that has left needs no answer.
    let _ = listener::send_now(stream, &server::answer(shared, frame, SetupKind::Refused, reason));
}

/// Returns the oldest call that waits under the address of a request.
fn waiter<'a>(state: &'a mut ViaState, frame: &SetupFrame) -> Option<&'a mut ConnectWaiter> {
    state.waiters.iter_mut().find(|it| it.arrived.is_none() && it.local == frame.remote)
}

/// Passes a request to the call that waits for it.
fn deliver(state: &mut ViaState, stream: TcpStream, frame: SetupFrame) {
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    if let Some(waiter) = waiter(state, &frame) {
        waiter.arrived = Some((stream, frame));
        state.is_changed = true;
    }
}

/// Returns the VI whose request matches that of a peer; if there is none, the answer.
fn find_peer(shared: &Shared, state: &ViaState, frame: &SetupFrame) -> Result<u64, SetupKind> {
    let has_precedence = |vi: u64| (shared.process, vi) > (frame.process, frame.vi);
    let is_own = |vi: u64| (shared.process, vi) == (frame.process, frame.vi);
    let mut answer = SetupKind::NoMatch;
    for (vi, object) in state.vis.iter() {
        let Some(attempt) = object.peer.as_ref() else { continue };
        let is_match = attempt.local == frame.remote && attempt.remote == frame.local && !is_own(vi);
        if !is_match || attempt.result.is_some() || attempt.is_answering {
            continue;
        }
        if !attempt.is_calling || !has_precedence(vi) {
            return Ok(vi);
        }
        // The other side is found by the call of this one, which is under way.
        answer = SetupKind::Busy;
    }
    Err(answer)
}

/// Starts a thread that answers a peer.
fn start_answer(state: &mut ViaState, vi: u64, stream: TcpStream, frame: SetupFrame) {
    let Some(shared) = SHARED.get().cloned() else { return };
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    let Some(number) = state.vis.get(vi).and_then(|object| object.peer.as_ref()).map(|it| it.number) else {
        return;
    };
    let (of, thread) = ((vi, number), std::thread::Builder::new().name("vipl-answer".into()));
    let is_started = thread.spawn(move || answer_peer(&shared, of, stream, &frame)).is_ok();
    if let Some(attempt) = attempt(state, of) {
        attempt.is_answering = is_started;
    }
}

/// Returns a peer-to-peer request of a VI, unless the VI has disconnected, or begun another request, meanwhile.
fn attempt(state: &mut ViaState, (vi, number): (u64, u64)) -> Option<&mut PeerAttempt> {
    let attempt = state.vis.get_mut(vi)?.peer.as_mut();
    attempt.filter(|attempt| attempt.number == number)
}

/// Answers the call of a peer.
fn answer_peer(shared: &Shared, of: (u64, u64), mut stream: TcpStream, frame: &SetupFrame) {
    let vi = of.0;
    let Some(attributes) = attributes_of(shared, vi) else { return };
    if let Err(reason) = attributes.match_with(&frame.attributes) {
        let refused = server::answer(shared, frame, SetupKind::Refused, reason.code() as u8);
        let _ = listener::send(&mut stream, &refused);
        return finish(shared, of, Err(reason));
    }
    match server::accept(shared, &mut stream, frame, (vi, attributes)) {
        Ok(link) => finish(shared, of, Ok((link, frame.attributes))),
        Err(_) => {
            // The caller has gone: the request waits for the next one.
            if let Some(attempt) = attempt(&mut shared.lock(), of) {
                attempt.is_answering = false;
            }
        }
    }
}

fn attributes_of(shared: &Shared, vi: u64) -> Option<ViAttributes> {
    shared.lock().vis.get(vi).map(|object| object.model.attributes)
}

/// Starts the thread that calls the peer of a VI.
pub(super) fn start(of: (u64, u64), frame: SetupFrame) -> Result<(), ViaError> {
    let shared = SHARED.get().ok_or(ViaError::ErrorResource)?.clone();
    let thread = std::thread::Builder::new().name("vipl-peer".into());
    let run = move || call_peer(&shared, of, &frame);
    thread.spawn(run).map(drop).map_err(|_| ViaError::ErrorResource)
}

/// Calls a peer until a connection exists, by this call or by that of the peer, or the time limit has passed.
fn call_peer(shared: &Shared, of: (u64, u64), frame: &SetupFrame) {
    let is_pending = || {
        let mut state = shared.lock();
        let object = state.vis.get(of.0)?;
        if object.model.state() != ViState::ConnectPending {
            return None;
        }
        let attempt = attempt(&mut state, of)?;
        attempt.result.is_none().then_some((attempt.deadline, attempt.is_answering))
    };
    while let Some((deadline, is_answering)) = is_pending() {
        if !is_answering {
            let waits = || is_pending().is_some_and(|(_, is_answering)| !is_answering);
            set_calling(shared, of, true);
            let found = client::call(shared, frame, deadline, true, waits);
            set_calling(shared, of, false);
            match found {
                Ok(found) => return finish(shared, of, Ok(found)),
                Err(ViaError::NoMatch | ViaError::InvalidState | ViaError::Timeout) => {}
                Err(reason) => return finish(shared, of, Err(reason)),
            }
        }
        if !is_answering && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return finish(shared, of, Err(ViaError::Timeout));
        }
        std::thread::sleep(RETRY);
    }
}

fn set_calling(shared: &Shared, of: (u64, u64), is_calling: bool) {
    if let Some(attempt) = attempt(&mut shared.lock(), of) {
        attempt.is_calling = is_calling;
    }
}

/// Records the result of a peer-to-peer request.
fn finish(shared: &Shared, of: (u64, u64), result: Result<(NewViLink, ViAttributes), ViaError>) {
    let mut state = shared.lock();
    if attempt(&mut state, of).is_none_or(|attempt| attempt.result.is_some()) {
        if let Ok((NewViLink::Network(ticket, _), _)) = result {
            state.abandon_network(ticket);
        }
        return;
    }
    let vi = of.0;
    let result = match result {
        Ok((link, remote)) => {
            if let Some(object) = state.vis.get_mut(vi) {
                object.remote = Some(remote);
            }
            if state.connect(vi, link) { Ok(remote) } else { Err(ViaError::InvalidState) }
        }
        Err(reason) => {
            if let Some(object) = state.vis.get_mut(vi) {
                object.model.abandon_connect();
            }
            Err(reason)
        }
    };
    if let Some(attempt) = attempt(&mut state, of) {
        attempt.result = Some(result);
    }
    state.is_changed = true;
}
