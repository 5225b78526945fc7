//! Our own calls.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::peers::{PeerAddress, PeerRef};

use super::Calls;
use crate::error::Error;
use crate::os::{Departure, ForeignFd, HandoffConnection, ShmError, Watch};
use crate::shm::address::ProcessAddress;
use crate::shm::handshake::{CONFIRMED, CallPacket};
use crate::shm::joining::JoiningProcess;
use crate::shm::peer::{Unheard, hear_packet, map};
use crate::shm::segments::{OwnLink, Unjoined};

/// A call is made at most so often, if the callee lives and gives it up each time.
const MOST_ATTEMPTS: u32 = 16;
/// The pause before the second attempt. It doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The attempts that a call counts as having made if this process had no room for the answer: so it makes a pause.
const SHORT_ATTEMPTS: u32 = 8;

/// A call of ours that is not answered.
#[derive(Debug)]
pub(super) struct OutgoingCall {
    pub(super) peer: PeerRef,
    address: PeerAddress,
    /// The number of the call.
    call: u64,
    /// When it is made, or was made.
    since: Instant,
    /// The number of attempts before it, which the callee has given up.
    attempts: u32,
    /// The number by which this process knows the peer.
    number: u32,
    /// Our segment for the peer; `None` while descriptors lack.
    link: Option<OwnLink>,
    /// `None` while the callee's queue of connections is full, or descriptors lack.
    connection: Option<(HandoffConnection, Option<OwnedFd>)>,
}

/// What has become of a call of ours.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The callee has answered.
    Answered(Box<CallAnswered>),
    /// The callee has given up the call, or is about to end. Call once more with this count ([`Calls::call`]).
    Again(u32),
    /// The callee's process is gone.
    Gone,
    /// The callee has disconnected, or has closed its endpoint.
    Left(Departure),
    /// The callee refuses, or never answered; the text says why.
    Refused(String),
}

/// An answer to a call of ours.
#[derive(Debug)]
pub(crate) struct CallAnswered {
    pub(crate) joining: JoiningProcess,
    /// The number of calls that the callee has made.
    pub(crate) calls: u64,
    attempts: u32,
}

impl CallAnswered {
    /// Confirms the answer, so that the callee uses the connection. Returns the outcome of the call if the callee has
    /// given it up: this process was stopped for long.
    pub(crate) fn confirm(&self) -> Result<(), CallOutcome> {
        match self.joining.connection.send(CONFIRMED, &[], Instant::now()) {
            Err(ShmError::PeerGone { .. }) => Err(given_up(self.attempts)),
            // If the packet is lost for another reason, the watch detects the end of the connection.
            _ => Ok(()),
        }
    }
}

/// Why a call could not be sent.
enum Unmade {
    /// This process lacks descriptors or memory now.
    Shortage(ShmError),
    Never(CallOutcome),
}

impl Unmade {
    fn of(error: ShmError) -> Self {
        if error.is_shortage() {
            Self::Shortage(error)
        } else {
            Self::Never(CallOutcome::Refused(error.to_string()))
        }
    }
}

/// Returns the outcome of a call that was closed without an answer, after so many earlier ones.
fn given_up(attempts: u32) -> CallOutcome {
    match attempts + 1 {
        attempts if attempts < MOST_ATTEMPTS => CallOutcome::Again(attempts),
        attempts => CallOutcome::Refused(format!("it has given up {attempts} calls: is it overloaded?")),
    }
}

impl OutgoingCall {
    pub(super) fn connection(&self) -> Option<&HandoffConnection> {
        self.connection.as_ref().map(|(connection, _)| connection)
    }

    /// Takes the connection out of the set, before it is closed or watched.
    pub(super) fn stop(&self, watch: &Watch) {
        if let Some(connection) = self.connection() {
            watch.unattend(connection.as_fd());
        }
    }
}

