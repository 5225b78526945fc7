//! Processes that meet by address, call each other, part, die and return; against an oracle.
//!
//! | file | contents |
//! |---|---|
//! | `peers.rs` | the world: random operations, the end |
//! | `peers/line.rs` | the connections below: two queues of packets each |
//! | `peers/process.rs` | one process: the table that ships, and what a layer above does for it |

mod line;
mod process;

use nemesia_core::peers::{PeerAddress, PeerStage};

use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use line::{Line, ProcessName, Side};
use process::CallingProcess;

/// Rounds in which everything under way comes to an end.
const ROUNDS: usize = 400;

/// The lines of a world, its counts and its trace: what its processes share.
#[derive(Debug, Default)]
struct Network {
    lines: Vec<Line>,
    /// The present process of each place.
    lives: Vec<usize>,
    tally: Tally,
    trace: Trace,
    now: u64,
}

/// A process and its address.
type Card = (ProcessName, PeerAddress);

/// A world of processes.
#[derive(Debug)]
pub(crate) struct PeersWorld {
    rng: Rng,
    processes: Vec<CallingProcess>,
    network: Network,
}

impl PeersWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Self {
        let count = 2 + rng.below(7);
        let cards: Vec<_> = (0..count).map(|index| card(&mut rng, ProcessName { index, life: 0 })).collect();
        // The first processes may be the ranks of a world. Those that start in their places are not.
        let ranks = if rng.one_in(2) { 2 + rng.below(count - 1) } else { 0 };
        let processes = cards
            .iter()
            .enumerate()
            .map(|(index, card)| {
                let world = if index < ranks { &cards[..ranks] } else { &[] };
                CallingProcess::new(&mut rng, *card, count, world)
            })
            .collect();
        let network = Network { trace, lives: vec![0; count], ..Network::default() };
        Self { rng, processes, network }
    }

    /// Makes one random step.
    pub(crate) fn step(&mut self) -> Check {
        let index = self.rng.below(self.processes.len());
        self.network.now += 1;
        match self.rng.below(100) {
            0..20 => self.introduce(index),
            20..45 => self.act(index, CallingProcess::send_some),
            45..49 => self.act(index, CallingProcess::disconnect_some),
            49..54 => self.act(index, CallingProcess::release_some),
            54 => self.replace(index),
            55..58 => self.act(index, CallingProcess::give_up_some),
            _ => self.act(index, CallingProcess::progress),
        }?;
        self.check_pairs()
    }

    fn act(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut CallingProcess, &mut Network, &mut Rng) -> Check,
    ) -> Check {
        act(&mut self.processes[index], &mut self.network, &mut self.rng)
    }

    /// Lets a process learn the address of another one, alive or dead.
    fn introduce(&mut self, index: usize) -> Check {
        let other = self.rng.below(self.processes.len());
        let (name, address) = self.processes[other].card();
        self.act(index, |process, network, _| process.connect(name, address, network))
    }

    /// Kills a process, or lets it leave. Another one starts in its place.
    fn replace(&mut self, index: usize) -> Check {
        let count = self.processes.len();
        let leaves = self.rng.one_in(2);
        let ProcessName { life, .. } = self.processes[index].name;
        self.processes[index].end(&mut self.network, leaves);
        self.network.lives[index] += 1;
        let card = card(&mut self.rng, ProcessName { index, life: life + 1 });
        self.processes[index] = CallingProcess::new(&mut self.rng, card, count, &[]);
        Ok(())
    }

    /// Checks that no two processes have two connections with each other, which both sides hold for alive.
    fn check_pairs(&self) -> Check {
        for (at, process) in self.processes.iter().enumerate() {
            for other in &self.processes[at + 1..] {
                let (one, two) = (process.line_with(other.name), other.line_with(process.name));
                if let (Some(one), Some(two)) = (one, two)
                    && one != two
                {
                    let is_open = |line: usize| self.network.lines[line].is_open();
                    ensure!(
                        !(is_open(one) && is_open(two)),
                        "{:?} and {:?} have two connections: {one} and {two}",
                        process.name,
                        other.name
                    );
                }
            }
        }
        Ok(())
    }

    /// Lets everything under way end, and checks that nothing is left.
    pub(crate) fn finish(&mut self) -> Check {
        for _ in 0..ROUNDS {
            for index in 0..self.processes.len() {
                self.act(index, CallingProcess::progress)?;
            }
        }
        let Self { processes, network, .. } = self;
        for process in processes.iter() {
            for (peer, known) in &process.known {
                let stage = process.stage(*peer)?;
                ensure!(
                    !matches!(stage, PeerStage::Calling(_) | PeerStage::Answering(_)),
                    "{:?} still meets {:?}",
                    process.name,
                    known.name
                );
                let PeerStage::Connected(_) = stage else { continue };
                let line = process.line_with(known.name);
                let other = &processes[known.name.index];
                ensure!(
                    other.name == known.name && other.line_with(process.name) == line,
                    "{:?} is connected with {:?}, which is not",
                    process.name,
                    known.name
                );
                ensure!(known.waiting == 0, "{:?} has packets that wait, and a connection", process.name);
            }
            process.check_numbers()?;
        }
        let left = network.lines.iter().position(|line| line.is_open() && line.has_packets());
        ensure!(left.is_none(), "line {left:?} has packets that no process has read");
        Ok(())
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (self.network.tally, self.network.trace.take())
    }
}

impl Network {
    /// Opens a line to a process. It ends at once if the process does not live.
    fn open(&mut self, caller: ProcessName, called: ProcessName) -> usize {
        self.tally.count(Event::PeerCall);
        let mut line = Line::new(caller, called);
        if self.lives[called.index] != called.life {
            line.close(Side::Called);
        }
        self.lines.push(line);
        self.lines.len() - 1
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        self.trace.note(self.now, event);
    }
}

/// Returns the name of a process and an address for it: after random bytes, which decide the order of addresses, it
/// names the process.
fn card(rng: &mut Rng, name: ProcessName) -> Card {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
    bytes[8] = name.index as u8;
    bytes[16..24].copy_from_slice(&(name.life as u64).to_le_bytes());
    (name, PeerAddress::from_bytes(bytes))
}

fn side_of(line: &Line, name: ProcessName) -> Side {
    if line.caller == name { Side::Caller } else { Side::Called }
}

fn broken<T>(what: String) -> Result<T, Violation> {
    Err(Violation(what))
}
