//! Processes that prove to each other that they know the key of the job, and an adversary that owns the network.
//!
//! The adversary sees all private data of connections. It passes them on, keeps them back, sends them again, to others
//! and in other roles, changes single bytes, and invents some; it does not know the key. Whatever it does: a process
//! accepts a request only if the process of the claimed rank has made it, for the accepting process, and accepts it
//! once; a caller accepts an answer only if the called process has given it to this request, and accepts it once. When
//! the adversary stops, all processes are connected with each other. The key is in none of the bytes.

mod port;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::port::channel::{ChannelEvent, Config, FastPath, OWN, RendezvousChoice};
use nemesia_core::port::memory::{Address, ConnectError, Connection, Event as PortEvent, LostError, Private};
use nemesia_core::port::{PacketPort as _, Polled};
use nemesia_core::wire::channel::ChannelRefusal;
use nemesia_core::wire::hello::{Challenge, Hello, HelloContent, PROOF_BYTES, Proof};

use crate::channel::node::Node;
use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use port::{AdversaryPort, Deed};

/// The private data of each kind that the adversary keeps.
const KEPT: usize = 32;
/// Rounds in which all processes are connected when the adversary has stopped.
const ROUNDS: usize = 200;

/// One end of a connection: the place of its process, and the number of the connection there.
type LineEnd = (usize, Connection);

/// A connection that was requested from, or by, the adversary.
#[derive(Debug)]
struct KeyLine {
    /// The end that requested it; `None` if the adversary did.
    caller: Option<LineEnd>,
    /// The process that the caller has called.
    to: usize,
    /// The end where it was requested; `None` if the adversary answers itself.
    called: Option<LineEnd>,
    /// The request, as the caller sent it and as the called process received it.
    sent: Private,
    received: Private,
    /// Whether no end has closed it, and whether it was accepted.
    is_open: bool,
    is_accepted: bool,
}

/// The last private data of each kind.
#[derive(Debug, Default)]
struct Heard {
    challenges: VecDeque<Private>,
    requests: VecDeque<Private>,
    answers: VecDeque<Private>,
}

impl Heard {
    fn add(&mut self, said: Private) {
        let list = match Hello::decode(&said).map(|hello| hello.content) {
            Ok(HelloContent::Request { .. }) => &mut self.requests,
            Ok(HelloContent::Answer { .. }) => &mut self.answers,
            _ if Challenge::decode(&said).is_some() => &mut self.challenges,
            _ => return,
        };
        list.push_front(said);
        list.truncate(KEPT);
    }
}

/// Returns one of the last of a list, most often one of the very last.
fn old(list: &VecDeque<Private>, rng: &mut Rng) -> Option<Private> {
    let most = if rng.one_in(4) { list.len() } else { list.len().min(3) };
    (most > 0).then(|| rng.below(most)).and_then(|at| list.get(at).copied())
}

/// A world.
#[derive(Debug)]
pub(crate) struct KeysWorld {
    rng: Rng,
    key: [u8; KEY_BYTES],
    nodes: Vec<Node<AdversaryPort>>,
    lines: Vec<KeyLine>,
    /// The line of each end.
    ends: HashMap<LineEnd, usize>,
    heard: Heard,
    /// The requests of processes: from which one, for which one, and the bytes.
    sent: HashSet<(usize, usize, Vec<u8>)>,
    /// The requests that a process has accepted: its place, and the bytes.
    accepted: HashSet<(usize, Vec<u8>)>,
    /// The answers given: to which request, and the bytes.
    answers: HashSet<(Vec<u8>, Vec<u8>)>,
    /// The answers that a caller has accepted.
    used: HashSet<Vec<u8>>,
    /// By caller and called process: the challenge that the caller was sent last; and the challenge and the answer of a
    /// call that succeeded.
    challenged: HashMap<(usize, usize), Private>,
    succeeded: HashMap<(usize, usize), (Private, Private)>,
    /// Whether the adversary passes everything on.
    is_honest: bool,
    now: Duration,
    tally: Tally,
    trace: Trace,
}