impl Calls {
    /// Calls a peer, which this process knows by `number`. [`Calls::next_outcome`] returns what becomes of it.
    /// `attempts` is 0, or the count of [`CallOutcome::Again`].
    ///
    /// # Errors
    /// There is no memory for the connection.
    pub(crate) fn call(
        &mut self,
        peer: PeerRef,
        address: &PeerAddress,
        (number, call): (u32, u64),
        attempts: u32,
    ) -> Result<(), Error> {
        let link = match self.ours.link(number) {
            Ok(link) => Some(link),
            Err(Error::Shm(error)) if error.is_shortage() => {
                self.shortage.record(&error);
                None
            }
            Err(error) => return Err(error),
        };
        let pause =
            attempts.checked_sub(1).map_or(Duration::ZERO, |again| FIRST_PAUSE * (1 << again.min(16)));
        let since = Instant::now() + pause.min(LONGEST_PAUSE);
        // A rank of our world is called as long as it lives.
        let attempts = if number < self.world.size { attempts.min(MOST_ATTEMPTS - 2) } else { attempts };
        let address = *address;
        let connection = None;
        self.outgoing.push(OutgoingCall { peer, address, call, since, attempts, number, link, connection });
        Ok(())
    }

    /// Returns the next of our calls that is decided.
    pub(crate) fn next_outcome(&mut self, watch: &Watch) -> Option<(PeerRef, CallOutcome)> {
        let limit = self.limit();
        for at in 0..self.outgoing.len() {
            let Some(outcome) = self.look_at(at, limit, watch) else { continue };
            let call = self.outgoing.remove(at);
            call.stop(watch);
            self.unpark(call.peer);
            let outcome = match outcome {
                Ok(answer) => match (call.link, call.connection) {
                    (Some(link), Some((connection, _))) => {
                        self.meet((link, call.attempts), connection, answer)
                    }
                    _ => CallOutcome::Gone,
                },
                Err(outcome) => outcome,
            };
            return Some((call.peer, outcome));
        }
        None
    }

    /// Returns the answer to a call, or why there will be none; `None` as long as neither is known.
    fn look_at(
        &mut self,
        at: usize,
        limit: Duration,
        watch: &Watch,
    ) -> Option<Result<(CallPacket, Vec<ForeignFd>), CallOutcome>> {
        if self.outgoing[at].since > Instant::now() {
            return None;
        }
        if self.outgoing[at].connection.is_none()
            && let Err(outcome) = self.connect(at, watch)
        {
            return Some(Err(outcome));
        }
        // A rank of our world may compute for any time before it makes progress. Its end is seen in any case.
        let is_rank = self.outgoing[at].number < self.world.size;
        let call = &mut self.outgoing[at];
        let is_late = !is_rank && call.since.elapsed() >= limit;
        let Some((connection, pidfd)) = &call.connection else {
            let overloaded = || "it takes no connections: it is overloaded".into();
            let short = self.shortage.present();
            return is_late.then(|| Err(CallOutcome::Refused(short.map_or_else(overloaded, str::to_owned))));
        };
        // Checked before the packets are read: a dead process sends no further packets.
        let ended = pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
        match hear_packet(connection, Instant::now(), CallPacket::decode) {
            Ok(Some((packet, _))) if packet.address != call.address => {
                Some(Err(CallOutcome::Refused("it answers with another address".into())))
            }
            Ok(Some((packet, descriptors))) => Some(Ok((packet, descriptors))),
            Ok(None) if ended => Some(Err(CallOutcome::Gone)),
            Ok(None) => {
                let late = || {
                    CallOutcome::Refused(format!("it has not answered within {limit:?}: does it progress?"))
                };
                is_late.then(|| Err(late()))
            }
            Err(Unheard::Leaving(departure)) => Some(Err(CallOutcome::Left(departure))),
            Err(Unheard::Gone) if ended => Some(Err(CallOutcome::Gone)),
            // The callee closes a call that it gives up. If it ends, no process will listen at its address.
            Err(Unheard::Gone) => Some(Err(given_up(call.attempts))),
            Err(Unheard::Shortage(error)) => {
                self.shortage.record_packet(&error, watch, connection.as_fd());
                self.shortage.lasting(limit).map(|text| Err(CallOutcome::Refused(text.into())))
            }
            Err(Unheard::Problem(problem)) => Some(Err(CallOutcome::Refused(problem))),
        }
    }

