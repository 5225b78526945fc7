//! The cost of matching with many posted receives or many unexpected messages: in one process, which sends to
//! itself through the public interface.

use std::fmt::Write;

use nemesia::bootstrap::Singleton;
use nemesia::{Config, Endpoint, Error, Request, Source, Tag};
use serde::Serialize;

use super::stats::median;
use super::timer::Timer;
use crate::failure::Failure;

/// The lengths of the queue.
const QUEUED: [u64; 3] = [1, 1_000, 100_000];
/// The number of rounds; medians are reported.
const ROUNDS: usize = 5;
/// The steps through the queue that one round may take, and the messages of a round.
const LOOKS: usize = 2_000_000;
const MESSAGES: std::ops::RangeInclusive<usize> = 20..=5_000;
/// The bits of a tag that a wildcard ignores.
const IGNORED: u64 = 0xff;

/// The kind of queue entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Queue {
    /// Receives that no message matches.
    Posted,
    /// Messages that no receive has matched.
    Unexpected,
}

/// How a receive names its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// Source and whole tag.
    Exact,
    /// From any source.
    Source,
    /// With a tag of which some bits are ignored.
    Tag,
}

impl Form {
    const fn words(self) -> &'static str {
        match self {
            Self::Exact => "exact match",
            Self::Source => "wildcard source",
            Self::Tag => "wildcard tag",
        }
    }

    /// Returns the source and tag of a receive of this form that gets the n-th message.
    const fn pattern(self, me: usize, n: u64) -> (Source, Tag) {
        match self {
            Self::Exact => (Source::Rank(me), Tag::Exactly(tag(n))),
            Self::Source => (Source::Any, Tag::Exactly(tag(n))),
            Self::Tag => (Source::Rank(me), Tag::Masked { value: tag(n), ignore: IGNORED }),
        }
    }
}

const fn tag(n: u64) -> u64 {
    n * (IGNORED + 1)
}

/// One measured case.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Row {
    queue: Queue,
    queued: u64,
    form: Form,
    /// The time of a message to ourselves, sent and received.
    ns: f64,
    /// The entries that the search visited, including the one found.
    steps: usize,
}

#[derive(Serialize)]
struct MatchingDocument<'a> {
    matching: &'a [Row],
}

/// Measures every case.
///
/// # Errors
/// What failed.
pub(crate) fn measure() -> Result<Vec<Row>, Failure> {
    let config = Config::from_env().map_err(Failure::unusable)?;
    let timer = Timer::new();
    let mut rows = Vec::new();
    for queue in [Queue::Posted, Queue::Unexpected] {
        for form in [Form::Exact, Form::Source, Form::Tag] {
            for queued in QUEUED {
                rows.push(case(&config, &timer, queue, queued, form).map_err(Failure::failed)?);
            }
        }
    }
    Ok(rows)
}

fn case(config: &Config, timer: &Timer, queue: Queue, queued: u64, form: Form) -> Result<Row, Error> {
    let mut endpoint = Endpoint::open_with(config, Box::new(Singleton::new()))?;
    let me = endpoint.rank();
    let mut posted = Vec::new();
    // Number 0 is the one that is measured.
    for n in 1..=queued {
        match queue {
            Queue::Posted => posted.push(post(&mut endpoint, form, n)?),
            Queue::Unexpected => endpoint.send(me, tag(n), &[])?,
        }
    }
    let steps = steps(&mut endpoint, queue, form)?;
    let messages = (LOOKS / steps.max(1)).clamp(*MESSAGES.start(), *MESSAGES.end());
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = timer.now();
        for _ in 0..messages {
            one(&mut endpoint, queue, form)?;
        }
        rounds.push(timer.since(start) / messages as f64);
    }
    for request in posted {
        endpoint.cancel(request);
    }
    Ok(Row { queue, queued, form, ns: median(&rounds), steps })
}

