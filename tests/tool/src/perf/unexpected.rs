//! Many unexpected messages: rank 1 sends them before rank 0 posts a receive. Rank 0 then receives them in
//! reverse order, checks every byte, and reports the memory that they took. At the ceiling the sender is held
//! back; rank 0 then receives what has arrived, in reverse order, and goes on.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::os::fd::RawFd;
use std::time::Instant;

use nemesia::{Bill, Config, Endpoint, Error, Source, Tag};
use serde::{Deserialize, Serialize};

use super::worker::{self, Report};
use crate::failure::Failure;

/// The context in which the sender announces that it has sent everything.
const END: u16 = 1;

/// The plan of the two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnexpectedPlan {
    pub(crate) messages: u64,
    pub(crate) bytes: usize,
    /// The descriptors in which each rank reports.
    pub(crate) reports: [RawFd; 2],
}

/// The findings of the receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Shown {
    messages: u64,
    bytes: usize,
    /// The ceiling of unexpected messages, in bytes.
    ceiling: usize,
    /// The bytes of a process's segments, and of its other memory at start, as `nemesia info` prints them.
    segments: u64,
    private_at_start: u64,
    /// The growth of the receiver in bytes, since before it opened its endpoint, when most was stored: of its
    /// own memory, and of memory shared with the sender.
    private_growth: u64,
    shared_growth: u64,
    /// The largest number of messages stored at once, and how often the sender was held back at the ceiling.
    most_stored: u64,
    held: u64,
    seconds_to_come: f64,
    seconds_to_receive: f64,
}

#[derive(Serialize)]
struct UnexpectedDocument<'a> {
    unexpected: &'a Shown,
}

/// Takes part, and reports.
///
/// # Errors
/// This process was not started by `perf`.
pub(crate) fn work(plan: &str) -> Result<Report<Option<Shown>>, String> {
    let plan: UnexpectedPlan =
        serde_json::from_str(plan).map_err(|error| worker::astray(&error.to_string()))?;
    worker::report(plan.reports, || take_part(&plan))
}

fn take_part(plan: &UnexpectedPlan) -> Report<Option<Shown>> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let before = Resident::now()?;
    let mut endpoint = Endpoint::open(&config).map_err(|error| error.to_string())?;
    let shown = if endpoint.rank() == 0 {
        let bill = Bill::new(&config, 2).map_err(|error| error.to_string())?;
        let ceiling = config.get("NEMESIA_UNEXPECTED_BYTES").map_err(|error| error.to_string())?;
        let ceiling = ceiling.parse().map_err(|_| format!("the ceiling is {ceiling}"))?;
        let shown = Shown {
            segments: bill.segments,
            private_at_start: bill.private_at_start,
            ceiling,
            ..Shown::default()
        };
        Some(Receiver { endpoint: &mut endpoint, plan, before, shown, next: 0 }.receive()?)
    } else {
        send(&mut endpoint, plan).map_err(|error| error.to_string())?;
        None
    };
    endpoint.close().map_err(|error| error.to_string())?;
    Ok(shown)
}

/// Returns the fill byte of a message: no two neighbours have the same.
fn byte(tag: u64) -> u8 {
    (tag ^ (tag >> 8) ^ (tag >> 16)).wrapping_mul(151) as u8
}

fn send(endpoint: &mut Endpoint, plan: &UnexpectedPlan) -> Result<(), Error> {
    // One buffer for each byte value.
    let bytes: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte; plan.bytes]).collect();
    // All of them at once: an announced message is complete when it is received, and the messages behind it
    // must come first.
    endpoint.scope(|scope| {
        for tag in 0..plan.messages {
            scope.isend(0, tag, &bytes[usize::from(byte(tag))])?;
        }
        scope.in_context(END).isend(0, 0, &[])?;
        scope.wait_all()
    })
}

struct Receiver<'a> {
    endpoint: &'a mut Endpoint,
    plan: &'a UnexpectedPlan,
    before: Resident,
    shown: Shown,
    /// The first tag that was not received.
    next: u64,
}

