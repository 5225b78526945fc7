//! The protocol with one copy: the receiver reads the sender's memory piece by piece and then sends
//! FIN. This is paper 1's zero-copy design with the kernel's cross-memory read instead of the RDMA
//! read. From a configurable size on, an otherwise idle sender copies a part
//! ([`crate::shared::share`]).
#![forbid(unsafe_code)]

use super::{Stream, Transfer};
#[cfg(nemesia_blunder)]
use crate::blunder::{Blunder, made};
use crate::engine::peer::{Help, Queue};
use crate::engine::request::{How, Incoming, Message, State};
use crate::engine::{Engine, Storage, Tuning};
use crate::payload::Scatter;
use crate::port::{MessagePort, Part, PeerFault, PeerId, Pulled, Share, Turn};

/// The protocol.
#[derive(Debug)]
pub(in crate::engine) enum Pull {}

/// Returns whether the message is large enough for a sender-assisted copy, and contiguous. Its
/// sender then looks for a shared copy.
pub(in crate::engine) fn may_be_shared(message: &Message, share_bytes: u64) -> bool {
    message.buf.len() as u64 >= share_bytes && message.buf.address() != 0
}

/// Returns whether the receiver's buffer is contiguous, or consists of few enough runs. Otherwise
/// the bytes are streamed.
pub(in crate::engine) fn is_worth_pulling(incoming: &Incoming, buf: &mut Scatter, run_bytes: u64) -> bool {
    let wanted = incoming.wanted();
    if buf.address() != 0 {
        return true;
    }
    let runs = buf.runs(incoming.left.start as usize, wanted as usize) as u64;
    runs.saturating_mul(run_bytes) <= wanted
}

impl<P: MessagePort, S: Storage> Transfer<P, S> for Pull {
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32) {
        engine.enqueue(from, Queue::Pulling, index);
        engine.work_for(from);
    }

    /// Reads the next piece of the first message in the queue. Reading one message at a time has
    /// the same throughput as reading all alternately, and completes the first one earlier.
    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let Engine { requests, port, tuning, .. } = engine;
        let State::Receiving { incoming, buf } = &mut requests.get_mut(index).0 else { return Ok(false) };
        match next_turn(port, incoming, buf, tuning) {
            Turn::Wait => return Ok(false),
            Turn::Copy(part) => copy(port, incoming, buf, part),
            Turn::Done if matches!(incoming.how, How::Broken | How::Lost) => {
                // The sender streams the rest.
                engine.dequeue(peer, Queue::Pulling, index);
                engine.peer(peer).tally.fallbacks += 1;
                if let Some(choice) = engine.choices.of(peer) {
                    choice.spoil();
                }
                Stream::start_receive(engine, peer, index);
                return Ok(true);
            }
            Turn::Done => {}
        }
        if incoming.wanted() == 0 {
            engine.dequeue(peer, Queue::Pulling, index);
            Self::done_receive(engine, index);
        }
        Ok(true)
    }

    fn done_receive(engine: &mut Engine<P, S>, index: u32) {
        let State::Receiving { incoming, buf } = &engine.requests.get(index).0 else { return };
        let Incoming { from, rts, how, measured, .. } = *incoming;
        let bytes = rts.total.min(buf.len() as u64) as usize;
        engine.has_moved(from, measured, bytes as u64);
        let tally = &mut engine.peer(from).tally;
        let by = if how == How::Pull { &mut tally.pulled } else { &mut tally.shared };
        by.add(bytes);
        engine.finish(index);
    }
}

