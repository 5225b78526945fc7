//! Receives, and looks for messages.

use nemesia::{Message, MultiReceiveOptions, RecvOp, Segment, Source, Tag};

use super::operations::Operation;
use super::{Around, DATA, Kind, Port, RECV, Receiving, Runs, is_reported, segment};
use crate::bindings as fi;
use crate::entries::Entry;
use crate::object::Errno;

/// The flags of receives that are not posted as one run.
const UNUSUAL: u64 = fi::FI_MULTI_RECV as u64 | fi::FI_CLAIM;
/// The run of a receive without memory.
const EMPTY: Segment = Segment { base: std::ptr::null_mut(), len: 0 };

impl Port {
    /// Returns the source of the messages that a receive takes.
    #[inline(always)]
    fn source(&mut self, number: u64, around: &mut Around<'_>) -> Result<Source, Errno> {
        if number == u64::MAX || self.caps & fi::FI_DIRECTED_RECV == 0 {
            return Ok(Source::Any);
        }
        Ok(Source::Rank(self.rank_of(number, around)?.0))
    }

    /// Posts a receive into one run: the critical path.
    ///
    /// # Safety
    /// The memory of the run belongs to the receive until its completion was read.
    #[inline(always)]
    pub(crate) unsafe fn receive_one(
        &mut self,
        run: &libc::iovec,
        it: &Receiving,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if it.flags & UNUSUAL != 0 || !self.is_enabled {
            // SAFETY: the caller's promise.
            return unsafe { self.receive(Runs { first: run, count: 1 }, it, around) };
        }
        let posted = segment(run).and_then(|run| self.receive_run(run, it, around));
        posted.inspect_err(|error| it.fails(*error))
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory of the runs belongs to the receive until its completion was read. The list is valid during the call.
    pub(super) unsafe fn receive_list(
        &mut self,
        runs: Runs,
        it: &Receiving,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if !self.is_enabled {
            return Err(Errno::BAD_STATE);
        }
        // SAFETY: the caller's promise.
        let (run, list) = unsafe { runs.copy() }?;
        if it.flags & UNUSUAL == 0 && list.is_empty() {
            return self.receive_run(run.unwrap_or(EMPTY), it, around);
        }
        if it.flags & u64::from(fi::FI_MULTI_RECV) != 0 {
            return self.receive_many(run, it, around);
        }
        let claimed = it.flags & fi::FI_CLAIM != 0 && it.kind == Kind::Tagged;
        let message = if claimed { Some(self.claimed_by(it.context)?) } else { None };
        let source = if claimed { Source::Any } else { self.source(it.from, around)? };
        let is_wanted = is_reported(self.receive_queue, it.flags);
        let flags = it.kind.flag() | RECV;
        let buffer = run.or(list.first().copied()).map_or(0, |run| run.base as usize);
        let mut operation =
            Operation { context: it.context, flags, is_wanted, buffer, ..Operation::default() };
        operation.keep_list(list);
        let tag = Tag::Masked { value: it.tag, ignore: it.ignore };
        self.start_receive(operation, run, (source, tag), (message, it.kind))
    }

    /// Posts a receive into one run, without unusual flags.
    #[inline(always)]
    fn receive_run(&mut self, run: Segment, it: &Receiving, around: &mut Around<'_>) -> Result<(), Errno> {
        let source = self.source(it.from, around)?;
        let is_wanted = is_reported(self.receive_queue, it.flags);
        let (context, flags, buffer) = (it.context, it.kind.flag() | RECV, run.base as usize);
        let mut operation = Operation { context, flags, is_wanted, buffer, ..Operation::default() };
        let tag = Tag::Masked { value: it.tag, ignore: it.ignore };
        let endpoint = self.endpoint.with_completion(self.operations.next());
        // SAFETY: the promise of `receive`.
        let posted = unsafe { endpoint.irecv_now(it.kind.context(), source, tag, run.base, run.len) };
        if let Some(started) = posted {
            operation.request = Some(started.request());
            self.operations.insert(operation);
            return Ok(());
        }
        self.start_receive(operation, Some(run), (source, tag), (None, it.kind))
    }

    /// Posts a receive into this run, or into the list of the operation.
    fn start_receive(
        &mut self,
        operation: Operation,
        run: Option<Segment>,
        (source, tag): (Source, Tag),
        (message, kind): (Option<Message>, Kind),
    ) -> Result<(), Errno> {
        let number = self.operations.insert(operation);
        let Some(operation) = self.operations.get(number) else { return Err(Errno::OTHER) };
        let list = operation.list();
        let op = if list.is_empty() {
            let (base, len) = run.map_or((std::ptr::null_mut(), 0), |run| (run.base, run.len));
            // SAFETY: the promise of `receive`.
            unsafe { RecvOp::from_raw(source, tag, base, len) }
        } else {
            // SAFETY: the list is kept until the completion is taken; the runs by the promise of `receive`.
            unsafe { RecvOp::from_raw_list(source, tag, list.as_ptr(), list.len()) }
        };
        let op = match message {
            Some(message) => op.matched(message),
            None => op.context(kind.context()),
        };
        // SAFETY: as above.
        match unsafe { self.endpoint.with_completion(number).irecv_op(op) } {
            Ok(started) => {
                if let Some(operation) = self.operations.get(number) {
                    operation.request = Some(started.request());
                }
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error.into())
            }
        }
    }

