//! Ports that join queue pairs by datagrams (`core/src/joining.rs`), over a network that loses, repeats, delays and
//! reorders datagrams.
//!
//! Ports request connections, accept and refuse requests, end connections in every stage, vanish without a word, and
//! return with another number or another key. An oracle knows what has happened to each end. An end that is established
//! has joined the queue pair that the other end offered, and the other end names it too. A request is not reported
//! while the former report of it lasts. Nothing is established twice or after its end. An attempt to connect to a port
//! that lives is answered in time, and each end of one side is learned by the other side in time. When the ports are
//! left alone, only pairs of ends that are ready are left, and nothing is sent any more.

mod history;
mod network;
mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nemesia_core::joining::{JoinMessage, JoinPlace, JoinStage};

use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use history::JoinHistory;
use network::JoinNetwork;
use owner::{OwnerEvent, OwnerPort};

/// A deadline before which every answer arrives.
const LONG: Duration = Duration::from_secs(60);
/// A short deadline, the time between two commands, and the time until the answer to a request: at most so many
/// milliseconds.
const SHORT: usize = 400;
const BETWEEN: usize = 100;
const UNTIL_ANSWER: usize = 1000;
/// A port begins no connection if it has so many.
const MOST_JOINTS: usize = 10;
/// All joints are checked once in so many events.
const CHECK_EVERY: u64 = 16;
/// The events in which a world comes to rest.
const MOST_EVENTS: usize = 200_000;

/// A world.
pub(crate) struct JoinsWorld {
    rng: Rng,
    now: Duration,
    network: JoinNetwork,
    /// The ports; `None` for one that is dead.
    ports: Vec<Option<OwnerPort>>,
    /// All places at which ports have received.
    places: Vec<JoinPlace>,
    history: JoinHistory,
    /// The requests that owners will answer, by time and number, with the port.
    answers: BTreeMap<(Duration, u64), usize>,
    /// The ends whose deadlines are short.
    hurried: BTreeSet<u64>,
    command_at: Duration,
    events: u64,
    tally: Tally,
    trace: Trace,
}

