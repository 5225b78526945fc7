//! Our own calls to other machines.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nemesia_core::job_key::CallTerms;
use nemesia_core::peers::{PeerAddress, PeerRef};
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::Acquaintance;
use nemesia_core::port::memory::Address;
use nemesia_core::wire::call::{CallAcceptance, CallMessage, CallRequest};
use nemesia_core::wire::channel::CloseReason;
use nemesia_core::wire::hello::{Challenge, Proof};

use super::super::CHECK_NETWORK;
use super::socket::{CallLoss, CallSocket};
use super::{CALLS_WORLD, NO_RANK, NetCalls, OpeningLink};
use crate::os::Watch;

/// The other remedy, if the network lets connections through in one direction only.
const OTHER_DIRECTION: &str = "; if only connections from there to here are let through, an operation there that names \
                               this process connects both";
/// The time before a call that met an overloaded process, or a lost network, is repeated.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A call of ours that is not answered.
#[derive(Debug)]
pub(super) struct OutgoingNetCall {
    pub(super) peer: PeerRef,
    address: PeerAddress,
    at: SocketAddr,
    number: PeerId,
    /// The number of the call.
    call: u64,
    /// The random number that this process presents to the peer on the channel.
    token: u64,
    begun: Instant,
    stage: NetCallStage,
    /// Why the last attempt came to nothing.
    problem: Option<String>,
}

#[derive(Debug)]
enum NetCallStage {
    /// It is made from this time on.
    Due(Instant),
    /// The challenge has not come.
    Connecting(CallSocket),
    /// The request was sent, with this nonce and proof.
    Requested(CallSocket, u64, Proof),
    Ended,
}

/// What has become of a call of ours.
#[derive(Debug)]
pub(crate) enum NetCallOutcome {
    /// The callee has answered: with the number of calls that it has made, and the address of its channel.
    /// [`NetCalls::confirm`] follows.
    Answered(Box<AnsweredCaller>),
    /// The connection has ended before the callee has answered: the call is to be repeated, with another number
    /// ([`NetCalls::call_again`]). The callee had no room for it; if it has died instead, the next call shows that.
    Unanswered(UnansweredCall),
    /// No process takes calls at its address, or a firewall says so; the text names the possible causes.
    Gone(String),
    /// The callee has disconnected or finished (`true`), or has dropped its endpoint.
    Left(bool),
    /// The callee refuses, or never answered; the text says why.
    Refused(String),
}

/// A call of ours that is to be repeated.
#[derive(Debug)]
pub(crate) struct UnansweredCall {
    at: SocketAddr,
    /// When the first attempt began.
    begun: Instant,
}

/// The answer to a call of ours.
#[derive(Debug)]
pub(crate) struct AnsweredCaller {
    pub(crate) number: PeerId,
    pub(crate) calls: u64,
    pub(crate) known: Acquaintance,
    pub(crate) channel: Address,
    socket: CallSocket,
}

impl OutgoingNetCall {
    /// Returns the connection, if the callee may have heard the call.
    pub(super) const fn socket_after_request(&mut self) -> Option<&mut CallSocket> {
        match &mut self.stage {
            NetCallStage::Requested(socket, ..) => Some(socket),
            _ => None,
        }
    }

    /// Returns whether the callee's machine has taken the connection.
    fn is_connected(&self) -> bool {
        match &self.stage {
            NetCallStage::Connecting(socket) | NetCallStage::Requested(socket, ..) => socket.is_connected(),
            NetCallStage::Due(_) | NetCallStage::Ended => false,
        }
    }

    /// Takes the connection out of the set, before it is closed.
    pub(super) fn stop(mut self, watch: &Watch) {
        if let NetCallStage::Connecting(socket) | NetCallStage::Requested(socket, ..) = &mut self.stage {
            socket.stop(watch);
        }
    }

    /// Repeats the call later, unless it is late.
    fn again(&mut self, problem: String, watch: &Watch) {
        if let NetCallStage::Connecting(socket) | NetCallStage::Requested(socket, ..) = &mut self.stage {
            socket.stop(watch);
        }
        self.problem = Some(problem);
        self.stage = NetCallStage::Due(Instant::now() + AGAIN_AFTER);
    }
}

impl NetCalls {
    /// Calls the process with this address, which takes calls there, and which this process knows by `number`. `token`
    /// is a new random number. [`NetCalls::next_outcome`] returns what becomes of the call.
    pub(crate) fn call(
        &mut self,
        (peer, address, at): (PeerRef, PeerAddress, SocketAddr),
        (number, call, token): (PeerId, u64, u64),
    ) {
        let begun = Instant::now();
        let (stage, problem) = (NetCallStage::Due(begun), None);
        self.outgoing.push(OutgoingNetCall { peer, address, at, number, call, token, begun, stage, problem });
    }

