//! A bounded table of each peer's regions, for mappings and for refusals.
//!
//! A region's descriptor at its owner is a small number that the owner uses again, so this number is the region's
//! place, modulo the size of the table. That needs no hash, which could be flooded. If another region has that place,
//! one of the next few places is used. Otherwise two regions whose numbers differ by the size of the table would be
//! mapped and unmapped in turns.
//! Keys may be forged: a mapping gives its place only to another one that was verified, and refusals have a table of
//! their own. What a key of one peer does changes nothing for those of others.

use super::{Mapped, PeerRegion};

/// The largest number of regions of a peer that are mapped at a time. Each takes one descriptor of its owner; a
/// process usually has 1024.
const MAPPED: usize = 1024;
/// The largest number of refusals of a peer that are remembered.
const REFUSED: usize = 64;
/// Places where a region can be: that of its number, and those after it.
const PLACES: usize = 8;

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
    pub(super) fn mapped(&self, key: &PeerRegion) -> Option<&Mapped> {
        self.peers.get(key.peer as usize)?.mapped.get(key)
    }

    /// Returns every region that is mapped.
    pub(super) fn all_mapped(&self) -> impl Iterator<Item = &Mapped> {
        self.peers.iter().flat_map(|peer| peer.mapped.values())
    }

    /// Returns why an earlier attempt did not map a region.
    pub(super) fn refused(&self, key: &PeerRegion) -> Option<&String> {
        self.peers.get(key.peer as usize)?.refused.get(key)
    }

    /// Remembers a mapping that its key opens, or the reason why there is none. The rank is one of this world.
    pub(super) fn remember(&mut self, key: &PeerRegion, outcome: Result<Mapped, String>) {
        let rank = key.peer as usize;
        if self.peers.len() <= rank {
            self.peers.resize_with(rank + 1, PeerRegions::default);
        }
        let peer = &mut self.peers[rank];
        match outcome {
            Ok(mapped) => {
                // Memory that its owner has freed lives as long as it is mapped here.
                peer.mapped.retain(|key, mapped| mapped.window.is_open(key.key));
                peer.mapped.insert(key, mapped);
            }
            Err(why) => peer.refused.insert(key, why),
        }
    }

    /// Unmaps a region. Returns false if it was not mapped.
    pub(super) fn unmap(&mut self, key: &PeerRegion) -> bool {
        self.peers.get_mut(key.peer as usize).is_some_and(|peer| peer.mapped.remove(key))
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

/// At most `MOST` values, each under a key. If all places of a key are taken, its value replaces another.
#[derive(Debug)]
struct KeyTable<T, const MOST: usize>(Vec<Option<(PeerRegion, T)>>);

impl<T, const MOST: usize> Default for KeyTable<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MOST: usize> KeyTable<T, MOST> {
    const fn place(key: &PeerRegion) -> usize {
        key.share as usize % MOST
    }

    /// The places of a key, the likeliest first.
    fn places(key: &PeerRegion) -> impl Iterator<Item = usize> {
        let first = Self::place(key);
        (0..PLACES.min(MOST)).map(move |next| (first + next) % MOST)
    }

    #[inline]
    fn get(&self, key: &PeerRegion) -> Option<&T> {
        match self.0.get(Self::place(key)) {
            // The whole key is compared: a forged length or descriptor makes another key.
            Some(Some((known, value))) if known == key => Some(value),
            _ => self.get_further(key),
        }
    }

    #[cold]
    fn get_further(&self, key: &PeerRegion) -> Option<&T> {
        let (_, value) = self.0.get(self.find(key)?)?.as_ref()?;
        Some(value)
    }

    /// Returns the place that holds a key.
    fn find(&self, key: &PeerRegion) -> Option<usize> {
        let is_here = |at: &usize| matches!(self.0.get(*at), Some(Some((known, _))) if known == key);
        Self::places(key).find(is_here)
    }

    fn insert(&mut self, key: &PeerRegion, value: T) {
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

    /// Removes the values that `keep` does not name.
    fn retain(&mut self, mut keep: impl FnMut(&PeerRegion, &T) -> bool) {
        for place in &mut self.0 {
            if place.as_ref().is_some_and(|(key, value)| !keep(key, value)) {
                *place = None;
            }
        }
    }

    fn remove(&mut self, key: &PeerRegion) -> bool {
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
    use super::*;

    const KEY: PeerRegion = PeerRegion { peer: 1, share: 3, key: 77, len: 8, writable: true };

    #[test]
    fn a_table_of_keys_is_bounded_and_distinguishes_them() {
        let mut table = KeyTable::<u32, 8>::default();
        table.insert(&KEY, 1);
        let forged = [
            PeerRegion { key: 78, ..KEY },
            PeerRegion { len: 9, ..KEY },
            PeerRegion { share: 4, ..KEY },
            PeerRegion { writable: false, ..KEY },
            PeerRegion { share: 11, ..KEY },
        ];
        for key in &forged {
            assert!(table.get(key).is_none() && !table.remove(key), "{key:?}");
        }
        assert_eq!(table.get(&KEY), Some(&1));
        for share in (0..1000).chain([u32::MAX]) {
            table.insert(&PeerRegion { share, ..KEY }, share);
        }
        assert_eq!((table.count(), table.0.len()), (8, 8));
        assert_eq!(table.get(&PeerRegion { share: u32::MAX, ..KEY }), Some(&u32::MAX));
        assert!(table.remove(&PeerRegion { share: u32::MAX, ..KEY }));
        assert_eq!(table.count(), 7);
    }

    #[test]
    fn regions_whose_numbers_have_the_same_place_do_not_displace_each_other() {
        let mut table = KeyTable::<u32, 1024>::default();
        let keys: Vec<_> = (0..4).map(|turn| PeerRegion { share: 3 + turn * 1024, ..KEY }).collect();
        for (value, key) in (0..).zip(&keys) {
            table.insert(key, value);
        }
        // The place of the next number is taken by then.
        let next = PeerRegion { share: 4, ..KEY };
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
