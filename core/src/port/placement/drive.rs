//! Polling of a port: connections are made, make progress, and end.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut};
use core::time::Duration;

use super::buffers::StageBuffer;
use super::handshake::{Heard, LingeringClose, UnauthenticatedConnection, read_some};
use super::link::{ConnectionPlace, LinkEnd, PendingReports, PlacementLink};
use super::regions::PlacementRegions;
use super::send::Flow;
use super::stream::{ByteStream, Interest, LISTENER, StreamResult, StreamTransport};
use super::{
    ASK_EVERY, LOOKS_AT_RECENT, LOOKS_IN_MEMORY, LOOKS_WHEN_STEADY, PlacementPort, PlacementStorage,
    STEADY_LOOKS,
};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::memory::{ConnectError, Connection, ConnectionState, Event, LostError, Private};
use crate::wire::placement::{
    FIXED_BYTES, Frame, HANDSHAKE_BYTES, Handshake, HandshakeError, PLACEMENT_VERSION, PlacementAnswer,
};

/// The streams handled in one poll because they are ready.
const EVENTS: usize = 32;
/// The connections handled in one poll because of posted work.
const LISTED: usize = 32;
/// The unauthenticated connections, and the lingering closes, at once.
const MOST_WAITING: usize = 64;
/// The time between two looks for machines that do not answer.
const LOOK_FOR_SILENCE_EVERY: Duration = Duration::from_millis(500);

/// The owner of a stream, for the transport to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamOwner {
    Listener,
    Link(u32),
    Unauthenticated(u32),
    LingeringClose(u32),
}

