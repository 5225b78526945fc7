//! The promises of every memory port: one suite, generic over the fabric.
//!
//! A [`Fabric`] makes ports and advances time. Each check gets a new fabric and returns the violation, if any.
//! If fabrics may differ, a check reads the facts of the port and requires the port to keep them.
//!
//! | module | subject |
//! |---|---|
//! | [`connect`] | connections: made, refused, too late, too many, closed |
//! | [`data`] | every operation, of every size, with its contents |
//! | [`answers`] | reads and their answers while both ends send |
//! | [`atomics`] | atomic operations |
//! | [`long`] | writes and reads that are longer than a message |
//! | [`receives`] | receives: too short, none posted, the shared queue |
//! | [`refused`] | operations that a target refuses, or that are refused before they are posted |
//! | [`queues`] | full queues, quiet work, order, sleeping |
//! | [`loss`] | peers that are lost, memory that is taken back |
//! | [`random`] | all operations at once, against a model |
//! | [`channel`] | a channel over it: packets in order, peers that are lost or violate the protocol, the engine on top |

pub mod answers;
pub mod atomics;
pub mod bench;
pub mod channel;
pub mod connect;
pub mod data;
pub mod long;
pub mod loss;
pub mod queues;
pub mod random;
pub mod receives;
pub mod refused;

use std::time::Duration;

use nemesia_core::port::memory::MemoryPort;

use bench::Bench;

/// The result of a check.
pub type Verdict = Result<(), String>;

/// Ports that can reach each other.
pub trait Fabric {
    /// The port.
    type Port: MemoryPort;

    /// Makes a port, as another process would have it.
    ///
    /// # Errors
    /// Why no port can be made.
    fn port(&mut self) -> Result<Self::Port, String>;

    /// Lets a little time pass. Returns the time.
    fn pass(&mut self) -> Duration;

    /// Ends a port as the death of its process would.
    fn kill(&mut self, port: Self::Port) {
        drop(port);
    }

    /// Returns the seed of the random choices of the checks.
    fn seed(&self) -> u64 {
        1
    }

    /// Returns the number of turns after which nothing is still expected; `None` if time is real.
    fn most_turns(&self) -> Option<u64> {
        None
    }

    /// Returns whether a device answers reads from memory that was deregistered during the answer (a mistake of
    /// the device).
    fn answers_late(&self) -> bool {
        false
    }

    /// Returns whether a device lets a peer read memory that the peer may only write (a mistake of the device).
    fn ignores_read_rights(&self) -> bool {
        false
    }

    /// Returns whether nothing answers a request to a port that is gone, so that only the deadline ends it: a
    /// datagram to a port that is gone is lost.
    fn is_silent(&self) -> bool {
        false
    }

    /// Returns the longest message that the tests send here, to limit their time. The facts have the real
    /// limit.
    fn most_bytes(&self) -> u32 {
        64 << 20
    }
}

/// A check.
pub type Check<F> = fn(&mut Bench<F>) -> Verdict;

/// Returns all checks by name.
pub fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    let mut all: Vec<(&'static str, Check<F>)> = Vec::new();
    all.extend(connect::checks());
    all.extend(data::checks());
    all.extend(long::checks());
    all.extend(answers::checks());
    all.extend(atomics::checks());
    all.extend(receives::checks());
    all.extend(refused::checks());
    all.extend(queues::checks());
    all.extend(loss::checks());
    all.extend(random::checks());
    all.extend(channel::checks());
    all
}

/// Returns all checks, or those whose names contain one of the comma-separated words in `NEMESIA_TEST_CHECK`.
///
/// # Panics
/// No check has such a name, so that nothing would be checked.
pub fn wanted<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    let found: Vec<_> = checks().into_iter().filter(|(name, _)| is_wanted(name)).collect();
    assert!(!found.is_empty(), "no check has one of the words of NEMESIA_TEST_CHECK in its name");
    found
}

/// Returns whether a check or a case is wanted: all are, unless `NEMESIA_TEST_CHECK` has comma-separated words, of
/// which the name contains one.
pub fn is_wanted(name: &str) -> bool {
    let words = std::env::var("NEMESIA_TEST_CHECK").unwrap_or_default();
    words.split(',').any(|word| name.contains(word))
}

/// Runs every check, or those that are [`wanted`], each on a new fabric.
///
/// # Errors
/// The failed checks, one on each line.
pub fn run<F: Fabric>(mut fabric: impl FnMut() -> Result<F, String>) -> Verdict {
    let mut failures = Vec::new();
    for (name, check) in wanted() {
        let mut bench = Bench::new(fabric()?);
        if let Err(why) = check(&mut bench) {
            failures.push(format!("{name}: {why}"));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Returns whether a check that is [`wanted`] fails, each on a new fabric.
///
/// # Errors
/// No fabric can be made.
pub fn finds<F: Fabric>(mut fabric: impl FnMut() -> Result<F, String>) -> Result<bool, String> {
    for (_, check) in wanted() {
        if check(&mut Bench::new(fabric()?)).is_err() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns an error with the text of `what` unless `so` holds.
pub(crate) fn ensure(so: bool, what: impl FnOnce() -> String) -> Verdict {
    if so { Ok(()) } else { Err(what()) }
}

/// Returns an error with both values unless they are equal.
#[allow(clippy::needless_pass_by_value)] // Most are written where they are passed.
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Verdict {
    ensure(found == wanted, || format!("{what}: {found:?} instead of {wanted:?}"))
}
