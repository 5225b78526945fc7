//! The RTS packet, and the answers to it.
#![forbid(unsafe_code)]

use super::select::MessageForm;
use super::{Pull, Stream, Transfer, is_worth_pulling};
use crate::engine::peer::PeerQueue;
use crate::engine::request::{SendMessage, State, outcome, with_immediate};
use crate::engine::state::{FIRST_BYTES, Incoming, Protocol, TransferPhase};
use crate::engine::unload::read;
use crate::engine::{Engine, RequestId, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{Arrival, Exposure, PacketPieces, Part, PeerFault, PeerId, Port, PortFault};
use crate::store::cost;
use crate::wire::listed::MOST_RUNS;
use crate::wire::rendezvous::{
    Cts, Descriptor, FIN_BYTES, IMMEDIATE_BYTES, MOST_CTS_BYTES, MOST_RTS_BYTES, RTS_BYTES, Rts, UNASKED,
};
use crate::wire::{Envelope, Kind};

const fn control(kind: Kind, len: usize) -> Envelope {
    Envelope { kind, context: 0, tag: 0, total: len as u64 }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Sends the RTS of a pending message. Returns `false` if there is no space or credit for it.
    pub(super) fn offer(&mut self, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        let State::Sending { message, .. } = &self.requests.get(index).0 else { return Ok(false) };
        let message = message.alias();
        let SendMessage { ref buf, synchronous, immediate, .. } = message;
        #[cfg(nemesia_injected_fault)]
        let immediate = immediate.filter(|_| !injected(InjectedFault::DropImmediate));
        // The RTS carries the first bytes where that saves time: a short synchronous message then arrives
        // whole, and a streamed message has begun. A receiver that pulls must read the rest anyway, and the
        // RTS would take five cache lines instead of one. With data in the RTS, pulled messages of 12, 16, 32
        // and 64 KiB took 19, 17, 17 and 30 % longer (medians of 5 interleaved rounds of
        // `nemesia perf --tests latency`; no round was faster).
        let is_whole = synchronous && buf.len() <= FIRST_BYTES;
        let along = is_whole || !self.port.can_get(to);
        let last_run = buf.last_run(FIRST_BYTES);
        let origin = last_run.as_ref().map_or(0, |(before, _)| *before);
        let first = if along { FIRST_BYTES.min(buf.len()) } else { origin };
        if !self.has_credit(to, cost(RTS_BYTES + IMMEDIATE_BYTES)) {
            self.peer(to).tally.hold();
            return Ok(false);
        }
        let (descriptor, exposure) = match last_run {
            Some((_, range)) if first < buf.len() => self.port.expose(to, range),
            Some(_) => (Descriptor::NONE, None),
            None if first == buf.len() => (Descriptor::NONE, None),
            // Short runs cost the kernel more than a copy into cells.
            None => buf
                .runs(MOST_RUNS, self.tuning.run_bytes as usize)
                .map_or((Descriptor::NONE, None), |runs| self.port.expose_list(to, &runs)),
        };
        let rts = Rts {
            total: buf.len() as u64,
            sender: self.id(index).to_bits(),
            descriptor,
            origin: if descriptor.is_none() { 0 } else { origin as u8 },
            protocol_number: self.selections.protocol_number(to, buf.len() as u64),
            immediate,
            is_unasked: false,
            lacks_credit: self.lacks_credit(to, &message),
        };
        let (rts, first) = self.fit_offer(to, rts, first);
        let (head, len) = (rts.bytes(), rts.bytes() + first);
        let mut packet = [0; MOST_RTS_BYTES + FIRST_BYTES];
        packet[..head].copy_from_slice(&rts.encode());
        buf.read(0, &mut packet[head..len]);
        let envelope = Envelope { total: len as u64, ..message.envelope(Kind::Rts) };
        let sent = self.port.send(to, &envelope, PacketPieces::Whole(&packet[..len]));
        if !matches!(sent, Ok(true)) {
            self.revoke(to, exposure);
        }
        let sent = sent?;
        if sent {
            let units = cost(len);
            let is_demoted = rts.lacks_credit && message.eager_len(self.most_eager(to)).is_some();
            let peer = self.peer(to);
            peer.allowance.spend(units);
            peer.tally.sent(Kind::Rts, len);
            peer.tally.is_held = false;
            peer.tally.demoted += u64::from(is_demoted);
            self.dequeue(to, PeerQueue::Pending, index);
            let exposure = exposure.or_else(|| {
                // The puts, if the receiver requests any, begin behind the first bytes.
                let range = message.buf.range_of(first, message.buf.len())?;
                self.port.prepare_put(to, range)
            });
            self.requests.get_mut(index).0 = State::Offered { to, message, exposure };
            self.enqueue(to, PeerQueue::Offered, index);
        }
        Ok(sent)
    }

    /// Returns whether a message would leave at once if there were credit for it.
    fn lacks_credit(&mut self, to: PeerId, message: &SendMessage) -> bool {
        let len = message.buf.len();
        let needed = message.eager_len(self.most_eager(to)).or_else(|| {
            let may_follow = !message.synchronous && len <= self.port.unasked_bytes(to);
            may_follow.then_some(RTS_BYTES + IMMEDIATE_BYTES + len)
        });
        needed.is_some_and(|needed| !self.has_credit(to, cost(needed)))
    }

    /// Returns the RTS and the number of first bytes for which there is credit. Without data and descriptor an RTS
    /// takes the smallest possible amount of credit, so it leaves as soon as any packet can.
    fn fit_offer(&mut self, to: PeerId, rts: Rts, first: usize) -> (Rts, usize) {
        // A long descriptor leaves less room in the smallest packets.
        let first = first.min(self.port.packet_bytes().saturating_sub(rts.bytes()));
        let is_described = first >= usize::from(rts.origin);
        if is_described && self.has_credit(to, cost(rts.bytes() + first)) {
            (rts, first)
        } else if rts.origin == 0 && self.has_credit(to, cost(rts.bytes())) {
            (rts, 0)
        } else {
            (Rts { descriptor: Descriptor::NONE, origin: 0, ..rts }, 0)
        }
    }

    /// Ends the exposure of a message's bytes.
    pub(in crate::engine) fn revoke(&mut self, to: PeerId, exposure: Option<Exposure>) {
        if let Some(exposure) = exposure {
            self.port.revoke(to, exposure);
        }
    }

    /// Returns this process's request that a peer names, if this peer received its RTS.
    pub(in crate::engine) fn offered(&self, peer: PeerId, bits: u64) -> Option<(u32, SendMessage)> {
        let id = RequestId::from_bits(bits);
        if !self.requests.is_live(id.index, id.generation) {
            return None;
        }
        match &self.requests.get(id.index).0 {
            State::Offered { to, message, .. } if *to == peer => Some((id.index, message.alias())),
            _ => None,
        }
    }

    /// Handles the packets CTS, `Data` and FIN.
    pub(in crate::engine) fn deliver_answer(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let peer = arrival.peer;
        let kind = arrival.envelope.kind;
        let fault = PortFault::Protocol { kind };
        match kind {
            Kind::Cts if arrival.len <= MOST_CTS_BYTES => {
                let mut bytes = [0; MOST_CTS_BYTES];
                let bytes = &mut bytes[..arrival.len];
                read(&self.port, arrival, 0, bytes)?;
                let cts = Cts::decode(bytes).ok_or(fault)?;
                let (index, message) = self.offered(peer, cts.sender).ok_or(fault)?;
                let total = message.buf.len() as u64;
                if cts.end > total {
                    return Err(fault);
                }
                Stream::start_send(self, peer, index, &cts);
                Ok(())
            }
            Kind::Fin if arrival.len == FIN_BYTES => {
                let mut bytes = [0; FIN_BYTES];
                read(&self.port, arrival, 0, &mut bytes)?;
                let sender = u64::from_le_bytes(bytes);
                if let Some(index) = self.unacknowledged(peer, sender) {
                    self.acknowledged(peer, index);
                    return Ok(());
                }
                let (index, _) = self.offered(peer, sender).ok_or(fault)?;
                self.dequeue(peer, PeerQueue::Offered, index);
                Pull::done_send(self, peer, index);
                Ok(())
            }
            Kind::Data if arrival.envelope.tag == UNASKED => self.take_unasked(arrival),
            Kind::Data => {
                let id = RequestId::from_bits(arrival.envelope.tag);
                if !self.requests.is_live(id.index, id.generation) {
                    return Err(fault);
                }
                Stream::handle_cookie(self, id.index, arrival)
            }
            _ => Err(fault),
        }
    }

    /// Starts the transfer for a receive that has matched an RTS. The bytes that came with the RTS are
    /// already in its buffer.
    pub(in crate::engine) fn start_transfer(&mut self, index: u32) {
        let run_bytes = self.tuning.run_bytes;
        let State::Receiving { incoming, buf } = &mut self.requests.get_mut(index).0 else { return };
        let Incoming { from, rts, .. } = *incoming;
        if incoming.wanted() == 0 {
            return self.finish(index);
        }
        let may_pull =
            self.port.is_accessible(from, &rts.descriptor) && is_worth_pulling(incoming, buf, run_bytes);
        let may_put = buf.address() != 0;
        let message = MessageForm {
            bytes: rts.total.min(buf.len() as u64),
            is_list: buf.address() == 0 || rts.origin > 0 || rts.descriptor.is_list(),
            offered: self.port.rendezvous(from),
        };
        let protocol = self.choose(from, index, message, &rts, (may_pull, may_put));
        if let State::Receiving { incoming, .. } = &mut self.requests.get_mut(index).0 {
            incoming.protocol = protocol;
        }
        match protocol {
            Protocol::Pull | Protocol::PullAlone => Pull::start_receive(self, from, index),
            Protocol::Put | Protocol::Stream => Stream::start_receive(self, from, index),
        }
    }

    /// Selects the protocol for a message that can be pulled or put, as given.
    fn choose(
        &mut self,
        from: PeerId,
        index: u32,
        message: MessageForm,
        rts: &Rts,
        (may_pull, may_put): (bool, bool),
    ) -> Protocol {
        let offered = message.offered;
        let (may_pull, may_put) = (may_pull, may_put && offered.put);
        let usual = match (may_pull, may_put) {
            (true, _) => Protocol::Pull,
            (false, true) => Protocol::Put,
            (false, false) => Protocol::Stream,
        };
        if may_pull && self.port.is_mappable(from, &rts.descriptor) {
            // A stream copies twice, and a trial of it would only cost time. Messages in other memory that move at the
            // same time cannot be measured.
            if let Some(selection) = self.selections.of(from) {
                selection.spoil();
            }
            return usual;
        }
        // Without a choice there is nothing to learn.
        if may_pull != offered.get || may_put != offered.put || !offered.stream || !(may_pull || may_put) {
            return usual;
        }
        let Some(now) = self.port.ticks() else { return usual };
        let Some(option) = self.selections.begin(from, message, now, rts.protocol_number) else {
            return usual;
        };
        if let State::Receiving { incoming, .. } = &mut self.requests.get_mut(index).0 {
            incoming.measured = Some(option);
        }
        Protocol::offered(offered).get(usize::from(option.number())).copied().unwrap_or(usual)
    }

    /// Reports to the adaptive selector that the data of a message has arrived.
    pub(super) fn has_moved(&mut self, from: PeerId, measured: Option<Protocol>, bytes: u64) {
        if let Some(protocol) = measured
            && let Some(now) = self.port.ticks()
            && let Some(selection) = self.selections.of(from)
        {
            selection.end(bytes, protocol, now);
        }
    }

    /// Ends a receive whose requested bytes have all arrived. The receive completes when its FIN has been
    /// sent.
    pub(super) fn finish(&mut self, index: u32) {
        let State::Receiving { incoming, buf } = &self.requests.get(index).0 else { return };
        let Incoming { from, tag, rts, .. } = *incoming;
        let outcome = with_immediate(outcome(from, tag, rts.total, buf.len()), rts.immediate);
        self.requests.get_mut(index).0 = State::Finishing { sender: rts.sender, outcome };
        self.start_answer(from, index);
    }

    /// Queues a CTS or FIN, and sends it at once if it is first in the queue and there is space. Other work
    /// for the peer is not continued here, because this function itself runs within a work step for the peer.
    pub(in crate::engine) fn start_answer(&mut self, peer: PeerId, index: u32) {
        self.enqueue(peer, PeerQueue::Answers, index);
        if self.first(peer, PeerQueue::Answers) == Some(index)
            && let Err(fault) = self.answer(peer, index)
        {
            self.fault(fault);
        }
    }

    /// Sends the next CTS or FIN. Returns `false` if there is no space.
    pub(in crate::engine) fn answer(&mut self, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let id = self.id(index);
        match &mut self.requests.get_mut(index).0 {
            State::Finishing { sender, outcome } => {
                let (sender, outcome) = (*sender, *outcome);
                if !self.send_fin(peer, sender)? {
                    return Ok(false);
                }
                self.dequeue(peer, PeerQueue::Answers, index);
                self.complete(index, outcome);
            }
            State::Receiving { incoming, buf } => {
                let Part { start, end } = incoming.left;
                let receiver = id.to_bits();
                let (descriptor, exposure) = match incoming.protocol {
                    Protocol::Stream => (Descriptor::NONE, None),
                    Protocol::Pull | Protocol::PullAlone | Protocol::Put => {
                        Self::expose_for_put(&mut self.port, peer, (buf, receiver), (start, end))
                    }
                };
                let cts = Cts { sender: incoming.rts.sender, receiver, start, end, descriptor };
                let packet = cts.encode();
                let envelope = control(Kind::Cts, packet.len());
                let sent = self.port.send(peer, &envelope, PacketPieces::Whole(&packet));
                if !matches!(sent, Ok(true)) {
                    self.revoke(peer, exposure);
                    return sent;
                }
                let is_streamed = incoming.protocol == Protocol::Put && exposure.is_none();
                incoming.exposure = exposure;
                incoming.phase = TransferPhase::Stream;
                self.peer(peer).tally.sent(Kind::Cts, packet.len());
                if is_streamed && let Some(selection) = self.selections.of(peer) {
                    selection.spoil();
                }
                self.dequeue(peer, PeerQueue::Answers, index);
                self.enqueue(peer, PeerQueue::Incoming, index);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