    /// Connects to the callee's socket and sends the call, if there is room for the connection. A shortage of this
    /// process is recorded, and the next look tries again.
    fn connect(&mut self, at: usize, watch: &Watch) -> Result<(), CallOutcome> {
        match self.connect_now(at, watch) {
            Ok(()) => Ok(()),
            Err(Unmade::Shortage(error)) => {
                self.lack(&error).map_or(Ok(()), |text| Err(CallOutcome::Refused(text)))
            }
            Err(Unmade::Never(outcome)) => Err(outcome),
        }
    }

    fn connect_now(&mut self, at: usize, watch: &Watch) -> Result<(), Unmade> {
        let Self { outgoing, place, world, ours, own, .. } = self;
        let call = &mut outgoing[at];
        let refused = |problem: String| Unmade::Never(CallOutcome::Refused(problem));
        let callee = ProcessAddress::decode(&call.address).map_err(refused)?;
        let connection = match HandoffConnection::connect(&callee.socket(), Instant::now()) {
            Ok(connection) => connection,
            Err(ShmError::TimedOut { .. }) => return Ok(()),
            Err(ShmError::NotListening { .. }) => return Err(Unmade::Never(CallOutcome::Gone)),
            Err(error) => return Err(Unmade::of(error)),
        };
        callee.check(place, &connection).map_err(refused)?;
        let link = match &mut call.link {
            Some(link) => link,
            missing => match ours.link(call.number) {
                Ok(link) => missing.insert(link),
                Err(Error::Shm(error)) => return Err(Unmade::of(error)),
                Err(error) => return Err(refused(error.to_string())),
            },
        };
        let handshake = world.handshake(call.number, 0);
        let packet = CallPacket { handshake, address: *own, calls: call.call };
        match connection.send(&packet.encode(), &ours.descriptors(link), Instant::now()) {
            Ok(()) => {}
            Err(ShmError::PeerGone { .. }) => return Err(Unmade::Never(given_up(call.attempts))),
            Err(error) => return Err(Unmade::of(error)),
        }
        // Without room in the set, the answer is found by the next look.
        let _ = watch.attend(connection.as_fd());
        let pidfd = connection.pidfd();
        call.connection = Some((connection, pidfd));
        Ok(())
    }

    /// Maps the callee's segments.
    fn meet(
        &mut self,
        (mut link, attempts): (OwnLink, u32),
        connection: HandoffConnection,
        (packet, descriptors): (CallPacket, Vec<ForeignFd>),
    ) -> CallOutcome {
        // The callee has got it with the call.
        link.close_descriptor();
        let met = self.verify(&packet, &connection).map_err(Unjoined::from).and_then(|()| {
            let mapped = map(&self.world, &connection, &packet.handshake, &descriptors)?;
            let (ours, said) = ((&self.world.config, &self.ours), (&packet.handshake, mapped));
            JoiningProcess::new(ours, link, said, Arc::new(connection))
        });
        match met {
            Ok(joining) => {
                self.shortage.end();
                CallOutcome::Answered(Box::new(CallAnswered { joining, calls: packet.calls, attempts }))
            }
            // The callee answers the next call as well.
            Err(Unjoined::Shortage(error)) => match self.lack(&error) {
                Some(text) => CallOutcome::Refused(text),
                None => CallOutcome::Again(attempts.max(SHORT_ATTEMPTS)),
            },
            Err(Unjoined::Problem(problem)) => CallOutcome::Refused(problem),
        }
    }
}
