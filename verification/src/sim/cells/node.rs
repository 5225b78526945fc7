//! One process: the port that ships, and what a layer above does for it.

use std::ptr::NonNull;

use nemesia_core::payload::{BorrowedRecv, ReceiveRange, RecvBuf};
use nemesia_core::port::{
    AccessError, Accessed, Arrival, PacketPieces, PacketPort as _, Polled, RemoteAccess as _, ShortPath as _,
};
use nemesia_core::shared::port::PacketPlace;
use nemesia_core::wire::{Envelope, Kind};

use super::memory::{BUFFER, CellsPort, OFFERED};
use super::{CellsDesk, SideState, byte_of};
use crate::rng::Rng;
use crate::segments::{ConnectionSide, SegmentSizes};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

/// Cells of which some remain for the next peer while [`MOST_KEEPERS`] peers return none.
const MANY_CELLS: usize = 8;
const MOST_KEEPERS: usize = 3;

/// What a number of a process stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberUse {
    Free,
    /// A connection: its side of this process.
    Chosen(ConnectionSide),
    /// A connection that this process has ended: its side of this process.
    Ending(ConnectionSide),
}

/// A packet that was found, and is being read.
#[derive(Clone, Copy, Debug)]
struct InHand {
    arrival: Arrival<PacketPlace>,
    /// The bytes that were read so far.
    read: usize,
}

/// A process.
#[derive(Debug)]
pub(super) struct CellsNode<'a> {
    pub(super) process: usize,
    port: CellsPort<'a>,
    numbers: Vec<NumberUse>,
    /// The highest number of a connection so far.
    highest: Option<u32>,
    in_hand: Option<InHand>,
}

impl<'a> CellsNode<'a> {
    /// Starts a process. `None` if there is no memory for another one.
    pub(super) fn new(desk: &mut CellsDesk<'a>) -> Option<Self> {
        let process = desk.lives.len();
        if process == desk.memory.segments.processes() {
            return None;
        }
        let port = desk.memory.port(process)?;
        desk.lives.push(true);
        let numbers = vec![NumberUse::Free; desk.memory.segments.sizes.numbers];
        Some(Self { process, port, numbers, highest: None, in_hand: None })
    }

    /// Returns some free number.
    pub(super) fn free_number(&self, rng: &mut Rng) -> Option<u32> {
        let free: Vec<_> =
            (0..self.numbers.len()).filter(|at| self.numbers[*at] == NumberUse::Free).collect();
        (!free.is_empty()).then(|| rng.pick(&free) as u32)
    }

    /// Uses the number that a side of a connection has for its peer.
    pub(super) fn choose(&mut self, desk: &mut CellsDesk<'a>, (connection, side): ConnectionSide) {
        let number = desk.connections[connection].sides[side].number;
        self.numbers[number as usize] = NumberUse::Chosen((connection, side));
        if self.highest.is_some_and(|highest| number <= highest) {
            desk.tally.count(Event::CellNumberAgain);
        }
        self.highest = self.highest.max(Some(number));
        desk.note(|| format!("process {}: number {number} is connection {connection}", self.process));
    }

    fn some(&self, rng: &mut Rng, is_it: impl Fn(ConnectionSide) -> bool) -> Option<(u32, ConnectionSide)> {
        let uses = self.numbers.iter().enumerate().filter_map(|(number, it)| match *it {
            NumberUse::Chosen(side) if is_it(side) => Some((number as u32, side)),
            _ => None,
        });
        let uses: Vec<_> = uses.collect();
        (!uses.is_empty()).then(|| rng.pick(&uses))
    }

    /// Opens the link of some connection.
    pub(super) fn open_some(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let chosen = self.some(rng, |side| state_of(desk, side) == SideState::Chosen);
        chosen.map_or(Ok(()), |(number, side)| self.open(desk, number, side))
    }

    fn open(&mut self, desk: &mut CellsDesk<'a>, number: u32, (connection, side): ConnectionSide) -> Check {
        if self.in_hand.is_some() {
            return Ok(());
        }
        let other = desk.connections[connection].sides[1 - side];
        let link = desk.memory.segments.link((connection, side), other.process, other.number);
        ensure!(self.port.open(number, link), "process {}: number {number} is not free", self.process);
        desk.connections[connection].sides[side].state = SideState::Open;
        desk.note(|| format!("process {}: number {number} is open", self.process));
        Ok(())
    }

