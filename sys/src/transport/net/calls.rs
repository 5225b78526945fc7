//! Calls between machines: how processes that opened alone, and the ranks of a world that connects on demand, connect
//! with each other over TCP.
//!
//! The messages are in [`nemesia_core::wire::call`], and the proofs in [`nemesia_core::job_key`]. Nothing of a caller
//! is heard before it has proved that it knows the key of the job. The table of peers ([`nemesia_core::peers`]) decides
//! what becomes of each call, as inside a machine; this module carries the messages, and never waits for one.
//!
//! The connection of a call stays open until the connection of the channel exists, so that each side sees the death of
//! the other meanwhile.
//!
//! | file | contents |
//! |---|---|
//! | `calls.rs` | calls of others: heard, refused, answered, confirmed |
//! | `calls/outgoing.rs` | our own calls |
//! | `calls/departure.rs` | departures of processes with which there is no connection |
//! | `calls/socket.rs` | one connection, with its messages |
//!
//! A stranger costs one connection of [`MOST_STRANGERS`], for a limited time, and one challenge. If there are more, the
//! oldest one is disconnected; a caller whose connection ends before its challenge has come calls again.
//!
//! A rank of this process's world may compute for any time. As long as its process lives and its machine is reached, a
//! call to it waits, as it does inside a machine. The time limit of a call to a rank applies while there is no
//! connection for the call.

mod departure;
mod outgoing;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;
use nemesia_core::job_key::{CallTerms, Challenges, JobKey, Nonces};
use nemesia_core::peers::{PeerAddress, PeerRef};
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::Acquaintance;
use nemesia_core::port::memory::Address;
use nemesia_core::wire::call::{CallAcceptance, CallIntroduction, CallMessage, CallRequest, RefusalReason};
use nemesia_core::wire::channel::CloseReason;
use nemesia_core::wire::hello::Proof;

use super::LinkStage;
use super::choice::socket_options;
use crate::config::Config;
use crate::os::descriptor::{self, accept};
use crate::os::shortage::{Shortage, arrived_stream, listening};
use crate::os::{self, ShmError, Watch, random};
use crate::tcp::{SocketOptions, set_traffic_class};
use outgoing::OutgoingNetCall;
pub(crate) use outgoing::{NetCallOutcome, UnansweredCall};
use socket::{CallLoss, CallSocket};

/// The number of the world of calls: they are made outside of any.
const CALLS_WORLD: u64 = u64::from_le_bytes(*b"callings");
/// The rank of each process outside of a world.
const NO_RANK: u32 = 0;
/// The most connections of processes that have not proved that they know the key.
const MOST_STRANGERS: usize = 128;
/// The most calls that are not decided or not confirmed.
const MOST_HEARD: usize = 256;
/// The connections that are accepted before the present ones are read: no more than places, so that a connection
/// keeps its place until it was read once.
const AT_ONCE: usize = MOST_STRANGERS;
/// The time within which a request, and a confirmation, must arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time after the end of the channel's connection within which the call of a process that has died ends too.
const DEATH_SHOWS: Duration = Duration::from_secs(1);

/// A connection without a valid request.
#[derive(Debug)]
struct StrangeCaller {
    socket: CallSocket,
    /// The number of the challenge that it was sent.
    challenge: u32,
    since: Instant,
}

/// A call of a process that has proved that it knows the key.
#[derive(Debug)]
pub(crate) struct HeardNetCall {
    pub(crate) address: PeerAddress,
    request: CallRequest,
    socket: CallSocket,
    since: Instant,
}

/// A process that has our answer, and has not confirmed it.
#[derive(Debug)]
struct AnsweredNetCall {
    peer: PeerRef,
    number: PeerId,
    socket: CallSocket,
    since: Instant,
}

/// A confirmed call, whose connection of the channel is being made.
#[derive(Debug)]
pub(crate) struct OpeningLink {
    pub(crate) peer: PeerRef,
    pub(crate) number: PeerId,
    socket: CallSocket,
    /// `None`: as long as the peer lives.
    until: Option<Instant>,
}

