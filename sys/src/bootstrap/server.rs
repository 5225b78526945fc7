//! The launcher's side of PMI-1: one socket for each rank, and the table of what they put.
//!
//! Nothing here waits. What a rank sends is not trusted: the worst it can do is lose its own connection.

use super::members::Members;
use super::poll;
use super::wire::{self, LineBuffer, Reply, Request};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Greatest lengths that are announced, in bytes; a terminating zero counts. They are Hydra's: clients in C
/// read into buffers of about this size, whatever is announced.
const MAX_KVSNAME: usize = 256;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;
/// Most keys of one rank.
const MAX_KEYS_PER_RANK: usize = 4096;
/// Most lines of one rank that are answered before the others have their turn.
const LINES_PER_TURN: usize = 64;

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not said anything yet. Programs that do not use PMI never do.
    Fresh,
    /// It has greeted and may ask.
    Ready,
    /// As before, and it waits in the barrier.
    InBarrier,
    /// It has taken its leave.
    Finalized,
    /// Its connection ended without leave, at this time; the process may still be there.
    Disconnected(Instant),
    /// Its process has ended.
    Gone,
}

#[derive(Debug)]
struct Connection {
    socket: Option<OwnedFd>,
    lines: LineBuffer,
    /// Answers that the socket has not taken yet. While there are any, nothing more is read.
    answers: Vec<u8>,
    phase: Phase,
    /// The phase in which it ended.
    last: Phase,
    keys: usize,
    /// Lines may be waiting in `lines`, so the next turn must not depend on the socket.
    unfinished: bool,
}

/// Whether a rank can be started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    Now,
    /// Not before the others have all joined.
    Later,
    Never,
}

/// A rank's wish to end the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abort {
    pub(super) rank: usize,
    pub(super) code: i32,
}

/// The state of all connections.
#[derive(Debug)]
pub(super) struct Server {
    connections: Vec<Connection>,
    kvsname: String,
    pairs: HashMap<String, String>,
    /// How long after its connection ended a rank counts as lost, if its process is not seen to end earlier.
    grace: Duration,
    aborts: Vec<Abort>,
    faults: Vec<(usize, String)>,
    /// The ranks that have left or are lost, in that order: a message blames the first, not one that gave up
    /// because of it.
    leavers: Vec<usize>,
    members: Members,
}