impl JoinsWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Result<Self, Violation> {
        let network = JoinNetwork::new(Rng::new(rng.next(), 0));
        let count = 2 + rng.below(5);
        let places: Vec<_> = (0..count).map(|at| place(at as u32 + 1, 1, at)).collect();
        let ports = places.iter().map(|place| Some(OwnerPort::new(*place))).collect();
        let now = Duration::from_millis(1);
        Ok(Self {
            rng,
            now,
            network,
            ports,
            places,
            history: JoinHistory::default(),
            answers: BTreeMap::new(),
            hurried: BTreeSet::new(),
            command_at: now,
            events: 0,
            tally: Tally::default(),
            trace,
        })
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        self.trace.note(self.now.as_micros() as u64, event);
    }

    /// Returns whether a port receives at this place.
    fn is_alive(&self, place: &JoinPlace) -> bool {
        self.ports.iter().flatten().any(|port| port.place == *place)
    }

    /// Lets the next event happen.
    pub(crate) fn step(&mut self) -> Check {
        if self.command_at <= self.next() {
            self.now = self.command_at;
            self.command_at = self.now + self.millis(BETWEEN);
            self.command()
        } else {
            self.pass()
        }
    }

    fn millis(&mut self, below: usize) -> Duration {
        Duration::from_millis(self.rng.below(below) as u64)
    }

    /// Returns when something happens without a command.
    fn next(&self) -> Duration {
        let answer = self.answers.first_key_value().map_or(Duration::MAX, |((at, _), _)| *at);
        let due = self.ports.iter().flatten().map(OwnerPort::next).min().unwrap_or(Duration::MAX);
        answer.min(due).min(self.network.next())
    }

    /// Lets time pass until the next event, and lets that happen.
    fn pass(&mut self) -> Check {
        self.now = self.now.max(self.next());
        let now = self.now;
        if self.network.next() <= now {
            self.arrive()?;
        } else if let Some(((at, number), port)) = self.answers.pop_first() {
            if at <= now {
                self.answer(port, number)?;
            } else {
                self.answers.insert((at, number), port);
            }
        }
        for at in 0..self.ports.len() {
            self.act(at)?;
        }
        self.events += 1;
        if self.events.is_multiple_of(CHECK_EVERY) { self.check() } else { Ok(()) }
    }

    /// Lets a port send what is due.
    fn act(&mut self, at: usize) -> Check {
        let Some(port) = self.ports[at].as_mut().filter(|port| port.next() <= self.now) else {
            return Ok(());
        };
        let expired = port.act(self.now);
        for (_, message) in &port.outgoing {
            if let Some(owned) = port.joints.get(&message.from) {
                history::check_wait(owned, self.now)?;
            }
        }
        self.send(at);
        for (number, stage) in expired {
            let peer = self.history.peer(number)?;
            let had_time = !self.hurried.remove(&number) && self.is_alive(&peer);
            self.note(|| format!("{number:x} expires: {stage:?}"));
            self.tally.count(Event::JoinExpired);
            self.history.expired(number, stage, had_time, self.now)?;
        }
        Ok(())
    }

    /// Passes what a port has sent to the network.
    fn send(&mut self, at: usize) {
        let Some(port) = &mut self.ports[at] else { return };
        for (to, message) in port.outgoing.drain(..) {
            let event = || format!("{:x} sends {:?} to {:x}", message.from, message.kind, message.to);
            self.trace.note(self.now.as_micros() as u64, event);
            self.network.send(self.now, to, &message, &mut self.tally);
        }
    }

    /// The next datagram arrives.
    fn arrive(&mut self) -> Check {
        let Some((to, bytes)) = self.network.arrive() else { return Ok(()) };
        let Some(message) = JoinMessage::from_bytes(&bytes) else {
            return Err(Violation("a datagram is not decoded".into()));
        };
        let is_at = |port: &Option<OwnerPort>| port.as_ref().is_some_and(|port| port.place == to);
        let Some(at) = self.ports.iter().position(is_at) else {
            self.tally.count(Event::JoinNowhere);
            return Ok(());
        };
        let (new, can_join) = (self.rng.next().max(1), !self.rng.one_in(20));
        let event = || format!("{:x} gets {:?} of {:x}", message.to, message.kind, message.from);
        self.trace.note(self.now.as_micros() as u64, event);
        let Some(port) = &mut self.ports[at] else { return Ok(()) };
        let event = port.hear(&message, new, can_join, self.now);
        self.send(at);
        let Some((number, event)) = event else { return Ok(()) };
        self.note(|| format!("{number:x}: {event:?}"));
        let is_again = self.history.reported((number, event), to, &message, self.now)?;
        match event {
            OwnerEvent::Requested => {
                let wait = if self.rng.one_in(2) { Duration::ZERO } else { self.millis(UNTIL_ANSWER) };
                self.answers.insert((self.now + wait, number), at);
                self.tally.add_to(Event::JoinAgain, is_again.into());
            }
            OwnerEvent::Joined => {}
            OwnerEvent::NotJoined => self.tally.count(Event::JoinFailed),
            OwnerEvent::Established => self.tally.count(Event::JoinEstablished),
            OwnerEvent::Failed(_) => self.tally.count(Event::JoinUnanswered),
            OwnerEvent::Lost => self.tally.count(Event::JoinLost),
        }
        Ok(())
    }

    /// Returns the deadline of an attempt to connect.
    fn deadline(&mut self, number: u64) -> Duration {
        if self.rng.one_in(4) {
            self.hurried.insert(number);
            return self.now + self.millis(SHORT);
        }
        self.now + LONG
    }

    /// An owner answers a request.
    fn answer(&mut self, at: usize, number: u64) -> Check {
        let (accepts, deadline, now) = (!self.rng.one_in(4), self.deadline(number), self.now);
        let Some(port) = &mut self.ports[at] else { return Ok(()) };
        let is_answered = if accepts { port.accept(number, now, deadline) } else { port.refuse(number, now) };
        if is_answered {
            self.note(|| format!("{number:x} {}", if accepts { "accepts" } else { "refuses" }));
            self.tally.count(if accepts { Event::JoinAccepted } else { Event::JoinRefused });
            self.history.answered(number, accepts, now)?;
        }
        Ok(())
    }

    /// Makes one random command.
    fn command(&mut self) -> Check {
        let at = self.rng.below(self.ports.len());
        if self.ports[at].is_none() {
            self.restart(at);
        }
        match self.rng.below(100) {
            0 => self.kill(at),
            1..40 => self.close(at)?,
            _ => self.connect(at)?,
        }
        Ok(())
    }

    fn connect(&mut self, at: usize) -> Check {
        let to = match &self.ports[self.rng.below(self.ports.len())] {
            Some(port) if !self.rng.one_in(20) => port.place,
            _ => self.rng.pick(&self.places),
        };
        let (number, now) = (self.rng.next().max(1), self.now);
        let deadline = self.deadline(number);
        let Some(port) = &mut self.ports[at] else { return Ok(()) };
        if port.joints.len() < MOST_JOINTS {
            let place = port.place;
            port.connect(number, to, now, deadline);
            self.note(|| format!("port {at}: {number:x} asks {}", to.number));
            self.history.asked(number, (place, to), now)?;
        }
        Ok(())
    }

    fn close(&mut self, at: usize) -> Check {
        let Some(port) = &mut self.ports[at] else { return Ok(()) };
        let index = self.rng.below(port.joints.len());
        let Some(number) = port.joints.keys().nth(index).copied() else { return Ok(()) };
        port.close(number, self.now);
        self.note(|| format!("{number:x} is closed"));
        self.tally.count(Event::JoinClosed);
        self.history.ended(number, self.now)
    }

    /// A port vanishes.
    fn kill(&mut self, at: usize) {
        self.ports[at] = None;
        self.answers.retain(|_, port| *port != at);
        self.note(|| format!("port {at} dies"));
        self.tally.count(Event::JoinDeath);
    }

    /// A port that has died returns, with another number or with another key.
    fn restart(&mut self, at: usize) {
        let serial = self.places.len() as u32;
        let number = if self.rng.one_in(2) { at as u32 + 1 } else { 100 + serial };
        let place = place(number, 1 + serial, at);
        self.places.push(place);
        self.ports[at] = Some(OwnerPort::new(place));
        self.note(|| format!("port {at} returns as {number}"));
    }

    /// Checks all joints.
    fn check(&self) -> Check {
        for owned in self.ports.iter().flatten().flat_map(|port| port.joints.values()) {
            self.history.check(owned, self.now, self.is_alive(owned.joint.peer()))?;
        }
        Ok(())
    }

    /// Leaves the ports alone until nothing happens any more.
    fn rest(&mut self) -> Check {
        for _ in 0..MOST_EVENTS {
            if self.next() == Duration::MAX {
                return self.check();
            }
            self.pass()?;
        }
        Err(Violation("the ports never come to rest".into()))
    }

    /// Leaves the ports alone. Then they end all connections.
    pub(crate) fn finish(&mut self) -> Check {
        self.rest()?;
        for owned in self.ports.iter().flatten().flat_map(|port| port.joints.values()) {
            ensure!(owned.joint.stage() == JoinStage::Ready, "{:?} stays", owned.joint);
            self.history.check_rest(owned, self.is_alive(owned.joint.peer()))?;
        }
        for at in 0..self.ports.len() {
            while let Some(number) = self.ready(at) {
                if let Some(port) = &mut self.ports[at] {
                    port.close(number, self.now);
                }
                self.history.ended(number, self.now)?;
            }
        }
        self.rest()?;
        let left = self.ports.iter().flatten().flat_map(|port| port.joints.keys()).next();
        ensure!(left.is_none(), "{left:x?} is left when every end has ended");
        Ok(())
    }

    /// Returns an end of a port that is ready.
    fn ready(&self, at: usize) -> Option<u64> {
        let joints = &self.ports[at].as_ref()?.joints;
        let is_ready =
            |number: &&u64| joints.get(number).is_some_and(|it| it.joint.stage() == JoinStage::Ready);
        joints.keys().find(is_ready).copied()
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (self.tally, self.trace.take())
    }
}

/// Returns a place.
fn place(number: u32, key: u32, at: usize) -> JoinPlace {
    JoinPlace { number, key, lid: at as u16 + 1, gid: [at as u8; 16] }
}