impl KeysWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Result<Self, Violation> {
        let count = 2 + rng.below(3);
        let key: [u8; KEY_BYTES] = std::array::from_fn(|_| rng.next() as u8);
        let mut nodes = Vec::new();
        for place in 0..count {
            let config = Config {
                rank: place as u32,
                incarnation: 0,
                world: 1,
                key: JobKey::from_bytes(key),
                seed: std::array::from_fn(|_| rng.next() as u8),
                packet_bytes: 256,
                rails: 1,
                most_receives: 4,
                patience: Duration::from_secs(1),
                rendezvous: RendezvousChoice::Auto,
                fast: FastPath::OFF,
            };
            let tokens: Vec<u64> = (0..count).map(|_| rng.next()).collect();
            let node = Node::new(AdversaryPort::new(place), config, tokens.into_iter(), 16);
            let mut node = node.map_err(|error| Violation(error.to_string()))?;
            node.lend(u64::from(count as u32 * OWN)).map_err(Violation)?;
            nodes.push(node);
        }
        Ok(Self {
            rng,
            key,
            nodes,
            lines: Vec::new(),
            ends: HashMap::new(),
            heard: Heard::default(),
            sent: HashSet::new(),
            accepted: HashSet::new(),
            answers: HashSet::new(),
            used: HashSet::new(),
            challenged: HashMap::new(),
            succeeded: HashMap::new(),
            is_honest: false,
            now: Duration::ZERO,
            tally: Tally::default(),
            trace,
        })
    }

    /// Makes one random step.
    pub(crate) fn step(&mut self) -> Check {
        let place = self.rng.below(self.nodes.len());
        self.now += Duration::from_millis(self.rng.below(30) as u64);
        match self.rng.below(10) {
            0..2 => self.dial(place),
            2 => self.disconnect(place),
            3..5 => self.attack(place),
            _ => {
                self.network(place)?;
            }
        }
        self.progress(place)
    }

    /// Requests the missing connections: the higher rank requests.
    fn dial(&mut self, place: usize) {
        for to in 0..place {
            let channel = &mut self.nodes[place].channel;
            if channel.report(to as u32).rails == 0
                && let Some(address) = Address::new(&[to as u8])
            {
                // It may still be closing.
                let _ = channel.connect(to as u32, 0, &address, Duration::MAX);
            }
        }
    }

    fn disconnect(&mut self, place: usize) {
        let peer = self.rng.below(self.nodes.len());
        self.nodes[place].channel.close(peer as u32);
    }

    /// Lets a process see its events, and checks what it has accepted.
    fn progress(&mut self, place: usize) -> Check {
        let channel = &mut self.nodes[place].channel;
        while let Some(event) = channel.poll_event(self.now) {
            self.trace.note(self.now.as_micros() as u64, || format!("rank {place}: {event:?}"));
            match event {
                ChannelEvent::Up { .. } => self.tally.count(Event::KeyUp),
                ChannelEvent::Refused { refusal: ChannelRefusal::WrongKey, .. }
                | ChannelEvent::Failed { refusal: Some(ChannelRefusal::WrongKey), .. } => {
                    self.tally.count(Event::KeyWrong);
                }
                _ => {}
            }
        }
        loop {
            match channel.poll() {
                Polled::Idle => return Ok(()),
                Polled::Fault(fault) => channel.close(fault.peer),
                Polled::Packet(arrival) => return Err(Violation(format!("nobody has sent {arrival:?}"))),
            }
        }
    }

    /// Processes the next deed of a process. Returns false if there is none.
    fn network(&mut self, place: usize) -> Result<bool, Violation> {
        let Some(deed) = self.nodes[place].channel.port().desk.borrow_mut().deeds.pop_front() else {
            return Ok(false);
        };
        self.trace.note(self.now.as_micros() as u64, || format!("rank {place}: {deed:?}"));
        match deed {
            Deed::Calls { connection, to, said } => {
                self.hear(said)?;
                self.sent.insert((place, to, said.bytes().to_vec()));
                self.called((place, connection), to, said)?;
            }
            Deed::Accepts { connection, said } => {
                self.hear(said)?;
                self.was_accepted((place, connection), said)?;
            }
            Deed::Refuses { connection, said } => {
                self.hear(said)?;
                self.was_refused((place, connection), said);
            }
            Deed::Closes { connection } => self.closed((place, connection)),
        }
        Ok(true)
    }

    fn hear(&mut self, said: Private) -> Check {
        let has_key = said.bytes().windows(8).any(|part| self.key.windows(8).any(|of| of == part));
        ensure!(!has_key, "a part of the key is sent: {said:?}");
        self.heard.add(said);
        Ok(())
    }

    fn push(&self, (place, connection): LineEnd, event: PortEvent) {
        let mut desk = self.nodes[place].channel.port().desk.borrow_mut();
        if matches!(event, PortEvent::Failed { .. } | PortEvent::Lost { .. }) {
            desk.flush(connection);
        }
        desk.events.push_back(event);
    }

    fn add_line(&mut self, line: KeyLine) -> usize {
        let at = self.lines.len();
        self.ends.extend(line.caller.into_iter().chain(line.called).map(|end| (end, at)));
        self.lines.push(line);
        at
    }

    /// Requests a connection at a process. A caller has called the process `to`.
    fn request(&mut self, at: usize, caller: Option<(LineEnd, usize)>, sent: Private, received: Private) {
        let connection = self.nodes[at].channel.port().desk.borrow_mut().connection();
        let (caller, to) = caller.map_or((None, at), |(caller, to)| (Some(caller), to));
        let called = Some((at, connection));
        let (is_open, is_accepted) = (true, false);
        self.add_line(KeyLine { caller, to, called, sent, received, is_open, is_accepted });
        self.push((at, connection), PortEvent::Requested { connection, private: received });
    }

    /// Refuses a call of a process.
    fn refuse(&mut self, caller: LineEnd, to: usize, private: Private) {
        if Challenge::decode(&private).is_some() {
            self.challenged.insert((caller.0, to), private);
        }
        let (connection, error) = (caller.1, ConnectError::Refused);
        self.push(caller, PortEvent::Failed { connection, error, private });
    }

    /// Answers a call of a process in place of the called one.
    fn impersonate(&mut self, caller: LineEnd, to: usize, (said, answer): (Private, Private)) -> Check {
        let (caller, called, sent, received) = (Some(caller), None, said, said);
        let line = KeyLine { caller, to, called, sent, received, is_open: true, is_accepted: false };
        let at = self.add_line(line);
        self.establish(at, answer)
    }

    /// Plays a former call once more: the same challenge, and then the same answer.
    fn play_again(&mut self, caller: LineEnd, to: usize, said: Private) -> Check {
        let Some((challenge, answer)) = self.succeeded.get(&(caller.0, to)).copied() else {
            self.request(to, Some((caller, to)), said, said);
            return Ok(());
        };
        let is_call = Hello::decode(&said).is_ok_and(|hello| hello.content == HelloContent::Call);
        if is_call {
            self.refuse(caller, to, challenge);
            return Ok(());
        }
        self.tally.count(Event::KeyReplayed);
        self.impersonate(caller, to, (said, answer))
    }

    /// A process calls another one: the adversary passes the call on, or not.
    fn called(&mut self, caller: LineEnd, to: usize, said: Private) -> Check {
        let count = self.nodes.len();
        let from = Some((caller, to));
        match self.rng.below(12) {
            _ if self.is_honest => self.request(to, from, said, said),
            0 => {
                // To another process, as it is.
                let other = self.rng.below(count);
                self.tally.count(Event::KeyRelayed);
                self.request(other, from, said, said);
            }
            1 => {
                let changed = self.changed(said);
                self.request(to, from, said, changed);
            }
            2 => {
                let private = self.invented();
                self.refuse(caller, to, private);
            }
            3 => {
                let answer = self.forged_answer(said, to);
                return self.impersonate(caller, to, (said, answer));
            }
            4 | 5 => return self.play_again(caller, to, said),
            _ => self.request(to, from, said, said),
        }
        Ok(())
    }

    /// Returns the private data of a refusal: an old or an invented challenge.
    fn invented(&mut self) -> Private {
        let invented = Challenge { number: self.rng.below(8) as u32, random: [1; PROOF_BYTES] }.encode();
        if self.rng.one_in(4) {
            invented
        } else {
            old(&self.heard.challenges, &mut self.rng).unwrap_or(invented)
        }
    }

    /// Returns an answer to a request: an old one, or one with the proof of the request.
    fn forged_answer(&mut self, said: Private, from: usize) -> Private {
        if self.rng.one_in(2)
            && let Some(answer) = old(&self.heard.answers, &mut self.rng)
        {
            self.tally.count(Event::KeyReplayed);
            return answer;
        }
        let Ok(hello) = Hello::decode(&said) else { return said };
        let proof = match hello.content {
            HelloContent::Request { proof, .. } => proof,
            _ => Proof([0; PROOF_BYTES]),
        };
        self.tally.count(Event::KeyReflected);
        let content = HelloContent::Answer { agreements: 0, proof };
        Hello { rank: from as u32, content, ..hello }.encode()
    }

    fn changed(&mut self, said: Private) -> Private {
        let mut bytes = said.bytes().to_vec();
        let at = self.rng.below(bytes.len());
        if self.rng.one_in(3) {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << self.rng.below(8);
        }
        Private::new(&bytes).unwrap_or(said)
    }

    /// The adversary requests a connection itself: with an old request, or an invented one.
    fn attack(&mut self, at: usize) {
        if self.is_honest {
            return;
        }
        let Some(mut said) = old(&self.heard.requests, &mut self.rng) else { return };
        match self.rng.below(3) {
            0 => self.tally.count(Event::KeyReplayed),
            1 => said = self.changed(said),
            _ => {
                let Ok(hello) = Hello::decode(&said) else { return };
                let HelloContent::Request { number, nonce, .. } = hello.content else { return };
                // A challenge that is not used up, so that only the proof is wrong.
                let proof = Proof(std::array::from_fn(|_| self.rng.next() as u8));
                let number = number.wrapping_add(self.rng.below(3) as u32);
                said = Hello { content: HelloContent::Request { number, nonce, proof }, ..hello }.encode();
                self.tally.count(Event::KeyForged);
            }
        }
        self.request(at, None, said, said);
    }

    /// A process accepts a request.
    fn was_accepted(&mut self, called: LineEnd, said: Private) -> Check {
        let Some(&at) = self.ends.get(&called) else { return Err(Violation("no such line".into())) };
        let (caller, received) = (self.lines[at].caller, self.lines[at].received);
        self.check_accepted(called.0, &received)?;
        self.answers.insert((received.bytes().to_vec(), said.bytes().to_vec()));
        let (connection, private) = (called.1, Private::EMPTY);
        if !self.lines[at].is_open {
            let error = ConnectError::Unreachable;
            self.push(called, PortEvent::Failed { connection, error, private });
            return Ok(());
        }
        self.lines[at].is_accepted = true;
        self.push(called, PortEvent::Established { connection, private });
        if caller.is_none() {
            return Ok(());
        }
        let changes = !self.is_honest && self.rng.one_in(8);
        let said = if changes { self.changed(said) } else { said };
        self.establish(at, said)
    }

    /// A process refuses a request.
    fn was_refused(&mut self, called: LineEnd, said: Private) {
        let Some(&at) = self.ends.get(&called) else { return };
        let was_open = std::mem::replace(&mut self.lines[at].is_open, false);
        if let Some(caller) = self.lines[at].caller.filter(|_| was_open) {
            let other = !self.is_honest && self.rng.one_in(8);
            let private = if other { self.invented() } else { said };
            self.refuse(caller, self.lines[at].to, private);
        }
    }

    /// Checks a request that a process accepts.
    fn check_accepted(&mut self, place: usize, received: &Private) -> Check {
        let hello = Hello::decode(received).map_err(|error| Violation(format!("accepted: {error}")))?;
        let bytes = received.bytes().to_vec();
        let sent = (hello.rank as usize, place, bytes.clone());
        ensure!(self.sent.contains(&sent), "rank {place} accepts {hello:?}, which was not sent to it");
        ensure!(self.accepted.insert((place, bytes)), "rank {place} accepts {hello:?} once more");
        Ok(())
    }

    /// Answers a caller, and checks whether it believes the answer.
    fn establish(&mut self, at: usize, private: Private) -> Check {
        let Some((place, connection)) = self.lines[at].caller else { return Ok(()) };
        let sent = self.lines[at].sent;
        self.progress(place)?;
        let before = self.ready(place);
        self.push((place, connection), PortEvent::Established { connection, private });
        self.progress(place)?;
        if self.ready(place) == before {
            return Ok(());
        }
        let answer = (sent.bytes().to_vec(), private.bytes().to_vec());
        ensure!(
            self.answers.contains(&answer),
            "rank {place} believes {private:?}, which no process has sent"
        );
        ensure!(self.used.insert(answer.1), "rank {place} believes {private:?} once more");
        self.tally.count(Event::KeyProved);
        let ends = (place, self.lines[at].to);
        if let Some(challenge) = self.challenged.get(&ends) {
            self.succeeded.insert(ends, (*challenge, private));
        }
        Ok(())
    }

    fn ready(&self, place: usize) -> u32 {
        let channel = &self.nodes[place].channel;
        (0..self.nodes.len() as u32).map(|peer| channel.report(peer).ready).sum()
    }

    /// A process closes its end: the other end is lost.
    fn closed(&mut self, end: LineEnd) {
        let Some(&at) = self.ends.get(&end) else { return };
        let line = &mut self.lines[at];
        if !std::mem::replace(&mut line.is_open, false) {
            return;
        }
        let other = if line.caller == Some(end) { line.called } else { line.caller };
        let is_accepted = line.is_accepted;
        let Some(other) = other else { return };
        let connection = other.1;
        self.push(
            other,
            if is_accepted {
                PortEvent::Lost { connection, error: LostError::Closed }
            } else {
                let (error, private) = (ConnectError::Unreachable, Private::EMPTY);
                PortEvent::Failed { connection, error, private }
            },
        );
    }

    /// Stops the adversary. All processes are then connected with each other.
    pub(crate) fn finish(&mut self) -> Check {
        self.is_honest = true;
        let count = self.nodes.len();
        // What the adversary has begun ends.
        for place in 0..count {
            (0..count as u32).for_each(|peer| self.nodes[place].channel.close(peer));
        }
        for _ in 0..ROUNDS {
            for place in 0..count {
                self.dial(place);
                self.progress(place)?;
                while self.network(place)? {}
            }
        }
        for place in 0..count {
            let ready = self.ready(place) as usize;
            ensure!(ready == count - 1, "rank {place} has {ready} connections, of {} wanted", count - 1);
        }
        Ok(())
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (self.tally, self.trace.take())
    }
}
