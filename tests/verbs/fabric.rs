//! Ports on the devices of this machine, in turn: with two devices that are wired, all traffic crosses the wire.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nemesia::verbs::{PortOptions, VerbsPort, Wish, survey};
use nemesia_tests::memory_port::Fabric;

/// An address of each port that can be used.
pub(crate) fn addresses() -> Result<Vec<IpAddr>, String> {
    raise_limit();
    let seen = survey().map_err(|error| error.to_string())?;
    let mut found: Vec<IpAddr> =
        seen.iter().filter_map(|seen| seen.verdict.as_ref().ok()).map(|choice| choice.address).collect();
    if found.is_empty() {
        let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
        return Err(if lines.is_empty() { "no RDMA device".into() } else { lines.join("; ") });
    }
    // Devices are told of in the order of their making, and one that was pulled out and came back is the last.
    found.sort_unstable();
    Ok(found)
}

/// The devices.
#[derive(Debug)]
pub(crate) struct Devices {
    addresses: Vec<IpAddr>,
    next: usize,
    start: Instant,
}

impl Devices {
    pub(crate) fn new(addresses: &[IpAddr]) -> Self {
        Self { addresses: addresses.to_vec(), next: 0, start: Instant::now() }
    }

    /// Options for the next port.
    pub(crate) fn options(&mut self) -> PortOptions {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        PortOptions { wish: Wish { address: Some(address), ..Wish::default() }, ..PortOptions::default() }
    }
}

impl Fabric for Devices {
    type Port = VerbsPort;

    fn port(&mut self) -> Result<VerbsPort, String> {
        VerbsPort::open(&self.options()).map_err(|error| error.to_string())
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn most_bytes(&self) -> u32 {
        // 880 us for 64 KiB in the virtual machine; `tests/vm/verbs --long` has the time for more.
        if std::env::var_os("NEMESIA_TEST_LONG").is_some() { 64 << 20 } else { 8 << 20 }
    }
}

/// Lets this process pin as much as it may: devices of software count it, and the usual limit is 8 MiB.
fn raise_limit() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure can be read. Where it is not allowed, tests that need it say that memory can't be pinned.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
}
