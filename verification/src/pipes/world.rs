//! A world of processes with pipes.

use std::time::Duration;

use nemesia_core::port::memory::MemoryPort;
use nemesia_core::rdma_channel::{ChunkFill, Design, PipeArrival, PipeError, PipeShape};

use super::memory::BufferList;
use super::node::{PipeEnd, PipeNode, text};
use super::{Patience, PipeFabric, PipeRun, PipeTally, PipeTrouble, Stream, draw};
use crate::rng::Rng;

/// The processes, and what they have exchanged.
#[derive(Debug)]
pub(super) struct PipeWorld<F: PipeFabric> {
    /// The processes; `None` once killed.
    nodes: Vec<Option<PipeNode<F::Port>>>,
    /// Memory of the killed, which peers may still access until they notice.
    pub(super) shape: PipeShape,
    fabric: F,
    rng: Rng,
    now: Duration,
    run: PipeRun,
    tally: PipeTally,
    /// Bytes that each process has put into each pipe, by sender and receiver, for those that were killed.
    begun_by_dead: Vec<(usize, usize, u64)>,
    /// The steps left until the trouble.
    calm: usize,
    /// The process that violates the protocol, and its victim.
    hostile: Option<(usize, usize)>,
    slow: u64,
}

impl<F: PipeFabric> PipeWorld<F> {
    pub(super) fn new(mut fabric: F, run: &PipeRun) -> Result<Self, String> {
        let mut rng = Rng::new(run.seed, 0x7069_7065);
        let count = if run.processes < 2 { 1 } else { 2 + rng.below(run.processes - 1) };
        let nodes = (0..count).map(|_| fabric.port().map(|port| Some(PipeNode::new(port))));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let facts = *nodes.iter().flatten().next().ok_or("no process")?.host.port.facts();
        let shape = draw(&mut rng, run.design, &facts);
        let mut tally = PipeTally::default();
        match shape.arrival {
            PipeArrival::Polled => tally.polled = 1,
            PipeArrival::Announced => tally.announced = 1,
        }
        let calm = run.calm.unwrap_or_else(|| rng.below(run.steps.max(1)));
        let slow = if rng.one_in(2) { 1 + rng.below(24) as u64 } else { 0 };
        let (now, begun_by_dead) = (fabric.pass(), Vec::new());
        let (hostile, run) = (None, *run);
        let mut world =
            Self { nodes, shape, fabric, rng, now, run, tally, begun_by_dead, calm, hostile, slow };
        world.connect()?;
        Ok(world)
    }

    /// Connects every two processes.
    fn connect(&mut self) -> Result<(), String> {
        let count = self.nodes.len();
        for (from, to) in (0..count).flat_map(|from| (0..from).map(move |to| (from, to))) {
            let address =
                self.nodes[to].as_ref().and_then(|node| node.host.port.address()).ok_or("no address")?;
            let (shape, now) = (self.shape, self.now);
            if let Some(node) = &mut self.nodes[from] {
                node.connect((from, to), shape, &address, now)?;
            }
        }
        let mut patience = Patience::new(&self.run);
        while !self
            .nodes
            .iter()
            .flatten()
            .all(|node| node.ends.len() == count - 1 && node.ends.iter().all(|(_, end)| end.ready))
        {
            self.turn()?;
            if patience.is_over() {
                return Err("the processes do not connect".into());
            }
        }
        Ok(())
    }

    /// Lets time pass, and takes completions and events.
    fn turn(&mut self) -> Result<(), String> {
        self.now = self.fabric.pass();
        for (own, node) in (0..).zip(&mut self.nodes) {
            let most = 1 + self.rng.below(4);
            if let Some(node) = node {
                node.drive(own, self.shape, self.now, most)?;
            }
        }
        Ok(())
    }

    fn stream(&self, from: usize, to: usize) -> Stream {
        Stream { seed: self.run.seed ^ (from as u64) << 32 ^ (to as u64) << 40, slow: self.slow }
    }

