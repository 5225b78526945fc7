//! Polling of a port: connections are made, make progress, and end.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nemesia_core::port::memory::{ConnectError, Connection, Event, LostError, Private, State};
use nemesia_core::wire::placement::{
    Answer, FIXED_BYTES, Frame, GREETING_BYTES, Greeting, GreetingError, PLACEMENT_VERSION,
};

use super::greet::{Farewell, Heard, Stranger, read_some};
use super::link::End;
use super::port::PlacementPort;
use super::send::Flow;
use super::{Stream, Transport};

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
    Stranger(u32),
    Farewell(u32),
}

impl Owner {
    const fn encode(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Link(at) => 1 << 32 | at as u64,
            Self::Stranger(at) => 2 << 32 | at as u64,
            Self::Farewell(at) => 3 << 32 | at as u64,
        }
    }

    const fn decode(word: u64) -> Self {
        match word >> 32 {
            1 => Self::Link(word as u32),
            2 => Self::Stranger(word as u32),
            3 => Self::Farewell(word as u32),
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

impl<T: Transport> PlacementPort<T> {
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
                Owner::Stranger(at) => self.listen(at),
                Owner::Farewell(at) => self.part(at),
            }
        }
    }

    /// Accepts incoming streams, and hears their requests.
    fn welcome(&mut self) {
        for _ in 0..EVENTS {
            let Some(stream) = self.transport.accept() else { return };
            if self.strangers.iter().flatten().count() == MOST_WAITING {
                // The stream that has been silent for longest is closed.
                let oldest = self.strangers.iter_mut().min_by_key(|it| it.as_ref().map(Stranger::deadline));
                oldest.map(Option::take);
            }
            let Some(at) = place(&mut self.strangers, Stranger::new(stream, self.now)) else { return };
            if let Some(stranger) = &self.strangers[at as usize] {
                self.watch(&stranger.stream, Owner::Stranger(at), (true, false));
            }
        }
    }

    fn listen(&mut self, at: u32) {
        let Some(place) = self.strangers.get_mut(at as usize) else { return };
        let Some(stranger) = place else { return };
        let answer = Answer::Refuse;
        let refusal = Greeting { answer, token: 0, shared: false, private: Private::EMPTY };
        let greeting = match stranger.listen(self.now) {
            Heard::Wait => return,
            Heard::Greeting(greeting) => greeting,
            Heard::Version => {
                stranger.answer(&refusal);
                *place = None;
                return;
            }
            Heard::Nonsense => {
                *place = None;
                return;
            }
        };
        if greeting.answer != Answer::Request || greeting.token != self.token {
            *place = None;
            return;
        }
        let Some(mut stranger) = place.take() else { return };
        let Ok(connection) = self.new_link(State::Requested) else {
            stranger.answer(&refusal);
            return;
        };
        self.watch(&stranger.stream, Owner::Link(connection.index), (false, false));
        if let Some(link) = self.link_mut(connection) {
            link.stream = Some(stranger.stream);
        }
        self.news.events.push_back(Event::Requested { connection, private: greeting.private });
    }

    fn part(&mut self, at: u32) {
        let now = self.now;
        if let Some(place) = self.farewells.get_mut(at as usize)
            && place.as_mut().is_some_and(|farewell| !farewell.go_on(now))
        {
            *place = None;
        }
    }

    /// Makes progress on a connection.
    fn move_on(&mut self, at: u32, readable: bool) {
        let Self { links, regions, news, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        let ended = match link.state {
            State::Ready => {
                let taken = if readable { link.take_in(regions, news) } else { Ok(()) };
                taken.and_then(|()| link.send_out(regions))
            }
            State::Connecting => return self.connecting(at),
            State::Requested => return self.waiting(at),
            _ => return,
        };
        let more = link.more_input;
        let (hungry, writable) = (link.shared && link.wanted > link.granted, link.writable_wanted);
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
                if hungry {
                    self.feed(at);
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
    fn feed(&mut self, at: u32) {
        let others = self.sharers.saturating_sub(1) as usize;
        let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else {
            return;
        };
        while link.granted < link.wanted {
            let kept = if link.receives.is_empty() { 0 } else { others };
            let receive = if self.shared.len() > kept { self.shared.pop_front() } else { None };
            let Some(receive) = receive else {
                if !self.hungry.contains(&at) {
                    self.hungry.push_back(at);
                }
                break;
            };
            link.receives.push_back(receive);
            link.granted += 1;
        }
        self.list(at);
    }

    /// Gives receives of the shared queue to waiting connections in turn.
    pub(super) fn feed_all(&mut self) {
        for _ in 0..self.hungry.len() {
            if self.shared.is_empty() {
                return;
            }
            let Some(at) = self.hungry.pop_front() else { return };
            self.feed(at);
        }
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, at: u32, end: End) {
        let Self { links, news, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        self.sharers -= u32::from(link.is_sharer());
        let (whole, executed) = (link.body.is_none(), link.executed);
        let withdrawn = link.has_lent_any();
        let left = link.end(end, news);
        let mut stream = link.stream.take();
        if let Some(mut stream) = stream.take_if(|_| withdrawn) {
            stream.withdraw();
        }
        let mut rest = std::mem::take(&mut link.stage);
        let said = link.staged;
        for receive in left.into_iter().rev() {
            self.shared.push_front(receive);
        }
        self.hungry.retain(|hungry| *hungry != at);
        self.feed_all();
        if let (Some(reason), Some(stream), true) = (end.refuse, stream, whole) {
            let (bytes, count) = Frame::Refuse { operation: executed, reason }.encode();
            rest.extend_from_slice(&bytes[..count]);
            // If there are too many, the peer only sees the end of the stream.
            if let Some(at) = place(&mut self.farewells, Farewell::new(stream, rest, said)) {
                if let Some(farewell) = &self.farewells[at as usize] {
                    self.watch(&farewell.stream, Owner::Farewell(at), (false, false));
                }
                self.part(at);
            }
        }
    }

    /// Fails a connection that was being made.
    pub(super) fn fail(&mut self, at: u32, error: ConnectError, private: Private) {
        let Self { links, news, .. } = self;
        let Some(link) = links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else { return };
        let (connection, told) = (link.connection, !link.closing);
        link.end(End::new(LostError::Closed), news);
        link.stream = None;
        if told {
            news.events.push_back(Event::Failed { connection, error, private });
        }
    }

    /// Continues a connection of ours: waits for the stream, then for the answer.
    fn connecting(&mut self, at: u32) {
        let Some(link) = self.links.get_mut(at as usize).and_then(|place| place.link.as_mut()) else {
            return;
        };
        let Some(stream) = link.stream.as_mut() else { return };
        if !link.greeted {
            match stream.is_connected() {
                None => return,
                Some(Err(error)) => return self.fail(at, error, Private::EMPTY),
                Some(Ok(())) => {}
            }
            let (answer, token, shared) = (Answer::Request, link.token, link.shared);
            let greeting = Greeting { answer, token, shared, private: link.private };
            link.stage.extend_from_slice(&greeting.encode());
            link.greeted = true;
            match link.send_out(&self.regions) {
                Ok(Flow::Idle) => self.rewatch(at),
                _ => self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            }
            return;
        }
        match read_some(stream, &mut link.input[link.input_end..GREETING_BYTES]) {
            Ok(None) => return,
            Ok(Some(0)) => return self.fail(at, ConnectError::Refused, Private::EMPTY),
            Err(_) => return self.fail(at, ConnectError::Unreachable, Private::EMPTY),
            Ok(Some(count)) => link.input_end += count,
        }
        let error = |error| match error {
            GreetingError::Version { theirs } => ConnectError::Version { ours: PLACEMENT_VERSION, theirs },
            GreetingError::Malformed => ConnectError::Protocol,
        };
        if let Some(fixed) = link.input[..link.input_end].first_chunk::<FIXED_BYTES>()
            && let Err(why) = Greeting::check(fixed)
        {
            return self.fail(at, error(why), Private::EMPTY);
        }
        let Some(bytes) = link.input[..link.input_end].first_chunk::<GREETING_BYTES>() else { return };
        match Greeting::decode(bytes) {
            Ok(Greeting { answer: Answer::Accept, private, .. }) => {
                link.input_end = 0;
                link.state = State::Ready;
                self.sharers += u32::from(link.is_sharer());
                let connection = link.connection;
                self.news.events.push_back(Event::Established { connection, private });
                self.list(at);
            }
            Ok(Greeting { answer: Answer::Refuse, private, .. }) => {
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
                Some(link) if link.state == State::Ready => self.end(at, End::new(LostError::Unreachable)),
                _ => self.fail(at, ConnectError::TimedOut, Private::EMPTY),
            }
        }
        for at in 0..self.strangers.len() as u32 {
            self.listen(at);
        }
        for at in 0..self.farewells.len() as u32 {
            self.part(at);
        }
    }

    /// Returns whether a connection that is being made, or that must give memory back, is late; `None` if
    /// neither applies.
    fn is_late(&self, at: u32) -> Option<bool> {
        let link = self.links.get(at as usize)?.link.as_ref()?;
        let deadline = match link.state {
            State::Connecting => link.deadline,
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
