//! Software placement over TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nemesia::tcp::{Options, TcpPort, listen};
use nemesia_tests::memory_port::{Fabric, run};
use nemesia_tests::{quick, skip};

/// Ports on this machine.
#[derive(Debug)]
pub(crate) struct Tcp {
    ip: IpAddr,
    options: Options,
    start: Instant,
    skipped: Duration,
}

impl Tcp {
    fn new(ip: IpAddr, options: Options) -> Self {
        Self { ip, options, start: Instant::now(), skipped: Duration::ZERO }
    }

    /// Ports with room for a few connections.
    pub(crate) fn small() -> Self {
        Self::new(Ipv4Addr::LOCALHOST.into(), Options { connections: 8, ..Options::default() })
    }

    /// Ports with room for many connections.
    pub(crate) fn large() -> Self {
        Self::new(Ipv4Addr::LOCALHOST.into(), Options { connections: 256, ..Options::default() })
    }

    /// Moves the clock of the ports forward.
    pub(crate) fn skip_to(&mut self, now: Duration) {
        let missing = now.saturating_sub(self.pass());
        self.skipped += missing;
    }
}

impl Fabric for Tcp {
    type Port = TcpPort;

    fn port(&mut self) -> Result<TcpPort, String> {
        listen(SocketAddr::new(self.ip, 0), &self.options).map_err(|error| error.to_string())
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed() + self.skipped
    }

    fn most_bytes(&self) -> u32 {
        if quick() { 1 << 20 } else { 64 << 20 }
    }
}

fn passes(ip: IpAddr, options: Options) {
    let verdict = run(|| Ok(Tcp::new(ip, options)));
    let why = verdict.err().unwrap_or_default();
    assert!(why.is_empty(), "{why}");
}

#[test]
fn tcp_passes() {
    passes(Ipv4Addr::LOCALHOST.into(), Options { connections: 200, regions: 200, ..Options::default() });
}

#[test]
fn tcp_with_as_little_as_possible_passes() {
    let options = Options {
        connections: 2,
        regions: 12,
        send_depth: 2,
        receive_depth: 2,
        shared_receive_depth: 2,
        ..Options::default()
    };
    passes(Ipv4Addr::LOCALHOST.into(), Options { connections: 3, ..options });
}

#[test]
fn tcp_over_ipv6_passes() {
    let ip = Ipv6Addr::LOCALHOST.into();
    if let Err(why) = listen(SocketAddr::new(ip, 0), &Options::default()) {
        return skip("tcp_over_ipv6_passes", &format!("no IPv6 here: {why}"));
    }
    passes(ip, Options { shared_receive_depth: 0, reads_ahead: true, ..Options::default() });
}

#[test]
fn an_address_that_allows_no_connection_is_refused() {
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    assert!(listen(any, &Options::default()).is_err());
}
