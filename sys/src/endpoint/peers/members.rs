//! Groups of peers in an order that all of their processes know.

use std::sync::Arc;

use nemesia_core::peers::{PeerAddress, PeerRef};

use crate::bootstrap::Exchange;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// Processes in an order: what a runtime calls a world, a communicator or a remote group.
///
/// The processes are peers of one endpoint, which may be among them. A group is a list and nothing else: it holds no
/// connection, and a peer that is released stays in it.
/// A clone shares the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerGroup(Arc<GroupList>);

#[derive(Debug, PartialEq, Eq)]
struct GroupList {
    /// `None` for the process of the endpoint.
    members: Vec<Option<PeerRef>>,
    addresses: Vec<PeerAddress>,
    /// A number that other groups hardly have: it is made of the addresses, which have random parts.
    name: u64,
    /// No process is there twice.
    is_distinct: bool,
}

impl PeerGroup {
    fn new(members: Vec<Option<PeerRef>>, addresses: Vec<PeerAddress>, is_distinct: bool) -> Self {
        // FNV-1a.
        let bytes = addresses.iter().flat_map(|address| address.bytes());
        let name = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(Arc::new(GroupList { members, addresses, name, is_distinct }))
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// Returns the position of the endpoint's own process. `None` if it is not in the group.
    pub fn place(&self) -> Option<usize> {
        self.0.members.iter().position(Option::is_none)
    }

    /// Returns the process at a position. `None` for the endpoint's own, and beyond the last one.
    pub fn peer(&self, place: usize) -> Option<PeerRef> {
        self.0.members.get(place).copied().flatten()
    }

    /// Returns the addresses of all, in order: for a message to other processes, which can make the group of them.
    pub fn addresses(&self) -> &[PeerAddress] {
        &self.0.addresses
    }

    /// Returns the processes of this group, followed by those of another one.
    ///
    /// When two groups have met ([`Endpoint::meet`]), all of their processes put the same one first, for instance the
    /// one that called. Each process then has the same group.
    #[must_use]
    pub fn followed_by(&self, other: &Self) -> Self {
        let members = [&self.0.members[..], &other.0.members].concat();
        let addresses = [self.addresses(), other.addresses()].concat();
        let is_distinct = are_distinct(&addresses);
        Self::new(members, addresses, is_distinct)
    }

    /// Returns the group without the processes at these positions.
    pub(in crate::endpoint) fn without(&self, gone: &[usize]) -> Self {
        if gone.is_empty() {
            return self.clone();
        }
        let left = |at: &usize| gone.binary_search(at).is_err();
        let members = (0..self.size()).filter(left).map(|at| self.0.members[at]).collect();
        let addresses = (0..self.size()).filter(left).map(|at| self.0.addresses[at]).collect();
        Self::new(members, addresses, self.0.is_distinct)
    }

    /// Returns the number that tells this group from others in all of its processes.
    pub(in crate::endpoint) fn name(&self) -> u64 {
        self.0.name
    }

    /// Returns whether no process is there twice.
    pub(in crate::endpoint) fn is_distinct(&self) -> bool {
        self.0.is_distinct
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
        self.group_of(addresses, Self::connect)
    }

    /// As [`Endpoint::group`], but peers stay as they are: if the connection with one of them has ended, this function
    /// does not permit another one. So a runtime that keeps only addresses makes the group of a collective call
    /// ([`Endpoint::among_peers`]) anew for each call. An address that is not known becomes a peer.
    ///
    /// # Errors
    /// As for [`Endpoint::group`].
    pub fn known_group(&mut self, addresses: &[PeerAddress]) -> Result<PeerGroup, Error> {
        self.check_origin()?;
        self.group_of(addresses, |endpoint, address| {
            endpoint.with_peers(|peers, endpoint| {
                let Some(peer) = peers.table.peer_by(address) else {
                    return peers.connect(address, endpoint);
                };
                // The program knows it from now on.
                peers.strangers.retain(|stranger| *stranger != peer);
                Ok(peer)
            })
        })
    }

    fn group_of(
        &mut self,
        addresses: &[PeerAddress],
        mut peer: impl FnMut(&mut Self, &PeerAddress) -> Result<PeerRef, Error>,
    ) -> Result<PeerGroup, Error> {
        let own = *self.address()?;
        if !are_distinct(addresses) {
            return Err(Error::Members);
        }
        let member =
            |address: &PeerAddress| if *address == own { Ok(None) } else { peer(self, address).map(Some) };
        let members = addresses.iter().map(member).collect::<Result<_, _>>()?;
        Ok(PeerGroup::new(members, addresses.to_vec(), true))
    }

    /// Returns the group of all ranks of this endpoint's world, in their order, so that the world meets another group
    /// ([`Endpoint::meet`]). Of an endpoint that was opened alone: the group of this process.
    ///
    /// # Errors
    /// As for [`Endpoint::address`].
    pub fn world_group(&self) -> Result<PeerGroup, Error> {
        let own = *self.address()?;
        let ranks = 0..self.engine.ranks().max(1);
        let members: Vec<_> = ranks.map(|rank| self.peer_of(rank as usize)).collect();
        let address = |member: &Option<PeerRef>| match member {
            Some(peer) => self.address_of(*peer).copied(),
            None => Ok(own),
        };
        let addresses = members.iter().map(address).collect::<Result<_, _>>()?;
        Ok(PeerGroup::new(members, addresses, true))
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

/// Returns whether no address is there twice.
fn are_distinct(addresses: &[PeerAddress]) -> bool {
    let mut sorted: Vec<_> = addresses.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
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