    /// Takes a random step.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.turn()?;
        if self.calm == 0 {
            self.disturb();
        } else {
            self.calm -= 1;
        }
        let node = self.rng.below(self.nodes.len());
        let ends = self.nodes[node].as_ref().map_or(0, |node| node.ends.len());
        if ends == 0 {
            return Ok(());
        }
        let at = self.rng.below(ends);
        if self.rng.one_in(2) { self.put(node, at, true) } else { self.get(node, at, None) }
    }

    fn disturb(&mut self) {
        match (self.run.trouble, self.hostile) {
            (PipeTrouble::Death, _) if self.begun_by_dead.is_empty() => {
                let dead = self.rng.below(self.nodes.len());
                if let Some(node) = self.nodes[dead].take() {
                    let begun = node.ends.iter().map(|(peer, end)| (dead, *peer, end.begun));
                    self.begun_by_dead = begun.collect();
                }
            }
            (PipeTrouble::Hostile, None) => {
                let bad = self.rng.below(self.nodes.len());
                self.hostile = Some((bad, (bad + 1) % self.nodes.len()));
            }
            (PipeTrouble::Hostile, Some((bad, victim))) => self.corrupt(bad, victim),
            _ => {}
        }
    }

    /// Writes anything into the inbox of the victim, as its peer may.
    fn corrupt(&mut self, bad: usize, victim: usize) {
        let Some(node) = &mut self.nodes[victim] else { return };
        let Some((_, end)) = node.ends.iter_mut().find(|(peer, _)| *peer == bad) else { return };
        let len = self.shape.inbox_bytes() as usize;
        let near = if self.rng.one_in(3) { 256.min(len) } else { len };
        let at = self.rng.below(near);
        match self.rng.below(5) {
            0 => end.inbox.put(at, &[self.rng.next() as u8]),
            1 => {
                let word = self.rng.pick(&[0, 1, 7, u64::MAX, u64::MAX - 7, 1 << 32, end.got + 3]);
                end.inbox.put(at & !7, &word.to_le_bytes()[..8.min(len - (at & !7))]);
            }
            2 => {
                // Something that lies elsewhere in the inbox, such as an old header.
                let bytes = end.inbox.get(self.rng.below(len) & !7, 32.min(len - (at & !7)));
                end.inbox.put(at & !7, &bytes);
            }
            3 if self.run.design != Design::Basic => self.forge(bad, victim),
            _ => {}
        }
    }

    /// Writes headers and flags of chunks that the sender may not write yet.
    fn forge(&mut self, bad: usize, victim: usize) {
        let PipeShape { ring_bytes, chunk_bytes, fill, design, .. } = self.shape;
        let Some(node) = &self.nodes[victim] else { return };
        let Some((_, end)) = node.ends.iter().find(|(peer, _)| *peer == bad) else { return };
        let bounce = if design.is_zero_copy() { chunk_bytes } else { 0 };
        let ring_at = self.shape.inbox_bytes() - u64::from(ring_bytes) - u64::from(bounce);
        let chunks = u64::from(ring_bytes / chunk_bytes);
        let header_at = |number: u64| {
            let start = ring_at + (number.wrapping_sub(1) % chunks) * u64::from(chunk_bytes);
            let offset = if fill == ChunkFill::Bottom { u64::from(chunk_bytes) - 24 } else { 0 };
            (start + offset) as usize
        };
        let number_in = |at: usize| end.inbox.get(at + 16, 8).try_into().map_or(0, u64::from_le_bytes);
        let last = (1..=chunks).map(|number| number_in(header_at(number))).max().unwrap_or_default();
        for more in 1..=1 + self.rng.below(chunks as usize) as u64 {
            let (number, mut header) = (last.wrapping_add(more), vec![8, 0, 0, 0, 1, 0, 0, 0]);
            header.extend([0; 8]);
            header.extend(number.to_le_bytes());
            end.inbox.put(header_at(number), &header);
            if fill == ChunkFill::TwoFlags {
                end.inbox.put(header_at(number) + 32, &number.to_le_bytes());
            }
        }
    }

    /// Returns whether bytes between these processes need not be right.
    fn is_disturbed(&self, a: usize, b: usize) -> bool {
        self.hostile.is_some_and(|(bad, victim)| (a, b) == (bad, victim) || (b, a) == (bad, victim))
    }

    fn lens(&mut self) -> Vec<usize> {
        let ring = self.shape.ring_bytes as usize;
        let unit = if self.slow > 0 { 8 } else { 1 };
        (0..1 + self.rng.below(5))
            .map(|_| {
                let len = match self.rng.below(8) {
                    0 => 0,
                    1 | 2 => 40,
                    3 => self.rng.below(16),
                    4 => self.rng.below(2000),
                    5 => self.rng.below(ring * 3),
                    6 => self.shape.chunk_bytes as usize - self.rng.below(40),
                    _ => self.rng.below(300),
                };
                len / unit * unit
            })
            .collect()
    }

    fn end(&mut self, node: usize, at: usize) -> Option<&mut (usize, PipeEnd)> {
        self.nodes[node].as_mut()?.ends.get_mut(at)
    }

    /// Puts a part of a list; begins a new list if none is begun and `fresh` is set.
    fn put(&mut self, node: usize, at: usize, fresh: bool) -> Result<(), String> {
        let lens = self.lens();
        let Some((peer, end)) = self.end(node, at) else { return Ok(()) };
        let (peer, begun) = (*peer, end.begun);
        if end.failed.is_some() || !end.ready || end.putting.is_none() && !fresh {
            return Ok(());
        }
        let stream = self.stream(node, peer);
        let (rng, below) = (&mut self.rng, self.shape.zero_copy_from as usize);
        let Some(it) = &mut self.nodes[node] else { return Ok(()) };
        let (host, Some((_, end))) = (&mut it.host, it.ends.get_mut(at)) else { return Ok(()) };
        if end.putting.is_none() {
            let list = BufferList::new(&lens, |at, len| stream.bytes(begun + at as u64, len));
            end.begun += list.left() as u64;
            end.putting = Some(list);
        }
        let Some(list) = &mut end.putting else { return Ok(()) };
        if rng.one_in(2) {
            list.relocate(below);
        }
        let left = list.left();
        let mut gather = list.gather().ok_or("no list")?;
        match end.pipe.put(host, &mut gather) {
            Ok(count) => {
                list.advance(count).ok_or("put counts more bytes than the list has")?;
                end.put += count as u64;
                self.tally.idle_puts += u64::from(count == 0 && left > 0);
                self.tally.cut += u64::from(count > 0 && count < left);
                if list.left() == 0 {
                    check(list.is_guarded(), "put wrote beside its list")?;
                    end.putting = None;
                }
                Ok(())
            }
            Err(error) => self.fail(node, at, error),
        }
    }

    /// Gets a part of a list. If `most` is given, the list has no more bytes.
    fn get(&mut self, node: usize, at: usize, most: Option<u64>) -> Result<(), String> {
        let mut lens = self.lens();
        let Some((peer, end)) = self.end(node, at) else { return Ok(()) };
        let peer = *peer;
        if end.failed.is_some() || !end.ready {
            return Ok(());
        }
        if let Some(most) = most.filter(|_| end.getting.is_none()) {
            let mut left = most;
            lens.iter_mut().for_each(|len| {
                *len = (*len as u64).min(left) as usize;
                left -= *len as u64;
            });
        }
        let (stream, disturbed) = (self.stream(peer, node), self.is_disturbed(node, peer));
        let (rng, below) = (&mut self.rng, self.shape.zero_copy_from as usize);
        let Some(it) = &mut self.nodes[node] else { return Ok(()) };
        let (host, Some((_, end))) = (&mut it.host, it.ends.get_mut(at)) else { return Ok(()) };
        let list = end.getting.get_or_insert_with(|| BufferList::new(&lens, |_, len| vec![0; len]));
        if rng.one_in(2) {
            list.relocate(below);
        }
        let left = list.left();
        let mut scatter = list.scatter().ok_or("no list")?;
        match end.pipe.get(host, &mut scatter) {
            Ok(count) => {
                let bytes = list.advance(count).ok_or("get counts more bytes than the list has")?;
                let wanted = stream.bytes(end.got, count);
                if let Some(wrong) =
                    wanted.iter().zip(&bytes).position(|(a, b)| a != b).filter(|_| !disturbed)
                {
                    return Err(format!(
                        "{peer} to {node}: byte {} of the stream is wrong",
                        end.got + wrong as u64
                    ));
                }
                end.got += count as u64;
                self.tally.bytes += count as u64;
                self.tally.cut += u64::from(count > 0 && count < left);
                if list.left() == 0 {
                    check(list.is_guarded(), "get wrote beside its list")?;
                    end.getting = None;
                }
                Ok(())
            }
            Err(error) => self.fail(node, at, error),
        }
    }

    /// Takes note that a pipe has failed, and closes its connection. Fails if nothing disturbed the pipe.
    fn fail(&mut self, node: usize, at: usize, error: PipeError) -> Result<(), String> {
        let Some((peer, _)) = self.end(node, at) else { return Ok(()) };
        let peer = *peer;
        let gone = self.nodes[peer].is_none();
        if !gone && !self.is_disturbed(node, peer) {
            return Err(format!("the pipe from {node} to {peer} failed: {error}"));
        }
        match error {
            PipeError::Violated { .. } => self.tally.violated += 1,
            _ => self.tally.lost += 1,
        }
        let Some(it) = &mut self.nodes[node] else { return Ok(()) };
        let Some((_, end)) = it.ends.get_mut(at) else { return Ok(()) };
        end.failed = Some(error);
        it.host.port.close(end.pipe.connection());
        Ok(())
    }

    /// Returns the bytes of lists that `from` has begun to put into the pipe to `to`, and whether `from` lives.
    fn begun(&self, from: usize, to: usize) -> (u64, bool) {
        match &self.nodes[from] {
            Some(node) => {
                let end = node.ends.iter().find(|(peer, _)| *peer == to);
                (end.map_or(0, |(_, end)| end.begun), true)
            }
            None => {
                let of = self.begun_by_dead.iter().find(|it| (it.0, it.1) == (from, to));
                (of.map_or(0, |it| it.2), false)
            }
        }
    }

    /// Completes all lists that were begun. Every pipe delivers everything, or fails if its peer has died.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        if self.run.trouble == PipeTrouble::Hostile {
            return self.rest();
        }
        let mut patience = Patience::new(&self.run);
        loop {
            self.turn()?;
            let mut is_over = true;
            for node in 0..self.nodes.len() {
                for at in 0..self.nodes[node].as_ref().map_or(0, |it| it.ends.len()) {
                    let Some((peer, end)) = self.end(node, at) else { continue };
                    let (peer, got) = (*peer, end.got);
                    let idle = end.putting.is_none();
                    let failed = end.failed.is_some();
                    let (begun, lives) = self.begun(peer, node);
                    if failed || idle && got == begun && lives {
                        // A pipe without work must still carry tails and pointers.
                        self.put(node, at, false)?;
                        self.push(node, at);
                        continue;
                    }
                    is_over = false;
                    self.put(node, at, false)?;
                    // The peer may have died before it sent all: then a get for more must fail.
                    let most = if lives { begun - got } else { 1 + begun - got };
                    self.get(node, at, Some(most))?;
                }
            }
            if is_over {
                return self.rest();
            }
            if patience.is_over() {
                return Err(self.stuck());
            }
        }
    }

    fn push(&mut self, node: usize, at: usize) {
        let Some(it) = &mut self.nodes[node] else { return };
        if let Some((_, end)) = it.ends.get_mut(at).filter(|(_, end)| end.failed.is_none()) {
            // Put and get report the error.
            let _ = end.pipe.push(&mut it.host.port);
        }
    }

    /// Checks what is left at the end.
    fn rest(&self) -> Result<(), String> {
        let ends = self.nodes.iter().flatten().flat_map(|node| &node.ends);
        ends.into_iter()
            .try_for_each(|(_, end)| check(end.is_guarded(), "something was written beside memory"))
    }

    fn stuck(&self) -> String {
        let mut what = String::from("the pipes hang:");
        for (own, node) in (0..).zip(&self.nodes) {
            for (peer, end) in node.iter().flat_map(|node| &node.ends) {
                let (begun, _) = self.begun(*peer, own);
                what += &format!(
                    " [{own}: put {} of {} to {peer}, got {} of {begun}, failed {:?}]",
                    end.put,
                    end.begun,
                    end.got,
                    end.failed.map(text)
                );
            }
        }
        what
    }

    pub(super) fn tally(&self) -> PipeTally {
        let mut tally = self.tally;
        for node in self.nodes.iter().flatten() {
            tally.exposed += node.host.exposed;
            tally.lent += node.host.lent;
            for counts in node.ends.iter().map(|(_, end)| end.pipe.run_counts()) {
                tally.pushed += counts.pushed;
                tally.copied += counts.copied;
                tally.withdrawn += counts.withdrawn;
            }
        }
        tally
    }
}

fn check(so: bool, what: &str) -> Result<(), String> {
    if so { Ok(()) } else { Err(what.into()) }
}
