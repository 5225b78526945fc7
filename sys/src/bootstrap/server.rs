//! The launcher's side of PMI-1: one socket for each rank, and the table of their values.
//!
//! Nothing here waits. A rank's requests are untrusted: a rank can at worst lose its own connection.

use super::members::Members;
use super::poll;
use super::wire::{self, LineBuffer, PmiReply, PmiRequest};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The announced maximum lengths in bytes, including a terminating zero. They are Hydra's: clients in C read
/// into buffers of about this size, whatever is announced.
const MAX_KVSNAME: usize = 256;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;
/// The largest number of keys of one rank.
const MAX_KEYS_PER_RANK: usize = 4096;
/// The lines of one rank that are answered before the next rank is served.
const LINES_PER_TURN: usize = 64;

/// The state of a rank's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has sent nothing yet. Programs that do not use PMI never send anything.
    Fresh,
    /// It has initialised PMI and may send requests.
    Ready,
    /// As before, and it waits in the barrier.
    InBarrier,
    /// It has finalized PMI.
    Finalized,
    /// Its connection ended without finalizing, at this time; the process may still exist.
    Disconnected(Instant),
    /// Its process has ended.
    Gone,
}

#[derive(Debug)]
struct ServerConnection {
    socket: Option<OwnedFd>,
    lines: LineBuffer,
    /// Answers that the socket has not taken yet. While there are any, nothing more is read.
    answers: Vec<u8>,
    phase: Phase,
    /// The phase in which it ended.
    last: Phase,
    keys: usize,
    /// Whether lines may be waiting in `lines`, so that the next pass must not depend on the socket.
    unfinished: bool,
}

/// Whether a rank can be started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    Now,
    /// Not before all others have joined.
    Later,
    Never,
}

/// A rank's request to end the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abort {
    pub(super) rank: usize,
    pub(super) code: i32,
}

/// The state of all connections.
#[derive(Debug)]
pub(super) struct Server {
    connections: Vec<ServerConnection>,
    kvsname: String,
    pairs: HashMap<String, String>,
    /// How long after the end of its connection a rank counts as lost, unless its process ends earlier.
    grace: Duration,
    aborts: Vec<Abort>,
    faults: Vec<(usize, String)>,
    /// The ranks that have left or are lost, in that order. A message names the first one, which is the cause,
    /// and not a rank that left because of it.
    leavers: Vec<usize>,
    members: Members,
}

impl Server {
    /// Makes a server for as many ranks as there are sockets. `kvsname` names the table and must fit a token.
    /// If `restarts` is set, ranks may be started again.
    pub(super) fn new(sockets: Vec<OwnedFd>, kvsname: String, grace: Duration, restarts: bool) -> Self {
        let members = Members::new(sockets.len(), restarts);
        let mut pairs = HashMap::new();
        // MPICH learns from this key that all ranks are on one host.
        pairs.insert("PMI_process_mapping".to_owned(), format!("(vector,(0,1,{}))", sockets.len()));
        let connections = sockets.into_iter().map(ServerConnection::new);
        Self {
            connections: connections.collect(),
            kvsname,
            pairs,
            grace,
            aborts: Vec::new(),
            faults: Vec::new(),
            leavers: Vec::new(),
            members,
        }
    }

    /// Returns whether `rank`, which has ended, can be started again now, later or never. A process that has
    /// not used PMI can always be started again; one that has used it, when there is a world to come back to;
    /// one that has finalized PMI, never.
    pub(super) fn can_restart(&self, rank: usize) -> Restart {
        match self.connections.get(rank).map(|connection| connection.last) {
            Some(Phase::Fresh) => Restart::Now,
            Some(Phase::Finalized) | None => Restart::Never,
            _ if self.members.has_formed() => Restart::Now,
            _ => Restart::Later,
        }
    }

    /// Returns the incarnation that the next process of `rank` must announce.
    pub(super) fn next_incarnation(&mut self, rank: usize) -> u64 {
        self.members.next_incarnation(rank)
    }

    /// Records that `rank` was started again with this connection.
    pub(super) fn rank_restarted(&mut self, rank: usize, socket: OwnedFd) {
        if let Some(connection) = self.connections.get_mut(rank) {
            *connection = ServerConnection::new(socket);
        }
        self.leavers.retain(|leaver| *leaver != rank);
    }

    /// Adds the connections and their events to a poll.
    pub(super) fn add_entries(&self, entries: &mut Vec<libc::pollfd>) {
        for connection in &self.connections {
            if let Some(socket) = &connection.socket {
                let events = if connection.answers.is_empty() { libc::POLLIN } else { libc::POLLOUT };
                entries.push(poll::entry(socket.as_fd(), events));
            }
        }
    }

    /// Returns how soon the next pass must come even if no socket is ready.
    pub(super) fn next_chunk(&self, now: Instant) -> Option<Duration> {
        let due = self.connections.iter().filter_map(|connection| match connection.phase {
            _ if connection.unfinished => Some(Duration::ZERO),
            // The grace period matters only while a rank waits.
            Phase::Disconnected(at) if self.someone_waits() => {
                Some((at + self.grace).saturating_duration_since(now))
            }
            _ => None,
        });
        due.min()
    }