impl Receiver<'_> {
    fn receive(mut self) -> Result<Shown, String> {
        self.shown.messages = self.plan.messages;
        self.shown.bytes = self.plan.bytes;
        loop {
            let start = Instant::now();
            // Lets messages arrive without posting a receive.
            let end = self.endpoint.in_context(END).probe(Source::Rank(1), Tag::Exactly(0));
            self.shown.seconds_to_come += start.elapsed().as_secs_f64();
            let stored = match end {
                Ok(_) => self.plan.messages - self.next,
                Err(Error::Unexpected { messages, .. }) => {
                    self.shown.held += 1;
                    messages as u64
                }
                Err(error) => return Err(error.to_string()),
            };
            self.warning(stored)?;
            let start = Instant::now();
            self.take(stored)?;
            self.shown.seconds_to_receive += start.elapsed().as_secs_f64();
            if end.is_ok() {
                let (from, tag) = (Source::Rank(1), Tag::Exactly(0));
                self.endpoint.in_context(END).recv(from, tag, &mut []).map_err(|error| error.to_string())?;
                return Ok(self.shown);
            }
        }
    }

    fn warning(&mut self, stored: u64) -> Result<(), String> {
        if stored > self.shown.most_stored {
            let now = Resident::now()?;
            self.shown.most_stored = stored;
            self.shown.private_growth = now.private.saturating_sub(self.before.private);
            self.shown.shared_growth = now.shared.saturating_sub(self.before.shared);
        }
        Ok(())
    }

    /// Receives the next messages, the last of them first.
    fn take(&mut self, count: u64) -> Result<(), String> {
        let mut room = vec![0; self.plan.bytes + 1];
        for tag in (self.next..self.next + count).rev() {
            room.fill(!byte(tag));
            let (from, wanted) = (Source::Rank(1), Tag::Exactly(tag));
            let status = self.endpoint.recv(from, wanted, &mut room).map_err(|error| error.to_string())?;
            let whole = room[..self.plan.bytes].iter().all(|it| *it == byte(tag));
            if status.len != self.plan.bytes || status.tag != tag || !whole {
                return Err(format!("message {tag} has come as {status:?}, with wrong bytes: {}", !whole));
            }
        }
        self.next += count;
        Ok(())
    }
}

/// The memory of this process that is present.
#[derive(Clone, Copy, Debug)]
struct Resident {
    private: u64,
    shared: u64,
}

impl Resident {
    fn now() -> Result<Self, String> {
        let text = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
            kibibytes.map(|count| count << 10).ok_or_else(|| format!("/proc/self/status has no {name}"))
        };
        Ok(Self { private: field("RssAnon:")?, shared: field("RssShmem:")? })
    }
}

/// Returns the results as JSON, with a final newline.
///
/// # Errors
/// A value has no form in JSON.
pub(crate) fn json(shown: &Shown) -> Result<String, Failure> {
    serde_json::to_string(&UnexpectedDocument { unexpected: shown })
        .map(|text| text + "\n")
        .map_err(Failure::failed)
}

/// Returns the results as text.
pub(crate) fn text(shown: &Shown) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, shown);
    out
}

fn write(out: &mut String, shown: &Shown) -> std::fmt::Result {
    let Shown { messages, bytes, most_stored, held, .. } = shown;
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let per_message = |seconds: f64| seconds * 1e9 / *messages as f64;
    writeln!(
        out,
        "{messages} messages of {bytes} bytes, sent before any was asked for and received in reverse order"
    )?;
    writeln!(out, "  stored at once           {most_stored:>12} at most; the sender was held {held} times")?;
    for (what, bytes) in [
        ("ceiling", shown.ceiling as u64),
        ("own memory grew by", shown.private_growth),
        ("shared memory grew by", shown.shared_growth),
        ("the bill: own at start", shown.private_at_start),
        ("the bill: segments", shown.segments),
    ] {
        writeln!(out, "  {what:<24} {:>8.1} MiB {bytes:>12} bytes", mebibytes(bytes))?;
    }
    writeln!(out, "  to come                  {:>8.1} ns a message", per_message(shown.seconds_to_come))?;
    writeln!(out, "  to be received           {:>8.1} ns a message", per_message(shown.seconds_to_receive))
}
