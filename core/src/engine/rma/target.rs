//! The target's side of one-sided operations. Requests are executed on arrival. Replies leave at once, or as
//! soon as there is space.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::WINDOW;
use super::reduce::{combine, swap};
use super::region::{ExposedRegion, RegionPlace, Regions};
use crate::engine::request::{CompletionError, Outcome, complete};
use crate::engine::state::{Body, RemoteOperation};
use crate::engine::unload::{TAKEN_BACK, read};
use crate::engine::{Engine, Status, Storage};
use crate::payload::Exposed;
use crate::port::{Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::slab::Slot;
use crate::wire::rma::{
    Access, Confirm, DESCRIBED, Datatype, GROUP_BYTES, HEAD_BYTES, Head, MOST_HEAD_BYTES, Reduction, Refusal,
    RmaOperation, Verb,
};
use crate::wire::{Envelope, Kind};

/// Bytes of operands that are combined at a time.
const BATCH: usize = 256;

/// A reply that waits for space. Private to the engine; public only so that the caller can lend its storage:
/// [`WINDOW`] slots for each peer are enough.
#[derive(Debug, Default)]
pub struct Reply {
    /// Identifier of the origin's request.
    request: u64,
    answer: TargetAnswer,
}

#[derive(Clone, Copy, Debug)]
enum TargetAnswer {
    /// Bytes of a region that must still be sent. The fields are those of a [`RegionPlace`]; the enum is
    /// smaller with the fields inline.
    Bytes { key: u64, offset: u64, len: u64 },
    /// An old value of `len` bytes; or the number of refused operations.
    Word { value: u64, len: usize, refusal: Option<Refusal> },
    /// The description of a region.
    Description { key: u64 },
    /// Old values of `len` bytes.
    Values { bytes: [u8; GROUP_BYTES], len: u8 },
}

impl Default for TargetAnswer {
    fn default() -> Self {
        Self::Word { value: 0, len: 0, refusal: None }
    }
}

impl TargetAnswer {
    const fn bytes(place: RegionPlace) -> Self {
        let RegionPlace { key, offset, len } = place;
        Self::Bytes { key, offset, len }
    }

    const fn refusal(refusal: Refusal) -> Self {
        Self::Word { value: 0, len: 0, refusal: Some(refusal) }
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Checks and executes a request.
    pub(in crate::engine) fn deliver_request(
        &mut self,
        arrival: &Arrival<P::Token>,
    ) -> Result<(), PortFault> {
        let fault = PortFault::Protocol { kind: Kind::Rma };
        let verb = Verb::decode(arrival.envelope.context).ok_or(fault)?;
        let body = arrival.len.checked_sub(verb.head_bytes()).ok_or(fault)?;
        let mut bytes = [0; MOST_HEAD_BYTES];
        read(&self.port, arrival, 0, &mut bytes[..verb.head_bytes()])?;
        let head = Head::decode(&bytes);
        self.count_executed(arrival.peer, verb);
        let answer = match verb.operation {
            RmaOperation::Put | RmaOperation::Accumulate => {
                let refusal = match verb.operation {
                    RmaOperation::Put => self.execute_put(arrival, verb, &head, body)?,
                    _ => self.execute_accumulate(arrival, verb, &head, body)?,
                };
                match self.confirm(arrival.peer, verb, refusal) {
                    Some(answer) => answer,
                    None => return Ok(()),
                }
            }
            RmaOperation::FetchAccumulate => {
                if !(1..=GROUP_BYTES).contains(&body) || !body.is_multiple_of(verb.datatype.bytes()) {
                    return Err(fault);
                }
                let mut operands = [0; GROUP_BYTES];
                read(&self.port, arrival, HEAD_BYTES, &mut operands[..body])?;
                execute_group(&mut self.regions, verb, &head, &operands[..body])
            }
            _ if body > 0 => return Err(fault),
            RmaOperation::Get => self.execute_get(&head),
            RmaOperation::Describe if arrival.envelope.tag != head.key => return Err(fault),
            RmaOperation::Describe => {
                self.describe(arrival.peer, head.key);
                TargetAnswer::Description { key: head.key }
            }
            RmaOperation::Withdraw => {
                return self.heed_withdrawal(arrival.peer, head.key, arrival.envelope.tag);
            }
            RmaOperation::Fetch | RmaOperation::CompareSwap => execute_value(&mut self.regions, verb, &head),
            RmaOperation::Flush => {
                let refused = self.settle_flush(arrival.peer);
                let (refusal, value) = refused.map_or((None, 0), |(refusal, count)| (Some(refusal), count));
                TargetAnswer::Word { value, len: 8, refusal }
            }
        };
        self.reply(arrival.peer, Reply { request: arrival.envelope.tag, answer })
    }

    fn execute_put(
        &mut self,
        arrival: &Arrival<P::Token>,
        verb: Verb,
        head: &Head,
        len: usize,
    ) -> Result<Option<Refusal>, PortFault> {
        match self.regions.open(&place(head, len as u64), Access::Write) {
            Ok((region, at)) => {
                let (port, start, mut whole) = (&self.port, verb.head_bytes(), true);
                region.memory.fill(at, len, |from, to| whole &= port.read(arrival, start + from, to));
                if !whole {
                    return Err(TAKEN_BACK);
                }
                region.notified += u64::from(verb.notify);
                if verb.notify {
                    self.report_waiting(head.key);
                }
                Ok(None)
            }
            Err(refusal) => Ok(Some(refusal)),
        }
    }

    fn execute_accumulate(
        &mut self,
        arrival: &Arrival<P::Token>,
        verb: Verb,
        head: &Head,
        len: usize,
    ) -> Result<Option<Refusal>, PortFault> {
        let (datatype, reduction) = (verb.datatype, verb.reduction);
        if !len.is_multiple_of(datatype.bytes()) {
            return Err(PortFault::Protocol { kind: Kind::Rma });
        }
        let opened = self.regions.open_values(&place(head, len as u64), datatype);
        let (region, at) = match opened {
            Ok(_) if !datatype.allows(reduction) => return Ok(Some(Refusal::Undefined)),
            Ok(opened) => opened,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let mut batch = [0; BATCH];
        for start in (0..len).step_by(BATCH) {
            let operands = &mut batch[..BATCH.min(len - start)];
            read(&self.port, arrival, verb.head_bytes() + start, operands)?;
            accumulate(&mut region.memory, at + start, datatype, reduction, operands);
        }
        Ok(None)
    }

    /// Returns the answer to a packet of a put or an accumulate; `None` if it is not answered. A refusal is then
    /// reported by the answer to the last packet of the operation, or by a flush.
    fn confirm(&mut self, peer: PeerId, verb: Verb, refusal: Option<Refusal>) -> Option<TargetAnswer> {
        let unconfirmed = &mut self.rma_state(peer).unconfirmed;
        match verb.confirm {
            Confirm::No => refusal.into_iter().for_each(|refusal| self.refuse(peer, refusal)),
            Confirm::Later => *unconfirmed = unconfirmed.or(refusal),
            Confirm::Now => {
                let refusal = unconfirmed.take().or(refusal);
                return Some(TargetAnswer::Word { value: 0, len: 0, refusal });
            }
        }
        None
    }

    /// Returns the answer to a get. A get of zero bytes violates the protocol and is refused.
    fn execute_get(&mut self, head: &Head) -> TargetAnswer {
        let place = place(head, head.value);
        match self.regions.open(&place, Access::Read) {
            Ok(_) if place.len > 0 => TargetAnswer::bytes(place),
            Ok(_) => TargetAnswer::refusal(Refusal::Bounds),
            Err(refusal) => TargetAnswer::refusal(refusal),
        }
    }

    fn refuse(&mut self, peer: PeerId, refusal: Refusal) {
        let refused = &mut self.rma_state(peer).refused;
        let (first, count) = refused.unwrap_or((refusal, 0));
        *refused = Some((first, count.saturating_add(1)));
    }

    /// Completes the requests whose number of notifications of a region is reached.
    #[cold]
    fn report_waiting(&mut self, key: u64) {
        let Self { regions, requests, completions, rank, .. } = self;
        let Some(region) = regions.named(key) else { return };
        let mut at = region.waiting.first();
        while let Some(index) = at {
            at = requests.next(index);
            let request = requests.get(index);
            if request.is_notified_by(region.notified) {
                requests.unlink(&mut region.waiting, index);
                let outcome = Ok(Status { peer: *rank, tag: 0, len: 0, immediate: None });
                complete(requests, completions, index, outcome);
            }
        }
    }

    /// Sends a reply at once, or queues it until there is space.
    fn reply(&mut self, peer: PeerId, mut reply: Reply) -> Result<(), PortFault> {
        if self.rma_state(peer).reply_count >= WINDOW {
            return Err(PortFault::Window);
        }
        if self.rma_state(peer).replies.is_empty() {
            match self.send_part(peer, &mut reply) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(fault) if fault.peer == peer => return Err(fault.fault),
                Err(fault) => self.fault(fault),
            }
        }
        let index = self.replies.insert(reply).map_err(|_| PortFault::Window)?;
        let rma_state = &mut self.peers.borrow_mut()[peer as usize].rma_state;
        self.replies.push_back(&mut rma_state.replies, index);
        rma_state.reply_count += 1;
        self.list_work(peer);
        Ok(())
    }

    /// Sends the next packet of a queued reply. Returns `false` if there is no space.
    pub(super) fn send_reply(&mut self, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let mut reply = core::mem::take(self.replies.get_mut(index));
        let before = reply.remaining();
        let done = self.send_part(peer, &mut reply);
        let moved = reply.remaining() < before;
        *self.replies.get_mut(index) = reply;
        if done? {
            let rma_state = &mut self.peers.borrow_mut()[peer as usize].rma_state;
            self.replies.unlink(&mut rma_state.replies, index);
            rma_state.reply_count -= 1;
            self.replies.remove(index);
            return Ok(true);
        }
        Ok(moved)
    }

    /// Sends one packet of a reply. Returns `true` if it was the last.
    fn send_part(&mut self, peer: PeerId, reply: &mut Reply) -> Result<bool, PeerFault> {
        let (request, word) = (reply.request, reply.word());
        let envelope = |refusal: Option<Refusal>, total| {
            let context = refusal.map_or(0, Refusal::code);
            Envelope { kind: Kind::RmaReply, context, tag: request, total }
        };
        let (total, sent, last) = match &mut reply.answer {
            // The region may have been unexposed since the last packet.
            TargetAnswer::Bytes { key, offset, len } => {
                let place = RegionPlace { key: *key, offset: *offset, len: *len };
                match self.regions.open(&place, Access::Read) {
                    Ok((region, at)) => {
                        let part = (*len).min(self.port.packet_bytes() as u64);
                        let sent = self.port.send(
                            peer,
                            &envelope(None, part),
                            PacketPieces::Exposed(&region.memory, at, part as usize),
                        )?;
                        if sent {
                            *offset += part;
                            *len -= part;
                        }
                        (part, sent, *len == 0)
                    }
                    Err(refusal) => (
                        0,
                        self.port.send(peer, &envelope(Some(refusal), 0), PacketPieces::Whole(&[]))?,
                        true,
                    ),
                }
            }
            TargetAnswer::Description { key } => {
                let described =
                    self.regions.named(*key).map_or(Err(Refusal::Key), |region| region.described());
                let bytes = described.map(|region| region.encode());
                let context = DESCRIBED | described.err().map_or(0, Refusal::code);
                let content = bytes.as_ref().map_or(&[][..], |bytes| &bytes[..]);
                let total = content.len() as u64;
                let envelope = Envelope { kind: Kind::RmaReply, context, tag: request, total };
                (total, self.port.send(peer, &envelope, PacketPieces::Whole(content))?, true)
            }
            TargetAnswer::Word { len, refusal, .. } => {
                let total = *len as u64;
                (
                    total,
                    self.port.send(peer, &envelope(*refusal, total), PacketPieces::Whole(&word[..*len]))?,
                    true,
                )
            }
            TargetAnswer::Values { bytes, len } => {
                let (total, bytes) = (u64::from(*len), &bytes[..usize::from(*len)]);
                (total, self.port.send(peer, &envelope(None, total), PacketPieces::Whole(bytes))?, true)
            }
        };
        if sent {
            self.peer(peer).tally.sent(Kind::RmaReply, total as usize);
        }
        Ok(sent && last)
    }

    /// Executes an operation on a region of this process itself.
    pub(super) fn execute_own(&mut self, remote: &mut RemoteOperation) -> Outcome {
        let (peer, verb, head) = (self.rank, remote.verb, remote.head());
        let refused = |refusal| CompletionError::Refused { peer, refusal, count: 1 };
        let mut moved = 0;
        match &mut remote.body {
            Body::Out { buf, .. } => {
                moved = buf.len();
                let place = place(&head, moved as u64);
                let bytes = buf.part(0, moved);
                if verb.operation == RmaOperation::Put {
                    let (region, at) = self.regions.open(&place, Access::Write).map_err(refused)?;
                    region.memory.write(at, bytes);
                    region.notified += u64::from(verb.notify);
                } else {
                    let opened = self.regions.open_values(&place, verb.datatype);
                    let (region, at) = opened.map_err(refused)?;
                    accumulate(&mut region.memory, at, verb.datatype, verb.reduction, bytes);
                }
            }
            Body::In { buf, .. } if verb.operation == RmaOperation::Get => {
                moved = buf.len();
                let (region, at) =
                    self.regions.open(&place(&head, moved as u64), Access::Read).map_err(refused)?;
                region.memory.read(at, buf.part(0, moved));
            }
            Body::In { buf, .. } => {
                let TargetAnswer::Word { value, len, refusal } =
                    execute_value(&mut self.regions, verb, &head)
                else {
                    return Err(refused(Refusal::Undefined));
                };
                if let Some(refusal) = refusal {
                    return Err(refused(refusal));
                }
                buf.part(0, len).copy_from_slice(&value.to_le_bytes()[..len]);
                moved = len;
            }
            Body::Both { from, to, .. } => {
                let opened = self.regions.open_values(&place(&head, to.len() as u64), verb.datatype);
                let (region, at) = opened.map_err(refused)?;
                moved = to.len();
                let mut group = [0; GROUP_BYTES];
                for start in (0..moved).step_by(GROUP_BYTES) {
                    let len = GROUP_BYTES.min(moved - start);
                    let operands = &mut group[..len];
                    // There are no operands if the reduction ignores them.
                    from.read(start, operands);
                    exchange(&mut region.memory, at + start, verb, operands);
                    to.part(start, len).copy_from_slice(operands);
                }
            }
            Body::Nothing { .. } => {}
        }
        if verb.notify {
            self.report_waiting(head.key);
        }
        Ok(Status { peer, tag: 0, len: moved, immediate: None })
    }
}

impl Reply {
    const fn word(&self) -> [u8; 8] {
        match &self.answer {
            TargetAnswer::Bytes { .. } | TargetAnswer::Description { .. } | TargetAnswer::Values { .. } => {
                [0; 8]
            }
            TargetAnswer::Word { value, .. } => value.to_le_bytes(),
        }
    }

    const fn remaining(&self) -> u64 {
        match &self.answer {
            TargetAnswer::Bytes { len, .. } => *len,
            TargetAnswer::Word { .. } | TargetAnswer::Description { .. } | TargetAnswer::Values { .. } => 0,
        }
    }
}

const fn place(head: &Head, len: u64) -> RegionPlace {
    RegionPlace { key: head.key, offset: head.offset, len }
}

/// Executes a fetch, or a compare and swap.
fn execute_value<B: BorrowMut<[Slot<ExposedRegion>]>>(
    regions: &mut Regions<B>,
    verb: Verb,
    head: &Head,
) -> TargetAnswer {
    let Verb { datatype, reduction, .. } = verb;
    let len = datatype.bytes();
    let (region, at) = match regions.open_values(&place(head, len as u64), datatype) {
        Ok(opened) => opened,
        Err(refusal) => return TargetAnswer::refusal(refusal),
    };
    if !datatype.allows(reduction) || !datatype.allows_comparison(verb.comparison) {
        return TargetAnswer::refusal(Refusal::Undefined);
    }
    let old = if verb.operation == RmaOperation::CompareSwap {
        let values = [head.expected, head.value];
        region.memory.update(at, len, |old| swap(datatype, verb.comparison, old, values))
    } else {
        region.memory.update(at, len, |old| combine(datatype, reduction, old, head.value))
    };
    // `open_values` has checked that the value exists and is aligned.
    old.map_or(TargetAnswer::refusal(Refusal::Bounds), |value| TargetAnswer::Word {
        value,
        len,
        refusal: None,
    })
}

/// Executes a fetch and accumulate with the operands of one packet.
fn execute_group<B: BorrowMut<[Slot<ExposedRegion>]>>(
    regions: &mut Regions<B>,
    verb: Verb,
    head: &Head,
    operands: &[u8],
) -> TargetAnswer {
    let (region, at) = match regions.open_values(&place(head, operands.len() as u64), verb.datatype) {
        Ok(opened) => opened,
        Err(refusal) => return TargetAnswer::refusal(refusal),
    };
    if !verb.datatype.allows(verb.reduction) {
        return TargetAnswer::refusal(Refusal::Undefined);
    }
    let (mut bytes, len) = ([0; GROUP_BYTES], operands.len());
    bytes[..len].copy_from_slice(operands);
    exchange(&mut region.memory, at, verb, &mut bytes[..len]);
    TargetAnswer::Values { bytes, len: len as u8 }
}

/// Combines operands into existing, aligned values, and replaces the operands by the old values.
fn exchange(memory: &mut Exposed, at: usize, verb: Verb, operands: &mut [u8]) {
    let (len, mut at) = (verb.datatype.bytes(), at);
    for operand in operands.chunks_exact_mut(len) {
        let mut word = [0; 8];
        word[..len].copy_from_slice(operand);
        let value = u64::from_le_bytes(word);
        let old = memory.update(at, len, |old| combine(verb.datatype, verb.reduction, old, value));
        operand.copy_from_slice(&old.unwrap_or_default().to_le_bytes()[..len]);
        at += len;
    }
}

/// Combines an array of operands into existing, aligned values.
fn accumulate(memory: &mut Exposed, at: usize, datatype: Datatype, reduction: Reduction, operands: &[u8]) {
    let len = datatype.bytes();
    for (operand, at) in operands.chunks_exact(len).zip((at..).step_by(len)) {
        let mut word = [0; 8];
        word[..len].copy_from_slice(operand);
        let operand = u64::from_le_bytes(word);
        memory.update(at, len, |old| combine(datatype, reduction, old, operand));
    }
}
