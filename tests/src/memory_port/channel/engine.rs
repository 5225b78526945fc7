//! The engine over channels: the protocols that ship, over any fabric.

use std::ops::Range;

use nemesia_core::counters::PeerCounters;
use nemesia_core::engine::{Engine, RequestId, Tuning};
use nemesia_core::matching::{Pattern, Source};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::channel::{Channel, RendezvousChoice};
use nemesia_core::port::memory::MemoryPort;
use nemesia_core::port::{RemoteAccess as _, Rendezvous};
use nemesia_verification::storage::{ChannelVectors, EngineVectors};

use super::super::bench::{Bench, Block};
use super::super::{Fabric, Verdict, ensure, equal};
use super::node::{ChannelNode, lend};
use super::{Hall, text};
use crate::content::{difference, filled, seed_of};

/// The message sizes in bytes: eager, around the longest packet, and rendezvous of many packets.
const SIZES: [usize; 8] = [0, 8, 300, 1024, 1025, 5000, 60_000, 200_000];
/// The number of times that each size is sent.
const ROUNDS: u64 = 3;

/// An engine and its buffers, which are freed after it.
#[derive(Debug)]
struct Process<M: MemoryPort> {
    engine: Engine<Channel<M, ChannelVectors>, EngineVectors>,
    sends: Vec<(RequestId, Vec<u8>)>,
    receives: Vec<(RequestId, u64, Vec<u8>)>,
    blocks: Vec<Block>,
}

impl<M: MemoryPort> Process<M> {
    fn new(rank: u32, ranks: usize, node: ChannelNode<M>) -> Result<Self, String> {
        let lent = EngineVectors::lent(ranks, 512, 4096, 64, ());
        let engine = Engine::new(rank, node.channel, Tuning::default(), lent).map_err(text)?;
        Ok(Self { engine, sends: Vec::new(), receives: Vec::new(), blocks: node.blocks })
    }

    fn send(&mut self, to: u32, tag: u64, bytes: Vec<u8>) -> Verdict {
        // SAFETY: the vector's bytes stay where they are until the request is complete, or the engine is gone.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        let id = if tag.is_multiple_of(3) {
            self.engine.issend(to, 1, tag, buf)
        } else {
            self.engine.isend(to, 1, tag, buf)
        };
        let id = id.map_err(text)?;
        if id != RequestId::SENT {
            self.sends.push((id, bytes));
        }
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: u64, len: usize, seed: u64) -> Verdict {
        let mut bytes = vec![0; len];
        // SAFETY: as above, and nothing else uses the bytes.
        let mut buf = unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), len) };
        let pattern = Pattern { source: Source::Rank(from), context: 1, tag, ignore: 0 };
        let id = self.engine.irecv(pattern, &mut buf).map_err(text)?;
        self.receives.push((id, seed, bytes));
        Ok(())
    }

    /// Makes progress, and checks what is complete.
    fn turn(&mut self, now: std::time::Duration) -> Verdict {
        let channel = self.engine.port_mut();
        while channel.poll_event(now).is_some() {}
        if channel.wants_memory()
            && let Ok(block) = lend(channel)
        {
            self.blocks.push(block);
        }
        if let Some(peer) = self.engine.progress().failed {
            return Err(format!("peer {peer} failed: {:?}", self.engine.failure(peer)));
        }
        for (id, bytes) in std::mem::take(&mut self.sends) {
            match self.engine.test(id) {
                None => self.sends.push((id, bytes)),
                Some(outcome) => drop(outcome.map_err(text)?),
            }
        }
        for (id, seed, bytes) in std::mem::take(&mut self.receives) {
            match self.engine.test(id) {
                None => self.receives.push((id, seed, bytes)),
                Some(outcome) => {
                    equal("bytes", outcome.map_err(text)?.len, bytes.len())?;
                    let wrong = difference(seed, &bytes);
                    ensure(wrong.is_none(), || format!("{} bytes differ: {wrong:?}", bytes.len()))?;
                }
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }
}

pub(super) fn check<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    use RendezvousChoice::{Auto, Read, Stream, Write, WriteNotify};
    // Without a clock nothing is learned, and the receiver reads if it can.
    talk(bench, (2, Auto), 0..ROUNDS)?;
    let others =
        [(1, Read), (1, Write), (2, Write), (1, WriteNotify), (2, WriteNotify), (1, Stream), (2, Stream)];
    others.into_iter().try_for_each(|(rails, rendezvous)| {
        let talked = talk(bench, (rails, rendezvous), 1..2);
        talked.map_err(|why| format!("{rendezvous:?} over {rails} connections: {why}"))
    })
}

