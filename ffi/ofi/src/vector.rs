//! The addresses that an application has inserted, by number. An address that is inserted again has its first number.

use std::collections::HashMap;

use nemesia::PeerAddress;

use crate::object::Errno;

/// The addresses of one vector.
#[derive(Default)]
pub(crate) struct AddressVector {
    addresses: Vec<Option<PeerAddress>>,
    known: HashMap<PeerAddress, usize>,
    free: Vec<usize>,
}

impl AddressVector {
    /// Keeps an address. Returns its number.
    pub(crate) fn insert(&mut self, address: PeerAddress) -> usize {
        if let Some(at) = self.known.get(&address) {
            return *at;
        }
        let at = self.free.pop().unwrap_or(self.addresses.len());
        if at == self.addresses.len() {
            self.addresses.push(None);
        }
        self.addresses[at] = Some(address);
        self.known.insert(address, at);
        at
    }

    /// Forgets a number.
    pub(crate) fn remove(&mut self, at: u64) -> Result<(), Errno> {
        let at = usize::try_from(at).map_err(|_| Errno::INVALID)?;
        let address = self.addresses.get_mut(at).and_then(Option::take).ok_or(Errno::INVALID)?;
        self.known.remove(&address);
        self.free.push(at);
        Ok(())
    }

    /// Returns the address with a number.
    pub(crate) fn get(&self, at: u64) -> Option<&PeerAddress> {
        self.addresses.get(usize::try_from(at).ok()?)?.as_ref()
    }

    /// Returns the number of an address.
    pub(crate) fn find(&self, address: &PeerAddress) -> Option<u64> {
        self.known.get(address).map(|at| *at as u64)
    }
}
