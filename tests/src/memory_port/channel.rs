//! Channels over the fabric, as far as the engine uses them.

mod engine;
pub(crate) mod node;
mod violations;

use std::ops::Range;

use nemesia_core::port::channel::{ChannelEvent, OpenError, RendezvousChoice};
use nemesia_core::port::memory::MemoryPort;
use nemesia_core::port::{PacketPieces, PacketPort, PeerId, Polled, PortFault};
use nemesia_core::wire::{Envelope, Kind};

use super::bench::Bench;
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{difference, filled, seed_of};
use node::{ChannelNode, PACKET_BYTES, config};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("channels_carry_packets_whole_and_in_order", packets),
        ("a_channel_reports_a_lost_peer_and_goes_on_with_the_others", lost),
        ("a_channel_finds_out_who_breaks_the_rules", violations::check),
        ("a_channel_refuses_unauthenticated_peers", violations::unauthenticated),
        ("a_channel_refuses_strangers_and_repeated_proofs", violations::strangers),
        ("a_channel_refuses_who_comes_from_elsewhere", violations::elsewhere),
        ("engines_talk_over_channels", engine::check),
    ]
}

/// Channels, each connected to each other.
pub(crate) struct Hall<F: Fabric> {
    pub(crate) nodes: Vec<Option<ChannelNode<F::Port>>>,
    rails: u32,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<F: Fabric> Hall<F> {
    /// Opens the channels. Returns `None` if the fabric has too few receives for a channel; the channel must
    /// report that.
    pub(crate) fn open(
        bench: &mut Bench<F>,
        (ranks, rails, rendezvous): (usize, u32, RendezvousChoice),
    ) -> Result<Option<Self>, String> {
        let mut hall = Self { nodes: Vec::new(), rails };
        for rank in 0..ranks {
            let port = bench.fabric.port()?;
            let few = port.facts().receive_depth < 3;
            match ChannelNode::new(port, config(rank as PeerId, rails, rendezvous), ranks) {
                Ok(mut node) => {
                    node.lend()?;
                    hall.nodes.push(Some(node));
                }
                Err(OpenError::Receives { .. }) if few => return Ok(None),
                Err(error) => return Err(text(error)),
            }
        }
        Ok(Some(hall))
    }

    fn node(&mut self, rank: usize) -> Result<&mut ChannelNode<F::Port>, String> {
        self.nodes[rank].as_mut().ok_or_else(|| "it was killed".into())
    }

    /// Connects each pair: the higher rank requests. The first connections are ready before the others are requested.
    pub(crate) fn connect(&mut self, bench: &mut Bench<F>) -> Verdict {
        self.connect_rails(bench, 0..1)?;
        self.connect_rails(bench, 1..self.rails)
    }

    fn connect_rails(&mut self, bench: &mut Bench<F>, rails: Range<u32>) -> Verdict {
        for low in 0..self.nodes.len() {
            let address = self.node(low)?.channel.port().address().ok_or("no address")?;
            for high in low + 1..self.nodes.len() {
                for rail in rails.clone() {
                    let deadline = bench.offer(&[], false).deadline;
                    let channel = &mut self.node(high)?.channel;
                    channel.connect(low as PeerId, rail, &address, deadline).map_err(text)?;
                }
            }
        }
        let ranks = self.nodes.len() as u32;
        bench.until("all connections are ready", |bench| {
            self.turn(bench);
            let ready = |node: &ChannelNode<F::Port>| -> u32 {
                (0..ranks).map(|peer| node.channel.report(peer).ready).sum()
            };
            self.nodes.iter().flatten().all(|node| ready(node) >= (ranks - 1) * rails.end)
        })
    }

    fn turn(&mut self, bench: &Bench<F>) {
        for node in self.nodes.iter_mut().flatten() {
            while let Some(event) = node.channel.poll_event(bench.now) {
                node.events.push(event);
            }
            if node.channel.wants_memory() {
                // Memory that cannot be lent now is requested again later.
                let _ = node.lend();
            }
        }
    }

    /// Lets the channels process completions; no packets are under way.
    fn poll(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            let _ = node.channel.poll();
        }
    }

    /// Disconnects all pairs, and checks that every buffer comes back.
    fn close(&mut self, bench: &mut Bench<F>) -> Verdict {
        let ranks = self.nodes.len() as PeerId;
        for node in self.nodes.iter_mut().flatten() {
            (0..ranks).for_each(|peer| node.channel.close(peer));
        }
        bench.until("all buffers are back", |bench| {
            self.turn(bench);
            self.poll();
            self.nodes.iter().flatten().all(|node| {
                let (count, free) = node.channel.buffers();
                count == free
            })
        })
    }

