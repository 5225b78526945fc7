//! Names of processes and the files with their addresses.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use nemesia::{ADDRESS_BYTES, PeerAddress};

use crate::peer::{Fault, Outcome};

/// The slot of a process among those that run at the same time, and the number of processes that had it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LoneName {
    pub(super) slot: u32,
    pub(super) life: u32,
}

impl fmt::Display for LoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.life)
    }
}

/// The addresses that processes have written to files.
#[derive(Debug)]
pub(super) struct LoneDirectory {
    path: PathBuf,
    addresses: HashMap<LoneName, PeerAddress>,
    names: HashMap<PeerAddress, LoneName>,
}

impl LoneDirectory {
    /// Writes the address of this process to its file.
    pub(super) fn new(path: PathBuf, name: LoneName, address: PeerAddress) -> Outcome<Self> {
        let (part, whole) = (path.join(format!("{name}.part")), path.join(format!("{name}.address")));
        std::fs::write(&part, address.bytes())?;
        std::fs::rename(part, whole)?;
        Ok(Self { path, addresses: HashMap::new(), names: HashMap::new() })
    }

    /// Returns the address of a process, which has written it.
    pub(super) fn address(&mut self, name: LoneName) -> Outcome<PeerAddress> {
        if let Some(address) = self.addresses.get(&name) {
            return Ok(*address);
        }
        let bytes = std::fs::read(self.path.join(format!("{name}.address")))?;
        let bytes = <[u8; ADDRESS_BYTES]>::try_from(bytes);
        let bytes = bytes.map_err(|bytes| Fault::Broken(format!("an address of {} bytes", bytes.len())))?;
        let address = PeerAddress::from_bytes(bytes);
        self.addresses.insert(name, address);
        self.names.insert(address, name);
        Ok(address)
    }

    /// Returns the name of the process with this address, if it was ever asked for.
    pub(super) fn name_of(&self, address: &PeerAddress) -> Option<LoneName> {
        self.names.get(address).copied()
    }

    /// Returns the name of the process with this address, if it is one of these lives or was ever asked for.
    pub(super) fn find(&mut self, address: &PeerAddress, present: &[u32]) -> Outcome<Option<LoneName>> {
        for (slot, life) in (0..).zip(present) {
            self.address(LoneName { slot, life: *life })?;
        }
        Ok(self.name_of(address))
    }
}
