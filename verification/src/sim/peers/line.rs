//! Connections between processes, as sockets give them: packets in order, and an end that the other side sees after
//! them.

use std::collections::VecDeque;

use nemesia_core::peers::{CallRefusal, PeerAddress};

/// A process: its place, and the number of processes before it in that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProcessName {
    pub(super) index: usize,
    pub(super) life: usize,
}

/// A packet on a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinePacket {
    /// A call: the caller's address, its number for the called process, and the number of the call.
    Call(PeerAddress, u32, u64),
    /// The answer: the number of the called process for the caller, and of its calls.
    Answer(u32, u64),
    Confirmation,
    Refusal(CallRefusal),
    /// A message, from one process to another, with the number by which the receiver knows the sender.
    Data {
        from: ProcessName,
        to: ProcessName,
        number: u32,
    },
    /// The sender leaves, or disconnects.
    Bye,
}

/// The two ends of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

/// A line from a caller to the process that it has called.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) caller: ProcessName,
    pub(super) called: ProcessName,
    /// Whether the called process has accepted it.
    pub(super) accepted: bool,
    /// The packets for each side.
    packets: [VecDeque<LinePacket>; 2],
    /// Which sides have closed.
    closed: [bool; 2],
}

impl Line {
    pub(super) fn new(caller: ProcessName, called: ProcessName) -> Self {
        let packets = [VecDeque::new(), VecDeque::new()];
        Self { caller, called, accepted: false, packets, closed: [false; 2] }
    }

    /// Sends a packet to the other side. It is lost if that side has closed.
    pub(super) fn send(&mut self, from: Side, packet: LinePacket) {
        let to = 1 - from as usize;
        if !self.closed[to] {
            self.packets[to].push_back(packet);
        }
    }

    pub(super) fn receive(&mut self, side: Side) -> Option<LinePacket> {
        self.packets[side as usize].pop_front()
    }

    /// Closes one side. Packets for it are lost.
    pub(super) fn close(&mut self, side: Side) {
        self.closed[side as usize] = true;
        self.packets[side as usize].clear();
    }

    /// Closes one side for good, unless a packet for it is there or the other side has closed: a packet that the other
    /// side sends afterwards is lost, and the other side can see that. Returns whether it has closed.
    pub(super) fn give_up(&mut self, side: Side) -> bool {
        let is_idle = self.is_open() && self.packets[side as usize].is_empty();
        if is_idle {
            self.close(side);
        }
        is_idle
    }

    /// Returns whether the other side of this one has closed.
    pub(super) fn is_lost(&self, side: Side) -> bool {
        self.closed[1 - side as usize]
    }

    /// Returns whether this side has read all packets, and none will come.
    pub(super) fn has_ended(&self, side: Side) -> bool {
        self.closed[1 - side as usize] && self.packets[side as usize].is_empty()
    }

    /// Returns whether no side has closed.
    pub(super) fn is_open(&self) -> bool {
        self.closed == [false; 2]
    }

    pub(super) fn has_packets(&self) -> bool {
        self.packets.iter().any(|packets| !packets.is_empty())
    }
}
