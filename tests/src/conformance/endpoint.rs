//! An actor that is a process: the endpoint as programs use it, under any launcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nemesia::{
    Addressing, Config, Endpoint, Error, ExposeOptions, RecvOp, Region, RemoteKey, Request, SendOp,
    Source as From, Tag,
};
use nemesia_core::engine::rma::{Access, RemoteKey as EngineKey};
use nemesia_core::engine::{Failure, SendOptions, Status};
use nemesia_core::matching::{Pattern, Source};

use super::actor::{
    Abilities, Actor, ClaimId, Ended, ExposureId, ExposureKind, HANDLERS, HandledMessage, KeyBytes,
    OperationId, RemoteVerb, Trouble,
};
use super::buffer::{Buffer, BufferPlace};
use super::engine::kill_this_process;
use super::open::OpenOperations;
use crate::memory_port::Verdict;

/// An endpoint, and the buffers of its operations.
#[derive(Debug)]
pub struct EndpointActor {
    /// Dropped first: it uses everything below.
    endpoint: Endpoint,
    open: OpenOperations<Request>,
    claims: BTreeMap<u64, nemesia::Message>,
    regions: Vec<EndpointExposure>,
    handled: Arc<Mutex<Vec<HandledMessage>>>,
    abilities: Abilities,
}

/// A region, and its memory if it cannot be mapped.
#[derive(Debug)]
struct EndpointExposure {
    region: Region,
    /// Only the endpoint uses the words, through the pointer that it was lent.
    _words: Vec<u64>,
}

fn trouble(error: Error) -> Trouble {
    match error {
        Error::PeerFailed { rank, failure, .. } => Trouble::PeerFailed { peer: rank as u32, failure },
        Error::Truncated(it) => Trouble::Truncated { status: it.status, message: it.message },
        Error::Cancelled => Trouble::Cancelled,
        Error::Refused { refusal, count, .. } => Trouble::Refused { refusal, count },
        other => Trouble::Other(other.to_string()),
    }
}

fn core_status(status: nemesia::Status) -> Status {
    Status { peer: status.rank as u32, tag: status.tag, len: status.len, immediate: status.immediate }
}

fn criteria(pattern: &Pattern) -> (From, Tag) {
    let from = match pattern.source {
        Source::Any => From::Any,
        Source::Rank(rank) => From::Rank(rank as usize),
    };
    let tag = match pattern.ignore {
        0 => Tag::Exactly(pattern.tag),
        u64::MAX => Tag::Any,
        ignore => Tag::Masked { value: pattern.tag, ignore },
    };
    (from, tag)
}

impl EndpointActor {
    /// Opens the endpoint of this process.
    ///
    /// # Errors
    /// The world cannot be joined.
    pub fn open(abilities: Abilities) -> Result<Self, String> {
        let config = Config::from_env().map_err(|error| error.to_string())?;
        let mut endpoint = Endpoint::open(&config).map_err(|error| error.to_string())?;
        let handled = Arc::new(Mutex::new(Vec::new()));
        for handler in 0..HANDLERS {
            let log = Arc::clone(&handled);
            endpoint.set_handler(handler, move |message| {
                let (header, payload) = (message.header().to_vec(), message.payload().to_vec());
                let message = HandledMessage { from: message.from() as u32, handler, header, payload };
                log.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            });
        }
        Ok(Self {
            endpoint,
            open: OpenOperations::new(),
            claims: BTreeMap::new(),
            regions: Vec::new(),
            handled,
            abilities,
        })
    }

    fn keep(
        &mut self,
        started: Result<Request, Error>,
        buffers: Vec<Buffer>,
    ) -> Result<OperationId, Trouble> {
        Ok(self.open.keep(started.map_err(trouble)?, buffers))
    }

    fn region(&self, region: ExposureId) -> Result<Region, Trouble> {
        let found = self.regions.get(region.0).map(|region| region.region);
        found.ok_or_else(|| Trouble::Other("no such region".into()))
    }
}

impl Actor for EndpointActor {
    fn rank(&self) -> u32 {
        self.endpoint.rank() as u32
    }

