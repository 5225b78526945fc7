//! What is known of the regions of peers: a bounded table for each peer, whatever keys come.
//!
//! An owner numbers its regions from 0 and uses numbers again, so a region's number is its place, modulo the size of
//! the table. That needs no hash, which could be flooded. If another region has that place, one of the next few places
//! is used. Otherwise two regions whose numbers differ by the size of the table would be mapped and unmapped in turns.
//! Keys may be forged: a mapping gives its place only to another one that was verified, and refusals have a table of
//! their own. What a key of one peer does changes nothing for those of others.

use nemesia_core::wire::rma::RemoteKey;

use super::Mapped;

/// Most regions of a peer that are mapped at a time. Each takes its owner a descriptor, of which a process usually has
/// 1024.
const MAPPED: usize = 1024;
/// Most refusals that are remembered of a peer.
const REFUSED: usize = 64;
/// Places where a region can be: that of its number, and those after it.
const PLACES: usize = 8;

/// The regions of peers that were used.
#[derive(Debug, Default)]
pub(super) struct KnownRegions {
    /// By rank.
    peers: Vec<PeerRegions>,
}

/// The regions of one peer.
#[derive(Debug, Default)]
struct PeerRegions {
    mapped: KeyTable<Mapped, MAPPED>,
    /// Why others are not mapped.
    refused: KeyTable<String, REFUSED>,
}

impl KnownRegions {
    /// A region that is mapped.
    #[inline]
    pub(super) fn mapped(&self, key: &RemoteKey) -> Option<&Mapped> {
        self.peers.get(key.rank as usize)?.mapped.get(key)
    }

    /// Returns every region that is mapped.
    pub(super) fn all_mapped(&self) -> impl Iterator<Item = &Mapped> {
        self.peers.iter().flat_map(|peer| peer.mapped.values())
    }

    /// Why a region is not mapped, if that was tried.
    pub(super) fn refused(&self, key: &RemoteKey) -> Option<&String> {
        self.peers.get(key.rank as usize)?.refused.get(key)
    }

    /// Remembers a mapping that its key opens, or why there is none. The rank is one of this world.
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

    /// Unmaps a region. False when it was not mapped.
    pub(super) fn unmap(&mut self, key: &RemoteKey) -> bool {
        self.peers.get_mut(key.rank as usize).is_some_and(|peer| peer.mapped.remove(key))
    }

    /// Forgets all regions of a peer.
    pub(super) fn forget(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            *peer = PeerRegions::default();
        }
    }

    /// How many mappings and refusals are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let count = |(mapped, refused), peer: &PeerRegions| {
            (mapped + peer.mapped.count(), refused + peer.refused.count())
        };
        self.peers.iter().fold((0, 0), count)
    }
}

/// At most `MOST` values, each under a key. If all places of a key are taken, its value replaces another.
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

    /// The places of a key, the likeliest first.
    fn places(key: &RemoteKey) -> impl Iterator<Item = usize> {
        let first = Self::place(key);
        (0..PLACES.min(MOST)).map(move |next| (first + next) % MOST)
    }

    #[inline]
    fn get(&self, key: &RemoteKey) -> Option<&T> {
        match self.0.get(Self::place(key)) {
            // All of it: a forged length or descriptor is another key.
            Some(Some((known, value))) if known == key => Some(value),
            _ => self.get_further(key),
        }
    }

    #[cold]
    fn get_further(&self, key: &RemoteKey) -> Option<&T> {
        let (_, value) = self.0.get(self.find(key)?)?.as_ref()?;
        Some(value)
    }

    /// The place where a key is.
    fn find(&self, key: &RemoteKey) -> Option<usize> {
        let is_here = |at: &usize| matches!(self.0.get(*at), Some(Some((known, _))) if known == key);
        Self::places(key).find(is_here)
    }

    fn insert(&mut self, key: &RemoteKey, value: T) {
        let is_free = |at: &usize| !matches!(self.0.get(*at), Some(Some(_)));
        let at = self.find(key).or_else(|| Self::places(key).find(is_free)).unwrap_or(Self::place(key));
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some((*key, value));
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten().map(|(_, value)| value)
    }

    fn remove(&mut self, key: &RemoteKey) -> bool {
        let found = self.find(key);
        if let Some(at) = found {
            self.0[at] = None;
        }
        found.is_some()
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
    fn a_table_of_keys_is_bounded_and_tells_them_apart() {
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

    #[test]
    fn regions_whose_numbers_have_the_same_place_do_not_displace_each_other() {
        let mut table = KeyTable::<u32, 1024>::default();
        let keys: Vec<_> = (0..4).map(|turn| RemoteKey { region: 3 + turn * 1024, ..KEY }).collect();
        for (value, key) in (0..).zip(&keys) {
            table.insert(key, value);
        }
        // The place of the next number is taken by then.
        let next = RemoteKey { region: 4, ..KEY };
        table.insert(&next, 99);
        assert_eq!(table.get(&next), Some(&99));
        for (value, key) in (0..).zip(&keys) {
            assert_eq!(table.get(key), Some(&value), "{key:?}");
        }
        // A value that is inserted again stays one value.
        table.insert(&keys[2], 7);
        assert!(table.count() == 5 && table.remove(&keys[2]) && table.get(&keys[2]).is_none());
    }
}
