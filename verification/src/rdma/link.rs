//! Steps of a simulated connection when time passes.

use nemesia_core::port::memory::{
    ConnectError, ConnectionState, Event, Facts, LostError, Private, WorkError, WorkOutcome,
};

use super::connection::Link;
use super::operation::{Kind, Local, Operation, Stage};
use super::world::World;
use super::{Conditions, Flaw};

/// The number of work requests of one queue that may be under way at once.
const WINDOW: usize = 6;

/// Why an operation cannot go on: the error at its sender, and the error at its target.
struct Failure(WorkError, LostError);

impl World {
    /// Lets one end of a link take at most one step.
    pub(super) fn step(&mut self, link: usize, side: usize) {
        if let Some((lost, work)) = self.links[link].ends[side].doom {
            self.end(link, side, lost, work);
        } else if self.links[link].ends[0].state != ConnectionState::Ready
            || self.links[link].ends[1].state != ConnectionState::Ready
        {
            self.shake_hands(link, side);
        } else if !self.links[link].broken {
            self.advance(link, side);
        }
    }

    /// Ends a connection at one side if it has not ended there.
    fn end(&mut self, link: usize, side: usize, lost: LostError, work: WorkError) {
        let Link { ends, broken } = &mut self.links[link];
        *broken = true;
        // Our receives that a message of the peer was to fill.
        let taken: Vec<u64> =
            ends[1 - side].operations.iter_mut().filter_map(|it| it.receive.take()).map(|it| it.id).collect();
        // The peer's receives that a message of ours was to fill.
        let given: Vec<u64> =
            ends[side].operations.iter_mut().filter_map(|it| it.receive.take()).map(|it| it.id).collect();
        given.into_iter().for_each(|id| ends[1 - side].arrive(id, WorkOutcome::Failed(WorkError::Flushed)));
        let said = ends[1 - side].private;
        let end = &mut ends[side];
        let before = end.state;
        taken.into_iter().for_each(|id| end.arrive(id, WorkOutcome::Failed(WorkError::Flushed)));
        if self.conditions.flaw == Some(Flaw::Receives) {
            end.receives.clear();
        }
        end.flush(work);
        let event = match before {
            ConnectionState::Ready => end.end(lost),
            ConnectionState::Lost | ConnectionState::Gone => return,
            _ => {
                let (error, private) = match lost {
                    LostError::Closed => (ConnectError::Refused, said),
                    _ => (ConnectError::Unreachable, Private::EMPTY),
                };
                Event::Failed { connection: end.connection, error, private }
            }
        };
        let node = end.node;
        if !end.closing && self.conditions.flaw != Some(Flaw::Silence) {
            self.nodes[node].events.push_back(event);
        }
    }

    /// Ends a connection at one side now, and at the other side later.
    pub(super) fn lose(&mut self, link: usize, side: usize, here: (LostError, WorkError), there: LostError) {
        if self.conditions.flaw == Some(Flaw::Neighbours) {
            let node = self.links[link].ends[side].node;
            for other in self.links.iter_mut().filter(|it| it.ends[0].node == node && !it.broken) {
                other.ends[0].doom = Some((LostError::Port, WorkError::Flushed));
            }
        }
        let other = &mut self.links[link].ends[1 - side];
        if !matches!(other.state, ConnectionState::Lost | ConnectionState::Gone) && other.doom.is_none() {
            let work = if there == LostError::Unreachable { WorkError::PeerLost } else { WorkError::Flushed };
            other.doom = Some((there, work));
        }
        self.end(link, side, here.0, here.1);
    }

    fn shake_hands(&mut self, link: usize, side: usize) {
        let Link { ends, broken } = &mut self.links[link];
        if *broken {
            return;
        }
        let [active, passive] = ends;
        match (side, active.state, passive.state) {
            (1, ConnectionState::Connecting, ConnectionState::Gone) => {
                let private = active.private;
                self.ask(link, private);
            }
            (0, ConnectionState::Connecting, ConnectionState::Accepting) => {
                active.state = ConnectionState::Ready;
                let event = Event::Established { connection: active.connection, private: passive.private };
                self.nodes[active.node].events.push_back(event);
            }
            (1, ConnectionState::Ready, ConnectionState::Accepting) => {
                passive.state = ConnectionState::Ready;
                let event = Event::Established { connection: passive.connection, private: Private::EMPTY };
                self.nodes[passive.node].events.push_back(event);
            }
            _ => {}
        }
    }

