//! Polling of a port: connections are made, make progress, and end.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nemesia_core::port::memory::{ConnectError, Connection, ConnectionState, Event, LostError, Private};
use nemesia_core::wire::placement::{
    FIXED_BYTES, Frame, HANDSHAKE_BYTES, Handshake, HandshakeError, PLACEMENT_VERSION, PlacementAnswer,
};

use super::handshake::{Heard, LingeringClose, UnauthenticatedConnection, read_some};
use super::link::End;
use super::port::PlacementPort;
use super::send::Flow;
use super::{Stream, StreamTransport};

/// The events taken from the kernel at once.
const EVENTS: usize = 32;
/// The connections handled in one poll because of posted work.
const LISTED: usize = 32;
/// The unauthenticated connections, and the lingering closes, at once.
const MOST_WAITING: usize = 64;

/// The owner of a descriptor, for the kernel to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Listener,
    Link(u32),
    Unauthenticated(u32),
    LingeringClose(u32),
}

impl Owner {
    const fn encode(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Link(at) => 1 << 32 | at as u64,
            Self::Unauthenticated(at) => 2 << 32 | at as u64,
            Self::LingeringClose(at) => 3 << 32 | at as u64,
        }
    }

    const fn decode(word: u64) -> Self {
        match word >> 32 {
            1 => Self::Link(word as u32),
            2 => Self::Unauthenticated(word as u32),
            3 => Self::LingeringClose(word as u32),
            _ => Self::Listener,
        }
    }
}

/// Puts a value into a free place; `None` if there is none.
fn place<T>(places: &mut Vec<Option<T>>, value: T) -> Option<u32> {
    let at = places.iter().position(Option::is_none);
    match at {
        Some(at) => places[at] = Some(value),
        None if places.len() < MOST_WAITING => places.push(Some(value)),
        None => return None,
    }
    Some(at.unwrap_or(places.len() - 1) as u32)
}

