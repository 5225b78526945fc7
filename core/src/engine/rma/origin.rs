//! The origin's side of one-sided operations. An operation leaves at once if possible, else in order.
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use super::{Comparison, Datatype, Reduction, RemoteKey, WINDOW};
use crate::engine::request::{CompletionError, State};
use crate::engine::state::{Body, RemoteOperation, both};
use crate::engine::unload::read;
use crate::engine::{Engine, Peer, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{RecvBuf, SendBuf};
use crate::port::{Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::wire::rma::{
    ACCOUNT, Access, Confirm, DESCRIBED, GROUP_BYTES, HEAD_BYTES, Refusal, RmaOperation, Verb, WITHDRAWN,
};
use crate::wire::{Envelope, Kind};

/// A location in a region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The key of the region, which names its owner.
    pub key: &'a RemoteKey,
    /// Offset in the region, in bytes; in a region that is exposed by address, the address in the owner's memory.
    pub offset: u64,
}

/// When a put or an accumulate is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompleteAt {
    /// When its bytes have left the buffer. A flush reports a refusal.
    #[default]
    Origin,
    /// When the target has executed it, so that its bytes are visible there. The request reports a refusal. It
    /// costs an answer of the target, and counts against [`WINDOW`].
    Target,
}

impl CompleteAt {
    const fn confirm(self) -> Confirm {
        match self {
            Self::Origin => Confirm::No,
            Self::Target => Confirm::Now,
        }
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Checks for refusals by the target that the key predicts, and for targets to which nothing can be sent.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn check_remote(
        &mut self,
        target: &Target<'_>,
        len: usize,
        wanted: Access,
        atomic: Option<(Datatype, Reduction)>,
    ) -> Result<(), StartError> {
        self.reach(target.key.rank)?;
        let refusal = if target.key.place(target.offset, len as u64).is_none() {
            Refusal::Bounds
        } else if !target.key.access.allows(wanted) {
            Refusal::Access
        } else if atomic.is_some_and(|(datatype, _)| !len.is_multiple_of(datatype.bytes())) {
            Refusal::Alignment
        } else if atomic.is_some_and(|(datatype, reduction)| !datatype.allows(reduction)) {
            Refusal::Undefined
        } else {
            return Ok(());
        };
        Err(StartError::Refused(refusal))
    }

    /// Starts a put. When the put is complete, the caller may reuse the buffer. With `notify`, the target counts a
    /// notification when the bytes are there.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent. [`StartError::List`] if the buffer is a list.
    pub fn put(
        &mut self,
        target: &Target<'_>,
        buf: SendBuf,
        notify: bool,
        complete: CompleteAt,
    ) -> Result<RequestId, StartError> {
        let len = buf.len();
        self.check_remote(target, len, Access::Write, None)?;
        check_place(buf.is_list())?;
        let id = self.start_out(
            target,
            Verb { notify, confirm: complete.confirm(), ..Verb::plain(RmaOperation::Put) },
            buf,
        )?;
        self.count_operation(target.key.rank, RmaOperation::Put, len);
        Ok(id)
    }

    /// Starts an accumulate: combines an array of operands into an array of values. Atomic per value; completes as a
    /// put.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    pub fn accumulate(
        &mut self,
        target: &Target<'_>,
        (datatype, reduction): (Datatype, Reduction),
        operands: SendBuf,
        complete: CompleteAt,
    ) -> Result<RequestId, StartError> {
        let (len, atomic) = (operands.len(), Some((datatype, reduction)));
        self.check_remote(target, len, Access::ReadWrite, atomic)?;
        check_place(operands.is_list())?;
        let confirm = complete.confirm();
        let verb = Verb { reduction, datatype, confirm, ..Verb::plain(RmaOperation::Accumulate) };
        let id = self.start_out(target, verb, operands)?;
        self.count_operation(target.key.rank, RmaOperation::Accumulate, len);
        Ok(id)
    }