fn post(endpoint: &mut Endpoint, form: Form, n: u64) -> Result<Request, Error> {
    let (from, tag) = form.pattern(endpoint.rank(), n);
    // SAFETY: there are no bytes.
    unsafe { endpoint.irecv(from, tag, std::ptr::null_mut(), 0) }
}

/// Sends and receives one message that is in the queue, or that bypasses the queue.
fn one(endpoint: &mut Endpoint, queue: Queue, form: Form) -> Result<(), Error> {
    let me = endpoint.rank();
    match queue {
        Queue::Posted => {
            let receive = post(endpoint, form, 0)?;
            endpoint.send(me, tag(0), &[])?;
            endpoint.wait(receive)?;
        }
        Queue::Unexpected => {
            endpoint.send(me, tag(0), &[])?;
            let (from, tag) = form.pattern(me, 0);
            endpoint.recv(from, tag, &mut [])?;
        }
    }
    Ok(())
}

fn steps(endpoint: &mut Endpoint, queue: Queue, form: Form) -> Result<usize, Error> {
    let me = endpoint.rank();
    let (from, wanted) = form.pattern(me, 0);
    match queue {
        Queue::Posted => {
            let receive = post(endpoint, form, 0)?;
            let steps = endpoint.arrival_steps(me, tag(0));
            endpoint.send(me, tag(0), &[])?;
            endpoint.wait(receive)?;
            Ok(steps)
        }
        Queue::Unexpected => {
            endpoint.send(me, tag(0), &[])?;
            let steps = endpoint.receive_steps(from, wanted);
            endpoint.recv(from, wanted, &mut [])?;
            Ok(steps)
        }
    }
}

/// Returns the results as JSON, with a final newline.
///
/// # Errors
/// A value has no form in JSON.
pub(crate) fn json(rows: &[Row]) -> Result<String, Failure> {
    serde_json::to_string(&MatchingDocument { matching: rows })
        .map(|text| text + "\n")
        .map_err(Failure::failed)
}

/// Returns the results as a table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut out, rows);
    out
}

fn write_table(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    writeln!(
        out,
        "A message of no bytes to ourselves, sent and received, while others are queued that do not match\n"
    )?;
    write!(out, "  {:<28}", "queued")?;
    for queued in QUEUED {
        write!(out, "  {queued:>19}")?;
    }
    writeln!(out)?;
    for case in rows.chunks(QUEUED.len()) {
        let Some(first) = case.first() else { continue };
        let queue = match first.queue {
            Queue::Posted => "posted",
            Queue::Unexpected => "unexpected",
        };
        write!(out, "  {queue:<11} {:<16}", first.form.words())?;
        for row in case {
            write!(out, "  {:>9.0} ns {:>7}", row.ns, row.steps)?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "\nns: median of {ROUNDS} rounds; beside it the steps: queued receives or messages looked at, with the one \
        found.\n\
         posted: the receives queued are of the same form as the one that is matched, which was posted last.\n\
         unexpected: the message came last; a receive with a wildcard looks at all before it."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_to_an_exact_match_do_not_grow_with_the_queue() {
        let (config, timer) = (Config::default(), Timer::new());
        for queue in [Queue::Posted, Queue::Unexpected] {
            for queued in QUEUED {
                let row = case(&config, &timer, queue, queued, Form::Exact).unwrap();
                assert!((1..=8).contains(&row.steps), "{row:?}");
            }
            let wild = case(&config, &timer, queue, 1_000, Form::Source).unwrap();
            assert_eq!(wild.steps, 1_001, "{wild:?}");
        }
    }

    #[test]
    fn table_and_json_name_every_case() {
        let row = |queued| Row { queue: Queue::Posted, queued, form: Form::Tag, ns: 12.0, steps: 3 };
        let rows = QUEUED.map(row);
        let (table, json) = (table(&rows), json(&rows).unwrap());
        assert!(table.contains("posted      wildcard tag"), "{table}");
        assert!(
            json.contains(r#"{"queue":"posted","queued":100000,"form":"tag","ns":12.0,"steps":3}"#),
            "{json}"
        );
    }
}
