//! Objects by number.

/// Objects of one kind, by number.
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn insert(&mut self, value: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let at = free.unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(value);
        at
    }

    #[inline]
    pub(crate) fn get(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }

    /// Returns a number that is larger than that of each object.
    pub(crate) const fn places(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}