/// Lets engines exchange messages of all sizes whose large ones move as chosen.
fn talk<F: Fabric>(
    bench: &mut Bench<F>,
    (rails, rendezvous): (u32, RendezvousChoice),
    rounds: Range<u64>,
) -> Verdict {
    const RANKS: usize = 3;
    let Some(mut hall) = Hall::open(bench, (RANKS, rails, rendezvous))? else { return Ok(()) };
    hall.connect(bench)?;
    let mut processes = Vec::new();
    for (rank, node) in (0..).zip(hall.nodes.into_iter().flatten()) {
        processes.push(Process::new(rank, RANKS, node)?);
    }
    for round in rounds {
        // One order after the other: receives first, sends first, mixed.
        for (tag, &len) in (1..).zip(&SIZES) {
            start(&mut processes, round, tag + 100 * round, len, round != 1)?;
        }
        for (tag, &len) in (1..).zip(&SIZES).filter(|_| round == 1) {
            (0..20).try_for_each(|_| turn(bench, &mut processes))?;
            post(&mut processes, tag + 100 * round, len)?;
        }
        let mut wrong = Ok(());
        bench.until("all messages are there", |bench| {
            wrong = turn(bench, &mut processes);
            wrong.is_err() || processes.iter().all(Process::is_done)
        })?;
        wrong?;
    }
    check_protocols(&processes)
}

/// Checks that large messages have moved by the chosen protocol. Memory that could not be registered was streamed.
fn check_protocols<M: MemoryPort>(processes: &[Process<M>]) -> Verdict {
    let counters = processes.iter().map(|process| process.engine.counters());
    let all = counters.fold(Default::default(), |sum: PeerCounters, it| sum.plus(&it));
    let (got, put) = (all.large_pulled > 0, all.large_pushed > 0);
    let offered = processes.first().map(|process| process.engine.port().rendezvous(1));
    let Rendezvous { get, put: may_put, .. } = offered.ok_or("no process")?;
    let expected = (get, may_put && !get);
    equal("messages that the receiver has read, and that the sender has written", (got, put), expected)?;
    // Small messages are written into rings where the fabric promises order, and nowhere else.
    let has_rings = processes.iter().any(|process| process.engine.port().has_rings());
    equal("small messages in rings", (all.ring_sent > 0, all.ring_received > 0), (has_rings, has_rings))
}

fn turn<F: Fabric>(bench: &mut Bench<F>, processes: &mut [Process<F::Port>]) -> Verdict {
    bench.turn();
    processes.iter_mut().try_for_each(|process| process.turn(bench.now))
}

/// Starts a message from each to each, with its receive before or after it.
fn start<M: MemoryPort>(
    processes: &mut [Process<M>],
    round: u64,
    tag: u64,
    len: usize,
    posted: bool,
) -> Verdict {
    if posted && round == 0 {
        post(processes, tag, len)?;
    }
    let ranks = processes.len() as u32;
    for from in 0..ranks {
        for to in (0..ranks).filter(|to| *to != from) {
            let seed = seed_of(&[from.into(), to.into(), tag]);
            processes[from as usize].send(to, tag, filled(seed, len))?;
        }
    }
    if posted && round != 0 { post(processes, tag, len) } else { Ok(()) }
}

fn post<M: MemoryPort>(processes: &mut [Process<M>], tag: u64, len: usize) -> Verdict {
    let ranks = processes.len() as u32;
    for to in 0..ranks {
        for from in (0..ranks).filter(|from| *from != to) {
            let seed = seed_of(&[from.into(), to.into(), tag]);
            processes[to as usize].receive(from, tag, len, seed)?;
        }
    }
    Ok(())
}
