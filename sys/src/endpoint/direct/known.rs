//! A bounded table of each peer's regions, for mappings and for refusals.
//!
//! An owner numbers its regions from 0 and reuses numbers. The place of a region in the table is therefore its
//! number modulo the size of the table. This needs no hash, which could be flooded.
//!
//! Keys may be forged. Only a mapping that was verified replaces another mapping, and refusals have a table of
//! their own. The keys of one peer do not affect the entries of other peers.

use nemesia_core::wire::rma::RemoteKey;

use super::Mapped;

/// The largest number of regions of a peer that are mapped at a time. Each takes one descriptor of its owner; a
/// process usually has 1024.
const MAPPED: usize = 1024;
/// The largest number of refusals of a peer that are remembered.
const REFUSED: usize = 64;

/// The regions of peers that this process has used.
#[derive(Debug, Default)]
pub(super) struct KnownRegions {
    /// The regions by rank.
    peers: Vec<PeerRegions>,
}

/// The regions of one peer.
#[derive(Debug, Default)]
struct PeerRegions {
    mapped: KeyTable<Mapped, MAPPED>,
    /// The reasons why other regions are not mapped.
    refused: KeyTable<String, REFUSED>,
}

impl KnownRegions {
    /// Returns a mapped region.
    #[inline]
    pub(super) fn mapped(&self, key: &RemoteKey) -> Option<&Mapped> {
        self.peers.get(key.rank as usize)?.mapped.get(key)
    }

    /// Returns every region that is mapped.
    pub(super) fn all_mapped(&self) -> impl Iterator<Item = &Mapped> {
        self.peers.iter().flat_map(|peer| peer.mapped.values())
    }

    /// Returns why an earlier attempt did not map a region.
    pub(super) fn refused(&self, key: &RemoteKey) -> Option<&String> {
        self.peers.get(key.rank as usize)?.refused.get(key)
    }

    /// Remembers a mapping that its key opens, or the reason why there is none. The rank is one of this world.
    pub(super) fn remember(&mut self, key: &RemoteKey, outcome: Result<Mapped, String>) {
        let rank = key.rank as usize;
        if self.peers.len() <= rank {
            self.peers.resize_with(rank + 1, PeerRegions::default);
        }
        match outcome {
            Ok(mapped) => self.peers[rank].mapped.insert(key, mapped),
            Err(why) => self.peers[rank].refused.insert(key, why),
        }
    }

    /// Unmaps a region. Returns false if it was not mapped.
    pub(super) fn unmap(&mut self, key: &RemoteKey) -> bool {
        self.peers.get_mut(key.rank as usize).is_some_and(|peer| peer.mapped.remove(key))
    }

    /// Forgets all regions of a peer.
    pub(super) fn forget(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            *peer = PeerRegions::default();
        }
    }

    /// Returns the number of mappings and of refusals that are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let count = |(mapped, refused), peer: &PeerRegions| {
            (mapped + peer.mapped.count(), refused + peer.refused.count())
        };
        self.peers.iter().fold((0, 0), count)
    }
}

/// At most `MOST` values, each under a key. A new value replaces the one at the same place.
#[derive(Debug)]
struct KeyTable<T, const MOST: usize>(Vec<Option<(RemoteKey, T)>>);

impl<T, const MOST: usize> Default for KeyTable<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MOST: usize> KeyTable<T, MOST> {
    const fn place(key: &RemoteKey) -> usize {
        key.region as usize % MOST
    }

    #[inline]
    fn get(&self, key: &RemoteKey) -> Option<&T> {
        let (known, value) = self.0.get(Self::place(key))?.as_ref()?;
        // The whole key is compared: a forged length or descriptor makes another key.
        (known == key).then_some(value)
    }

    fn insert(&mut self, key: &RemoteKey, value: T) {
        let at = Self::place(key);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some((*key, value));
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten().map(|(_, value)| value)
    }

    fn remove(&mut self, key: &RemoteKey) -> bool {
        let known = self.get(key).is_some();
        if known {
            self.0[Self::place(key)] = None;
        }
        known
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use nemesia_core::engine::rma::Access;

    use super::*;

    const KEY: RemoteKey =
        RemoteKey { rank: 1, region: 3, key: 77, len: 8, access: Access::ReadWrite, share: 5 };

    #[test]
    fn a_table_of_keys_is_bounded_and_distinguishes_them() {
        let mut table = KeyTable::<u32, 8>::default();
        table.insert(&KEY, 1);
        let forged = [
            RemoteKey { key: 78, ..KEY },
            RemoteKey { len: 9, ..KEY },
            RemoteKey { share: 6, ..KEY },
            RemoteKey { access: Access::Read, ..KEY },
            RemoteKey { region: 11, ..KEY },
        ];
        for key in &forged {
            assert!(table.get(key).is_none() && !table.remove(key), "{key:?}");
        }
        assert_eq!(table.get(&KEY), Some(&1));
        for region in (0..1000).chain([u32::MAX]) {
            table.insert(&RemoteKey { region, ..KEY }, region);
        }
        assert_eq!((table.count(), table.0.len()), (8, 8));
        assert_eq!(table.get(&RemoteKey { region: u32::MAX, ..KEY }), Some(&u32::MAX));
        assert!(table.remove(&RemoteKey { region: u32::MAX, ..KEY }));
        assert_eq!(table.count(), 7);
    }
}
