//! `lone SLOT LIFE SEED`: one of many processes that open alone. It writes its address to a file, and then obeys the
//! lines of its standard input:
//!
//! | command | meaning | answer |
//! |---|---|---|
//! | `round R LIFE...` | ask some of these processes, the lives of the slots from 0 | `done R` once all are answered |
//! | `part` | disconnect from all | `parted` |
//! | `state` | count | `state DESCRIPTORS OWN LINKS INBOXES NAME...`: of connections, and the connected |
//! | `close` | end | `closed REQUESTS REPLIES RETRIES` |
//!
//! A process is named `SLOT.LIFE`. It reports each peer that has died: `died NAME`. It serves others all the time.
//!
//! | file | contents |
//! |---|---|
//! | `lone.rs` | commands, and the loop that obeys and serves |
//! | `lone/buffers.rs` | messages under way, with their buffers |
//! | `lone/asking.rs` | requests of this process, and the replies to them |
//! | `lone/serving.rs` | requests of others |
//! | `lone/directory.rs` | names and addresses |

mod asking;
mod buffers;
mod directory;
mod serving;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};

use nemesia::{Arm, Config, Endpoint, Error, PeerStage, Source, Tag};

use super::{Fault, Outcome, broken, descriptors, tell};
use crate::content::Random;
use crate::leftovers::OUTPUT;
use asking::Question;
use buffers::Transfer;
use directory::{LoneDirectory, LoneName};
use serving::Service;

/// A tag that no message has.
const NEVER: u64 = 1 << 60;
/// One of so many processes waits in a blocking call, and the others for their event descriptor.
const BLOCKING_EVERY: u32 = 4;

struct LonePlace {
    endpoint: Endpoint,
    name: LoneName,
    directory: LoneDirectory,
    random: Random,
    round: u64,
    /// The lives of the slots in this round.
    present: Vec<u32>,
    /// The processes that this one has asked for.
    asked: BTreeSet<LoneName>,
    questions: Vec<Question>,
    services: Vec<Service>,
    /// Receives for requests of anyone.
    listening: Vec<Transfer>,
    is_done: bool,
    counts: [u64; 3],
    /// The descriptors and mappings without any connection.
    base: [usize; 4],
    /// A part of a command.
    input: Vec<u8>,
}

pub(super) fn run(slot: u64, life: u64, seed: u64) -> Outcome {
    let name = LoneName { slot: slot as u32, life: life as u32 };
    let path = std::env::var_os(OUTPUT).ok_or_else(|| Fault::Usage(format!("{OUTPUT} is not set")))?;
    let mut endpoint = Endpoint::alone(&Config::from_env().map_err(Error::from)?)?;
    let directory = LoneDirectory::new(path.into(), name, *endpoint.address()?)?;
    endpoint.event_fd()?;
    let mut place = LonePlace {
        endpoint,
        name,
        directory,
        random: Random::new(seed),
        round: 0,
        present: Vec::new(),
        asked: BTreeSet::new(),
        questions: Vec::new(),
        services: Vec::new(),
        listening: Vec::new(),
        is_done: true,
        counts: [0; 3],
        base: held()?,
        input: Vec::new(),
    };
    tell("ready")?;
    while place.obey()? {
        let moved = place.ask()? | place.serve()?;
        if !place.is_done && place.questions.is_empty() {
            place.is_done = true;
            place.part_from_some()?;
            tell(&format!("done {}", place.round))?;
        }
        if !moved {
            place.rest()?;
        }
    }
    let [requests, replies, retries] = place.counts;
    place.endpoint.close()?;
    tell(&format!("closed {requests} {replies} {retries}"))
}

