//! The streams of a port, by their owners, and all of them.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::drive::StreamOwner;
use super::stream::{ByteStream, StreamTransport};
use super::{PlacementPort, PlacementStorage};

impl<T: StreamTransport, P: PlacementStorage> PlacementPort<T, P> {
    /// Returns a stream by its owner; `None` if there is none any more.
    pub(super) fn stream_of(&mut self, owner: StreamOwner) -> Option<&mut T::Stream> {
        match owner {
            StreamOwner::Listener => None,
            StreamOwner::Link(at) => self.link_at(at)?.stream.as_mut(),
            StreamOwner::Unauthenticated(at) => {
                self.unauthenticated.borrow_mut().get_mut(at as usize)?.as_mut().map(|it| &mut it.stream)
            }
            StreamOwner::LingeringClose(at) => {
                self.lingering_closes.borrow_mut().get_mut(at as usize)?.as_mut().map(|it| &mut it.stream)
            }
        }
    }

    /// Calls a function for each stream. Returns whether it has returned true for all.
    pub(super) fn each_stream(&mut self, mut call: impl FnMut(&mut T::Stream) -> bool) -> bool {
        let links =
            self.links.borrow_mut().iter_mut().filter_map(|place| place.link.as_mut()?.stream.as_mut());
        let others = self.unauthenticated.borrow_mut().iter_mut().flatten().map(|it| &mut it.stream);
        let lingering = self.lingering_closes.borrow_mut().iter_mut().flatten().map(|it| &mut it.stream);
        links.chain(others).chain(lingering).fold(true, |all, stream| call(stream) & all)
    }

    /// Makes progress on the streams in memory that are ready.
    pub(super) fn look_in_memory(&mut self) {
        for at in 0..self.links.borrow().len() as u32 {
            let stream = self.link_at(at).and_then(|link| link.stream.as_mut());
            if stream.is_some_and(ByteStream::is_ready) {
                self.move_on(at, true);
            }
        }
    }
}