/// The calls of one process to and from other machines.
#[derive(Debug)]
pub(crate) struct NetCalls {
    own: PeerAddress,
    key: JobKey,
    listener: TcpListener,
    /// The address of the channel.
    channel: Address,
    packet_bytes: u32,
    sockets: SocketOptions,
    limit: Duration,
    challenges: Challenges,
    nonces: Nonces,
    begun: Instant,
    /// In the order of their arrival.
    strangers: Vec<StrangeCaller>,
    heard: VecDeque<HeardNetCall>,
    answered: Vec<AnsweredNetCall>,
    outgoing: Vec<OutgoingNetCall>,
    opening: Vec<OpeningLink>,
    /// Calls of peers that we call as well, where our call counts. They stay open until ours is answered.
    parked: Vec<(PeerRef, CallSocket)>,
    /// Processes that leave, and have announced it.
    leavers: Vec<(PeerAddress, CloseReason)>,
    /// The peers with a smaller place in the table are ranks of this process's world.
    ranks: u32,
    /// More connections may be pending.
    more: bool,
    shortage: Shortage,
}

impl HeardNetCall {
    /// Returns whether the caller has abandoned it.
    pub(crate) fn is_abandoned(&mut self) -> bool {
        // A caller sends nothing before it is answered.
        !matches!(self.socket.receive(), Ok(None))
    }

    /// Returns the number of the call.
    pub(crate) const fn calls(&self) -> u64 {
        self.request.introduction.calls
    }
}

impl NetCalls {
    /// Listens for calls at this address of this machine. `channel` is the address of the channel. [`NetCalls::begin`]
    /// follows. The error is one line.
    pub(crate) fn listen(
        config: &Config,
        key: JobKey,
        (ip, channel): (IpAddr, Address),
    ) -> Result<Self, String> {
        Self::new(config, key, (Self::bind(ip)?, channel))
    }

    /// Listens for calls at this address of this machine, for [`NetCalls::new`]. The error is one line.
    pub(crate) fn bind(ip: IpAddr) -> Result<TcpListener, String> {
        let refused = |error: std::io::Error| format!("listening for calls at {ip}: {error}");
        let listener = descriptor::listen(SocketAddr::new(ip, 0)).map_err(refused)?;
        os::close_in_children(listener.as_fd());
        Ok(listener)
    }

    /// As [`NetCalls::listen`], with a listener that exists.
    pub(crate) fn new(
        config: &Config,
        key: JobKey,
        (listener, channel): (TcpListener, Address),
    ) -> Result<Self, String> {
        let refused = |error: std::io::Error| format!("the traffic class of calls: {error}");
        let at = listener.local_addr().map_err(refused)?;
        let sockets = socket_options(config);
        set_traffic_class(listener.as_fd(), at, sockets.class).map_err(refused)?;
        let seed = || random().map_err(|error: ShmError| error.to_string());
        Ok(Self {
            own: PeerAddress::from_bytes([0; 64]),
            key,
            listener,
            channel,
            packet_bytes: config.net_packet_bytes(true),
            sockets,
            limit: Duration::from_secs(config.timeout_seconds.into()),
            challenges: Challenges::new(seed()?),
            nonces: Nonces::new(seed()?),
            begun: Instant::now(),
            strangers: Vec::new(),
            heard: VecDeque::new(),
            answered: Vec::new(),
            outgoing: Vec::new(),
            opening: Vec::new(),
            parked: Vec::new(),
            leavers: Vec::new(),
            ranks: 0,
            more: false,
            shortage: Shortage::default(),
        })
    }