    /// Moves one work request of a queue a step further, and reports the completed ones.
    fn advance(&mut self, link: usize, side: usize) {
        let Conditions { facts, flaw, .. } = self.conditions;
        let candidates = {
            let operations = &self.links[link].ends[side].operations;
            let free = |at: &usize| {
                let earlier = operations.iter().take(*at);
                let operation = &operations[*at];
                operation.stage != Stage::Done
                    && earlier
                        .into_iter()
                        .all(|earlier| operation.may_follow(earlier, facts.ordered_among_writes, flaw))
            };
            (0..operations.len().min(WINDOW)).filter(free).collect::<Vec<_>>()
        };
        if !candidates.is_empty() {
            let at = self.rng.pick(&candidates);
            let Some(mut operation) = self.links[link].ends[side].operations.remove(at) else { return };
            let moved = self.move_on(link, side, &mut operation);
            let (reported, receive) = (operation.reported, operation.receive.as_ref().map(|it| it.id));
            self.links[link].ends[side].operations.insert(at, operation);
            if let Err(Failure(work, there)) = moved {
                self.fail(link, side, (at, reported), work, there, receive);
                return;
            }
        }
        let late = self.rng.one_in(2);
        let end = &mut self.links[link].ends[side];
        if !late {
            let early = |it: &Operation| !facts.write_proves_placement && matches!(it.local, Local::Bytes(_));
            end.settle(flaw == Some(Flaw::Noise), |it| it.stage == Stage::Done || early(it));
        }
        while end.operations.front().is_some_and(|it| it.reported && it.stage == Stage::Done) {
            end.operations.pop_front();
        }
    }

    /// Fails the work request at `at` and with it the connection.
    fn fail(
        &mut self,
        link: usize,
        side: usize,
        (at, reported): (usize, bool),
        work: WorkError,
        there: LostError,
        receive: Option<u64>,
    ) {
        let Link { ends, .. } = &mut self.links[link];
        // A receive that was too short reports that itself.
        if work == WorkError::Invalid
            && receive.is_some()
            && let Some(id) = ends[side].operations[at].receive.take().map(|it| it.id)
        {
            ends[1 - side].arrive(id, WorkOutcome::Failed(WorkError::Length));
        }
        // The earlier requests never complete; this one reports the reason.
        let end = &mut ends[side];
        let early: Vec<_> = end.operations.drain(..at).collect();
        for operation in early.iter().filter(|it| !it.reported) {
            let outcome = if operation.stage == Stage::Done {
                WorkOutcome::Done
            } else {
                WorkOutcome::Failed(WorkError::Flushed)
            };
            if !(operation.quiet && outcome == WorkOutcome::Done) {
                end.report(operation.id, operation.number, outcome);
            }
        }
        let flushed: Vec<u64> =
            early.into_iter().filter_map(|it| it.receive).map(|receive| receive.id).collect();
        for id in flushed {
            ends[1 - side].arrive(id, WorkOutcome::Failed(WorkError::Flushed));
        }
        let oldest = if reported { WorkError::Flushed } else { work };
        self.lose(link, side, (LostError::Work, oldest), there);
    }

    fn move_on(&mut self, link: usize, side: usize, operation: &mut Operation) -> Result<(), Failure> {
        let (here, there) = (self.links[link].ends[side].node, self.links[link].ends[1 - side].node);
        if operation.stage == Stage::Waiting {
            // Where a completion does not prove placement, the bytes leave the sender first.
            if !self.conditions.facts.write_proves_placement && self.take(here, operation)? {
                return Ok(());
            }
            return self.begin(link, side, operation);
        }
        if operation.parts.is_empty() {
            return self.finish(link, side, operation);
        }
        let last = operation.parts.len() - 1;
        let at = if self.conditions.facts.ordered_within_write { last } else { self.rng.below(last + 1) };
        let (start, len) = operation.parts.remove(at);
        let mut bytes = vec![0; len as usize];
        let (from, to) = (&self.nodes[here].memory, &self.nodes[there].memory);
        let local = Failure(WorkError::Local, LostError::Closed);
        let remote = Failure(WorkError::Refused, LostError::Access);
        let target = operation.target.map(|(region, at)| (region, at + start));
        match (&operation.local, target) {
            (Local::Slices(slices), Some((region, at))) if operation.kind.is_answered() => {
                to.read(region, at, &mut bytes).then_some(()).ok_or(remote)?;
                return from.scatter(slices, start, &bytes).then_some(()).ok_or(local);
            }
            (Local::Slices(slices), _) => {
                from.gather(slices, start, &mut bytes).then_some(()).ok_or(local)?;
            }
            (Local::Bytes(all), _) => bytes.copy_from_slice(&all[start as usize..(start + len) as usize]),
        }
        let placed = match (target, &operation.receive) {
            (Some((region, at)), _) => to.write(region, at, &bytes),
            (None, Some(receive)) => to.scatter(&receive.slices, start, &bytes),
            (None, None) => false,
        };
        placed.then_some(()).ok_or(remote)
    }