    /// Sends a message to some peer.
    pub(super) fn send_some(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let open = self.some(rng, |side| state_of(desk, side) == SideState::Open);
        let Some((number, (connection, side))) = open else { return Ok(()) };
        let SegmentSizes { cell_bytes, .. } = desk.memory.segments.sizes;
        let most = if rng.one_in(3) { desk.memory.segments.sizes.small() } else { cell_bytes };
        let len = 1 + rng.below(most);
        let message = desk.connections[connection].sides[side].sent + 1;
        let bytes: Vec<_> = (0..len).map(|at| byte_of((connection, side), message, at)).collect();
        let envelope = Envelope { kind: Kind::Eager, context: 1, tag: message, total: len as u64 };
        let is_sent = match rng.one_in(2).then(|| self.port.send_copy(number, 1, message, &bytes)).flatten() {
            Some(settles) => {
                if settles {
                    self.port.settle_send(number);
                }
                true
            }
            None => self
                .port
                .send(number, &envelope, PacketPieces::Whole(&bytes))
                .map_err(|fault| Violation(format!("process {}: {fault:?}", self.process)))?,
        };
        if is_sent {
            desk.connections[connection].sides[side].sent = message;
            desk.tally.count(Event::CellMessage);
            desk.note(|| format!("process {} sends {message} of connection {connection}", self.process));
        } else {
            desk.tally.count(Event::CellsFull);
            let (cells, peers) = (desk.memory.segments.sizes.cells, self.open_links(desk));
            ensure!(
                message > 1 || cells < MANY_CELLS || peers > MOST_KEEPERS + 1,
                "process {}: no cell of {cells} is free for the first message to one of {peers} peers",
                self.process
            );
        }
        Ok(())
    }

    fn open_links(&self, desk: &CellsDesk<'a>) -> usize {
        let is_open = |it: &&NumberUse| match it {
            NumberUse::Chosen(side) => state_of(desk, *side) == SideState::Open,
            _ => false,
        };
        self.numbers.iter().filter(is_open).count()
    }

    /// Reads the buffer that some peer has offered.
    pub(super) fn pull_some(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let open = self.some(rng, |side| state_of(desk, side) == SideState::Open);
        let Some((number, (connection, side))) = open else { return Ok(()) };
        let mut room = [0; BUFFER];
        // SAFETY: the room outlives the access, which ends before `get` returns.
        let to = unsafe { ReceiveRange::from_raw(NonNull::from(&mut room).cast(), BUFFER) };
        let accessed = self.port.get(number, &desk.memory.buffer(connection, 1 - side), 0, to, 0);
        let is_refused = accessed == Accessed::Failed(AccessError::Refused);
        ensure!(
            is_refused || accessed == Accessed::Done && u64::from_le_bytes(room) == OFFERED,
            "process {} reads {room:?} of a buffer of connection {connection}: {accessed:?}",
            self.process
        );
        let is_left = desk.is_left((connection, side));
        ensure!(!is_refused || is_left, "process {}: connection {connection} goes on", self.process);
        desk.tally.count(if is_refused { Event::CellBufferLate } else { Event::CellBuffer });
        Ok(())
    }

    /// Disconnects from some peer that has not disconnected.
    pub(super) fn disconnect_some(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let open = self.some(rng, |side| state_of(desk, side) == SideState::Open && !desk.is_left(side));
        open.map_or(Ok(()), |(number, side)| self.disconnect(desk, number, side))
    }

    fn disconnect(&mut self, desk: &mut CellsDesk<'a>, number: u32, side: ConnectionSide) -> Check {
        if self.in_hand.is_some() {
            return Ok(());
        }
        self.port.leave_cells(number);
        self.close(desk, number, side);
        if self.port.has_left_cells(number) {
            desk.tally.count(Event::CellsLeft);
        }
        Ok(())
    }

    fn close(&mut self, desk: &mut CellsDesk<'a>, number: u32, (connection, side): ConnectionSide) {
        self.port.close(number);
        desk.memory.reuse(connection, side);
        desk.connections[connection].sides[side].state = SideState::Closed;
        self.numbers[number as usize] = NumberUse::Ending((connection, side));
        desk.note(|| format!("process {} ends connection {connection}", self.process));
    }

    /// Notices that some peer has disconnected or died, receives what is left, and ends the connection.
    pub(super) fn notice_some(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let left = self.some(rng, |side| desk.is_left(side));
        left.map_or(Ok(()), |(number, side)| self.notice(desk, number, side))
    }