    /// Returns where this process listens.
    pub(crate) fn place(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Begins to take calls as the process with this address.
    pub(crate) fn begin(&mut self, own: &PeerAddress, watch: &Watch) -> Result<(), ShmError> {
        self.own = *own;
        watch.attend(self.listener.as_fd())
    }

    /// Waits for peers with a smaller place in the table than this as long as they live.
    pub(crate) fn wait_for_ranks(&mut self, ranks: u32) {
        self.ranks = ranks;
        self.shortage = Shortage::among(ranks.saturating_sub(1).into());
    }

    /// Returns whether a peer is waited for as long as it lives.
    const fn is_rank(&self, peer: PeerRef) -> bool {
        peer.index() < self.ranks
    }

    /// Returns the time at which a connection of the channel that begins now is given up.
    fn opening_limit(&self, peer: PeerRef) -> Option<Instant> {
        if self.is_rank(peer) { None } else { Some(Instant::now() + self.limit) }
    }

    /// Returns the number of connections whose calls have not come, and its limit.
    #[cfg(test)]
    pub(crate) fn silent_callers(&self) -> (usize, usize) {
        (self.strangers.len(), MOST_STRANGERS)
    }

    /// Returns whether there are connections to look at, even if no descriptor is readable.
    pub(crate) fn is_busy(&self) -> bool {
        let [heard, opening] = [self.heard.len(), self.opening.len()];
        let waiting = [self.strangers.len(), heard, self.answered.len(), self.outgoing.len(), opening];
        self.more || waiting.into_iter().any(|count| count > 0)
    }

    /// Reads the requests that have come, and accepts pending connections. In this order: each connection that is
    /// accepted may end the oldest one without a request.
    pub(crate) fn hear(&mut self, watch: &Watch) {
        let now = Instant::now();
        self.read(now, watch);
        self.accept(now, watch);
    }

    fn read(&mut self, now: Instant, watch: &Watch) {
        let mut at = 0;
        while let Some(stranger) = self.strangers.get_mut(at) {
            let heard = match stranger.socket.receive() {
                Ok(None) if now.duration_since(stranger.since) < PATIENCE => {
                    at += 1;
                    continue;
                }
                heard => heard,
            };
            let StrangeCaller { mut socket, challenge, since } = self.strangers.remove(at);
            socket.stop(watch);
            let request = match heard {
                Ok(Some(CallMessage::Request(request))) => request,
                Ok(Some(CallMessage::Departure(departure))) => {
                    self.hear_departure(&departure);
                    continue;
                }
                _ => continue,
            };
            match self.verify(&request, challenge) {
                Ok(()) => {
                    let address = PeerAddress::from_bytes(request.address);
                    self.heard.push_back(HeardNetCall { address, request, socket, since });
                }
                Err(problem) => socket.refuse(problem),
            }
        }
    }

    /// Returns the next report of a shortage of this process, which keeps it from accepting calls for now.
    pub(crate) const fn next_shortage(&mut self) -> Option<String> {
        self.shortage.next_report()
    }

    /// Returns the number of connections of others that could not be accepted.
    pub(crate) const fn failed_accepts(&self) -> u64 {
        self.shortage.failed()
    }

    /// Accepts a connection; `None` if there is none, or if descriptors lack.
    fn accept_one(&mut self, now: Instant, watch: &Watch) -> Option<(TcpStream, SocketAddr)> {
        let Self { listener, shortage, .. } = self;
        let listen = listening(watch, listener.as_fd());
        shortage.next_connection(now, listen, || arrived_stream(accept(listener)))
    }

    fn accept(&mut self, now: Instant, watch: &Watch) {
        for _ in 0..AT_ONCE {
            if self.heard.len() + self.answered.iter().filter(|it| !self.is_rank(it.peer)).count()
                >= MOST_HEARD
            {
                self.more = true;
                return;
            }
            let Some(accepted) = self.accept_one(now, watch) else {
                self.more = false;
                return;
            };
            let Ok(mut socket) = CallSocket::accepted(accepted, self.sockets) else { continue };
            // Before the challenge: a process that leaves has closed the connection, and its kernel would refuse it.
            match socket.receive() {
                Ok(None) => {}
                Ok(Some(CallMessage::Departure(departure))) => {
                    self.hear_departure(&departure);
                    continue;
                }
                _ => continue,
            }
            let challenge = self.challenges.issue(now.duration_since(self.begun));
            if !socket.send(&CallMessage::Challenge(challenge)) {
                continue;
            }
            if self.strangers.len() == MOST_STRANGERS {
                // The one that has been silent for longest.
                self.strangers.remove(0).socket.stop(watch);
            }
            socket.attend(watch);
            self.strangers.push(StrangeCaller { socket, challenge: challenge.number, since: now });
        }
        self.more = true;
    }

    /// Checks that the sender of a request knows the key, and has the same settings.
    fn verify(&mut self, request: &CallRequest, sent: u32) -> Result<(), &'static str> {
        let now = self.begun.elapsed();
        // A challenge is for one connection only.
        let challenge = self.challenges.find(request.challenge, now).filter(|_| request.challenge == sent);
        let challenge = challenge.ok_or("its challenge is too old: call again")?;
        let terms = CallTerms {
            world: CALLS_WORLD,
            challenge,
            nonce: request.nonce,
            caller: request.introduction.common(),
            caller_address: &request.address,
            callee: NO_RANK,
            callee_address: self.own.bytes(),
        };
        if !self.key.accepts_request(&terms, &request.proof) {
            return Err("the caller has another key: check NEMESIA_JOB_KEY_FILE in both processes");
        }
        self.challenges.redeem(request.challenge);
        if request.introduction.packet_bytes != self.packet_bytes {
            return Err("packets have another size: set NEMESIA_NET_PACKET_BYTES alike in both processes");
        }
        Ok(())
    }

