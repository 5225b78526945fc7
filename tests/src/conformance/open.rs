//! The operations of an actor that are under way.

use std::collections::BTreeMap;

use super::actor::OperationId;
use super::buffer::Buffer;

/// The operations under way: the request of each, of type `R`, and its buffers, which are kept until it is complete.
#[derive(Debug)]
pub(super) struct OpenOperations<R> {
    all: BTreeMap<u64, (R, Vec<Buffer>)>,
    last: u64,
}

impl<R: Copy> OpenOperations<R> {
    /// Returns no operations.
    pub(super) const fn new() -> Self {
        Self { all: BTreeMap::new(), last: 0 }
    }

    /// Returns a number that no operation and no claim of the actor has.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the last number that was given.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Adds an operation that was started.
    pub(super) fn keep(&mut self, request: R, buffers: Vec<Buffer>) -> OperationId {
        let number = self.number();
        self.all.insert(number, (request, buffers));
        OperationId(number)
    }

    /// Returns the request of an operation that is under way.
    pub(super) fn request(&self, operation: OperationId) -> Option<R> {
        self.all.get(&operation.0).map(|(request, _)| *request)
    }

    /// Removes an operation that is complete, and returns its last buffer; an empty one if it has none.
    pub(super) fn finish(&mut self, operation: OperationId) -> Buffer {
        self.all.remove(&operation.0).and_then(|(_, mut buffers)| buffers.pop()).unwrap_or_default()
    }
}