    fn notice(&mut self, desk: &mut CellsDesk<'a>, number: u32, side: ConnectionSide) -> Check {
        if self.in_hand.is_some() {
            return Ok(());
        }
        if state_of(desk, side) == SideState::Chosen {
            self.open(desk, number, side)?;
        }
        while self.receive_from(desk, number, side)? {}
        if state_of(desk, side) == SideState::Open {
            let (connection, at) = side;
            let (own, other) =
                (desk.connections[connection].sides[at], desk.connections[connection].sides[1 - at]);
            let is_withdrawn = desk.memory.segments.end_mark((connection, 1 - at)).is_withdrawn();
            ensure!(
                is_withdrawn || own.received == other.sent,
                "process {} has received {} messages of connection {connection}, of {}, which were not taken back",
                self.process,
                own.received,
                other.sent
            );
            self.close(desk, number, side);
        }
        Ok(())
    }

    /// Receives the next message of a peer. Returns whether there was one.
    fn receive_from(
        &mut self,
        desk: &mut CellsDesk<'a>,
        number: u32,
        side: ConnectionSide,
    ) -> Result<bool, Violation> {
        if state_of(desk, side) != SideState::Open {
            return Ok(false);
        }
        match self.port.poll_peer(number) {
            Polled::Idle => Ok(false),
            Polled::Packet(arrival) => {
                self.in_hand = Some(InHand { arrival, read: 0 });
                self.read_on(desk, usize::MAX)?;
                Ok(true)
            }
            Polled::Fault(fault) => Err(Violation(format!("process {}: {fault:?}", self.process))),
        }
    }

    /// Receives, or goes on with the packet that is being read.
    pub(super) fn receive(&mut self, desk: &mut CellsDesk<'a>, rng: &mut Rng) -> Check {
        let part = if rng.one_in(2) { usize::MAX } else { rng.below(200) };
        if self.in_hand.is_some() {
            return self.read_on(desk, part);
        }
        if rng.one_in(3) && self.take(desk)? {
            return Ok(());
        }
        match self.port.poll() {
            Polled::Idle => Ok(()),
            Polled::Packet(arrival) => {
                self.in_hand = Some(InHand { arrival, read: 0 });
                if rng.one_in(3) { Ok(()) } else { self.read_on(desk, part) }
            }
            Polled::Fault(fault) => Err(Violation(format!("process {}: {fault:?}", self.process))),
        }
    }

    /// Takes a message in one step, if there is one where the port looks first.
    fn take(&mut self, desk: &mut CellsDesk<'a>) -> Result<bool, Violation> {
        let mut room = vec![0; desk.memory.segments.sizes.cell_bytes];
        // SAFETY: the room lives longer than the buffer, and is used again only after the last use of the buffer.
        let mut buf = unsafe { RecvBuf::from_raw(room.as_mut_ptr(), room.len()) };
        let Some((peer, envelope)) = self.port.take(|_, _| true, &mut BorrowedRecv::new(&mut buf)) else {
            return Ok(false);
        };
        self.check_message(desk, peer, &envelope, &room)?;
        self.count(desk, peer)?;
        Ok(true)
    }

    /// Reads up to `most` further bytes of the packet in hand.
    fn read_on(&mut self, desk: &mut CellsDesk<'a>, most: usize) -> Check {
        let Some(InHand { arrival, read }) = self.in_hand else { return Ok(()) };
        let (connection, side) = self.side_of(arrival.peer)?;
        let len = most.min(arrival.len - read);
        let mut bytes = vec![0; len];
        if !self.port.read(&arrival, read, &mut bytes) {
            desk.tally.count(Event::CellLate);
            ensure!(
                desk.is_left((connection, side)),
                "process {}: a packet of connection {connection} was taken back, which goes on",
                self.process
            );
            self.in_hand = None;
            self.port.release(arrival);
            self.close(desk, arrival.peer, (connection, side));
            return Ok(());
        }
        let sequence = arrival.envelope.tag;
        let is_whole =
            (read..).zip(&bytes).all(|(at, byte)| *byte == byte_of((connection, 1 - side), sequence, at));
        ensure!(
            is_whole,
            "process {}: message {sequence} of connection {connection} has other bytes",
            self.process
        );
        if read + len < arrival.len {
            self.in_hand = Some(InHand { arrival, read: read + len });
            return Ok(());
        }
        self.in_hand = None;
        self.check_message(desk, arrival.peer, &arrival.envelope, &[])?;
        self.port.release(arrival);
        self.count(desk, arrival.peer)
    }