    /// Returns the number of calls to decide.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Returns the next call to decide.
    pub(crate) fn next_call(&mut self) -> Option<HeardNetCall> {
        self.heard.pop_front()
    }

    /// Keeps a call to be decided later, for a limited time.
    pub(crate) fn postpone(&mut self, mut call: HeardNetCall) {
        if call.since.elapsed() < PATIENCE && !call.is_abandoned() {
            self.heard.push_back(call);
        }
    }

    /// Keeps the connection of a call that does not count, until ours is answered or has failed.
    pub(crate) fn park(&mut self, peer: PeerRef, call: HeardNetCall) {
        self.unpark(peer);
        self.parked.push((peer, call.socket));
    }

    /// Refuses a call.
    pub(crate) fn refuse(mut call: HeardNetCall, problem: &str) {
        call.socket.refuse(problem);
    }

    /// Returns what the channel needs to know before the call is answered; `token` is a new random number.
    pub(crate) const fn acquaintance(call: &HeardNetCall, token: u64) -> Acquaintance {
        let CallIntroduction { token: expected, number, .. } = call.request.introduction;
        Acquaintance { token, expected, number }
    }

    fn introduction(&self, calls: u64, token: u64, number: PeerId) -> CallIntroduction {
        CallIntroduction { calls, token, number, packet_bytes: self.packet_bytes }
    }

    /// Answers a call. `number` is the number by which this process knows the peer, and `calls` the number of calls
    /// that it has made. Returns `false` if the caller has abandoned the call.
    pub(crate) fn answer(
        &mut self,
        peer: PeerRef,
        call: HeardNetCall,
        (number, calls, token): (PeerId, u64, u64),
        watch: &Watch,
    ) -> bool {
        let HeardNetCall { request, mut socket, .. } = call;
        let introduction = self.introduction(calls, token, number);
        let (address, channel, proof) = (*self.own.bytes(), self.channel, Proof::default());
        let mut answer = CallAcceptance { introduction, address, channel, proof };
        answer.proof = self.key.answer_proof(&request.proof, request.nonce, &answer.proven());
        if !socket.send(&CallMessage::Acceptance(answer)) {
            return false;
        }
        socket.attend(watch);
        self.answered.push(AnsweredNetCall { peer, number, socket, since: Instant::now() });
        true
    }

    /// Returns the next caller that has confirmed our answer, or the reason why it never will. Its connection of the
    /// channel is awaited: [`NetCalls::opening`].
    pub(crate) fn next_confirmed(&mut self, watch: &Watch) -> Option<(PeerRef, Result<(), Failure>)> {
        let ranks = self.ranks;
        let heard = |it: &mut AnsweredNetCall| match it.socket.receive() {
            Ok(Some(CallMessage::Confirmation)) => Some(Ok(())),
            Ok(Some(CallMessage::Leave(reason))) => Some(Err(failure_of(reason))),
            Ok(None) if it.peer.index() < ranks || it.since.elapsed() < PATIENCE => None,
            Ok(_) | Err(CallLoss::Nonsense(_)) => Some(Err(Failure::Unreachable)),
            Err(_) => Some(Err(Failure::Died)),
        };
        let mut answered = self.answered.iter_mut().enumerate();
        let (at, confirmed) = answered.find_map(|(at, it)| Some((at, heard(it)?)))?;
        let AnsweredNetCall { peer, number, mut socket, .. } = self.answered.remove(at);
        match confirmed {
            Ok(()) => {
                let until = self.opening_limit(peer);
                self.opening.push(OpeningLink { peer, number, socket, until });
            }
            Err(_) => socket.stop(watch),
        }
        Some((peer, confirmed))
    }

