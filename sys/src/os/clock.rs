//! A cheap clock, for comparing times with each other.

/// Returns the ticks of a steady clock, in an unknown unit. On machines whose cores have different counters,
/// the clock may step when a process moves to another core.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction; it reads no memory.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::LazyLock;
        use std::time::Instant;
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn ticks_increase() {
        let earlier = super::ticks();
        std::thread::sleep(Duration::from_millis(1));
        assert!(super::ticks() > earlier);
    }
}
