//! Time stamps at almost no cost: the processor's own counter, where it can be trusted.

#[cfg(any(target_arch = "x86_64", test))]
use std::time::Duration;
use std::time::Instant;

/// How long the counter is compared with the system's clock.
#[cfg(target_arch = "x86_64")]
const CALIBRATION: Duration = Duration::from_millis(40);

/// A source of time stamps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// The processor's time stamp counter.
    #[cfg(target_arch = "x86_64")]
    Counter {
        /// Length of a tick.
        ns: f64,
    },
    /// The system's clock, in nanoseconds since this instant.
    Clock(Instant),
}

impl Timer {
    /// Chooses the counter if it ticks at a constant rate in all states of the processor, or if the kernel
    /// takes its own time from it, as in an emulated processor, which does not promise the rate; otherwise
    /// the clock.
    pub(crate) fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        if counter_is_invariant() {
            return Self::calibrated();
        }
        Self::Clock(Instant::now())
    }

    #[cfg(target_arch = "x86_64")]
    fn calibrated() -> Self {
        let (start, first) = (Instant::now(), counter());
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (last, elapsed) = (counter(), start.elapsed());
        let ticks = last.wrapping_sub(first);
        // A counter that does not advance, or that runs backwards.
        if ticks == 0 || ticks > u64::MAX / 2 {
            return Self::Clock(Instant::now());
        }
        Self::Counter { ns: elapsed.as_nanos() as f64 / ticks as f64 }
    }

    /// Returns the ticks since an arbitrary moment.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Counter { .. } => counter(),
            Self::Clock(start) => start.elapsed().as_nanos() as u64,
        }
    }

    /// Converts ticks to nanoseconds.
    pub(crate) fn ns(&self, ticks: u64) -> f64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Counter { ns } => ticks as f64 * ns,
            Self::Clock(_) => ticks as f64,
        }
    }

    /// Returns the nanoseconds since an earlier time stamp.
    pub(crate) fn since(&self, earlier: u64) -> f64 {
        self.ns(self.now().saturating_sub(earlier))
    }

    /// Describes the timer for the reader of a table.
    pub(crate) fn describe(&self) -> String {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Counter { ns } => format!("time stamp counter at {:.2} GHz", 1.0 / ns),
            Self::Clock(_) => "the system's clock".to_owned(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction; it reads no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns whether the kernel has found the counter invariant (it shows this as two flags) or uses it for its
/// own time.
#[cfg(target_arch = "x86_64")]
fn counter_is_invariant() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if std::fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc") {
        return true;
    }
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"].iter().all(|wanted| flags.split_whitespace().any(|flag| flag == *wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_takes_as_long_as_it_should() {
        let timer = Timer::new();
        let start = timer.now();
        std::thread::sleep(Duration::from_millis(20));
        let ns = timer.since(start);
        assert!((19e6..20e9).contains(&ns), "{ns}");
    }
}