    /// Returns peer and number of a confirmed call whose connection is being made, counted from 0.
    pub(crate) fn opening(&self, at: usize) -> Option<(PeerRef, PeerId)> {
        self.opening.get(at).map(|it| (it.peer, it.number))
    }

    /// Forgets the call of a connection that exists.
    pub(crate) fn opened(&mut self, at: usize, watch: &Watch) {
        if at < self.opening.len() {
            self.opening.remove(at).socket.stop(watch);
        }
    }

    /// Returns why a connection will never be made, whose channel is in this stage.
    pub(crate) fn lost(&mut self, at: usize, stage: &LinkStage) -> Option<Failure> {
        let it = self.opening.get_mut(at)?;
        match it.socket.receive() {
            Ok(Some(CallMessage::Leave(reason))) => return Some(failure_of(reason)),
            Ok(None) => {}
            // The caller closes the call when the connection exists, and the channel shows whether it does.
            _ if *stage == LinkStage::Opening => {}
            Ok(Some(_)) => return Some(Failure::Unreachable),
            Err(_) => return Some(Failure::Died),
        }
        let now = Instant::now();
        if matches!(stage, LinkStage::Failed { withdrawn: false, .. }) {
            // If the peer has died, the call shows it soon.
            let soon = now + DEATH_SHOWS;
            it.until = Some(it.until.map_or(soon, |until| until.min(soon)));
        }
        it.until.is_some_and(|until| now >= until).then_some(Failure::Unreachable)
    }

    /// Announces to a peer with which a connection is under way that this process does not want it any more.
    pub(crate) fn send_goodbye_to(&mut self, peer: PeerRef) {
        self.leave(|it| it == peer, CloseReason::Finished);
    }

    /// Announces to all with whom a connection is under way that this process leaves.
    pub(crate) fn send_goodbyes(&mut self, finished: bool) {
        let reason = if finished { CloseReason::Finished } else { CloseReason::Dropped };
        self.leave(|_| true, reason);
    }

    fn leave(&mut self, concerns: impl Fn(PeerRef) -> bool, reason: CloseReason) {
        let answered = self.answered.iter_mut().map(|it| (it.peer, &mut it.socket));
        let opening = self.opening.iter_mut().map(|it| (it.peer, &mut it.socket));
        let parked = self.parked.iter_mut().map(|(peer, socket)| (*peer, socket));
        let outgoing = self.outgoing.iter_mut().filter_map(|it| Some((it.peer, it.socket_after_request()?)));
        for (peer, socket) in answered.chain(opening).chain(parked).chain(outgoing) {
            if concerns(peer) {
                // A process that the message does not reach sees a death.
                socket.send(&CallMessage::Leave(reason));
            }
        }
    }

    /// Ends whatever is under way with a peer. Its connection, if there is one, is not concerned.
    pub(crate) fn abandon(&mut self, peer: PeerRef, watch: &Watch) {
        self.outgoing.extract_if(.., |it| it.peer == peer).for_each(|it| it.stop(watch));
        self.answered.extract_if(.., |it| it.peer == peer).for_each(|mut it| it.socket.stop(watch));
        self.opening.extract_if(.., |it| it.peer == peer).for_each(|mut it| it.socket.stop(watch));
        self.unpark(peer);
    }

    fn unpark(&mut self, peer: PeerRef) {
        self.parked.retain(|(parked, _)| *parked != peer);
    }
}

/// Returns the failure of the operations with a peer that has announced its departure.
const fn failure_of(reason: CloseReason) -> Failure {
    match reason {
        CloseReason::Finished => Failure::Finished,
        CloseReason::Dropped => Failure::Dropped,
    }
}

/// Returns a message that refuses for this reason.
fn refusal(problem: &str) -> CallMessage {
    CallMessage::Refusal(RefusalReason::new(problem))
}
