//! The streams of a port, by their owners, and all of them.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::drive::{StreamOwner, make_ready};
use super::stream::{ByteStream, Interest, StreamTransport};
use super::{PlacementPort, PlacementStorage};
use crate::port::memory::{ConnectError, Connection, ConnectionState};

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

    /// Makes a connection of a stream whose two ends know each other already, and have agreed that it is one. It is
    /// ready at once, without an event. What comes next from the stream is the first frame of the peer.
    ///
    /// # Errors
    /// [`ConnectError::Full`] with the stream, which may be adopted later.
    pub fn adopt(&mut self, stream: T::Stream) -> Result<Connection, (ConnectError, T::Stream)> {
        let connection = match self.new_link(ConnectionState::Connecting) {
            Ok(connection) => connection,
            Err(error) => return Err((error, stream)),
        };
        if let Some(link) = self.link_mut(connection) {
            link.stream = Some(stream);
            make_ready(link);
        }
        self.watch(connection.index, Interest { new: true, writable: false });
        Ok(connection)
    }

    /// Returns the stream of a connection.
    pub fn stream(&self, connection: Connection) -> Option<&T::Stream> {
        self.link(connection)?.stream.as_ref()
    }
}