impl Server {
    /// A server for as many ranks as there are sockets. `kvsname` names the table and must fit a token. `restarts`: ranks may
    /// be started again.
    pub(super) fn new(sockets: Vec<OwnedFd>, kvsname: String, grace: Duration, restarts: bool) -> Self {
        let members = Members::new(sockets.len(), restarts);
        let mut pairs = HashMap::new();
        // MPICH reads from this key that all ranks are on one host.
        pairs.insert("PMI_process_mapping".to_owned(), format!("(vector,(0,1,{}))", sockets.len()));
        let connections = sockets.into_iter().map(Connection::new);
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

    /// Whether `rank`, which has ended, can be started again now; never, if that is for good. A process that has not used
    /// PMI always can; one that has, when there is a world to come back to; one that has taken its leave can't.
    pub(super) fn can_restart(&self, rank: usize) -> Restart {
        match self.connections.get(rank).map(|connection| connection.last) {
            Some(Phase::Fresh) => Restart::Now,
            Some(Phase::Finalized) | None => Restart::Never,
            _ if self.members.has_formed() => Restart::Now,
            _ => Restart::Later,
        }
    }

    /// `rank` is to be started again: what its next process has to say of itself.
    pub(super) fn next_incarnation(&mut self, rank: usize) -> u64 {
        self.members.next_incarnation(rank)
    }

    /// `rank` was started again, and has this connection.
    pub(super) fn rank_restarted(&mut self, rank: usize, socket: OwnedFd) {
        if let Some(connection) = self.connections.get_mut(rank) {
            *connection = Connection::new(socket);
        }
        self.leavers.retain(|leaver| *leaver != rank);
    }

    /// Adds what the connections wait for to a poll.
    pub(super) fn add_entries(&self, entries: &mut Vec<libc::pollfd>) {
        for connection in &self.connections {
            if let Some(socket) = &connection.socket {
                let events = if connection.answers.is_empty() { libc::POLLIN } else { libc::POLLOUT };
                entries.push(poll::entry(socket.as_fd(), events));
            }
        }
    }

    /// How soon the next turn must come even if no socket is ready.
    pub(super) fn next_turn(&self, now: Instant) -> Option<Duration> {
        let due = self.connections.iter().filter_map(|connection| match connection.phase {
            _ if connection.unfinished => Some(Duration::ZERO),
            // The grace matters only while somebody waits.
            Phase::Disconnected(at) if self.someone_waits() => {
                Some((at + self.grace).saturating_duration_since(now))
            }
            _ => None,
        });
        due.min()
    }

    /// Serves every connection as far as it goes without waiting.
    pub(super) fn turn(&mut self, now: Instant) {
        for rank in 0..self.connections.len() {
            self.serve(rank, now);
        }
        self.settle_barrier(now);
    }

    /// Takes note that the process of `rank` has ended, after answering what it had still sent.
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

    /// The wishes to end the job that have come in since the last call.
    pub(super) fn take_aborts(&mut self) -> Vec<Abort> {
        std::mem::take(&mut self.aborts)
    }

    /// The ranks whose connection was closed because of what they sent, with the reason.
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

    /// Reads and answers. An error ends the connection, with a reason when the rank is to blame.
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
        let request = Request::parse(line).map_err(|error| Some(error.to_string()))?;
        let size = self.connections.len();
        let Some(connection) = self.connections.get_mut(rank) else { return Ok(()) };
        let greeting = matches!(request, Request::Init { .. });
        // An abort is heard at any time; the rest needs a greeting first, and no second one.
        let fits = match connection.phase {
            Phase::Fresh => greeting,
            Phase::Ready => !greeting,
            _ => false,
        };
        if !fits && !matches!(request, Request::Abort { .. }) {
            return Err(Some(format!("out of turn: {}", wire::excerpt(&String::from_utf8_lossy(line)))));
        }
        let reply = match request {
            Request::Init { version, .. } => {
                let code = if version == 1 { 0 } else { -1 };
                if code == 0 {
                    connection.phase = Phase::Ready;
                }
                Reply::Init { code, version: 1, subversion: 1 }
            }
            Request::GetMaxes => Reply::Maxes { kvsname: MAX_KVSNAME, key: MAX_KEY, value: MAX_VALUE },
            Request::GetAppnum => Reply::Appnum { appnum: 0 },
            Request::GetUniverseSize => Reply::UniverseSize { size: i64::try_from(size).unwrap_or(-1) },
            Request::GetMyKvsname => Reply::MyKvsname { kvsname: &self.kvsname },
            Request::Put { kvsname, key, value } => {
                let refusal = refuse_put(&self.kvsname, kvsname, key, value, connection.keys)
                    .or_else(|| put(&mut self.pairs, key, value));
                connection.keys += usize::from(refusal.is_none());
                Reply::Put {
                    code: if refusal.is_none() { 0 } else { -1 },
                    message: refusal.unwrap_or("success"),
                }
            }
            Request::Get { kvsname, key } => match self.pairs.get(key).filter(|_| kvsname == self.kvsname) {
                Some(value) => Reply::Get { code: 0, message: "success", value: Some(value) },
                None => Reply::Get { code: -1, message: "key_not_found", value: Some("unknown") },
            },
            Request::BarrierIn => {
                connection.phase = Phase::InBarrier;
                // Answered when the barrier is settled, at the end of the turn.
                return Ok(());
            }
            Request::Join { version, incarnation, address } => {
                match self.members.join(rank, (version, incarnation), address, MAX_VALUE) {
                    Ok(turn) => Reply::Joined { code: 0, message: "success", turn: turn.get() },
                    Err(message) => Reply::Joined { code: -1, message, turn: 0 },
                }
            }
            Request::Member { rank } => self.members.answer(rank),
            Request::Finalize => {
                connection.phase = Phase::Finalized;
                self.members.leave(rank);
                self.leavers.push(rank);
                Reply::FinalizeAck { code: 0 }
            }
            Request::Abort { code } => {
                self.aborts.push(Abort { rank, code });
                return Ok(());
            }
        };
        connection.answers.extend_from_slice(reply.encode().as_bytes());
        Ok(())
    }

    /// Ends the barrier when all are in it, or fails it when somebody in it waits for one who never comes.
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
        // A process that was started again has missed barriers, and the others may have missed it: there are none any more.
        let restart = (0..self.connections.len()).find(|&rank| self.members.is_restart(rank));
        let reason = lost
            .map(|rank| format!("rank_{rank}_is_gone"))
            .or_else(|| restart.map(|rank| format!("rank_{rank}_was_started_again")));
        let complete = self.connections.iter().all(|connection| connection.phase == Phase::InBarrier);
        let line = match &reason {
            Some(message) => Reply::BarrierOut { code: -1, message }.encode(),
            None if complete => Reply::BarrierOut { code: 0, message: "success" }.encode(),
            None => return,
        };
        for connection in &mut self.connections {
            if connection.phase == Phase::InBarrier {
                connection.phase = Phase::Ready;
                connection.answers.extend_from_slice(line.as_bytes());
                // What the socket does not take now, or an error, comes up in the next turn.
                connection.unfinished = true;
            }
        }
    }
}

/// Enters a pair; why not, if it can't be.
fn put(pairs: &mut HashMap<String, String>, key: &str, value: &str) -> Option<&'static str> {
    match pairs.entry(key.to_owned()) {
        Entry::Occupied(_) => Some("key_was_put_before"),
        Entry::Vacant(vacant) => {
            vacant.insert(value.to_owned());
            None
        }
    }
}

/// Why a pair is refused; none when it is welcome.
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

impl Connection {
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

    /// Sends what is waiting; whether all of it went.
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

    /// Reads once; whether anything came.
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