    /// Starts a get, complete when the buffer is full. The engine takes the buffer out of `buf`, unless it fails.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    pub fn get(&mut self, target: &Target<'_>, buf: &mut RecvBuf) -> Result<RequestId, StartError> {
        self.check_remote(target, buf.len(), Access::Read, None)?;
        if buf.is_empty() {
            return Ok(RequestId::SENT);
        }
        self.start_in(target, Verb::plain(RmaOperation::Get), buf, 0, 0)
    }

    /// Starts a fetch: combines `operand` into a value and returns the old value in `old`, which must have the length
    /// of the value. The operation is complete when the old value has arrived. Shorter types use the low bytes of
    /// `operand`.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent. [`Refusal::Bounds`] if the buffer has another length.
    pub fn fetch(
        &mut self,
        target: &Target<'_>,
        datatype: Datatype,
        reduction: Reduction,
        operand: u64,
        old: &mut RecvBuf,
    ) -> Result<RequestId, StartError> {
        let atomic = Some((datatype, reduction));
        self.check_remote(target, datatype.bytes(), Access::ReadWrite, atomic)?;
        let verb = Verb { reduction, datatype, ..Verb::plain(RmaOperation::Fetch) };
        self.start_in(target, verb, old, operand, 0)
    }

    /// Starts a fetch and accumulate: combines an array of operands into an array of values and returns the old
    /// values in `old`, which must have the same length (MPI's get-accumulate). The operation is atomic for each
    /// value, and complete when all old values have arrived. [`Reduction::Nothing`] ignores the operands.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent. [`Refusal::Bounds`] if the lengths of the buffers differ.
    pub fn fetch_accumulate(
        &mut self,
        target: &Target<'_>,
        datatype: Datatype,
        reduction: Reduction,
        operands: SendBuf,
        old: &mut RecvBuf,
    ) -> Result<RequestId, StartError> {
        let (to, len) = (target.key.rank, old.len());
        self.check_remote(target, len, Access::ReadWrite, Some((datatype, reduction)))?;
        check_place(operands.is_list() || old.is_list())?;
        if operands.len() != len && !(reduction == Reduction::Nothing && operands.is_empty()) {
            return Err(StartError::Refused(Refusal::Bounds));
        }
        if len == 0 {
            return Ok(RequestId::SENT);
        }
        let verb = Verb { reduction, datatype, ..Verb::plain(RmaOperation::FetchAccumulate) };
        let key = target.key.key;
        let body = Body::Both { from: operands, to: RecvBuf::empty(), received: 0, open: 0, refusal: None };
        let remote = RemoteOperation::new(to, verb, (key, target.offset), body);
        // The slot is reserved first: if none is free, the caller keeps the buffer.
        let index = self.start(State::Remote(remote))?;
        if let State::Remote(RemoteOperation { body: Body::Both { to: mine, .. }, .. }) =
            &mut self.requests.get_mut(index).0
        {
            core::mem::swap(mine, old);
        }
        self.count_operation(to, verb.operation, len);
        Ok(self.leave_or_queue(to, index))
    }

    /// Starts a compare and swap: replaces a value by `value` if the comparison with `expected` holds. The old value
    /// is returned in `old`, which must have the length of the value.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    pub fn compare_swap(
        &mut self,
        target: &Target<'_>,
        (datatype, comparison): (Datatype, Comparison),
        [expected, value]: [u64; 2],
        old: &mut RecvBuf,
    ) -> Result<RequestId, StartError> {
        let atomic = Some((datatype, Reduction::Replace));
        self.check_remote(target, datatype.bytes(), Access::ReadWrite, atomic)?;
        if !datatype.allows_comparison(comparison) {
            return Err(StartError::Refused(Refusal::Undefined));
        }
        let verb = Verb { datatype, comparison, ..Verb::plain(RmaOperation::CompareSwap) };
        self.start_in(target, verb, old, value, expected)
    }

    /// Starts a fence: the target executes later operations after all earlier ones, gets included. Never waits.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn fence(&mut self, to: PeerId) -> Result<(), StartError> {
        self.reach(to)?;
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetFence) {
            return Ok(());
        }
        let rma_state = self.rma_state(to);
        if rma_state.in_flight == 0 && rma_state.leaving.is_empty() {
            return Ok(());
        }
        self.wait_to_leave(to, State::Fence).map(drop)
    }

    /// Returns whether operations on a target may be incomplete.
    pub fn is_unflushed(&self, to: PeerId) -> bool {
        let peers: &[Peer] = self.peers.borrow();
        peers.get(to as usize).is_some_and(|Peer { failure, rma_state, .. }| {
            rma_state.final_refusals.is_some() || failure.is_none() && !rma_state.is_flushed()
        })
    }

    fn start_out(&mut self, target: &Target<'_>, verb: Verb, buf: SendBuf) -> Result<RequestId, StartError> {
        #[cfg(nemesia_injected_fault)]
        let verb =
            if injected(InjectedFault::ForgetConfirm) { Verb { confirm: Confirm::No, ..verb } } else { verb };
        let Target { key: &RemoteKey { rank: to, key, .. }, offset } = *target;
        let len = buf.len();
        let body = Body::Out { buf, sent: 0, awaited: false };
        let mut remote = RemoteOperation::new(to, verb, (key, offset), body);
        if to == self.rank && self.may_leave(to) {
            return match self.execute_own(&mut remote) {
                Err(CompletionError::Refused { refusal, .. }) => Err(StartError::Refused(refusal)),
                _ => Ok(RequestId::SENT),
            };
        }
        // An operation that is answered, or that takes several packets, needs a request slot first: if none is free,
        // no packet may have been sent.
        let may_be_direct = verb.operation == RmaOperation::Put && len as u64 >= self.tuning.direct_bytes;
        let is_packet = len <= self.part_bytes() && !verb.is_answered() && !may_be_direct;
        if to != self.rank && self.may_leave(to) && is_packet {
            match self.send_remote(&mut remote, 0) {
                Ok(SentOperation::All) => return Ok(RequestId::SENT),
                Ok(_) => {}
                Err(fault) => self.fault(fault),
            }
            self.check_destination(to)?;
        }
        self.leave_or_wait(to, remote)
    }

    fn start_in(
        &mut self,
        target: &Target<'_>,
        verb: Verb,
        buf: &mut RecvBuf,
        value: u64,
        expected: u64,
    ) -> Result<RequestId, StartError> {
        check_place(buf.is_list())?;
        if verb.operation != RmaOperation::Get && buf.len() != verb.datatype.bytes() {
            return Err(StartError::Refused(Refusal::Bounds));
        }
        let Target { key: &RemoteKey { rank: to, key, .. }, offset } = *target;
        let body = Body::In { buf: RecvBuf::empty(), received: 0, awaited: false, value, expected };
        let remote = RemoteOperation::new(to, verb, (key, offset), body);
        // The slot is reserved first: if none is free, the caller keeps the buffer.
        let index = self.start(State::Remote(remote))?;
        if let State::Remote(RemoteOperation { body: Body::In { buf: mine, .. }, .. }) =
            &mut self.requests.get_mut(index).0
        {
            core::mem::swap(mine, buf);
            let len = mine.len();
            self.count_operation(to, verb.operation, len);
        }
        Ok(self.leave_or_queue(to, index))
    }

    pub(super) fn leave_or_wait(
        &mut self,
        to: PeerId,
        remote: RemoteOperation,
    ) -> Result<RequestId, StartError> {
        let index = self.start(State::Remote(remote))?;
        Ok(self.leave_or_queue(to, index))
    }

    /// Sends a request that has a slot, or queues it.
    pub(in crate::engine) fn leave_or_queue(&mut self, to: PeerId, index: u32) -> RequestId {
        let id = self.id(index);
        let first = self.may_leave(to);
        self.queue_to_leave(to, index);
        if first {
            self.rma_work_for(to);
        }
        if self.rma_state(to).has_work() {
            self.list_work(to);
        }
        id
    }

    /// Returns the most bytes of data or operands in one packet. The result is a multiple of eight, so that a packet
    /// holds whole operands.
    fn part_bytes(&self) -> usize {
        (self.port.packet_bytes() - HEAD_BYTES) & !7
    }

    /// Sends the next packets of a queued request. Returns `false` if there is no space, or no slot in the window.
    pub(super) fn leave_remote(&mut self, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        if to != self.rank
            && let Some(moved) = self.leave_direct(to, index)?
        {
            return Ok(moved);
        }
        let bits = self.id(index).to_bits();
        let State::Remote(remote) = &mut self.requests.get_mut(index).0 else { return Ok(false) };
        let empty = RemoteOperation { body: Body::Nothing { awaited: false, issued: 0 }, ..*remote };
        let mut remote = core::mem::replace(remote, empty);
        if to == self.rank {
            self.left(to, index);
            let outcome = self.execute_own(&mut remote);
            self.complete(index, outcome);
            return Ok(true);
        }
        let sent = self.send_remote(&mut remote, bits);
        let len = match &remote.body {
            Body::Out { buf, .. } => buf.len(),
            _ => 0,
        };
        self.requests.get_mut(index).0 = State::Remote(remote);
        match sent? {
            SentOperation::Nothing => return Ok(false),
            SentOperation::Some => {}
            SentOperation::All => {
                self.left(to, index);
                self.complete(index, Ok(Status { peer: to, tag: 0, len, immediate: None }));
            }
            SentOperation::Awaited => {
                self.left(to, index);
                self.await_answer(to, index);
            }
        }
        Ok(true)
    }

    /// Sends one packet of an operation. One packet may hold the whole operation.
    pub(super) fn send_remote(
        &mut self,
        remote: &mut RemoteOperation,
        bits: u64,
    ) -> Result<SentOperation, PeerFault> {
        let (to, mut verb) = (remote.to, remote.verb);
        let head = remote.head().encode();
        let head = &head[..verb.head_bytes()];
        let mut group = [0; GROUP_BYTES];
        let (part, last): (&[u8], _) = match &remote.body {
            Body::Out { buf, sent, .. } => {
                let part = buf.part(*sent, self.part_bytes());
                (part, sent + part.len() >= buf.len())
            }
            Body::Both { from, to, .. } => {
                let sent = remote.body.sent();
                let part = &mut group[..GROUP_BYTES.min(to.len() - sent)];
                from.read(sent, part);
                (part, sent + part.len() >= to.len())
            }
            _ => (&[], true),
        };
        verb.notify &= last;
        let counted = verb.confirm == Confirm::No;
        verb.confirm = verb.confirm.of_packet(last);
        let answered = verb.is_answered();
        if answered && self.rma_state(to).in_flight >= WINDOW {
            return Ok(SentOperation::Nothing);
        }
        let tag = if answered { bits } else { 0 };
        let total = (head.len() + part.len()) as u64;
        let envelope = Envelope { kind: Kind::Rma, context: verb.encode(), tag, total };
        if !self.port.send(to, &envelope, PacketPieces::Parts(head, part))? {
            return Ok(SentOperation::Nothing);
        }
        let len = part.len();
        self.peer(to).tally.sent(Kind::Rma, total as usize);
        let rma_state = self.rma_state(to);
        match &mut remote.body {
            Body::Out { sent, awaited, .. } => {
                *sent += len;
                rma_state.issued += u64::from(counted);
                if counted && len > 0 {
                    rma_state.issued_with_bytes = rma_state.issued;
                }
                if !answered {
                    return Ok(if last { SentOperation::All } else { SentOperation::Some });
                }
                *awaited = true;
            }
            Body::In { awaited, .. } => *awaited = true,
            Body::Both { open, .. } => *open += 1,
            Body::Nothing { awaited, issued } => {
                *awaited = true;
                *issued = rma_state.issued;
            }
        }
        rma_state.in_flight += 1;
        self.port.prioritize(to);
        Ok(if last { SentOperation::Awaited } else { SentOperation::Some })
    }

    /// Handles a reply. The request that it names is checked: a peer can answer only requests that were sent to it.
    pub(in crate::engine) fn deliver_reply(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let from = arrival.peer;
        let fault = PortFault::Protocol { kind: Kind::RmaReply };
        match arrival.envelope.context {
            context if context & ACCOUNT != 0 => return self.deliver_account(arrival),
            WITHDRAWN if arrival.len == 0 => {
                return self.withdrawals_answered(from, arrival.envelope.tag);
            }
            context if context & DESCRIBED != 0 => return self.deliver_description(arrival),
            _ => {}
        }
        let id = RequestId::from_bits(arrival.envelope.tag);
        let refusal = Refusal::from_code(arrival.envelope.context).ok_or(fault)?;
        if !self.requests.is_live(id.index, id.generation) {
            return Err(fault);
        }
        let Self { requests, port, .. } = self;
        let State::Remote(remote) = &mut requests.get_mut(id.index).0 else { return Err(fault) };
        if remote.to != from || !remote.is_awaited() {
            return Err(fault);
        }
        if let Some(slot) = remote.direct.filter(|_| arrival.len == 0) {
            return self.answer_direct(from, id.index, slot, refusal);
        }
        let outcome = match &mut remote.body {
            Body::In { buf, received, .. } => match refusal {
                Some(refusal) if arrival.len == 0 => {
                    Err(CompletionError::Refused { peer: from, refusal, count: 1 })
                }
                None if (1..=buf.len() - *received).contains(&arrival.len) => {
                    read(port, arrival, 0, buf.part(*received, arrival.len))?;
                    *received += arrival.len;
                    if *received < buf.len() {
                        return Ok(());
                    }
                    Ok(Status { peer: from, tag: 0, len: *received, immediate: None })
                }
                _ => return Err(fault),
            },
            Body::Out { buf, .. } if arrival.len == 0 => match refusal {
                Some(refusal) => Err(CompletionError::Refused { peer: from, refusal, count: 1 }),
                None => Ok(Status { peer: from, tag: 0, len: buf.len(), immediate: None }),
            },
            Body::Both { .. } => {
                let unsent = remote.body.is_unsent();
                take_group(port, arrival, refusal, &mut remote.body)?;
                self.answered_group(from, id.index, unsent);
                return Ok(());
            }
            Body::Nothing { issued, .. } if arrival.len == 8 => {
                let mut count = [0; 8];
                read(port, arrival, 0, &mut count)?;
                let (issued, count) = (*issued, u64::from_le_bytes(count));
                let rma_state = self.rma_state(from);
                // An account may have reported more by now.
                rma_state.flushed = rma_state.flushed.max(issued);
                match both(rma_state.final_refusals.take(), refusal.map(|refusal| (refusal, count))) {
                    None => Ok(Status { peer: from, tag: 0, len: 0, immediate: None }),
                    Some((refusal, count)) => Err(CompletionError::Refused { peer: from, refusal, count }),
                }
            }
            _ => return Err(fault),
        };
        self.answered(from, id.index);
        self.complete(id.index, outcome);
        Ok(())
    }

    /// Continues a fetch and accumulate after an answer. `unsent`: some packets had not been sent before it.
    fn answered_group(&mut self, from: PeerId, index: u32, unsent: bool) {
        let State::Remote(RemoteOperation { body: Body::Both { to, received, open, refusal, .. }, .. }) =
            &self.requests.get(index).0
        else {
            return;
        };
        let (len, done, open, refusal) = (to.len(), *received, *open, *refusal);
        // A refused operation sends no further packets. If the peer has departed, the request is already in the queue
        // of awaited answers.
        if unsent && refusal.is_some() && self.peer(from).departed.is_none() {
            self.left(from, index);
            self.await_answer(from, index);
        }
        if open > 0 || refusal.is_none() && done < len {
            self.rma_state(from).in_flight -= 1;
            self.list_leaving(from);
            return;
        }
        self.answered(from, index);
        let refused = refusal.map(|refusal| CompletionError::Refused { peer: from, refusal, count: 1 });
        self.complete(index, refused.map_or(Ok(Status { peer: from, tag: 0, len, immediate: None }), Err));
    }

    /// Queues a sent request among those that wait for an answer.
    pub(super) fn await_answer(&mut self, to: PeerId, index: u32) {
        let mut list = self.rma_state(to).awaited;
        self.requests.push_back(&mut list, index);
        self.rma_state(to).awaited = list;
    }

    pub(super) fn list_leaving(&mut self, to: PeerId) {
        if !self.rma_state(to).leaving.is_empty() {
            self.list_work(to);
        }
    }

    pub(super) fn answered(&mut self, from: PeerId, index: u32) {
        let mut list = self.rma_state(from).awaited;
        self.requests.unlink(&mut list, index);
        let rma_state = self.rma_state(from);
        rma_state.awaited = list;
        rma_state.in_flight -= 1;
        self.list_leaving(from);
    }
}

