//! Endpoints that open alone: many processes exchange addresses through files, connect on demand, disconnect, are
//! killed and replaced. No message reaches another process than it was sent to, and nothing is left.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nemesia_tests::content::Random;
use nemesia_tests::hosts::{Hosts, hosts};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::piped::PipedJob;
use nemesia_tests::{quick, say, seed};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// The time after which a silent world counts as hanging.
const LIMIT: Duration = Duration::from_secs(120);
/// What a connection holds on each side: the socket and the pidfd; the peer's own segment; both links.
const HELD: [usize; 3] = [2, 1, 2];
/// The inboxes of the peer that a process maps.
const INBOXES: RangeInclusive<usize> = 1..=2;

/// One test at a time: each starts many processes.
static ONE: Mutex<()> = Mutex::new(());

/// Returns `NEMESIA_TEST_ROUNDS`, or the number of rounds in a run of all tests.
fn rounds(usual: u64) -> u64 {
    let given = std::env::var("NEMESIA_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if quick() { usual / 4 } else { usual })
}

/// The processes of a test.
struct LoneGroup {
    job: PipedJob,
    /// Where the slots with even and with odd numbers run, if not on one host.
    hosts: Option<Hosts>,
    random: Random,
    seed: u64,
    /// The process that has a slot now, and the number of those before.
    slots: Vec<(usize, u32)>,
    /// The processes that were killed.
    killed: BTreeSet<String>,
}

#[test]
fn processes_that_are_killed_and_replaced_leave_nothing_and_are_never_mixed_up() -> Result<(), String> {
    come_and_go(if quick() { 32 } else { 64 }, rounds(20))
}

#[test]
fn few_processes_are_replaced_so_often_that_all_slots_are_used_again() -> Result<(), String> {
    come_and_go(5, 3 * rounds(20))
}

/// Inside a host the processes share memory, and between the hosts they prove that they were given addresses.
#[test]
fn processes_of_two_hosts_are_killed_and_replaced_and_never_mixed_up() -> Result<(), String> {
    let name = "processes_of_two_hosts_are_killed_and_replaced_and_never_mixed_up";
    let Some(hosts) = hosts(name, SCRATCH) else { return Ok(()) };
    let job = PipedJob::new(PEER, SCRATCH)?.env("NEMESIA_NET", "tcp");
    come_and_go_in(job, Some(hosts), 8, rounds(20))
}

#[test]
fn connections_that_come_and_go_leave_no_descriptor_and_no_mapping() -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let traces = Traces::now();
    let mut group = LoneGroup::open(PipedJob::new(PEER, SCRATCH)?, None, 3)?;
    for round in 1..=5 * rounds(20) {
        group.begin(round);
        group.await_all(&format!("done {round}"), None)?;
        for slot in group.any_order() {
            group.job.tell(group.slots[slot].0, "part");
        }
        group.await_all("parted", None)?;
        // Nothing is connected, so nothing is held: each time the same.
        let connected = group.settle()?;
        assert_eq!(connected, 0, "seed {}", group.seed);
    }
    group.close()?;
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

fn come_and_go(size: usize, rounds: u64) -> Result<(), String> {
    come_and_go_in(PipedJob::new(PEER, SCRATCH)?, None, size, rounds)
}

fn come_and_go_in(job: PipedJob, hosts: Option<Hosts>, size: usize, rounds: u64) -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (traces, begun) = (Traces::now(), Instant::now());
    let mut group = LoneGroup::open(job, hosts, size)?;
    for round in 1..=rounds {
        group.begin(round);
        group.kill_one(round)?;
    }
    let connected = group.settle()?;
    let counts = group.close()?;
    let [requests, replies, retries] = counts;
    say(&format!(
        "{size} processes, {rounds} rounds, seed {}: {requests} requests, {replies} replies, {retries} repeated, \
         {connected} connections at the end; {:.1} s",
        group.seed,
        begun.elapsed().as_secs_f64()
    ));
    assert!(replies > requests / 2, "most requests are answered");
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

impl LoneGroup {
    fn open(job: PipedJob, hosts: Option<Hosts>, size: usize) -> Result<Self, String> {
        let seed = seed();
        let (random, slots, killed) = (Random::new(seed), Vec::new(), BTreeSet::new());
        let mut group = Self { job, hosts, random, seed, slots, killed };
        for slot in 0..size {
            let process = group.start(slot, 0)?;
            group.slots.push((process, 0));
        }
        group.await_all("ready", None)?;
        Ok(group)
    }

    fn start(&mut self, slot: usize, life: u32) -> Result<usize, String> {
        let seed = self.random.next();
        let words = format!("lone {slot} {life} {seed}");
        match &self.hosts {
            Some(hosts) => self.job.start_by(&hosts.starter(slot), &words),
            None => self.job.start(&words),
        }
    }

    fn any_order(&mut self) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..self.slots.len()).collect();
        for at in (1..slots.len()).rev() {
            slots.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        slots
    }

    /// Begins a round, in which all ask some of the present processes.
    fn begin(&mut self, round: u64) {
        let lives: Vec<String> = self.slots.iter().map(|(_, life)| life.to_string()).collect();
        let command = format!("round {round} {}", lives.join(" "));
        for slot in self.any_order() {
            self.job.tell(self.slots[slot].0, &command);
        }
    }

    /// Kills a process as soon as a number of others is done with this round, and replaces it when all others are.
    fn kill_one(&mut self, round: u64) -> Result<(), String> {
        let size = self.slots.len();
        let victim = self.random.below(size as u64) as usize;
        let (process, life) = self.slots[victim];
        let before = self.random.below(size as u64) as usize;
        let mut done = BTreeSet::new();
        while done.len() < before {
            done.extend(self.await_one(&format!("done {round}"), None)?);
        }
        std::thread::sleep(Duration::from_micros(self.random.below(5000)));
        self.killed.insert(format!("{victim}.{life}"));
        self.job.kill(process)?;
        let _ = self.job.reap(process)?;
        done.insert(process);
        while done.len() < size {
            done.extend(self.await_one(&format!("done {round}"), Some(process))?);
        }
        let next = self.start(victim, life + 1)?;
        self.slots[victim] = (next, life + 1);
        while self.await_one("ready", Some(process))? != Some(next) {}
        Ok(())
    }

    /// Waits until all processes have said these words.
    fn await_all(&mut self, words: &str, victim: Option<usize>) -> Result<(), String> {
        let mut said = BTreeSet::new();
        while said.len() < self.slots.len() {
            said.extend(self.await_one(words, victim)?);
        }
        Ok(())
    }

    /// Takes one line. Returns the process if it has said these words.
    fn await_one(&mut self, words: &str, victim: Option<usize>) -> Result<Option<usize>, String> {
        let (process, line) =
            self.next_line(victim).map_err(|problem| format!("{problem}; awaited: {words}"))?;
        match line.split_once(' ') {
            _ if line == words => Ok(Some(process)),
            Some(("died", name)) if self.killed.contains(name) => Ok(None),
            _ if Some(process) == victim => Ok(None),
            _ => Err(self.describe(&format!("process {process} says {line:?} instead of {words:?}"))),
        }
    }

    /// Returns the next line, which is not the end of a process that was not killed.
    fn next_line(&mut self, victim: Option<usize>) -> Result<(usize, String), String> {
        loop {
            let (process, line) = self.job.next_line(LIMIT).map_err(|problem| self.describe(&problem))?;
            match line {
                Some(line) => return Ok((process, line)),
                None if Some(process) == victim || !self.slots.iter().any(|(it, _)| *it == process) => {}
                None => return Err(self.describe(&format!("process {process} has ended"))),
            }
        }
    }

    /// Waits until each process knows the same connections as its peers, and holds just what these need. Returns their
    /// number.
    fn settle(&mut self) -> Result<usize, String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let states = self.states()?;
            let problem = self.judge(&states);
            let Some(problem) = problem else {
                return Ok(states.iter().map(|state| state.connected.len()).sum::<usize>() / 2);
            };
            if Instant::now() > deadline {
                return Err(self.describe(&problem));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the state of each slot's process.
    fn states(&mut self) -> Result<Vec<LoneState>, String> {
        for (process, _) in self.slots.clone() {
            self.job.tell(process, "state");
        }
        let mut states = vec![LoneState::default(); self.slots.len()];
        let mut left = states.len();
        while left > 0 {
            let (process, line) = self.next_line(None)?;
            let words: Vec<&str> = line.split(' ').collect();
            let slot = self.slots.iter().position(|(it, _)| *it == process);
            let (["state", descriptors, own, links, inboxes, names @ ..], Some(slot)) = (&words[..], slot)
            else {
                if let ["died", name] = words[..]
                    && self.killed.contains(name)
                {
                    continue;
                }
                return Err(self.describe(&format!("process {process} says {line:?}")));
            };
            let number = |word: &&str| word.parse().unwrap_or(usize::MAX);
            let connected = names.iter().map(|name| (*name).to_owned()).collect();
            let held = [descriptors, own, links].map(number);
            states[slot] = LoneState { held, inboxes: number(inboxes), connected };
            left -= 1;
        }
        Ok(states)
    }

    /// Returns what is wrong with these states, if they are the last ones.
    fn judge(&self, states: &[LoneState]) -> Option<String> {
        let name = |slot: usize| format!("{slot}.{}", self.slots[slot].1);
        for (slot, state) in states.iter().enumerate() {
            for other in &state.connected {
                let there = other.split_once('.').map_or("", |(there, _)| there);
                let there: usize = there.parse().unwrap_or(usize::MAX);
                let is_mutual = states.get(there).is_some_and(|it| it.connected.contains(&name(slot)));
                if !is_mutual || *other != name(there) {
                    return Some(format!("{} is connected with {other}, which is not with it", name(slot)));
                }
            }
            let count = state.connected.len();
            let right = HELD.map(|each| each * count);
            let inboxes = INBOXES.start() * count..=INBOXES.end() * count;
            // Connections between hosts hold other things.
            if self.hosts.is_none() && (state.held != right || !inboxes.contains(&state.inboxes)) {
                return Some(format!("{}: {state:?}, which should hold {right:?}", name(slot)));
            }
        }
        None
    }

    /// Closes all. Returns the sums of what they have counted.
    fn close(&mut self) -> Result<[u64; 3], String> {
        for slot in self.any_order() {
            self.job.tell(self.slots[slot].0, "close");
        }
        let (mut counts, mut closed) = ([0; 3], 0);
        while closed < self.slots.len() {
            let (process, line) = self.job.next_line(LIMIT).map_err(|problem| self.describe(&problem))?;
            let Some(line) = line else { continue };
            let Some(numbers) = line.strip_prefix("closed ") else {
                return Err(self.describe(&format!("process {process} says {line:?}")));
            };
            let numbers = numbers.split(' ').map(|word| word.parse().unwrap_or(0));
            counts.iter_mut().zip(numbers).for_each(|(sum, number): (&mut u64, u64)| *sum += number);
            closed += 1;
        }
        for (process, _) in self.slots.clone() {
            let status = self.job.reap(process)?;
            if !status.success() {
                return Err(self.describe(&format!("process {process}: {status}")));
            }
        }
        Ok(counts)
    }

    fn describe(&self, problem: &str) -> String {
        let mut text = format!("seed {}: {problem}\n", self.seed);
        for (slot, (process, life)) in self.slots.iter().enumerate() {
            let errors = self.job.errors(*process);
            if !errors.is_empty() {
                text += &format!("{slot}.{life}, process {process}: {errors}");
            }
        }
        text
    }
}

/// What a process reports of itself.
#[derive(Clone, Debug, Default)]
struct LoneState {
    /// Descriptors, and mappings of own segments and of links.
    held: [usize; 3],
    inboxes: usize,
    connected: BTreeSet<String>,
}