fn next_turn<P: MessagePort>(
    port: &mut P,
    incoming: &mut Incoming,
    buf: &mut Scatter,
    tuning: &Tuning,
) -> Turn {
    let Incoming { from, rts, left, .. } = *incoming;
    if incoming.how == How::Pull && incoming.wanted() >= tuning.share_bytes && buf.address() != 0 {
        let share = Share { request: rts.sender, address: buf.address(), start: left.start, end: left.end };
        if port.open_share(from, &share) {
            incoming.how = How::Share;
        }
    }
    match incoming.how {
        How::Pull => {
            let end = left.start.saturating_add(tuning.pull_bytes.max(1));
            Turn::Copy(Part { start: left.start, end: left.end.min(end) })
        }
        How::Share => {
            let turn = port.next_turn(from);
            if turn == Turn::Done {
                incoming.left.start = left.end;
            }
            turn
        }
        How::Broken => {
            let turn = port.next_turn(from);
            if let Turn::Copy(part) = turn {
                // The sender will not write this part. No part is assigned twice, and all bytes
                // behind this part have arrived.
                incoming.left.end = part.end;
            }
            turn
        }
        How::Lost => Turn::Done,
        How::Stream => Turn::Wait,
    }
}

fn copy<P: MessagePort>(port: &mut P, incoming: &mut Incoming, buf: &mut Scatter, part: Part) {
    if incoming.how == How::Broken {
        return;
    }
    let mut pulled = Pulled::Done;
    buf.each(part.start as usize, (part.end - part.start) as usize, |done, to| {
        if pulled == Pulled::Done {
            pulled = match incoming.rts.address.checked_add(part.start + done as u64) {
                Some(address) => port.pull(incoming.from, address, to),
                None => Pulled::Unreadable,
            };
        }
    });
    if pulled == Pulled::Done {
        // A shared message is complete when both processes have copied their parts.
        incoming.left.start = if incoming.how == How::Share { part.start } else { part.end };
        return;
    }
    incoming.left.start = part.start;
    #[cfg(nemesia_blunder)]
    if made(Blunder::SkipPart) {
        incoming.left.start = part.end;
    }
    if incoming.how == How::Share {
        port.close_share(incoming.from);
        incoming.left.end = part.end;
        incoming.how = How::Broken;
    } else {
        incoming.how = How::Lost;
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Stops all sender-assisted copies before the engine is dropped and its buffers are returned.
    /// Returns `false` while a peer may still write into a buffer. The transfers are lost in either
    /// case.
    pub fn end_shares(&mut self) -> bool {
        // `filter` and `count` visit every peer, also after one that is not done.
        (0..self.size()).filter(|&peer| !self.end_share(peer)).count() == 0
    }

    fn end_share(&mut self, peer: PeerId) -> bool {
        let Some(index) = self.first(peer, Queue::Pulling) else { return true };
        let State::Receiving { incoming, .. } = &self.requests.get(index).0 else { return true };
        if !matches!(incoming.how, How::Share | How::Broken) {
            return true;
        }
        self.port.close_share(peer);
        loop {
            match self.port.next_turn(peer) {
                Turn::Copy(_) => {}
                Turn::Wait => return false,
                Turn::Done => return true,
            }
        }
    }

    /// Sender: copies the next part of a message for its receiver (sender-assisted copy). Returns
    /// `false` if there is no part.
    pub(in crate::engine) fn help(&mut self, peer: PeerId) -> bool {
        let (help, part) = match self.peer(peer).help.take() {
            Some(help) => (help, self.port.next_part(peer)),
            None => {
                let Some(share) = self.port.find_share(peer) else { return false };
                let Some((_, message)) = self.offered(peer, share.request) else { return false };
                if share.end > message.buf.len() as u64 {
                    return false;
                }
                let help = Help { request: share.request, address: share.address };
                (help, self.port.join_share(peer, share.end))
            }
        };
        let Some(part) = part else { return false };
        // The receiver may have sent FIN meanwhile. The buffer then belongs to the caller again.
        let message = self.offered(peer, help.request).map(|(_, message)| message);
        let (start, len) = (part.start as usize, (part.end - part.start) as usize);
        let bytes = message.as_ref().and_then(|message| message.buf.whole(start, len));
        let pushed = match (bytes, help.address.checked_add(part.start)) {
            (Some(bytes), Some(address)) if bytes.len() == len => self.port.push(peer, address, bytes),
            _ => false,
        };
        self.port.end_part(peer, part, pushed);
        if pushed {
            self.peer(peer).tally.pushed.add(len);
        }
        self.peer(peer).help = pushed.then_some(help);
        pushed
    }
}