    /// Takes the bytes from their owner, who may then use them again. Returns false if they were taken before
    /// or are not to be taken yet.
    fn take(&mut self, node: usize, operation: &mut Operation) -> Result<bool, Failure> {
        if operation.kind.is_answered() {
            return Ok(false);
        }
        let Local::Slices(slices) = &operation.local else { return Ok(false) };
        let mut bytes = vec![0; operation.len as usize];
        if !self.nodes[node].memory.gather(slices, 0, &mut bytes) {
            return Err(Failure(WorkError::Local, LostError::Closed));
        }
        operation.local = Local::Bytes(bytes);
        Ok(true)
    }

    /// Checks the operation at the target.
    fn begin(&mut self, link: usize, side: usize, operation: &mut Operation) -> Result<(), Failure> {
        let there = self.links[link].ends[1 - side].node;
        if let Some((at, reach)) = operation.kind.reach().filter(|_| operation.len > 0) {
            let memory = &self.nodes[there].memory;
            let target = match self.conditions.flaw {
                Some(Flaw::Rights) => memory.reach(at, operation.len, reach, |_| true),
                _ => memory.reach(at, operation.len, reach, |allowed| allowed),
            };
            if target.is_none() && self.conditions.flaw == Some(Flaw::Refusals) {
                operation.stage = Stage::Done;
                return Ok(());
            }
            operation.target = Some(target.ok_or(Failure(WorkError::Refused, LostError::Access))?);
        } else if matches!(operation.kind, Kind::Send { .. }) {
            let Some(receive) = self.take_receive(link, 1 - side)? else { return Ok(()) };
            let mut fits = receive.len() >= operation.len;
            if self.conditions.flaw == Some(Flaw::Truncation) {
                operation.len = operation.len.min(receive.len());
                fits = true;
            }
            operation.receive = Some(receive);
            if !fits {
                return Err(Failure(WorkError::Invalid, LostError::Work));
            }
        }
        let end = &mut self.links[link].ends[1 - side];
        end.heard = true;
        operation.stage = Stage::Moving;
        if !matches!(operation.kind, Kind::Add { .. } | Kind::Swap { .. }) {
            operation.divide(&mut self.rng);
        }
        Ok(())
    }

    /// Takes a receive for a message. Returns `None` if the message must wait for one.
    fn take_receive(
        &mut self,
        link: usize,
        side: usize,
    ) -> Result<Option<super::operation::Receive>, Failure> {
        let end = &mut self.links[link].ends[side];
        let queue = if end.shared { &mut self.nodes[end.node].shared } else { &mut end.receives };
        let receive = queue.pop_front();
        if receive.is_none() && !self.conditions.facts.waits_for_receive {
            return Err(Failure(WorkError::NoReceive, LostError::Protocol));
        }
        Ok(receive)
    }

    /// Completes an operation whose bytes are all placed.
    fn finish(&mut self, link: usize, side: usize, operation: &mut Operation) -> Result<(), Failure> {
        let (here, there) = (self.links[link].ends[side].node, self.links[link].ends[1 - side].node);
        let len = operation.len as u32;
        match operation.kind {
            Kind::Send { immediate } => {
                if let Some(receive) = operation.receive.take() {
                    let outcome = WorkOutcome::Received { len, immediate, written: false };
                    self.links[link].ends[1 - side].arrive(receive.id, outcome);
                }
            }
            Kind::Write { immediate: Some(immediate), .. } => {
                let Some(receive) = self.take_receive(link, 1 - side)? else { return Ok(()) };
                let outcome = WorkOutcome::Received { len, immediate: Some(immediate), written: true };
                self.links[link].ends[1 - side].arrive(receive.id, outcome);
            }
            Kind::Write { .. } | Kind::Read { .. } => {}
            Kind::Add { .. } | Kind::Swap { .. } => self.change(here, there, operation)?,
        }
        operation.stage = Stage::Done;
        Ok(())
    }

    fn change(&self, here: usize, there: usize, operation: &Operation) -> Result<(), Failure> {
        let Some((region, at)) = operation.target else { return Ok(()) };
        let old = self.nodes[there].memory.update(region, at, |old| match operation.kind {
            Kind::Add { add, .. } => old.wrapping_add(add),
            Kind::Swap { expected, new, .. } if old == expected => new,
            _ => old,
        });
        let old = old.ok_or(Failure(WorkError::Invalid, LostError::Protocol))?;
        let Local::Slices(slices) = &operation.local else { return Ok(()) };
        let stored = self.nodes[here].memory.scatter(slices, 0, &old.to_ne_bytes());
        stored.then_some(()).ok_or(Failure(WorkError::Local, LostError::Closed))
    }

    /// Returns whether the peer may not send yet; if it sends, the connection ends.
    pub(super) fn speaks_too_early(&self, link: usize, side: usize) -> bool {
        let Facts { active_speaks_first, .. } = self.conditions.facts;
        active_speaks_first && side == 1 && !self.links[link].ends[1].heard
    }
}
