//! The simulated port.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    LostError, MemoryKey, MemoryPort, Offer, PortRegion, PostError, Private, ReceiveQueue, RegionAccess,
    RegisterError, RemoteRange, Slice, Work, WorkError,
};

use super::Flaw;
use super::operation::{Kind, Local, Operation, Receive, Stage};
use super::world::World;

/// A port of a simulated fabric.
#[derive(Debug)]
pub struct SimPort {
    world: Rc<RefCell<World>>,
    node: usize,
    facts: Facts,
}

impl SimPort {
    pub(super) fn new(world: Rc<RefCell<World>>) -> Self {
        let node = world.borrow_mut().add_node();
        let facts = world.borrow().conditions.facts;
        Self { world, node, facts }
    }

    fn source(&self, from: CompletionSource<'_>) -> Result<(Local, u64), PostError> {
        match from {
            CompletionSource::Inline(bytes) if bytes.len() > self.facts.inline_bytes as usize => {
                Err(PostError::Length { limit: self.facts.inline_bytes })
            }
            CompletionSource::Inline(bytes) => Ok((Local::Bytes(bytes.to_vec()), bytes.len() as u64)),
            CompletionSource::Gather(slices) => {
                let len = self.check(slices, self.facts.slices, |_| true)?;
                Ok((Local::Slices(slices.to_vec()), len))
            }
        }
    }

    /// Checks the length of a write or read against the facts.
    fn message(&self, len: u64) -> Result<(), PostError> {
        let limit = self.facts.message_bytes;
        if len > u64::from(limit) { Err(PostError::Length { limit }) } else { Ok(()) }
    }

    fn check(
        &self,
        slices: &[Slice],
        limit: u32,
        allowed: impl Fn(RegionAccess) -> bool,
    ) -> Result<u64, PostError> {
        if slices.len() > limit as usize {
            return Err(PostError::Slices { limit });
        }
        let len = self.world.borrow().nodes[self.node].memory.check(slices, allowed)?;
        let limit = self.facts.transfer_bytes;
        if len > u64::from(limit) { Err(PostError::Length { limit }) } else { Ok(len) }
    }

    fn post(&mut self, work: Work, kind: Kind, (local, len): (Local, u64)) -> Result<(), PostError> {
        let mut world = self.world.borrow_mut();
        let (link, side) = world.find(self.node, work.connection).ok_or(PostError::NotReady)?;
        let (early, flaw) = (world.speaks_too_early(link, side), world.conditions.flaw);
        let end = &mut world.links[link].ends[side];
        if end.state != ConnectionState::Ready {
            return Err(PostError::NotReady);
        }
        let depth = u64::from(self.facts.send_depth) - u64::from(flaw == Some(Flaw::Depth));
        let places = len.div_ceil(self.facts.message_bytes.into()).max(1);
        if end.posted + places - end.freed > depth {
            return Err(PostError::QueueFull);
        }
        end.operations.push_back(Operation {
            id: work.id,
            number: end.posted + places - 1,
            quiet: work.quiet,
            fence: work.fence,
            kind,
            local,
            len,
            stage: Stage::Waiting,
            reported: false,
            parts: Vec::new(),
            target: None,
            receive: None,
        });
        end.posted += places;
        if early {
            end.doom = Some((LostError::Protocol, WorkError::Flushed));
            world.links[link].broken = true;
            world.links[link].ends[1 - side].doom = Some((LostError::Protocol, WorkError::Flushed));
        }
        Ok(())
    }

    fn change(&mut self, work: Work, into: Slice, kind: Kind, at: RemoteRange) -> Result<(), PostError> {
        if !self.facts.atomics {
            return Err(PostError::Unsupported);
        }
        if into.len != 8 || !at.address.is_multiple_of(8) {
            return Err(PostError::Alignment);
        }
        let len = self.check(&[into], 1, |access| access.local_write)?;
        self.post(work, kind, (Local::Slices(vec![into]), len))
    }

    fn supports(&self, immediate: Option<u32>) -> Result<(), PostError> {
        let can = immediate.is_none() || self.facts.immediates;
        can.then_some(()).ok_or(PostError::Unsupported)
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.world.borrow_mut().kill(self.node);
    }
}

