//! Objects by handle. A handle has the kind of its object and a generation, so a stale handle, or one of another kind,
//! finds nothing.

/// The kind of an object: the highest byte of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HandleKind {
    Nic = 0x21,
    Vi = 0x22,
    CompletionQueue = 0x23,
    Ptag = 0x24,
    Connection = 0x25,
}

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 36;

/// The objects of one kind.
#[derive(Debug)]
pub(super) struct HandleTable<T> {
    kind: HandleKind,
    slots: Vec<(u64, Option<T>)>,
    free: Vec<usize>,
    used: usize,
}

impl<T> HandleTable<T> {
    pub(super) const fn new(kind: HandleKind) -> Self {
        Self { kind, slots: Vec::new(), free: Vec::new(), used: 0 }
    }

    fn handle(&self, index: usize, generation: u64) -> u64 {
        (self.kind as u64) << (INDEX_BITS + GENERATION_BITS) | generation << INDEX_BITS | index as u64
    }

    /// Adds an object, which is made from its handle. `None` if there are too many.
    pub(super) fn insert(&mut self, object: impl FnOnce(u64) -> T) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < 1 << INDEX_BITS => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
            None => return None,
        };
        let generation = (self.slots[index].0 + 1) & ((1 << GENERATION_BITS) - 1);
        let handle = self.handle(index, generation);
        self.slots[index] = (generation, Some(object(handle)));
        self.used += 1;
        Some(handle)
    }

    #[inline(always)]
    fn index(&self, handle: u64) -> Option<usize> {
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let (generation, object) = self.slots.get(index)?;
        (object.is_some() && self.handle(index, *generation) == handle).then_some(index)
    }

    #[inline(always)]
    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.slots[self.index(handle)?].1.as_ref()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let index = self.index(handle)?;
        self.slots[index].1.as_mut()
    }

    pub(super) fn remove(&mut self, handle: u64) -> Option<T> {
        let index = self.index(handle)?;
        self.free.push(index);
        self.used -= 1;
        self.slots[index].1.take()
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }

    /// Returns the handles and objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let handle = |index, generation: &u64| self.handle(index, *generation);
        let slots = self.slots.iter().enumerate();
        slots.filter_map(move |(index, (generation, object))| {
            Some((handle(index, generation), object.as_ref()?))
        })
    }

    /// Returns the handles of the objects that are wanted.
    pub(super) fn handles(&self, wanted: impl Fn(&T) -> bool) -> Vec<u64> {
        self.iter().filter(|(_, object)| wanted(object)).map(|(handle, _)| handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_handles_find_nothing() {
        let mut vis: HandleTable<u32> = HandleTable::new(HandleKind::Vi);
        let mut nics: HandleTable<u32> = HandleTable::new(HandleKind::Nic);
        let (vi, nic) = (vis.insert(|_| 1).unwrap(), nics.insert(|_| 2).unwrap());
        assert!(vis.get(nic).is_none() && nics.get(vi).is_none());
        assert_eq!(vis.remove(vi), Some(1));
        let next = vis.insert(|_| 3).unwrap();
        assert_ne!(next, vi);
        assert!(vis.get(vi).is_none() && vis.remove(vi).is_none());
        assert_eq!((vis.get(next), vis.len()), (Some(&3), 1));
        for handle in [0, 1, u64::MAX, next ^ 1, next ^ 1 << 20, next ^ 1 << 60] {
            assert!(vis.get(handle).is_none(), "{handle:#x}");
        }
    }
}
