//! Proofs: each end of a connection checks that the other knows the key of the job ([`job_key`](crate::job_key)), or
//! the key that both have agreed upon.
//!
//! A caller proves it in its second request, before this process reserves anything for the connection. The called
//! process proves it in its acceptance, before anything that it sends is delivered.
#![forbid(unsafe_code)]

use core::borrow::Borrow as _;
use core::time::Duration;

use super::call::{OutgoingCall, RequestProof};
use super::connect::{ChannelEvent, JoinError};
use super::peer::{ChannelStage, Rail};
use super::{Channel, ChannelStorage};
use crate::flow::posted::LEAST;
use crate::job_key::{CallTerms, JobKey};
use crate::port::PeerId;
use crate::port::memory::{Address, ConnectError, Connection, MemoryPort, Offer, PostError, Private};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::{Challenge, Hello, HelloContent, Proof};

/// The most challenges that one call answers. A challenge that is used up or too old is answered by another one.
const MOST_CHALLENGES: u8 = 8;
/// The rank of every process, for the proofs of a channel whose peers are added one by one: the address and the tokens
/// tell its processes apart.
const NO_RANK: PeerId = 0;

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Returns the key by which this process and a peer prove themselves.
    fn key_with(&self, peer: PeerId) -> JobKey {
        let it = self.peers.borrow().get(peer as usize);
        it.and_then(|it| it.expected).map_or(self.config.key, |known| known.key)
    }

    /// Returns what this process says about itself to a peer, on this rail.
    fn hello(&self, peer: PeerId, rail: u32, content: HelloContent) -> Hello {
        let super::Config { rank, incarnation, packet_bytes, .. } = self.config;
        let incarnation = u32::try_from(incarnation).unwrap_or(u32::MAX);
        let it = self.peers.borrow().get(peer as usize);
        let token = it.map_or(0, |it| it.token);
        let rank = it.and_then(|it| it.expected).map_or(rank, |known| known.number);
        let (rail, receives) = (rail as u8, LEAST as u16);
        Hello { rank, rail, receives, packet_bytes, token, incarnation, content }
    }

    /// Requests a connection, with a proof if the peer has sent a challenge.
    pub(super) fn dial(&mut self, peer: PeerId, rail: u32, mut call: OutgoingCall) -> Result<(), JoinError> {
        self.admit(peer, rail)?;
        let mut receives = LEAST;
        let hello = match call.challenge.take() {
            None => {
                // It is refused, so that nothing can arrive.
                receives = 0;
                self.hello(peer, rail, HelloContent::Call)
            }
            Some(challenge) => {
                let nonce = self.nonces.draw();
                let number = challenge.number;
                let request = |proof| HelloContent::Request { number, nonce, proof };
                let mut hello = self.hello(peer, rail, request(Proof::default()));
                let terms = CallTerms {
                    world: self.config.world,
                    challenge,
                    nonce,
                    caller: hello.common(),
                    caller_address: &[],
                    callee: if self.grows { NO_RANK } else { peer },
                    callee_address: call.to.bytes(),
                };
                let proof = self.key_with(peer).request_proof(&terms);
                call.proof = Some(RequestProof { nonce, proof });
                hello.content = request(proof);
                hello
            }
        };
        let offer = Offer { private: hello.encode(), shared_receive: false, deadline: call.deadline };
        let connection = self.port.connect(&call.to, &offer);
        let connection = self.admitted(connection)?;
        self.install(peer, rail, Rail::new(connection, receives, Some(call)))
    }

    /// Refuses a request with a challenge.
    pub(super) fn challenge(&mut self, connection: Connection, now: Duration) {
        let challenge = self.challenges.issue(now);
        // An error means that the requester no longer waits, so it can be ignored.
        let _ = self.port.refuse(connection, challenge.encode());
    }

    /// Checks that a requester has proved that it knows the key. The proof is not accepted again.
    pub(super) fn check_request(
        &mut self,
        hello: &Hello,
        now: Duration,
    ) -> Result<RequestProof, ChannelRefusal> {
        let (number, nonce, proof) = match hello.content {
            HelloContent::Call => return Err(ChannelRefusal::Unproven),
            HelloContent::Answer { .. } => return Err(ChannelRefusal::Protocol),
            HelloContent::Request { number, nonce, proof } => (number, nonce, proof),
        };
        let challenge = self.challenges.find(number, now).ok_or(ChannelRefusal::Unproven)?;
        let address = self.port.address();
        let terms = CallTerms {
            world: self.config.world,
            challenge,
            nonce,
            caller: hello.common(),
            caller_address: &[],
            callee: if self.grows { NO_RANK } else { self.config.rank },
            callee_address: address.as_ref().map_or(&[], Address::bytes),
        };
        if !self.key_with(hello.rank).accepts_request(&terms, &proof) {
            return Err(ChannelRefusal::WrongKey);
        }
        self.challenges.redeem(number);
        Ok(RequestProof { nonce, proof })
    }

    /// Returns the acceptance of a request, with the proof of this process.
    pub(super) fn answer(&mut self, peer: PeerId, rail: u32, request: &RequestProof, now: Duration) -> Offer {
        let agreements = self.peer(peer).map_or(0, |it| it.agreements);
        let content = |proof| HelloContent::Answer { agreements, proof };
        let mut hello = self.hello(peer, rail, content(Proof::default()));
        let RequestProof { nonce, proof } = request;
        let proof = self.key_with(peer).answer_proof(proof, *nonce, &hello.answer_bytes(agreements));
        hello.content = content(proof);
        let deadline = now.saturating_add(self.config.patience);
        Offer { private: hello.encode(), shared_receive: false, deadline }
    }

    /// Returns whether the refusal of a request of this process is a challenge that will be answered, when the
    /// connection is closed.
    pub(super) fn is_challenged(&mut self, (peer, rail): (PeerId, u32), refusal: &Private) -> bool {
        let Some(challenge) = Challenge::decode(refusal) else { return false };
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return false };
        let Some(call) = &mut it.call else { return false };
        if it.stage != ChannelStage::Opening || call.challenges == MOST_CHALLENGES {
            return false;
        }
        call.challenges += 1;
        call.challenge = Some(challenge);
        self.shut(peer, rail);
        if let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) {
            it.stage = ChannelStage::Challenged;
        }
        true
    }

    /// Requests a connection once more, with the answer to the peer's challenge.
    pub(super) fn call_again(
        &mut self,
        (peer, rail): (PeerId, u32),
        call: OutgoingCall,
    ) -> Option<ChannelEvent> {
        let error = self.dial(peer, rail, call).err()?;
        if self.peer(peer).is_some_and(|it| it.rail(rail).is_none()) {
            // There is no connection whose end would be reported.
            self.ended = Some((peer, rail));
        }
        let error = match error {
            JoinError::Connect(error) => error,
            JoinError::Post(PostError::System(code)) => ConnectError::System(code),
            // The place and the buffers of the first request were free.
            _ => ConnectError::State,
        };
        Some(ChannelEvent::Failed { peer, rail, error, refusal: None })
    }

    /// Checks that the process that accepted the connection is the expected one.
    pub(super) fn meet(
        &mut self,
        connection: Connection,
        (peer, rail): (PeerId, u32),
        private: &Private,
    ) -> Result<(), ChannelRefusal> {
        let hello = Hello::decode(private)?;
        let HelloContent::Answer { agreements, proof } = hello.content else {
            return Err(ChannelRefusal::Protocol);
        };
        self.judge(&hello)?;
        if hello.rank != peer || u32::from(hello.rail) != rail {
            return Err(ChannelRefusal::NotAMember);
        }
        self.is_holder(connection, &hello)?;
        let key = self.key_with(peer);
        let it = self.peer(peer).ok_or(ChannelRefusal::Exists)?;
        let call = it.rail(rail).and_then(|it| it.call.take()).ok_or(ChannelRefusal::Exists)?;
        // A process that accepts a call without a challenge has proved nothing.
        let request = call.proof.ok_or(ChannelRefusal::WrongKey)?;
        if !key.accepts_answer(&request.proof, request.nonce, &hello.answer_bytes(agreements), &proof) {
            return Err(ChannelRefusal::WrongKey);
        }
        it.show(&hello);
        let it = it.rail(rail).ok_or(ChannelRefusal::Exists)?;
        it.credits.open(hello.receives.into()).map_err(|_| ChannelRefusal::Settings)
    }
}
