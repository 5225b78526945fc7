//! Processes that connect over shared memory, disconnect while messages lie in their cells, and use the numbers and the
//! cells again; against an oracle.
//!
//! | file | contents |
//! |---|---|
//! | `cells.rs` | the world: random operations, the end |
//! | `cells/memory.rs` | what the processes share |
//! | `cells/node.rs` | one process: the port that ships, and what a layer above does for it |

mod memory;
mod node;

pub(crate) use memory::CellsMemory;

use crate::rng::Rng;
use crate::segments::ConnectionSide;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use node::CellsNode;

/// The processes and the connections of a world, those that have ended included.
pub(crate) const MOST_PROCESSES: usize = 24;
pub(crate) const MOST_CONNECTIONS: usize = 240;

/// Rounds in which everything under way comes to an end.
const ROUNDS: usize = 200;

/// What became of one side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SideState {
    /// It has chosen a number, but has not opened the link.
    #[default]
    Chosen,
    Open,
    /// It has closed the link.
    Closed,
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct CellsSide {
    /// The process, and the number by which it knows the other one.
    process: usize,
    number: u32,
    state: SideState,
    sent: u64,
    received: u64,
}

/// A connection. The oracle knows what each side has sent.
#[derive(Clone, Copy, Debug)]
struct CellsConnection {
    sides: [CellsSide; 2],
}

/// What the processes of a world share besides memory.
#[derive(Debug)]
struct CellsDesk<'a> {
    memory: &'a CellsMemory,
    connections: Vec<CellsConnection>,
    /// Which processes live.
    lives: Vec<bool>,
    tally: Tally,
    trace: Trace,
    now: u64,
}

impl CellsDesk<'_> {
    fn note(&mut self, event: impl FnOnce() -> String) {
        self.trace.note(self.now, event);
    }

    /// Returns whether the other side has closed its link, or its process is dead.
    fn is_left(&self, (connection, side): (usize, usize)) -> bool {
        let other = &self.connections[connection].sides[1 - side];
        other.state == SideState::Closed || !self.lives[other.process]
    }
}

/// A world of processes.
#[derive(Debug)]
pub(crate) struct CellsWorld<'a> {
    rng: Rng,
    nodes: Vec<CellsNode<'a>>,
    desk: CellsDesk<'a>,
}

impl<'a> CellsWorld<'a> {
    pub(crate) fn new(mut rng: Rng, memory: &'a CellsMemory, trace: Trace) -> Self {
        let lives = Vec::new();
        let (connections, tally) = (Vec::new(), Tally::default());
        let mut desk = CellsDesk { memory, connections, lives, tally, trace, now: 0 };
        let nodes = (0..2 + rng.below(4)).filter_map(|_| CellsNode::new(&mut desk)).collect();
        Self { rng, nodes, desk }
    }

    /// Makes one random step. Returns `false` if the world has used up its memory.
    pub(crate) fn step(&mut self) -> Result<bool, Violation> {
        self.desk.now += 1;
        let index = self.rng.below(self.nodes.len());
        let Self { rng, nodes, desk } = self;
        let node = &mut nodes[index];
        match rng.below(100) {
            0..8 => return self.connect(index),
            8..16 => node.open_some(desk, rng),
            16..50 => node.send_some(desk, rng),
            50..54 => node.disconnect_some(desk, rng),
            54..60 => node.notice_some(desk, rng),
            60..66 => node.free_numbers(desk, Some(rng)),
            67..71 => node.pull_some(desk, rng),
            66 if rng.one_in(10) => return self.replace(index),
            _ => node.receive(desk, rng),
        }?;
        Ok(true)
    }

    /// Connects two processes that have numbers for each other.
    fn connect(&mut self, index: usize) -> Result<bool, Violation> {
        let other = self.rng.below(self.nodes.len());
        if self.desk.connections.len() == self.desk.memory.segments.connections() {
            return Ok(false);
        }
        let connection = self.desk.connections.len();
        if other == index || self.is_connected(index, other) {
            return Ok(true);
        }
        let numbers = [index, other].map(|at| self.nodes[at].free_number(&mut self.rng));
        let [Some(one), Some(two)] = numbers else {
            self.desk.tally.count(Event::CellNumbersFull);
            return Ok(true);
        };
        let side =
            |at: usize, number| CellsSide { process: self.nodes[at].process, number, ..CellsSide::default() };
        self.desk.connections.push(CellsConnection { sides: [side(index, one), side(other, two)] });
        for (side, at) in [index, other].into_iter().enumerate() {
            self.nodes[at].choose(&mut self.desk, (connection, side));
        }
        Ok(true)
    }

    /// Returns whether two processes have a connection that neither has ended.
    fn is_connected(&self, one: usize, two: usize) -> bool {
        let names = [one, two].map(|at| self.nodes[at].process);
        self.desk.connections.iter().any(|it| {
            it.sides.iter().all(|side| names.contains(&side.process) && side.state != SideState::Closed)
        })
    }

    /// Kills a process. Another one starts in its place.
    fn replace(&mut self, index: usize) -> Result<bool, Violation> {
        if self.desk.lives.len() == self.desk.memory.segments.processes() {
            return Ok(false);
        }
        let process = self.nodes[index].process;
        self.desk.lives[process] = false;
        self.desk.tally.count(Event::CellDeath);
        self.desk.note(|| format!("process {process} dies"));
        if let Some(node) = CellsNode::new(&mut self.desk) {
            self.nodes[index] = node;
        }
        Ok(true)
    }

    /// Lets everything under way end, and checks that nothing is left.
    pub(crate) fn finish(&mut self) -> Check {
        let Self { nodes, desk, .. } = self;
        for _ in 0..ROUNDS {
            nodes.iter_mut().try_for_each(|node| node.receive_all(desk))?;
        }
        for connection in &desk.connections {
            for (side, it) in connection.sides.iter().enumerate() {
                let other = &connection.sides[1 - side];
                let are_open = [it, other].iter().all(|it| it.state == SideState::Open);
                ensure!(
                    !are_open || !desk.lives[it.process] || it.received == other.sent,
                    "process {} has received {} messages of {} from process {}",
                    it.process,
                    it.received,
                    other.sent,
                    other.process
                );
            }
        }
        for _ in 0..ROUNDS {
            for node in nodes.iter_mut() {
                node.disconnect_all(desk)?;
                node.notice_all(desk)?;
                node.free_numbers(desk, None)?;
            }
        }
        nodes.iter().try_for_each(|node| node.check_rest(desk.memory.segments.sizes))
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (self.desk.tally, self.desk.trace.take())
    }
}

/// Returns the byte at a position of a message.
fn byte_of((connection, side): ConnectionSide, message: u64, at: usize) -> u8 {
    let name = (connection as u64) << 33 | (side as u64) << 32 | message;
    crate::rng::mix(name ^ (at as u64).rotate_left(40)) as u8
}
