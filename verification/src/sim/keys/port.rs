//! A memory port whose connections an adversary makes: it sees, keeps, changes and invents all private data.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    MemoryKey, MemoryPort, Offer, PortRegion, PostError, Private, ReceiveQueue, RegionAccess, RegisterError,
    RemoteRange, Slice, Work, WorkError, WorkOutcome,
};
use nemesia_verification::rdma::Conditions;

/// What a process does on its port, for the adversary.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// It requests a connection with the process at this place.
    Calls { connection: Connection, to: usize, said: Private },
    /// It accepts a request.
    Accepts { connection: Connection, said: Private },
    /// It refuses a request.
    Refuses { connection: Connection, said: Private },
    /// It closes a connection.
    Closes { connection: Connection },
}

/// What the port and the adversary share.
#[derive(Debug, Default)]
pub(super) struct AdversaryDesk {
    pub(super) deeds: VecDeque<Deed>,
    pub(super) events: VecDeque<Event>,
    done: VecDeque<Completion>,
    posted: HashMap<Connection, Vec<u64>>,
    closed: Vec<Connection>,
    connections: u32,
}

impl AdversaryDesk {
    /// Returns a new connection.
    pub(super) fn connection(&mut self) -> Connection {
        self.connections += 1;
        Connection { index: self.connections, generation: 1 }
    }

    /// Flushes the receives of a connection that has ended.
    pub(super) fn flush(&mut self, connection: Connection) {
        let outcome = WorkOutcome::Failed(WorkError::Flushed);
        let posted = self.posted.remove(&connection).unwrap_or_default();
        self.done.extend(posted.into_iter().map(|id| Completion { id, connection, outcome }));
    }
}

/// The port of one process.
#[derive(Debug)]
pub(super) struct AdversaryPort {
    pub(super) desk: Rc<RefCell<AdversaryDesk>>,
    place: usize,
    facts: Facts,
}

impl AdversaryPort {
    pub(super) fn new(place: usize) -> Self {
        let facts = Facts { connections: 1 << 20, inline_bytes: 64, ..Conditions::INFINIBAND.facts };
        Self { desk: Rc::default(), place, facts }
    }
}

// SAFETY: it never uses the memory that it was lent.
#[allow(unsafe_code, reason = "a port has obligations")]
unsafe impl MemoryPort for AdversaryPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, _: LentMemory, _: RegionAccess) -> Result<PortRegion, RegisterError> {
        Ok(PortRegion { index: 0, generation: 1 })
    }

    fn deregister(&mut self, _: PortRegion) -> Result<(), RegisterError> {
        Ok(())
    }

    fn key(&self, _: PortRegion) -> Option<MemoryKey> {
        None
    }

    fn address(&self) -> Option<Address> {
        Address::new(&[self.place as u8])
    }

    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        let to = to.bytes().first().copied().ok_or(ConnectError::Address)?.into();
        let mut desk = self.desk.borrow_mut();
        let connection = desk.connection();
        desk.deeds.push_back(Deed::Calls { connection, to, said: offer.private });
        Ok(connection)
    }

    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError> {
        let deed = Deed::Accepts { connection, said: offer.private };
        self.desk.borrow_mut().deeds.push_back(deed);
        Ok(())
    }

    fn refuse(&mut self, connection: Connection, said: Private) -> Result<(), ConnectError> {
        self.desk.borrow_mut().deeds.push_back(Deed::Refuses { connection, said });
        Ok(())
    }

    fn close(&mut self, connection: Connection) {
        let mut desk = self.desk.borrow_mut();
        if !desk.closed.contains(&connection) {
            desk.closed.push(connection);
            desk.flush(connection);
            desk.deeds.push_back(Deed::Closes { connection });
        }
    }

    fn state(&self, _: Connection) -> ConnectionState {
        ConnectionState::Ready
    }

    fn write(
        &mut self,
        _: Work,
        _: CompletionSource<'_>,
        _: RemoteRange,
        _: Option<u32>,
    ) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn read(&mut self, _: Work, _: &[Slice], _: RemoteRange) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn send(&mut self, work: Work, _: CompletionSource<'_>, _: Option<u32>) -> Result<(), PostError> {
        let Work { id, connection, .. } = work;
        let completion = Completion { id, connection, outcome: WorkOutcome::Done };
        self.desk.borrow_mut().done.push_back(completion);
        Ok(())
    }

    fn fetch_add(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn compare_swap(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn receive(&mut self, queue: ReceiveQueue, id: u64, _: &[Slice]) -> Result<(), PostError> {
        let ReceiveQueue::Of(connection) = queue else { return Err(PostError::Unsupported) };
        self.desk.borrow_mut().posted.entry(connection).or_default().push(id);
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        match (into.first_mut(), self.desk.borrow_mut().done.pop_front()) {
            (Some(to), Some(completion)) => {
                *to = completion;
                1
            }
            _ => 0,
        }
    }

    fn poll_event(&mut self, _: Duration) -> Option<Event> {
        let mut desk = self.desk.borrow_mut();
        if let Some(event) = desk.events.pop_front() {
            return Some(event);
        }
        let at = desk.closed.iter().position(|closed| desk.done.iter().all(|it| it.connection != *closed))?;
        Some(Event::Closed { connection: desk.closed.swap_remove(at) })
    }

    fn arm(&mut self) -> Armed {
        Armed::Poll
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}
