//! Groups of peers in an order that all of their processes know.

use nemesia_core::peers::{PeerAddress, PeerRef};

use crate::bootstrap::Exchange;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// Processes in an order: what a runtime calls a world, a communicator or a remote group.
///
/// The processes are peers of one endpoint, which may be among them. A group is a list and nothing else: it holds no
/// connection, and a peer that is released stays in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerGroup {
    /// `None` for the process of the endpoint.
    members: Vec<Option<PeerRef>>,
    addresses: Vec<PeerAddress>,
}

impl PeerGroup {
    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the position of the endpoint's own process. `None` if it is not in the group.
    pub fn place(&self) -> Option<usize> {
        self.members.iter().position(Option::is_none)
    }

    /// Returns the process at a position. `None` for the endpoint's own, and beyond the last one.
    pub fn peer(&self, place: usize) -> Option<PeerRef> {
        self.members.get(place).copied().flatten()
    }

    /// Returns the addresses of all, in order: for a message to other processes, which can make the group of them.
    pub fn addresses(&self) -> &[PeerAddress] {
        &self.addresses
    }

    /// Returns the processes of this group, followed by those of another one.
    ///
    /// When two groups have met ([`Endpoint::meet`]), all of their processes put the same one first, for instance the
    /// one that called. Each process then has the same group.
    #[must_use]
    pub fn followed_by(&self, other: &Self) -> Self {
        let members = self.members.iter().chain(&other.members).copied().collect();
        Self { members, addresses: [&self.addresses[..], &other.addresses].concat() }
    }
}

/// # Groups of peers
impl Endpoint {
    /// Returns the group of the processes with these addresses, in this order, without any contact with them. The
    /// address of this endpoint may be among them.
    ///
    /// # Errors
    /// As for [`Endpoint::connect`]. [`Error::Members`] if an address is there twice.
    pub fn group(&mut self, addresses: &[PeerAddress]) -> Result<PeerGroup, Error> {
        let own = *self.address()?;
        let mut sorted: Vec<_> = addresses.iter().map(PeerAddress::bytes).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Members);
        }
        let member =
            |address: &PeerAddress| if *address == own { Ok(None) } else { self.connect(address).map(Some) };
        let members = addresses.iter().map(member).collect::<Result<_, _>>()?;
        Ok(PeerGroup { members, addresses: addresses.to_vec() })
    }

    /// Returns the group of all processes of a launcher, in the order of their ranks. Each one calls this function once
    /// with its connection to the launcher, and gets the addresses of the others through the launcher's key space.
    /// Several such groups need several [`Prefixed`](crate::bootstrap::Prefixed) key spaces.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] if the exchange fails; [`Error::Peer`] if a process has put no address; otherwise as for
    /// [`Endpoint::group`].
    pub fn group_with(&mut self, exchange: &mut dyn Exchange) -> Result<PeerGroup, Error> {
        let key = |rank: usize| format!("nemesia-alone-{rank}");
        let own =
            self.address()?.bytes().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        exchange.put(&key(exchange.rank()), &own)?;
        exchange.barrier()?;
        let mut addresses = Vec::with_capacity(exchange.size());
        for rank in 0..exchange.size() {
            let text = exchange.get(&key(rank))?;
            let problem = || Error::Peer { rank, problem: "what it has put is not an address".into() };
            addresses.push(PeerAddress::from_bytes(decoded(&text).ok_or_else(problem)?));
        }
        self.group(&addresses)
    }
}

/// Returns the bytes of hexadecimal digits.
pub(super) fn decoded<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