    /// Posts a buffer that receives message after message.
    fn receive_many(
        &mut self,
        run: Option<Segment>,
        it: &Receiving,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        let run = run.ok_or(Errno::INVALID)?;
        if it.kind == Kind::Tagged {
            return Err(Errno::NO_SUPPORT);
        }
        let source = self.source(it.from, around)?;
        let flags = it.kind.flag() | RECV;
        let is_wanted = is_reported(self.receive_queue, it.flags);
        let operation = Operation {
            context: it.context,
            flags,
            is_wanted,
            buffer: run.base as usize,
            ..Operation::default()
        };
        let number = self.operations.insert(operation);
        let options = MultiReceiveOptions::default().least(self.least_multi);
        let (context, tag) = (it.kind.context(), Tag::Masked { value: 0, ignore: u64::MAX });
        // SAFETY: the promise of `receive`.
        let posted = unsafe {
            let endpoint = self.endpoint.in_context(context);
            endpoint.irecv_many(number, source, tag, (run.base, run.len), options)
        };
        match posted {
            Ok(request) => {
                if let Some(operation) = self.operations.get(number) {
                    operation.request = Some(request);
                }
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error.into())
            }
        }
    }

    /// Looks whether a message is there, and writes the answer into the completion queue.
    pub(crate) fn peek(&mut self, it: &Receiving, around: &mut Around<'_>) -> Result<(), Errno> {
        let bound = self.receive_queue.ok_or(Errno::NO_QUEUE)?;
        let source = self.source(it.from, around)?;
        let tag = Tag::Masked { value: it.tag, ignore: it.ignore };
        let context = self.endpoint.in_context(it.kind.context());
        let found = if it.flags & (fi::FI_CLAIM | fi::FI_DISCARD) == 0 {
            context.iprobe(source, tag)?
        } else {
            let message = context.improbe(source, tag)?;
            let status = message.as_ref().map(Message::status);
            // A message that is dropped is discarded.
            if it.flags & fi::FI_DISCARD == 0 {
                self.claimed.extend(message.map(|message| (it.context, message)));
            }
            status
        };
        let flags = it.kind.flag() | RECV;
        let entry = match found {
            Some(status) => Entry {
                context: it.context,
                flags: flags | status.immediate.map_or(0, |_| DATA),
                len: status.len,
                data: status.immediate.unwrap_or(0),
                tag: status.tag,
                source: self.source_of(status.rank, around),
                ..Entry::default()
            },
            None => {
                let error = Some((Errno::NO_MESSAGE.into(), 0));
                Entry { context: it.context, flags, tag: it.tag, error, ..Entry::default() }
            }
        };
        around.queues.get(bound.queue).ok_or(Errno::NO_QUEUE)?.entries.push_back(entry);
        Ok(())
    }

    /// Discards the message that an operation with this context has claimed.
    pub(crate) fn discard(&mut self, it: &Receiving, around: &mut Around<'_>) -> Result<(), Errno> {
        let tag = self.claimed_by(it.context)?.status().tag;
        let bound = self.receive_queue.ok_or(Errno::NO_QUEUE)?;
        let flags = it.kind.flag() | RECV;
        let entry = Entry { context: it.context, flags, tag, ..Entry::default() };
        around.queues.get(bound.queue).ok_or(Errno::NO_QUEUE)?.entries.push_back(entry);
        Ok(())
    }

    fn claimed_by(&mut self, context: usize) -> Result<Message, Errno> {
        let at = self.claimed.iter().position(|(claimer, _)| *claimer == context);
        at.map(|at| self.claimed.swap_remove(at).1).ok_or(Errno::INVALID)
    }

    /// Withdraws the receive with this context, if no message has matched it. Its completion says so.
    pub(crate) fn cancel(&mut self, context: usize) {
        if let Some(request) = self.operations.receive_of(context) {
            self.endpoint.cancel(request);
        }
    }
}