    /// Serves every connection as far as possible without waiting.
    pub(super) fn turn(&mut self, now: Instant) {
        for rank in 0..self.connections.len() {
            self.serve(rank, now);
        }
        self.settle_barrier(now);
    }

    /// Records that the process of `rank` has ended, after answering its last requests.
    pub(super) fn rank_ended(&mut self, rank: usize, now: Instant) {
        self.serve(rank, now);
        if let Some(connection) = self.connections.get_mut(rank) {
            connection.socket = None;
            connection.unfinished = false;
            if !matches!(connection.phase, Phase::Disconnected(_) | Phase::Gone) {
                connection.last = connection.phase;
            }
            connection.phase = Phase::Gone;
        }
        self.members.leave(rank);
        self.note_leaver(rank);
        self.settle_barrier(now);
    }

    /// Returns the requests to end the job since the last call.
    pub(super) fn take_aborts(&mut self) -> Vec<Abort> {
        std::mem::take(&mut self.aborts)
    }

    /// Returns the ranks whose connection was closed because of their requests, with the reason.
    pub(super) fn take_faults(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.faults)
    }

    fn someone_waits(&self) -> bool {
        self.connections.iter().any(|connection| connection.phase == Phase::InBarrier)
    }

    fn note_leaver(&mut self, rank: usize) {
        if !self.leavers.contains(&rank) {
            self.leavers.push(rank);
        }
    }

    fn serve(&mut self, rank: usize, now: Instant) {
        match self.serve_lines(rank) {
            Ok(()) => {}
            Err(Some(fault)) => {
                self.faults.push((rank, fault));
                self.disconnect(rank, now);
            }
            Err(None) => self.disconnect(rank, now),
        }
    }

    fn disconnect(&mut self, rank: usize, now: Instant) {
        if let Some(connection) = self.connections.get_mut(rank) {
            connection.socket = None;
            connection.unfinished = false;
            if !matches!(connection.phase, Phase::Finalized | Phase::Gone) {
                connection.last = connection.phase;
                connection.phase = Phase::Disconnected(now);
            }
        }
        self.note_leaver(rank);
    }

    /// Reads and answers requests. An error ends the connection, with a reason if the rank caused it.
    fn serve_lines(&mut self, rank: usize) -> Result<(), Option<String>> {
        for _ in 0..LINES_PER_TURN {
            let Some(connection) = self.connections.get_mut(rank) else { return Ok(()) };
            connection.unfinished = false;
            if connection.socket.is_none() || !connection.flush()? {
                return Ok(());
            }
            match connection.lines.take_line().map_err(|error| Some(error.to_string()))? {
                Some(line) => self.answer(rank, &line)?,
                None if connection.fill()? => {}
                None => return Ok(()),
            }
        }
        if let Some(connection) = self.connections.get_mut(rank) {
            connection.unfinished = true;
        }
        Ok(())
    }

    fn answer(&mut self, rank: usize, line: &[u8]) -> Result<(), Option<String>> {
        let request = PmiRequest::parse(line).map_err(|error| Some(error.to_string()))?;
        let size = self.connections.len();
        let Some(connection) = self.connections.get_mut(rank) else { return Ok(()) };
        let handshake = matches!(request, PmiRequest::Init { .. });
        // An abort is valid at any time; every other request needs an init first. A second init is refused, without
        // harm for the code that sent the first one.
        let fits = match connection.phase {
            Phase::Fresh => handshake,
            Phase::Ready => true,
            _ => false,
        };
        if !fits && !matches!(request, PmiRequest::Abort { .. }) {
            return Err(Some(format!("out of turn: {}", wire::excerpt(&String::from_utf8_lossy(line)))));
        }
        let reply = match request {
            PmiRequest::Init { .. } if connection.phase == Phase::Ready => {
                PmiReply::Init { code: wire::INITIALIZED, version: 1, subversion: 1 }
            }
            PmiRequest::Init { version, .. } => {
                let code = if version == 1 { 0 } else { -1 };
                if code == 0 {
                    connection.phase = Phase::Ready;
                }
                PmiReply::Init { code, version: 1, subversion: 1 }
            }
            PmiRequest::GetMaxes => PmiReply::Maxes { kvsname: MAX_KVSNAME, key: MAX_KEY, value: MAX_VALUE },
            PmiRequest::GetAppnum => PmiReply::Appnum { appnum: 0 },
            PmiRequest::GetUniverseSize => PmiReply::UniverseSize { size: i64::try_from(size).unwrap_or(-1) },
            PmiRequest::GetMyKvsname => PmiReply::MyKvsname { kvsname: &self.kvsname },
            PmiRequest::Put { kvsname, key, value } => {
                let refusal = refuse_put(&self.kvsname, kvsname, key, value, connection.keys)
                    .or_else(|| put(&mut self.pairs, key, value));
                connection.keys += usize::from(refusal.is_none());
                PmiReply::Put {
                    code: if refusal.is_none() { 0 } else { -1 },
                    message: refusal.unwrap_or("success"),
                }
            }
            PmiRequest::Get { kvsname, key } => match self.pairs.get(key).filter(|_| kvsname == self.kvsname)
            {
                Some(value) => PmiReply::Get { code: 0, message: "success", value: Some(value) },
                None => PmiReply::Get { code: -1, message: "key_not_found", value: Some("unknown") },
            },
            PmiRequest::BarrierIn => {
                connection.phase = Phase::InBarrier;
                // The answer follows when the barrier is settled, at the end of the pass.
                return Ok(());
            }
            PmiRequest::Join { version, incarnation, address } => {
                match self.members.join(rank, (version, incarnation), address, MAX_VALUE) {
                    Ok(turn) => PmiReply::Joined { code: 0, message: "success", turn: turn.get() },
                    Err(message) => PmiReply::Joined { code: -1, message, turn: 0 },
                }
            }
            PmiRequest::Member { rank } => self.members.answer(rank),
            PmiRequest::Finalize => {
                connection.phase = Phase::Finalized;
                self.members.leave(rank);
                self.leavers.push(rank);
                PmiReply::FinalizeAck { code: 0 }
            }
            PmiRequest::Abort { code } => {
                self.aborts.push(Abort { rank, code });
                return Ok(());
            }
        };
        connection.answers.extend_from_slice(reply.encode().as_bytes());
        Ok(())
    }

    /// Ends the barrier if all ranks are in it, or fails it if it waits for a rank that cannot enter it.
    fn settle_barrier(&mut self, now: Instant) {
        if !self.someone_waits() {
            return;
        }
        let grace = self.grace;
        let lost = self.leavers.iter().copied().find(|rank| {
            match self.connections.get(*rank).map(|connection| connection.phase) {
                Some(Phase::Finalized | Phase::Gone) => true,
                Some(Phase::Disconnected(at)) => now.saturating_duration_since(at) >= grace,
                Some(Phase::Fresh | Phase::Ready | Phase::InBarrier) | None => false,
            }
        });
        // A restarted process has missed barriers, and the others may have missed it: no barriers are possible
        // any more.
        let restart = (0..self.connections.len()).find(|&rank| self.members.is_restart(rank));
        let reason = lost
            .map(|rank| format!("rank_{rank}_is_gone"))
            .or_else(|| restart.map(|rank| format!("rank_{rank}_was_started_again")));
        let complete = self.connections.iter().all(|connection| connection.phase == Phase::InBarrier);
        let line = match &reason {
            Some(message) => PmiReply::BarrierOut { code: -1, message }.encode(),
            None if complete => PmiReply::BarrierOut { code: 0, message: "success" }.encode(),
            None => return,
        };
        for connection in &mut self.connections {
            if connection.phase == Phase::InBarrier {
                connection.phase = Phase::Ready;
                connection.answers.extend_from_slice(line.as_bytes());
                // The next pass handles what the socket does not take now, and errors.
                connection.unfinished = true;
            }
        }
    }
}