    fn size(&self) -> u32 {
        self.endpoint.size() as u32
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn progress(&mut self) {
        self.endpoint.progress();
    }

    async fn turn(&mut self) {
        self.progress();
        // The peers may need this processor.
        std::thread::yield_now();
    }

    fn send_with(
        &mut self,
        to: u32,
        context: u16,
        tag: u64,
        mut message: Buffer,
        options: SendOptions,
    ) -> Result<OperationId, Trouble> {
        let (to, place) = (to as usize, message.place());
        // SAFETY: `open` keeps the buffer until the request is complete, and is dropped after the endpoint.
        let op = unsafe {
            match place {
                BufferPlace::Run(base, len) => SendOp::from_raw(to, tag, base, len),
                BufferPlace::List(list, count) => SendOp::from_raw_list(to, tag, list, count),
            }
        };
        let op = op.context(context);
        let op = if options.synchronous { op.synchronous() } else { op };
        let op = if let Some(immediate) = options.immediate { op.immediate(immediate) } else { op };
        // SAFETY: the same.
        let started = unsafe { self.endpoint.isend_op(op) };
        self.keep(started, vec![message])
    }

    fn receive(&mut self, pattern: Pattern, mut room: Buffer) -> Result<OperationId, Trouble> {
        let ((from, tag), place) = (criteria(&pattern), room.place());
        // SAFETY: as in `send_with`.
        let op = unsafe {
            match place {
                BufferPlace::Run(base, len) => RecvOp::from_raw(from, tag, base, len),
                BufferPlace::List(list, count) => RecvOp::from_raw_list(from, tag, list, count),
            }
        };
        // SAFETY: the same.
        let started = unsafe { self.endpoint.irecv_op(op.context(pattern.context)) };
        self.keep(started, vec![room])
    }

    fn test(&mut self, operation: OperationId) -> Option<(Ended, Buffer)> {
        let Some(request) = self.open.request(operation) else {
            return Some((Err(Trouble::Other("no such operation".into())), Buffer::default()));
        };
        let outcome = self.endpoint.test(request).transpose()?;
        Some((outcome.map(core_status).map_err(trouble), self.open.finish(operation)))
    }

    fn cancel(&mut self, operation: OperationId) -> bool {
        self.open.request(operation).is_some_and(|request| self.endpoint.cancel(request))
    }

    fn probe(&mut self, pattern: &Pattern) -> Option<Status> {
        let (from, tag) = criteria(pattern);
        let found = self.endpoint.in_context(pattern.context).iprobe(from, tag);
        found.ok().flatten().map(core_status)
    }

    fn claim(&mut self, pattern: &Pattern) -> Result<Option<(ClaimId, Status)>, Trouble> {
        let (from, tag) = criteria(pattern);
        let found = self.endpoint.in_context(pattern.context).improbe(from, tag).map_err(trouble)?;
        let Some(message) = found else { return Ok(None) };
        let (number, status) = (self.open.number(), core_status(message.status()));
        self.claims.insert(number, message);
        Ok(Some((ClaimId(number), status)))
    }

    fn receive_claimed(&mut self, claim: ClaimId, mut room: Buffer) -> Result<OperationId, Trouble> {
        let message = self.claims.remove(&claim.0).ok_or_else(|| Trouble::Other("no such claim".into()))?;
        let BufferPlace::Run(base, len) = room.place() else {
            return Err(Trouble::Other("a claimed message is received into one run".into()));
        };
        // SAFETY: as in `send`.
        let started = unsafe { self.endpoint.imrecv(message, base, len) };
        self.keep(started, vec![room])
    }

    fn expose(&mut self, len: usize, access: Access, kind: ExposureKind) -> Result<ExposureId, Trouble> {
        let mut words = Vec::new();
        let region = if kind == ExposureKind::Mapped {
            self.endpoint.allocate(len, access)
        } else {
            let mut options = ExposeOptions::default();
            match kind {
                ExposureKind::Chosen(key) => options.key = Some(key),
                ExposureKind::ByAddress => options.addressing = Addressing::Address,
                ExposureKind::Mapped | ExposureKind::Packets => {}
            }
            words = vec![0_u64; len.div_ceil(8)];
            // SAFETY: the words are kept until the endpoint is gone, and only the endpoint uses them.
            unsafe { self.endpoint.expose_as(words.as_mut_ptr().cast(), len, access, options) }
        };
        self.regions.push(EndpointExposure { region: region.map_err(trouble)?, _words: words });
        Ok(ExposureId(self.regions.len() - 1))
    }

    fn unexpose(&mut self, region: ExposureId) -> Result<(), Trouble> {
        let region = self.region(region)?;
        self.endpoint.unexpose(region).map_err(trouble)
    }

    fn key(&mut self, region: ExposureId) -> Result<KeyBytes, Trouble> {
        let region = self.region(region)?;
        Ok(self.endpoint.remote_key(region).map_err(trouble)?.to_bytes())
    }

    fn look(&mut self, region: ExposureId, at: usize, len: usize) -> Result<Vec<u8>, Trouble> {
        let (region, mut bytes) = (self.region(region)?, vec![0; len]);
        self.endpoint.read_region(region, at, &mut bytes).map_err(trouble)?;
        Ok(bytes)
    }

    fn notifications(&mut self, region: ExposureId) -> Result<u64, Trouble> {
        let region = self.region(region)?;
        self.endpoint.notifications(region).map_err(trouble)
    }

    fn remote(
        &mut self,
        key: &EngineKey,
        offset: u64,
        verb: RemoteVerb,
        mut buffer: Buffer,
    ) -> Result<OperationId, Trouble> {
        let offset = key.base.wrapping_add(offset);
        let key = RemoteKey::from_bytes(key.rank as usize, &key.to_bytes());
        let key = key.ok_or_else(|| Trouble::Other("not a key".into()))?;
        let BufferPlace::Run(base, len) = buffer.place() else {
            return Err(Trouble::Other("one-sided operations take no lists".into()));
        };
        let endpoint = &mut self.endpoint;
        // SAFETY: as in `send`.
        let started = unsafe {
            match verb {
                RemoteVerb::Put { notify, complete } => {
                    endpoint.iput(&key, offset, base, len, notify, complete)
                }
                RemoteVerb::Get => endpoint.iget(&key, offset, base, len),
                RemoteVerb::Accumulate(datatype, reduction, complete) => {
                    endpoint.iaccumulate(&key, offset, (datatype, reduction), base, len, complete)
                }
                RemoteVerb::Fetch(datatype, reduction, operand) => {
                    endpoint.ifetch(&key, offset, (datatype, reduction), operand, base)
                }
                RemoteVerb::FetchAccumulate(datatype, reduction) => {
                    let mut room = Buffer::room(len);
                    let BufferPlace::Run(old, _) = room.place() else { unreachable!("one run") };
                    let what = (datatype, reduction);
                    let started = endpoint.ifetch_accumulate(&key, offset, what, base, old, len);
                    return self.keep(started, vec![buffer, room]);
                }
                RemoteVerb::CompareSwap(datatype, comparison, values) => {
                    endpoint.icompare_swap(&key, offset, (datatype, comparison), values, base)
                }
            }
        };
        self.keep(started, vec![buffer])
    }

    fn flush(&mut self, rank: u32) -> Result<OperationId, Trouble> {
        let started = self.endpoint.iflush(rank as usize);
        self.keep(started, Vec::new())
    }

    fn fence(&mut self, rank: u32) -> Result<(), Trouble> {
        self.endpoint.fence(rank as usize).map_err(trouble)
    }

    fn send_active(
        &mut self,
        to: u32,
        handler: u16,
        mut header: Buffer,
        mut payload: Buffer,
    ) -> Result<OperationId, Trouble> {
        let (BufferPlace::Run(head, head_len), BufferPlace::Run(body, body_len)) =
            (header.place(), payload.place())
        else {
            return Err(Trouble::Other("active messages take no lists".into()));
        };
        let head = std::ptr::slice_from_raw_parts(head.cast_const(), head_len);
        let body = std::ptr::slice_from_raw_parts(body.cast_const(), body_len);
        // SAFETY: as in `send`.
        let started = unsafe { self.endpoint.isend_active(to as usize, handler, head, body) };
        self.keep(started, vec![header, payload])
    }

    fn active_bytes(&self) -> usize {
        self.endpoint.active_bytes()
    }

    fn handled(&mut self) -> Vec<HandledMessage> {
        std::mem::take(&mut *self.handled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn failure(&self, rank: u32) -> Option<Failure> {
        self.endpoint.failure(rank as usize)
    }

    fn acknowledge(&mut self) {
        self.endpoint.acknowledge_failures();
    }

    fn incarnation(&self) -> u64 {
        self.endpoint.incarnation()
    }

    fn readmit(&mut self, rank: u32) -> Result<bool, Trouble> {
        let rank = rank as usize;
        if !self.endpoint.restarted().map_err(trouble)?.contains(&rank) {
            return Ok(false);
        }
        self.endpoint.readmit(rank).map_err(trouble)?;
        Ok(true)
    }

    async fn die(&mut self) -> Verdict {
        kill_this_process()
    }

    async fn close(self) -> Verdict {
        self.endpoint.close().map_err(|error| error.to_string())
    }
}