    fn side_of(&self, peer: u32) -> Result<ConnectionSide, Violation> {
        match self.numbers.get(peer as usize) {
            Some(NumberUse::Chosen(side)) => Ok(*side),
            other => {
                Err(Violation(format!("process {}: a packet from number {peer}: {other:?}", self.process)))
            }
        }
    }

    /// Checks that a message is the next one of its connection, and that these bytes are its.
    fn check_message(&self, desk: &CellsDesk<'a>, peer: u32, envelope: &Envelope, bytes: &[u8]) -> Check {
        let (connection, side) = self.side_of(peer)?;
        let due = desk.connections[connection].sides[side].received + 1;
        let (sent, tag) = (desk.connections[connection].sides[1 - side].sent, envelope.tag);
        ensure!(
            tag == due && due <= sent,
            "process {}: message {tag} of connection {connection}, which has sent {sent}, comes instead of {due}",
            self.process
        );
        let bytes = bytes.iter().take(envelope.total as usize).enumerate();
        let is_whole = bytes.into_iter().all(|(at, byte)| *byte == byte_of((connection, 1 - side), tag, at));
        ensure!(
            is_whole,
            "process {}: message {tag} of connection {connection} has other bytes",
            self.process
        );
        Ok(())
    }

    fn count(&self, desk: &mut CellsDesk<'a>, peer: u32) -> Check {
        let (connection, side) = self.side_of(peer)?;
        desk.connections[connection].sides[side].received += 1;
        desk.note(|| format!("process {} has received a message of connection {connection}", self.process));
        Ok(())
    }

    /// Frees the numbers of connections that have ended, unless cells are left to their peers. Takes the cells back
    /// now and then, as when their time is over; without `rng`, only from processes that are dead.
    pub(super) fn free_numbers(&mut self, desk: &mut CellsDesk<'a>, mut rng: Option<&mut Rng>) -> Check {
        for number in 0..self.numbers.len() as u32 {
            let NumberUse::Ending((connection, side)) = self.numbers[number as usize] else { continue };
            if self.port.has_left_cells(number) {
                self.port.collect_left_cells();
                let its_process = desk.connections[connection].sides[1 - side].process;
                let is_over = match &mut rng {
                    Some(rng) => rng.one_in(6),
                    None => !desk.lives[its_process],
                };
                if is_over && self.port.has_left_cells(number) {
                    desk.tally.count(Event::CellsTaken);
                    desk.note(|| format!("process {} takes the cells of number {number} back", self.process));
                    self.port.take_back_cells(number);
                }
            }
            if !self.port.is_open(number) {
                self.numbers[number as usize] = NumberUse::Free;
            }
        }
        Ok(())
    }

    /// Receives everything that has arrived.
    pub(super) fn receive_all(&mut self, desk: &mut CellsDesk<'a>) -> Check {
        self.read_on(desk, usize::MAX)?;
        for number in 0..self.numbers.len() as u32 {
            let NumberUse::Chosen(side) = self.numbers[number as usize] else { continue };
            if state_of(desk, side) == SideState::Chosen {
                self.open(desk, number, side)?;
            }
            while self.receive_from(desk, number, side)? {}
        }
        Ok(())
    }

    pub(super) fn disconnect_all(&mut self, desk: &mut CellsDesk<'a>) -> Check {
        for number in 0..self.numbers.len() as u32 {
            if let NumberUse::Chosen(side) = self.numbers[number as usize]
                && !desk.is_left(side)
            {
                self.disconnect(desk, number, side)?;
            }
        }
        Ok(())
    }

    pub(super) fn notice_all(&mut self, desk: &mut CellsDesk<'a>) -> Check {
        for number in 0..self.numbers.len() as u32 {
            if let NumberUse::Chosen(side) = self.numbers[number as usize] {
                self.notice(desk, number, side)?;
            }
        }
        Ok(())
    }

    /// Checks that all numbers and cells are free.
    pub(super) fn check_rest(&self, sizes: SegmentSizes) -> Check {
        let (process, free) = (self.process, self.port.free_cells());
        ensure!(free == sizes.cells, "process {process} has {free} free cells of {}", sizes.cells);
        ensure!(!self.port.inbox_damaged(), "process {process} takes its receive queue for damaged");
        let used = self.numbers.iter().position(|it| *it != NumberUse::Free);
        ensure!(used.is_none(), "process {process}: number {used:?} is not free");
        Ok(())
    }
}

fn state_of(desk: &CellsDesk<'_>, (connection, side): ConnectionSide) -> SideState {
    desk.connections[connection].sides[side].state
}