    /// Sends packets between all living channels, the same number from each to each.
    fn talk(&mut self, bench: &mut Bench<F>, count: u64) -> Verdict {
        let ranks = self.nodes.len();
        let living: Vec<usize> = (0..ranks).filter(|rank| self.nodes[*rank].is_some()).collect();
        let mut sent = vec![vec![0; ranks]; ranks];
        let mut received = sent.clone();
        let mut wrong = Ok(());
        bench.until("all packets are there", |bench| {
            self.turn(bench);
            for &rank in &living {
                for &to in living.iter().filter(|to| **to != rank) {
                    if sent[rank][to] < count {
                        let done = self.say(rank, to, sent[rank][to]);
                        sent[rank][to] += u64::from(done == Ok(true));
                        wrong = wrong.clone().and(done.map(drop));
                    }
                }
                for _ in 0..3 {
                    match self.hear(rank, &mut received) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(why) => wrong = Err(why),
                    }
                }
            }
            let all = |from: &usize| living.iter().all(|to| from == to || received[*from][*to] == count);
            wrong.is_err() || living.iter().all(all)
        })?;
        wrong
    }

    fn say(&mut self, rank: usize, to: usize, number: u64) -> Result<bool, String> {
        let (envelope, bytes) = packet(rank, to, number);
        let (head, body) = bytes.split_at(bytes.len() / 2);
        self.node(rank)?.channel.send(to as PeerId, &envelope, PacketPieces::Parts(head, body)).map_err(text)
    }

    fn hear(&mut self, rank: usize, received: &mut [Vec<u64>]) -> Result<bool, String> {
        let channel = &mut self.node(rank)?.channel;
        match channel.poll() {
            Polled::Idle => Ok(false),
            Polled::Fault(fault) => Err(text(fault)),
            Polled::Packet(arrival) => {
                let from = arrival.peer as usize;
                let number = received[from][rank];
                let (envelope, _) = packet(from, rank, number);
                equal(&format!("packet {number} of {from} to {rank}"), arrival.envelope, envelope)?;
                let mut bytes = vec![0; arrival.len];
                assert!(channel.read(&arrival, 0, &mut bytes));
                let wrong = difference(seed_of(&[from as u64, rank as u64, number]), &bytes);
                ensure(wrong.is_none(), || format!("packet {number} of {from} to {rank}: {wrong:?}"))?;
                channel.release(arrival);
                received[from][rank] += 1;
                Ok(true)
            }
        }
    }
}

/// Returns the packet with this number from one rank to another.
fn packet(from: usize, to: usize, number: u64) -> (Envelope, Vec<u8>) {
    let seed = seed_of(&[from as u64, to as u64, number]);
    let len = if seed.is_multiple_of(2) { seed % 64 } else { seed % u64::from(PACKET_BYTES + 1) };
    let envelope = Envelope { kind: Kind::Eager, context: seed as u16, tag: !seed, total: len };
    (envelope, filled(seed, len as usize))
}

fn packets<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    for (ranks, rails) in [(2, 1), (3, 2)] {
        let Some(mut hall) = Hall::open(bench, (ranks, rails, RendezvousChoice::Auto))? else {
            return Ok(());
        };
        hall.connect(bench)?;
        hall.talk(bench, 200)?;
        hall.close(bench)?;
    }
    Ok(())
}

fn lost<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some(mut hall) = Hall::open(bench, (3, 1, RendezvousChoice::Auto))? else { return Ok(()) };
    hall.connect(bench)?;
    hall.talk(bench, 20)?;
    let node = hall.nodes[2].take().ok_or("it was killed")?;
    let ChannelNode { channel, blocks, .. } = node;
    bench.fabric.kill(channel.into_port());
    drop(blocks);
    for rank in [0, 1] {
        let mut fault = None;
        bench.until("the loss is reported", |bench| {
            hall.turn(bench);
            // A rank that sends notices sooner.
            let _ = hall.say(rank, 2, 0);
            if let Some(node) = &mut hall.nodes[rank]
                && let Polled::Fault(found) = node.channel.poll()
            {
                fault = Some(found);
                node.channel.close(2);
            }
            fault.is_some()
        })?;
        let fault = fault.ok_or("no fault")?;
        equal("the lost peer", fault.peer, 2)?;
        let typed = matches!(fault.fault, PortFault::Lost(_) | PortFault::Work(_));
        ensure(typed, || format!("a peer that was lost: {fault}"))?;
    }
    hall.talk(bench, 50)?;
    bench.until("what was lost is cleared away", |bench| {
        hall.turn(bench);
        let closed =
            |node: &ChannelNode<F::Port>| node.events.contains(&ChannelEvent::Closed { peer: 2, rail: 0 });
        hall.poll();
        hall.nodes.iter().flatten().all(closed)
    })?;
    hall.close(bench)
}
