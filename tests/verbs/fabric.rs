//! Ports on the devices of this machine, in turn. With two wired devices, all traffic crosses the wire.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nemesia::verbs::{DevicePreference, PortOptions, SetUpChoice, VerbsPort, survey};
use nemesia_tests::memory_port::Fabric;

/// Returns an address of each usable port.
pub(crate) fn addresses() -> Result<Vec<IpAddr>, String> {
    raise_limit();
    let seen = survey().map_err(|error| error.to_string())?;
    let usable = seen.iter().filter_map(|seen| seen.verdict.as_ref().ok());
    let mut found: Vec<IpAddr> = usable.filter_map(|choices| choices[0].address).collect();
    if found.is_empty() {
        let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
        return Err(if lines.is_empty() { "no RDMA device".into() } else { lines.join("; ") });
    }
    // Devices are listed in the order of their creation; a device that was pulled out and came back is the
    // last.
    found.sort_unstable();
    Ok(found)
}

/// Returns how connections are set up: by datagrams if the setting of endpoints says so, otherwise by RDMA-CM.
pub(crate) fn set_up() -> SetUpChoice {
    let setting = std::env::var_os("NEMESIA_NET_SETUP");
    if setting.is_some_and(|it| it == "datagrams") { SetUpChoice::Datagrams } else { SetUpChoice::Manager }
}

/// The devices.
#[derive(Debug)]
pub(crate) struct Devices {
    addresses: Vec<IpAddr>,
    next: usize,
    start: Instant,
    /// The bytes of a work request; longer transfers become several.
    pub(crate) work_bytes: u32,
    /// The preferred path MTU and traffic class.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) traffic_class: Option<u8>,
    /// The depth of each queue of a connection, if not the default.
    pub(crate) depth: Option<u32>,
    /// Whether the devices are soft iWARP.
    is_siw: bool,
}

/// The vendor number of soft iWARP: `SIW_VENDOR_ID`.
const SIW: u32 = 0x62_6d74;

impl Devices {
    pub(crate) fn new(addresses: &[IpAddr]) -> Self {
        Self {
            addresses: addresses.to_vec(),
            next: 0,
            start: Instant::now(),
            work_bytes: u32::MAX,
            path_mtu: None,
            traffic_class: None,
            depth: None,
            is_siw: false,
        }
    }

    /// Returns the options of the next port.
    pub(crate) fn options(&mut self) -> PortOptions {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let preference = DevicePreference { address: Some(address), ..DevicePreference::default() };
        // The tests assert of rxe what its library does not promise; of siw nothing can be asserted.
        let usual = PortOptions::default();
        PortOptions {
            preference,
            set_up: set_up(),
            send_depth: self.depth.unwrap_or(usual.send_depth),
            receive_depth: self.depth.unwrap_or(usual.receive_depth),
            work_bytes: self.work_bytes,
            assert_order: true,
            path_mtu: self.path_mtu,
            traffic_class: self.traffic_class,
            ..usual
        }
    }
}

impl Fabric for Devices {
    type Port = VerbsPort;

    fn port(&mut self) -> Result<VerbsPort, String> {
        let port = VerbsPort::open(&self.options()).map_err(|error| error.to_string())?;
        self.is_siw = port.device().attributes().vendor_id == SIW;
        Ok(port)
    }

    /// siw sends answers from the pages themselves, and keeps them until the peer has confirmed, whatever
    /// happens to the registration meanwhile (`siw_tx_hdt`, `siw_dereg_mr`, Linux 6.1).
    fn answers_late(&self) -> bool {
        self.is_siw
    }

    /// siw answers reads without a look at the right to read (`siw_qp_sq_proc_tx`, Linux 6.1).
    fn ignores_read_rights(&self) -> bool {
        self.is_siw
    }

    fn is_silent(&self) -> bool {
        set_up() == SetUpChoice::Datagrams
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn most_bytes(&self) -> u32 {
        // 64 KiB take 880 us in the virtual machine; `tests/vm/verbs --long` has the time for more.
        if std::env::var_os("NEMESIA_TEST_LONG").is_some() { 64 << 20 } else { 8 << 20 }
    }
}

/// Lets this process pin as much as it may: software devices count pinned memory, and the usual limit is 8 MiB.
fn raise_limit() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure can be read. Where it is not allowed, tests that need it say that memory can't be pinned.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
}
