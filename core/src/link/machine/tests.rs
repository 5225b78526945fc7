//! Machines that are joined by carriers in memory: each rule of the page of [`machine`](super), stage by stage.

mod calls;
mod crossing;
mod datagrams;
mod ends;
mod owner;
mod places;
mod refusals;
mod restart;
mod retries;
mod table;
mod world;

use core::time::Duration;

use super::table::refused;
use super::terms::LinkRefusal;
use crate::link::wire::RefusalCode;

/// The time without a sign of the peer after which a call ends.
const PATIENCE: Duration = Duration::from_secs(12);
/// Less than the pause before the second attempt.
const INSTANT: Duration = Duration::from_micros(100);

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a refusal of an owner.
const fn refusal(code: RefusalCode, is_passing: bool) -> LinkRefusal {
    refused(code, is_passing, "words of the owner")
}

/// A refusal that passes.
const FULL: LinkRefusal = refusal(RefusalCode::Full, true);