/// Stores the old values that answer the next packet of a fetch and accumulate, or records a refusal. Returns `false`
/// if the reply violates the protocol.
fn take_group<P: Port>(
    port: &P,
    arrival: &Arrival<P::Token>,
    refused: Option<Refusal>,
    body: &mut Body,
) -> Result<(), PortFault> {
    let fault = Err(PortFault::Protocol { kind: Kind::RmaReply });
    let Body::Both { to, received, open, refusal, .. } = body else { return fault };
    let wanted = GROUP_BYTES.min(to.len() - *received);
    match refused {
        Some(why) if arrival.len == 0 => *refusal = refusal.or(Some(why)),
        None if refusal.is_some() && (1..=GROUP_BYTES).contains(&arrival.len) => {}
        None if arrival.len == wanted => {
            let at = *received;
            #[cfg(nemesia_injected_fault)]
            let at = if injected(InjectedFault::MixGroups) { 0 } else { at };
            read(port, arrival, 0, to.part(at, wanted))?;
            *received += wanted;
        }
        _ => return fault,
    }
    *open -= 1;
    Ok(())
}

/// Returns an error for a list: packet payloads and values are copied directly, so the buffer must be contiguous.
const fn check_place(list: bool) -> Result<(), StartError> {
    if list { Err(StartError::List) } else { Ok(()) }
}

/// The progress of sending an operation.
pub(super) enum SentOperation {
    /// Nothing was sent: there is no space.
    Nothing,
    /// A part was sent.
    Some,
    /// All was sent, and there will be no answer.
    All,
    /// All was sent; the answer is pending.
    Awaited,
}