impl LonePlace {
    /// Obeys the commands that have come. Returns false for the last one.
    fn obey(&mut self) -> Outcome<bool> {
        if readable(&[0], 0)? {
            let mut bytes = [0; 4096];
            let len = std::io::stdin().lock().read(&mut bytes)?;
            if len == 0 {
                return broken("the test has ended");
            }
            self.input.extend(&bytes[..len]);
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["round", round, ref lives @ ..] => {
                    let number = |word: &str| word.parse::<u32>().map_err(|_| Fault::Usage(word.into()));
                    self.round = number(round)?.into();
                    self.present = lives.iter().map(|word| number(word)).collect::<Outcome<_>>()?;
                    self.begin_round()?;
                }
                ["part"] => self.part()?,
                ["state"] => self.state()?,
                ["close"] => return Ok(false),
                _ => return Err(Fault::Usage(format!("no such command: {line}"))),
            }
        }
        Ok(true)
    }

    /// Waits until something happens.
    fn rest(&mut self) -> Outcome {
        if self.name.slot.is_multiple_of(BLOCKING_EVERY) {
            let limit = std::time::Duration::from_millis(5);
            return match self.endpoint.in_context(0).probe_timeout(Source::Any, Tag::Exactly(NEVER), limit) {
                Err(Error::Timeout(_)) => Ok(()),
                other => broken(format!("a message with a tag that nobody sends: {other:?}")),
            };
        }
        if self.endpoint.arm() == Arm::Armed {
            let event = self.endpoint.event_fd()?.as_fd().as_raw_fd();
            // The descriptor ticks; the limit only shows if it does not.
            if !readable(&[event, 0], 10_000)? {
                return broken("an armed descriptor was silent for 10 s");
            }
        }
        Ok(())
    }

    /// Disconnects from all peers that were replaced, and from a few that live. Most of these have nothing under way
    /// with this process.
    fn part_from_some(&mut self) -> Outcome {
        let present = &self.present;
        let is_gone = |name: &LoneName| present.get(name.slot as usize).is_some_and(|life| *life > name.life);
        let asked = std::mem::take(&mut self.asked);
        let (gone, asked): (BTreeSet<_>, _) = asked.into_iter().partition(is_gone);
        self.asked = asked;
        for name in gone {
            let peer = self.endpoint.connect(&self.directory.address(name)?)?;
            if !self.services.iter().any(|service| service.peer == peer) {
                self.leave(peer)?;
            }
        }
        for rank in 1..self.endpoint.size() {
            let Some(peer) = self.endpoint.peer_of(rank) else { continue };
            let is_idle = !self.services.iter().any(|service| service.peer == peer);
            if self.random.below(if is_idle { 5 } else { 20 }) == 0 {
                self.leave(peer)?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, peer: nemesia::PeerRef) -> Outcome {
        self.endpoint.disconnect(peer)?;
        match self.endpoint.address_of(peer) {
            Err(Error::NoPeer(nemesia::PeerError::Stale)) => Ok(()),
            other => broken(format!("a peer that was released still has an address: {other:?}")),
        }
    }

    fn part(&mut self) -> Outcome {
        for rank in 1..self.endpoint.size() {
            if let Some(peer) = self.endpoint.peer_of(rank) {
                self.leave(peer)?;
            }
        }
        tell("parted")
    }

    /// Reports the connected peers, and the descriptors and mappings of connections.
    fn state(&mut self) -> Outcome {
        self.endpoint.progress();
        let held = held()?;
        let held: Vec<_> = held.iter().zip(self.base).map(|(now, base)| (now - base).to_string()).collect();
        let mut line = format!("state {}", held.join(" "));
        for rank in 1..self.endpoint.size() {
            let Some(peer) = self.endpoint.peer_of(rank) else { continue };
            let address = *self.endpoint.address_of(peer)?;
            // A call that is under way counts: it must end.
            if let PeerStage::Connected(_) | PeerStage::Answering(_) | PeerStage::Calling(_) =
                self.endpoint.stage_of(peer)?
            {
                let name = self.directory.find(&address, &self.present)?;
                line += &name.map_or_else(|| " unknown".into(), |name| format!(" {name}"));
            }
        }
        tell(&line)
    }
}

/// Returns the descriptors of this process without those of its inboxes, and its mappings of own segments, links, and
/// inboxes without its own. A process makes inboxes as its peers become more, and keeps them with a descriptor of each.
fn held() -> Outcome<[usize; 4]> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let [own, links, inboxes] = ["nemesia-own", "nemesia-link", "nemesia-inbox"]
        .map(|name| maps.lines().filter(|line| line.contains(name)).count());
    let (targets, _) = descriptors()?;
    let own_inboxes = targets.iter().filter(|it| it.to_string_lossy().contains("nemesia-inbox")).count();
    Ok([targets.len() - own_inboxes, own, links, inboxes - own_inboxes])
}

/// Waits until one of these descriptors is readable; the limit is in milliseconds. Returns whether the first one of
/// them is, or any one if there are several.
fn readable(descriptors: &[RawFd], limit: i32) -> Outcome<bool> {
    let mut set: Vec<_> =
        descriptors.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array outlives the call, and its length is passed.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, limit) };
    if ready < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(ready > 0)
}