    /// Repeats a call after a while, as another one. The time limit is that of the first attempt, unless the peer is a
    /// rank.
    pub(crate) fn call_again(
        &mut self,
        (peer, address): (PeerRef, PeerAddress),
        (number, call, token): (PeerId, u64, u64),
        UnansweredCall { at, begun }: UnansweredCall,
    ) {
        // A rank was reached.
        let begun = if self.is_rank(peer) { Instant::now() } else { begun };
        let stage = NetCallStage::Due(Instant::now() + AGAIN_AFTER);
        let problem = Some("it has closed the connection without an answer: it is overloaded".into());
        self.outgoing.push(OutgoingNetCall { peer, address, at, number, call, token, begun, stage, problem });
    }

    /// Returns whether our call of this peer cannot have reached it: there is no connection for the call.
    pub(crate) fn is_unheard(&self, peer: PeerRef) -> bool {
        self.outgoing.iter().any(|call| call.peer == peer && !call.is_connected())
    }

    /// Directs our calls to another place.
    #[cfg(test)]
    pub(crate) fn redirect(&mut self, at: SocketAddr) {
        self.outgoing.iter_mut().for_each(|call| call.at = at);
    }

    /// Returns the next of our calls that is decided.
    pub(crate) fn next_outcome(&mut self, watch: &Watch) -> Option<(PeerRef, NetCallOutcome)> {
        for at in 0..self.outgoing.len() {
            let Some(outcome) = self.look_at(at, watch) else { continue };
            let call = self.outgoing.remove(at);
            self.unpark(call.peer);
            let peer = call.peer;
            call.stop(watch);
            return Some((peer, outcome));
        }
        None
    }

    /// Makes progress on a call. Returns what has become of it; `None` as long as that is not known.
    fn look_at(&mut self, at: usize, watch: &Watch) -> Option<NetCallOutcome> {
        let outcome = self.advance(at, watch);
        if outcome.is_some() {
            return outcome;
        }
        let limit = self.limit;
        let is_rank = self.outgoing.get(at).is_some_and(|call| self.is_rank(call.peer));
        let call = self.outgoing.get_mut(at).filter(|call| call.begun.elapsed() >= limit)?;
        if is_rank && call.is_connected() {
            return None;
        }
        let last = call.problem.take().map_or_else(String::new, |problem| format!(": {problem}"));
        let is_reached = call.is_connected();
        let (remedy, direction) =
            if is_reached { (": does it progress?", "") } else { (CHECK_NETWORK, OTHER_DIRECTION) };
        let problem = format!("it has not answered within {limit:?}{last}{remedy}{direction}");
        Some(NetCallOutcome::Refused(problem))
    }

    /// As [`NetCalls::look_at`], without the time limit.
    fn advance(&mut self, at: usize, watch: &Watch) -> Option<NetCallOutcome> {
        let now = Instant::now();
        let is_rank = self.outgoing.get(at).is_some_and(|call| self.is_rank(call.peer));
        let call = self.outgoing.get_mut(at)?;
        match &mut call.stage {
            NetCallStage::Due(due) if now < *due => None,
            NetCallStage::Due(_) => {
                match CallSocket::connect(call.at, self.sockets) {
                    Ok(mut socket) => {
                        socket.attend(watch);
                        call.stage = NetCallStage::Connecting(socket);
                    }
                    Err(error) => call.again(format!("{}: {error}", call.at), watch),
                }
                None
            }
            NetCallStage::Connecting(socket) => match socket.receive() {
                Ok(Some(CallMessage::Challenge(challenge))) => {
                    self.request(at, challenge, watch);
                    None
                }
                Ok(None) => None,
                Ok(Some(_)) => Some(NetCallOutcome::Refused("it answers without a challenge".into())),
                // It had no room for the connection, and may have later.
                Err(CallLoss::Ended) => {
                    if is_rank {
                        // It was reached.
                        call.begun = now;
                    }
                    call.again("it takes no connections: it is overloaded".into(), watch);
                    None
                }
                Err(CallLoss::Network(error)) => {
                    call.again(format!("{}: {error}", call.at), watch);
                    None
                }
                Err(CallLoss::NotListening) => Some(NetCallOutcome::Gone(refused_connection(call.at))),
                Err(CallLoss::Nonsense(error)) => Some(NetCallOutcome::Refused(error.to_string())),
            },
            NetCallStage::Requested(socket, nonce, proof) => {
                let (nonce, proof) = (*nonce, *proof);
                match socket.receive() {
                    Ok(None) => None,
                    Ok(Some(CallMessage::Acceptance(answer))) => {
                        Some(self.meet(at, &answer, (nonce, proof), watch))
                    }
                    Ok(Some(CallMessage::Refusal(reason))) => {
                        Some(NetCallOutcome::Refused(format!("it refused the call: {}", reason.text())))
                    }
                    Ok(Some(CallMessage::Leave(reason))) => {
                        Some(NetCallOutcome::Left(reason == CloseReason::Finished))
                    }
                    Ok(Some(_)) => Some(NetCallOutcome::Refused("its answer is none".into())),
                    Err(CallLoss::Nonsense(error)) => Some(NetCallOutcome::Refused(error.to_string())),
                    Err(_) => {
                        Some(NetCallOutcome::Unanswered(UnansweredCall { at: call.at, begun: call.begun }))
                    }
                }
            }
            NetCallStage::Ended => Some(lost_call()),
        }
    }