impl<T: StreamTransport> PlacementPort<T> {
    /// Registers the owner of a stream and its wake conditions with the kernel.
    fn watch(&self, stream: &impl AsFd, owner: Owner, (new, writable): (bool, bool)) {
        let events = libc::EPOLLIN | libc::EPOLLRDHUP | if writable { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: owner.encode() };
        let what = if new { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        let (epoll, fd) = (self.epoll.as_raw_fd(), stream.as_fd().as_raw_fd());
        // SAFETY: the event outlives the call. The call fails only for lack of memory; the stream then seems
        // silent, and deadlines end it.
        unsafe { libc::epoll_ctl(epoll, what, fd, &raw mut event) };
    }

    /// Requests an event for a stream that is being connected.
    pub(super) fn watch_new(&self, stream: &impl AsFd, at: u32) {
        self.watch(stream, Owner::Link(at), (true, true));
    }

    /// Makes as much progress as possible without waiting.
    pub(super) fn progress(&mut self) {
        for _ in 0..LISTED.min(self.listed.len()) {
            let Some(at) = self.listed.pop_front() else { break };
            if let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) {
                link.listed = false;
                let readable = link.more_input;
                self.move_on(at, readable);
            }
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: there is room for the announced number of events.
        let count =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, 0) };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            match Owner::decode(event.u64) {
                Owner::Listener => self.welcome(),
                Owner::Link(at) => self.move_on(at, true),
                Owner::Unauthenticated(at) => self.listen(at),
                Owner::LingeringClose(at) => self.part(at),
            }
        }
    }

    /// Accepts incoming streams, and hears their requests.
    fn welcome(&mut self) {
        for _ in 0..EVENTS {
            let Some(stream) = self.transport.accept() else { return };
            if self.unauthenticated.iter().flatten().count() == MOST_WAITING {
                // The stream that has been silent for longest is closed.
                let oldest = self
                    .unauthenticated
                    .iter_mut()
                    .min_by_key(|it| it.as_ref().map(UnauthenticatedConnection::deadline));
                oldest.map(Option::take);
            }
            let Some(at) = place(&mut self.unauthenticated, UnauthenticatedConnection::new(stream, self.now))
            else {
                return;
            };
            if let Some(unauthenticated) = &self.unauthenticated[at as usize] {
                self.watch(&unauthenticated.stream, Owner::Unauthenticated(at), (true, false));
            }
        }
    }

    fn listen(&mut self, at: u32) {
        let Some(place) = self.unauthenticated.get_mut(at as usize) else { return };
        let Some(unauthenticated) = place else { return };
        let answer = PlacementAnswer::Refuse;
        let refusal = Handshake { answer, token: 0, shared: false, private: Private::EMPTY };
        let handshake = match unauthenticated.listen(self.now) {
            Heard::Wait => return,
            Heard::Handshake(handshake) => handshake,
            Heard::Version => {
                unauthenticated.answer(&refusal);
                *place = None;
                return;
            }
            Heard::Nonsense => {
                *place = None;
                return;
            }
        };
        if handshake.answer != PlacementAnswer::Request || handshake.token != self.token {
            *place = None;
            return;
        }
        let Some(mut unauthenticated) = place.take() else { return };
        let Ok(connection) = self.new_link(ConnectionState::Requested) else {
            unauthenticated.answer(&refusal);
            return;
        };
        self.watch(&unauthenticated.stream, Owner::Link(connection.index), (false, false));
        if let Some(link) = self.link_mut(connection) {
            link.stream = Some(unauthenticated.stream);
        }
        self.reports.events.push_back(Event::Requested { connection, private: handshake.private });
    }

    fn part(&mut self, at: u32) {
        let now = self.now;
        if let Some(place) = self.lingering_closes.get_mut(at as usize)
            && place.as_mut().is_some_and(|lingering_close| !lingering_close.go_on(now))
        {
            *place = None;
        }
    }

    /// Makes progress on a connection.
    fn move_on(&mut self, at: u32, readable: bool) {
        let Self { links, regions, reports, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        let ended = match link.state {
            ConnectionState::Ready => {
                let taken = if readable { link.take_in(regions, reports) } else { Ok(()) };
                taken.and_then(|()| link.send_out(regions))
            }
            ConnectionState::Connecting => return self.connecting(at),
            ConnectionState::Requested => return self.waiting(at),
            _ => return,
        };
        let more = link.more_input;
        let (receive_starved, writable) = (link.shared && link.wanted > link.granted, link.writable_wanted);
        match ended {
            Ok(flow) => {
                let wants = link.stream.as_ref().is_some_and(Stream::wants_writable);
                link.writable_wanted = flow == Flow::Blocked && wants;
                if link.writable_wanted != writable {
                    self.rewatch(at);
                }
                if more || flow == Flow::More {
                    self.list(at);
                }
                if receive_starved {
                    self.refill(at);
                }
            }
            Err(end) => self.end(at, end),
        }
    }

    fn rewatch(&self, at: u32) {
        let link = self.links.get(at as usize).and_then(|place| place.link.as_ref());
        if let Some((link, stream)) = link.and_then(|link| Some((link, link.stream.as_ref()?))) {
            self.watch(stream, Owner::Link(at), (false, link.writable_wanted));
        }
    }

    /// Schedules a connection for the next poll.
    pub(super) fn list(&mut self, at: u32) {
        if let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut())
            && !link.listed
        {
            link.listed = true;
            self.listed.push_back(at);
        }
    }

    /// Reserves receives of the shared queue for a connection that asks for them, or notes that it waits. A
    /// connection that has one already gets another only if enough are left for all others. A peer that never
    /// sends, or sends only a part, therefore blocks no other peer as long as the queue has a receive for each
    /// connection.
    fn refill(&mut self, at: u32) {
        let others = self.sharers.saturating_sub(1) as usize;
        let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else {
            return;
        };
        while link.granted < link.wanted {
            let kept = if link.receives.is_empty() { 0 } else { others };
            let receive = if self.shared.len() > kept { self.shared.pop_front() } else { None };
            let Some(receive) = receive else {
                if !self.receive_starved.contains(&at) {
                    self.receive_starved.push_back(at);
                }
                break;
            };
            link.receives.push_back(receive);
            link.granted += 1;
        }
        self.list(at);
    }

    /// Gives receives of the shared queue to waiting connections in turn.
    pub(super) fn refill_all(&mut self) {
        for _ in 0..self.receive_starved.len() {
            if self.shared.is_empty() {
                return;
            }
            let Some(at) = self.receive_starved.pop_front() else { return };
            self.refill(at);
        }
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, at: u32, end: End) {
        let Self { links, reports, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        self.sharers -= u32::from(link.is_sharer());
        let (whole, executed) = (link.body.is_none(), link.executed);
        let withdrawn = link.has_lent_any();
        let left = link.end(end, reports);
        let mut stream = link.stream.take();
        if let Some(mut stream) = stream.take_if(|_| withdrawn) {
            stream.withdraw();
        }
        let mut rest = std::mem::take(&mut link.stage);
        let said = link.staged;
        for receive in left.into_iter().rev() {
            self.shared.push_front(receive);
        }
        self.receive_starved.retain(|receive_starved| *receive_starved != at);
        self.refill_all();
        if let (Some(reason), Some(stream), true) = (end.refuse, stream, whole) {
            let (bytes, count) = Frame::Refuse { operation: executed, reason }.encode();
            rest.extend_from_slice(&bytes[..count]);
            // If there are too many, the peer only sees the end of the stream.
            if let Some(at) = place(&mut self.lingering_closes, LingeringClose::new(stream, rest, said)) {
                if let Some(lingering_close) = &self.lingering_closes[at as usize] {
                    self.watch(&lingering_close.stream, Owner::LingeringClose(at), (false, false));
                }
                self.part(at);
            }
        }
    }

    /// Fails a connection that was being made.
    pub(super) fn fail(&mut self, at: u32, error: ConnectError, private: Private) {
        let Self { links, reports, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        let (connection, reported) = (link.connection, !link.closing);
        link.end(End::new(LostError::Closed), reports);
        link.stream = None;
        if reported {
            reports.events.push_back(Event::Failed { connection, error, private });
        }
    }

    /// Continues a connection of ours: waits for the stream, then for the answer.
    fn connecting(&mut self, at: u32) {
        let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else {
            return;
        };
        let Some(stream) = link.stream.as_mut() else { return };
        if !link.handshake_done {
            match stream.is_connected() {
                None => return,
                Some(Err(error)) => return self.fail(at, error, Private::EMPTY),
                Some(Ok(())) => {}
            }
            let (answer, token, shared) = (PlacementAnswer::Request, link.token, link.shared);
            let handshake = Handshake { answer, token, shared, private: link.private };
            link.stage.extend_from_slice(&handshake.encode());
            link.handshake_done = true;
            match link.send_out(&self.regions) {
                Ok(Flow::Idle) => self.rewatch(at),
                _ => self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            }
            return;
        }
        match read_some(stream, &mut link.input[link.input_end..HANDSHAKE_BYTES]) {
            Ok(None) => return,
            Ok(Some(0)) => return self.fail(at, ConnectError::Refused, Private::EMPTY),
            Err(_) => return self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            Ok(Some(count)) => link.input_end += count,
        }
        let error = |error| match error {
            HandshakeError::Version { theirs } => ConnectError::Version { ours: PLACEMENT_VERSION, theirs },
            HandshakeError::Malformed => ConnectError::Protocol,
        };
        if let Some(fixed) = link.input[..link.input_end].first_chunk::<FIXED_BYTES>()
            && let Err(why) = Handshake::check(fixed)
        {
            return self.fail(at, error(why), Private::EMPTY);
        }
        let Some(bytes) = link.input[..link.input_end].first_chunk::<HANDSHAKE_BYTES>() else { return };
        match Handshake::decode(bytes) {
            Ok(Handshake { answer: PlacementAnswer::Accept, private, .. }) => {
                link.input_end = 0;
                link.state = ConnectionState::Ready;
                self.sharers += u32::from(link.is_sharer());
                let connection = link.connection;
                self.reports.events.push_back(Event::Established { connection, private });
                self.list(at);
            }
            Ok(Handshake { answer: PlacementAnswer::Refuse, private, .. }) => {
                self.fail(at, ConnectError::Refused, private);
            }
            Ok(_) => self.fail(at, ConnectError::Protocol, Private::EMPTY),
            Err(why) => self.fail(at, error(why), Private::EMPTY),
        }
    }

    /// Continues a requested connection that waits for our answer: the peer can only leave.
    fn waiting(&mut self, at: u32) {
        let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else {
            return;
        };
        let Some(stream) = link.stream.as_mut() else { return };
        match read_some(stream, &mut [0; 1]) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            Ok(Some(_)) => self.fail(at, ConnectError::Protocol, Private::EMPTY),
        }
    }

    /// Checks everything that has a deadline, at time `now`.
    pub(super) fn watch_clock(&mut self, now: Duration) {
        self.now = self.now.max(now);
        let late: Vec<u32> =
            self.timed.iter().copied().filter(|at| self.is_late(*at) != Some(false)).collect();
        for at in late {
            self.timed.retain(|other| *other != at);
            if self.is_late(at) != Some(true) {
                continue;
            }
            match self.links.get(at as usize).and_then(|place| place.link.as_ref()) {
                Some(link) if link.state == ConnectionState::Ready => {
                    self.end(at, End::new(LostError::Unreachable));
                }
                _ => self.fail(at, ConnectError::TimedOut, Private::EMPTY),
            }
        }
        for at in 0..self.unauthenticated.len() as u32 {
            self.listen(at);
        }
        for at in 0..self.lingering_closes.len() as u32 {
            self.part(at);
        }
    }

    /// Returns whether a connection that is being made, or that must give memory back, is late; `None` if
    /// neither applies.
    fn is_late(&self, at: u32) -> Option<bool> {
        let link = self.links.get(at as usize)?.link.as_ref()?;
        let deadline = match link.state {
            ConnectionState::Connecting => link.deadline,
            _ => link.demanded()?,
        };
        Some(self.now > deadline)
    }

    /// Returns the next closed connection with nothing left to report.
    pub(super) fn closed(&mut self) -> Option<Connection> {
        let at = self.closing.iter().position(|at| {
            let link = self.links.get(*at as usize).and_then(|place| place.link.as_ref());
            link.is_none_or(|link| link.unpolled == 0)
        })?;
        let index = self.closing.swap_remove(at);
        let link = self.links[index as usize].link.take()?;
        self.free.push(index);
        Some(link.connection)
    }
}