// SAFETY: lent memory is used only by its descriptor, through `Memory`, which checks region, bounds and rights on each
// use and makes no reference. `deregister` drops the descriptor, and so does the drop of the port (`World::kill`). A
// completion is reported when the operation has left the world's lists.
#[allow(unsafe_code, reason = "a port has obligations")]
unsafe impl MemoryPort for SimPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Result<PortRegion, RegisterError> {
        if !access.fits(&memory) {
            return Err(RegisterError::Rights);
        }
        if access.remote_atomic && !self.facts.atomics {
            return Err(RegisterError::Unsupported);
        }
        let mut world = self.world.borrow_mut();
        let fails = world.conditions.register_fails;
        if world.rng.one_in(fails) {
            return Err(RegisterError::Pinned { bytes: memory.len() as u64 });
        }
        let key = if world.conditions.flaw == Some(Flaw::Keys) { 4711 } else { world.rng.next() };
        world.nodes[self.node].memory.register(memory, access, self.facts.regions, key)
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        let mut world = self.world.borrow_mut();
        world.nodes[self.node].memory.revoke(region)?;
        if world.conditions.flaw == Some(Flaw::Deregistration) {
            return Ok(());
        }
        if world.is_busy(self.node, region) {
            return Err(RegisterError::Busy);
        }
        world.nodes[self.node].memory.forget(region);
        Ok(())
    }

    fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        self.world.borrow().nodes[self.node].memory.key(region)
    }

    fn address(&self) -> Option<Address> {
        World::address(self.node)
    }

    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        self.world.borrow_mut().connect(self.node, to, offer)
    }

    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError> {
        self.world.borrow_mut().accept(self.node, connection, offer)
    }

    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError> {
        self.world.borrow_mut().refuse(self.node, connection, private)
    }

    fn close(&mut self, connection: Connection) {
        self.world.borrow_mut().close(self.node, connection);
    }

    fn state(&self, connection: Connection) -> ConnectionState {
        let world = self.world.borrow();
        world
            .find(self.node, connection)
            .map_or(ConnectionState::Gone, |(link, side)| world.links[link].ends[side].state)
    }

    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.supports(immediate)?;
        let local = self.source(from)?;
        self.post(work, Kind::Write { to, immediate }, local)
    }

    fn read(&mut self, work: Work, into: &[Slice], from: RemoteRange) -> Result<(), PostError> {
        let strict = self.facts.read_needs_remote_write;
        let allowed = |access: RegionAccess| access.local_write && (access.remote_write || !strict);
        let len = self.check(into, self.facts.read_slices, allowed)?;
        self.post(work, Kind::Read { from }, (Local::Slices(into.to_vec()), len))
    }

    fn send(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.supports(immediate)?;
        let local = self.source(from)?;
        self.message(local.1)?;
        self.post(work, Kind::Send { immediate }, local)
    }

    fn fetch_add(&mut self, work: Work, into: Slice, at: RemoteRange, add: u64) -> Result<(), PostError> {
        self.change(work, into, Kind::Add { at, add }, at)
    }

    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: RemoteRange,
        expected: u64,
        new: u64,
    ) -> Result<(), PostError> {
        self.change(work, into, Kind::Swap { at, expected, new }, at)
    }

    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError> {
        self.check(into, self.facts.slices, |access| access.local_write)?;
        let receive = Receive { id, slices: into.to_vec() };
        let mut world = self.world.borrow_mut();
        let ReceiveQueue::Of(connection) = queue else {
            let depth = self.facts.shared_receive_depth;
            let node = &mut world.nodes[self.node];
            return match node.receiving {
                _ if depth == 0 => Err(PostError::Unsupported),
                used if used >= depth => Err(PostError::QueueFull),
                used => {
                    node.receiving = used + 1;
                    node.shared.push_back(receive);
                    Ok(())
                }
            };
        };
        let (link, side) = world.find(self.node, connection).ok_or(PostError::NotReady)?;
        let end = &mut world.links[link].ends[side];
        if matches!(end.state, ConnectionState::Lost | ConnectionState::Gone) || end.shared {
            return Err(PostError::NotReady);
        }
        if end.receiving >= self.facts.receive_depth {
            return Err(PostError::QueueFull);
        }
        end.receiving += 1;
        end.receives.push_back(receive);
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        let mut world = self.world.borrow_mut();
        let mut count = 0;
        for to in into {
            let Some(completion) = world.completion(self.node) else { break };
            *to = completion;
            count += 1;
        }
        count
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        self.world.borrow_mut().event(self.node, now)
    }

    fn arm(&mut self) -> Armed {
        // Nothing wakes a process here: time passes only when a caller lets it pass.
        Armed::Poll
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}