impl StreamOwner {
    const fn encode(self) -> u64 {
        match self {
            Self::Listener => LISTENER,
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
fn place<V, B: BorrowMut<[Option<V>]> + Extend<Option<V>>>(places: &mut B, value: V) -> Option<u32> {
    let taken: &[Option<V>] = (*places).borrow();
    let have = taken.len();
    let at = taken.iter().position(Option::is_none).unwrap_or(have);
    if at == have && have < MOST_WAITING {
        places.extend(core::iter::once(None));
    }
    *places.borrow_mut().get_mut(at)? = Some(value);
    Some(at as u32)
}

/// Takes note that a connection is ready.
pub(super) fn make_ready<S: ByteStream, P: PlacementStorage>(link: &mut PlacementLink<S, P>) {
    link.state = ConnectionState::Ready;
    if let Some(stream) = &mut link.stream {
        stream.was_opened();
    }
}

fn link_at<S, P: PlacementStorage>(
    places: &mut [ConnectionPlace<S, P>],
    at: u32,
) -> Option<&mut PlacementLink<S, P>> {
    places.get_mut(at as usize)?.link.as_mut()
}

/// Reads what has arrived, if the stream is readable, and writes what can go, but no report that may be held.
fn exchange<S: ByteStream, P: PlacementStorage>(
    link: &mut PlacementLink<S, P>,
    regions: &PlacementRegions<P>,
    reports: &mut PendingReports<P>,
    (readable, may_hold): (bool, bool),
) -> Result<Flow, LinkEnd> {
    if readable {
        link.take_in(regions, reports, false)?;
    }
    if may_hold && link.holds_report() {
        return Ok(Flow::More);
    }
    match link.send_out(regions) {
        // The peer may have written its last frames before it closed the stream.
        Err(end) if end.is_of_stream() => {
            link.take_in(regions, reports, true)?;
            if link.more_input { Ok(Flow::Idle) } else { Err(end) }
        }
        sent => sent,
    }
}

impl<T: StreamTransport, P: PlacementStorage> PlacementPort<T, P> {
    pub(super) fn link_at(&mut self, at: u32) -> Option<&mut PlacementLink<T::Stream, P>> {
        link_at(self.links.borrow_mut(), at)
    }

    /// Requests events for the stream of a connection.
    pub(super) fn watch(&mut self, at: u32, mut interest: Interest) {
        if self.is_unwatched && self.recent == Some(at) {
            (self.is_unwatched, self.sightings, interest.new) = (false, 0, true);
        }
        let link = self.links.borrow().get(at as usize).and_then(|place| place.link.as_ref());
        if let Some(stream) = link.and_then(|link| link.stream.as_ref()) {
            self.transport.watch(stream, StreamOwner::Link(at).encode(), interest);
        }
    }

    /// Watches the connection that was readable last, if it is not watched.
    pub(super) fn watch_recent(&mut self) {
        #[cfg(nemesia_injected_fault)]
        if self.is_unwatched && injected(InjectedFault::ForgetWatch) {
            self.is_unwatched = false;
            return;
        }
        if let Some(at) = self.recent.filter(|_| self.is_unwatched) {
            let writable = self.link_at(at).is_some_and(|link| link.writable_wanted);
            self.watch(at, Interest { new: true, writable });
        }
    }

    /// Takes note that a look at all has found this connection, alone or with others.
    fn see(&mut self, at: u32, is_alone: bool) {
        if self.recent != Some(at) {
            self.watch_recent();
            (self.recent, self.sightings) = (Some(at), 0);
        }
        self.sightings = if is_alone { self.sightings + 1 } else { 0 };
        if self.sightings < STEADY_LOOKS || !T::Stream::REPORTS_REST {
            return;
        }
        let link = self.links.borrow().get(at as usize).and_then(|place| place.link.as_ref());
        let link = link.filter(|link| link.state == ConnectionState::Ready && !link.writable_wanted);
        if let Some(stream) = link.and_then(|link| link.stream.as_ref()) {
            self.transport.unwatch(stream);
            self.is_unwatched = true;
        }
    }

    /// Makes as much progress as possible without waiting.
    pub(super) fn progress(&mut self) {
        if T::Stream::IN_MEMORY && self.awake == 1 {
            self.each_stream(|stream| {
                stream.awake();
                true
            });
        }
        self.awake = self.awake.saturating_sub(1);
        self.move_listed(true);
        if T::Stream::IN_MEMORY {
            self.look_in_memory();
            if self.looks < self.ask_after && self.awake == 0 {
                self.looks += 1;
                return;
            }
        }
        let most = if self.is_unwatched { LOOKS_WHEN_STEADY } else { LOOKS_AT_RECENT };
        if T::Stream::REPORTS_REST
            && self.looks < most
            && let Some(at) = self.recent
        {
            self.looks += 1;
            return self.move_on(at, true);
        }
        self.looks = 0;
        let mut words = [LISTENER; EVENTS];
        let count = self.transport.ready(&mut words);
        self.ask_after = if count > 0 { 0 } else { (2 * self.ask_after + 1).min(LOOKS_IN_MEMORY) };
        for owner in words.into_iter().take(count).map(StreamOwner::decode) {
            if T::Stream::IN_MEMORY
                && let Some(stream) = self.stream_of(owner)
            {
                stream.was_reported();
            }
            match owner {
                StreamOwner::Listener => self.welcome(),
                StreamOwner::Link(at) => {
                    self.see(at, count == 1);
                    self.move_on(at, true);
                }
                StreamOwner::Unauthenticated(at) => self.listen(at),
                StreamOwner::LingeringClose(at) => self.part(at),
            }
        }
        if let Some(at) = self.recent.filter(|_| self.is_unwatched) {
            self.move_on(at, true);
        }
    }

    /// Makes progress on the connections that are listed; reads only if it may.
    pub(super) fn move_listed(&mut self, may_read: bool) {
        for _ in 0..LISTED.min(self.listed.len()) {
            let Some(at) = self.listed.pop_front(self.links.borrow_mut()) else { break };
            if let Some(readable) = self.link_at(at).map(|link| link.more_input) {
                self.move_on(at, readable && may_read);
            }
        }
    }

    /// Accepts incoming streams, and hears their requests.
    fn welcome(&mut self) {
        for _ in 0..EVENTS {
            let Some(stream) = self.transport.accept() else { return };
            self.make_room();
            let unauthenticated = UnauthenticatedConnection::new(stream, self.now);
            let Some(at) = place(&mut self.unauthenticated, unauthenticated) else { return };
            if let Some(Some(it)) = self.unauthenticated.borrow().get(at as usize) {
                let interest = Interest { new: true, writable: false };
                self.transport.watch(&it.stream, StreamOwner::Unauthenticated(at).encode(), interest);
            }
        }
    }

    /// Closes the unauthenticated stream that has been silent for longest, if there is no place for another one. Its
    /// handshake may have come meanwhile: then it is heard.
    fn make_room(&mut self) {
        let waiting = self.unauthenticated.borrow();
        if waiting.iter().flatten().count() < MOST_WAITING {
            return;
        }
        let deadlines = waiting.iter().map(|it| it.as_ref().map(UnauthenticatedConnection::deadline));
        let Some((oldest, _)) = deadlines.enumerate().min_by_key(|(_, deadline)| *deadline) else { return };
        self.listen(oldest as u32);
        if let Some(place) = self.unauthenticated.borrow_mut().get_mut(oldest) {
            *place = None;
        }
    }

    fn listen(&mut self, at: u32) {
        let now = self.now;
        let Some(place) = self.unauthenticated.borrow_mut().get_mut(at as usize) else { return };
        let Some(unauthenticated) = place else { return };
        let answer = PlacementAnswer::Refuse;
        let refusal = Handshake { answer, token: 0, shared: false, private: Private::EMPTY };
        let handshake = match unauthenticated.listen(now) {
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
        if let Some(link) = self.link_mut(connection) {
            link.stream = Some(unauthenticated.stream);
        }
        self.watch(connection.index, Interest { new: false, writable: false });
        self.reports.report(Event::Requested { connection, private: handshake.private });
    }

    fn part(&mut self, at: u32) {
        let now = self.now;
        if let Some(place) = self.lingering_closes.borrow_mut().get_mut(at as usize)
            && place.as_mut().is_some_and(|lingering_close| !lingering_close.go_on(now))
        {
            *place = None;
        }
    }

    /// Makes progress on a connection.
    pub(super) fn move_on(&mut self, at: u32, readable: bool) {
        let may_hold = self.awake == 0;
        let Self { links, regions, reports, .. } = self;
        let Some(link) = link_at(links.borrow_mut(), at) else { return };
        let ended = match link.state {
            ConnectionState::Ready => exchange(link, regions, reports, (readable, may_hold)),
            ConnectionState::Connecting => return self.connecting(at),
            ConnectionState::Requested => return self.waiting(at),
            _ => return,
        };
        let more = link.more_input;
        let (receive_starved, writable) = (link.shared && link.wanted > link.granted, link.writable_wanted);
        match ended {
            Ok(flow) => {
                let wants = link.stream.as_ref().is_some_and(ByteStream::wants_writable);
                link.writable_wanted = flow == Flow::Blocked && wants;
                let wanted = link.writable_wanted;
                if wanted != writable {
                    self.watch(at, Interest { new: false, writable: wanted });
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

    /// Sends a report that is held back, before the connection is closed: the peer must learn what was executed.
    pub(super) fn report_now(&mut self, at: u32) {
        let Self { links, regions, .. } = self;
        if let Some(link) = link_at(links.borrow_mut(), at).filter(|link| link.held > 0) {
            // If the stream takes nothing more, the peer learns only of the end.
            let _ = link.send_out(regions);
        }
    }

    /// Schedules a connection for the next poll.
    pub(super) fn list(&mut self, at: u32) {
        self.listed.push_back(self.links.borrow_mut(), at);
    }

    /// Reserves receives of the shared queue for a connection that asks for them, or notes that it waits. A
    /// connection that has one already gets another only if enough are left for all others. A peer that never
    /// sends, or sends only a part, therefore blocks no other peer as long as the queue has a receive for each
    /// connection.
    fn refill(&mut self, at: u32) {
        let others = self.sharers.saturating_sub(1) as usize;
        let Some(link) = link_at(self.links.borrow_mut(), at) else { return };
        while link.granted < link.wanted {
            let kept = if link.receives.is_empty() { 0 } else { others };
            let receive = if self.shared.len() > kept { self.shared.pop_front() } else { None };
            let Some(receive) = receive else {
                self.receive_starved.push_back(self.links.borrow_mut(), at);
                break;
            };
            // A peer may ask for at most `MOST_ASKED` ahead, for which there is room.
            let _ = link.receives.push_back(receive);
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
            let Some(at) = self.receive_starved.pop_front(self.links.borrow_mut()) else { return };
            self.refill(at);
        }
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, at: u32, end: LinkEnd) {
        if self.recent == Some(at) {
            // The stream may linger.
            self.watch_recent();
            self.recent = None;
        }
        let Self { links, reports, shared, .. } = self;
        let Some(link) = link_at(links.borrow_mut(), at) else { return };
        self.sharers -= u32::from(link.is_sharer());
        let (whole, executed) = (link.body.is_none(), link.executed);
        let withdrawn = link.has_lent_any();
        link.end(end, reports);
        let mut stream = link.stream.take();
        if let Some(mut stream) = stream.take_if(|_| withdrawn) {
            stream.withdraw();
        }
        let mut rest = core::mem::take(&mut link.stage);
        while let Some(receive) = link.receives.pop_back() {
            // It came from there.
            let _ = shared.push_front(receive);
        }
        self.receive_starved.remove(links.borrow_mut(), at);
        self.refill_all();
        if let (Some(reason), Some(stream), true) = (end.refuse, stream, whole) {
            let (bytes, count) = Frame::Refuse { operation: executed, reason }.encode();
            if bytes.get(..count).is_some_and(|bytes| rest.push(bytes)) {
                self.linger(stream, rest);
            }
        }
    }

    /// Sends the rest, and keeps the stream until the peer has read it. If there is no place, the peer only sees
    /// the end of the stream.
    pub(super) fn linger(&mut self, stream: T::Stream, rest: StageBuffer<P::Table<u8>>) {
        let close = LingeringClose::new(stream, rest);
        let Some(at) = place(&mut self.lingering_closes, close) else { return };
        if let Some(Some(it)) = self.lingering_closes.borrow().get(at as usize) {
            let interest = Interest { new: false, writable: false };
            self.transport.watch(&it.stream, StreamOwner::LingeringClose(at).encode(), interest);
        }
        self.part(at);
    }

    /// Fails a connection that was being made.
    pub(super) fn fail(&mut self, at: u32, error: ConnectError, private: Private) {
        let Self { links, reports, .. } = self;
        let Some(link) = link_at(links.borrow_mut(), at) else { return };
        let (connection, reported) = (link.connection, !link.closing);
        link.end(LinkEnd::new(LostError::Closed), reports);
        link.stream = None;
        if reported {
            reports.report(Event::Failed { connection, error, private });
        }
    }

    /// Continues a connection of ours: waits for the stream, then for the answer.
    fn connecting(&mut self, at: u32) {
        let Some(link) = link_at(self.links.borrow_mut(), at) else { return };
        let Some(stream) = link.stream.as_mut() else { return };
        if !link.handshake_done {
            match stream.is_connected() {
                None => return,
                Some(Err(error)) => return self.fail(at, error, Private::EMPTY),
                Some(Ok(())) => {}
            }
            let (answer, token, shared) = (PlacementAnswer::Request, link.token, link.shared);
            let handshake = Handshake { answer, token, shared, private: link.private };
            let said = link.stage.push(&handshake.encode());
            debug_assert!(said, "the stage of a new connection is empty");
            link.handshake_done = true;
        }
        if !link.stage.rest().is_empty() {
            match link.send_out(&self.regions) {
                Ok(Flow::Idle) => self.watch(at, Interest { new: false, writable: false }),
                Ok(Flow::More) => self.list(at),
                // The stream is reported when it takes more.
                Ok(Flow::Blocked) => {}
                Err(_) => self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            }
            return;
        }
        match read_some(stream, link.input.room(HANDSHAKE_BYTES)) {
            StreamResult::Blocked => return,
            StreamResult::Ended => return self.fail(at, ConnectError::Refused, Private::EMPTY),
            StreamResult::Failed(_) => return self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            StreamResult::Bytes(count) => link.input.add(count),
        }
        let error = |error| match error {
            HandshakeError::Version { theirs } => ConnectError::Version { ours: PLACEMENT_VERSION, theirs },
            HandshakeError::Malformed => ConnectError::Protocol,
        };
        if let Some(fixed) = link.input.get().first_chunk::<FIXED_BYTES>()
            && let Err(why) = Handshake::check(fixed)
        {
            return self.fail(at, error(why), Private::EMPTY);
        }
        let Some(bytes) = link.input.get().first_chunk::<HANDSHAKE_BYTES>() else { return };
        match Handshake::decode(bytes) {
            Ok(Handshake { answer: PlacementAnswer::Accept, private, .. }) => {
                link.input.remove(HANDSHAKE_BYTES);
                make_ready(link);
                self.sharers += u32::from(link.is_sharer());
                let connection = link.connection;
                self.reports.report(Event::Established { connection, private });
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
        let Some(link) = link_at(self.links.borrow_mut(), at) else { return };
        let Some(stream) = link.stream.as_mut() else { return };
        match read_some(stream, &mut [0; 1]) {
            StreamResult::Blocked => {}
            StreamResult::Ended | StreamResult::Failed(_) => {
                self.fail(at, ConnectError::Unreachable, Private::EMPTY);
            }
            StreamResult::Bytes(_) => self.fail(at, ConnectError::Protocol, Private::EMPTY),
        }
    }

    /// Checks everything that has a deadline, at time `now`.
    pub(super) fn watch_clock(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if T::Stream::IN_MEMORY && self.now >= self.next_ask {
            self.next_ask = self.now.saturating_add(ASK_EVERY);
            // The next poll asks the transport.
            self.looks = self.looks.max(LOOKS_IN_MEMORY);
        }
        let mut next = self.timed.first();
        while let Some(at) = next {
            next = self.timed.next(self.links.borrow_mut(), at);
            let late = self.is_late(at);
            if late == Some(false) {
                continue;
            }
            self.timed.remove(self.links.borrow_mut(), at);
            match self.link_at(at).filter(|_| late == Some(true)).map(|link| link.state) {
                Some(ConnectionState::Ready) => self.end(at, LinkEnd::new(LostError::Unreachable)),
                Some(_) => self.fail(at, ConnectError::TimedOut, Private::EMPTY),
                None => {}
            }
        }
        if self.now >= self.next_look {
            self.next_look = self.now.saturating_add(LOOK_FOR_SILENCE_EVERY);
            self.end_silent();
        }
        for at in 0..self.unauthenticated.borrow().len() as u32 {
            self.listen(at);
        }
        for at in 0..self.lingering_closes.borrow().len() as u32 {
            self.part(at);
        }
    }

    /// Ends the connections to machines that have given no answer for too long.
    fn end_silent(&mut self) {
        let now = self.now;
        for at in 0..self.links.borrow().len() as u32 {
            let link = self.link_at(at).filter(|link| link.state == ConnectionState::Ready);
            if link.and_then(|link| link.stream.as_mut()).is_some_and(|stream| stream.is_silent(now)) {
                self.end(at, LinkEnd::new(LostError::Unreachable));
            }
        }
    }

    /// Returns whether a connection that is being made, or that must give memory back, is late; `None` if
    /// neither applies.
    fn is_late(&self, at: u32) -> Option<bool> {
        let link = self.links.borrow().get(at as usize)?.link.as_ref()?;
        let deadline = match link.state {
            ConnectionState::Connecting => link.deadline,
            _ => link.demanded()?,
        };
        Some(self.now > deadline)
    }

    /// Returns the next closed connection with nothing left to report.
    pub(super) fn closed(&mut self) -> Option<Connection> {
        let mut next = self.closing.first();
        while let Some(at) = next {
            next = self.closing.next(self.links.borrow_mut(), at);
            let Some(link) = self.link_at(at) else { continue };
            let (connection, refused) = (link.connection, link.refused);
            if link.unpolled > 0 {
                continue;
            }
            self.closing.remove(self.links.borrow_mut(), at);
            self.free_link(at);
            if !refused {
                return Some(connection);
            }
        }
        None
    }
}