    /// Answers the challenge.
    fn request(&mut self, at: usize, challenge: Challenge, watch: &Watch) {
        let nonce = self.nonces.draw();
        let (key, address) = (self.key, *self.own.bytes());
        let Some(call) = self.outgoing.get(at) else { return };
        let introduction = self.introduction(call.call, call.token, call.number);
        let terms = CallTerms {
            world: CALLS_WORLD,
            challenge,
            nonce,
            caller: introduction.common(),
            caller_address: &address,
            callee: NO_RANK,
            callee_address: call.address.bytes(),
        };
        let proof = key.request_proof(&terms);
        let challenge = challenge.number;
        let request = CallMessage::Request(CallRequest { introduction, address, challenge, nonce, proof });
        let Some(call) = self.outgoing.get_mut(at) else { return };
        if let NetCallStage::Connecting(mut socket) = std::mem::replace(&mut call.stage, NetCallStage::Ended)
        {
            let sent = socket.send(&request);
            call.stage = NetCallStage::Requested(socket, nonce, proof);
            if !sent {
                call.again("its connection was lost".into(), watch);
            }
        }
    }

    /// Checks an answer.
    fn meet(
        &mut self,
        at: usize,
        answer: &CallAcceptance,
        (nonce, proof): (u64, Proof),
        watch: &Watch,
    ) -> NetCallOutcome {
        let refused = |problem: &str| NetCallOutcome::Refused(problem.into());
        let Some(call) = self.outgoing.get_mut(at) else { return lost_call() };
        if !self.key.accepts_answer(&proof, nonce, &answer.proven(), &answer.proof) {
            return refused("it has another key: check NEMESIA_JOB_KEY_FILE in both processes");
        }
        if answer.address != *call.address.bytes() {
            return refused("it answers with another address");
        }
        if answer.introduction.packet_bytes != self.packet_bytes {
            return refused(
                "packets have another size: set NEMESIA_NET_PACKET_BYTES alike in both processes",
            );
        }
        let stage = std::mem::replace(&mut call.stage, NetCallStage::Ended);
        let NetCallStage::Requested(mut socket, ..) = stage else { return lost_call() };
        socket.stop(watch);
        let expected = answer.introduction.token;
        let known = Acquaintance { token: call.token, expected, number: answer.introduction.number };
        let (number, calls, channel) = (call.number, answer.introduction.calls, answer.channel);
        NetCallOutcome::Answered(Box::new(AnsweredCaller { number, calls, known, channel, socket }))
    }

    /// Confirms an answer, so that the callee waits for the connection of the channel.
    pub(crate) fn confirm(&mut self, peer: PeerRef, answered: Box<AnsweredCaller>, watch: &Watch) {
        let AnsweredCaller { number, mut socket, .. } = *answered;
        // If the message does not reach the callee, it closes the connection of the channel.
        socket.send(&CallMessage::Confirmation);
        socket.attend(watch);
        let until = self.opening_limit(peer);
        self.opening.push(OpeningLink { peer, number, socket, until });
    }
}

/// Returns the possible causes of a refused connection, which only its user can tell apart.
fn refused_connection(at: SocketAddr) -> String {
    format!(
        "{at} refuses the connection: its process has ended, or a firewall rejects it, or another machine has the \
         address as well (docker0, virbr0: set NEMESIA_NET_ADDRESS to another network)"
    )
}

/// Returns the outcome of a call whose connection is lost in a way that no rule of the calls permits.
fn lost_call() -> NetCallOutcome {
    NetCallOutcome::Refused("the connection of the call was lost".into())
}
