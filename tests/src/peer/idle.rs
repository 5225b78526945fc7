//! `idle MILLISECONDS`: rank 1 keeps all others waiting for this time; each reports the cost of its waiting.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use nemesia::{Source, Tag};

use super::{Outcome, broken, open, tell};

pub(super) fn run(millis: u64) -> Outcome {
    let mut endpoint = open()?;
    if endpoint.rank() == 1 {
        std::thread::sleep(Duration::from_millis(millis));
        for rank in (0..endpoint.size()).filter(|rank| *rank != 1) {
            endpoint.send(rank, 1, &[])?;
        }
    } else {
        let (start, before) = (Instant::now(), processor_time()?);
        endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut [])?;
        let (passed, spent) = (start.elapsed(), processor_time()?.saturating_sub(before));
        tell(&format!("{:.2}", 100.0 * spent.as_secs_f64() / passed.as_secs_f64()))?;
    }
    Ok(endpoint.close()?)
}

/// Returns the processor time of this process so far, user and system.
fn processor_time() -> Outcome<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure, which lives here.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return broken("getrusage failed");
    }
    // SAFETY: filled, since the call succeeded.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}