/// Adds a pair to the table, or returns why it is refused.
fn put(pairs: &mut HashMap<String, String>, key: &str, value: &str) -> Option<&'static str> {
    match pairs.entry(key.to_owned()) {
        Entry::Occupied(_) => Some("key_was_put_before"),
        Entry::Vacant(vacant) => {
            vacant.insert(value.to_owned());
            None
        }
    }
}

/// Returns why a pair is refused; `None` if it is accepted.
fn refuse_put(own_kvsname: &str, kvsname: &str, key: &str, value: &str, keys: usize) -> Option<&'static str> {
    if kvsname != own_kvsname {
        Some("kvsname_not_known")
    } else if !wire::is_key(key) || key.len() >= MAX_KEY {
        Some("key_too_long_or_malformed")
    } else if !wire::is_value(value) || value.len() >= MAX_VALUE {
        Some("value_too_long_or_malformed")
    } else if keys >= MAX_KEYS_PER_RANK {
        Some("too_many_keys")
    } else {
        None
    }
}

impl ServerConnection {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            lines: LineBuffer::default(),
            answers: Vec::new(),
            phase: Phase::Fresh,
            last: Phase::Fresh,
            keys: 0,
            unfinished: false,
        }
    }

    /// Sends waiting answers. Returns whether all were sent.
    fn flush(&mut self) -> Result<bool, Option<String>> {
        let Some(socket) = &self.socket else { return Ok(false) };
        while !self.answers.is_empty() {
            match poll::send(socket.as_fd(), &self.answers) {
                Ok(count) => {
                    self.answers.drain(..count.min(self.answers.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(None),
            }
        }
        Ok(true)
    }

    /// Reads once. Returns whether anything arrived.
    fn fill(&mut self) -> Result<bool, Option<String>> {
        let Some(socket) = &self.socket else { return Ok(false) };
        let mut piece = [0; 4096];
        match poll::receive(socket.as_fd(), &mut piece) {
            Ok(0) => Err(None),
            Ok(count) => {
                self.lines.push(piece.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // A reset connection is an end like any other.
            Err(_) => Err(None),
        }
    }
}
