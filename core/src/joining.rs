//! Connections without a connection manager: two ports join their queue pairs by unreliable datagrams.
//!
//! RDMA-CM needs an IP address on every port. Without one, as on InfiniBand without `IPoIB`, each port has one queue
//! pair for datagrams, whose place ([`JoinPlace`]) is its address. The descriptions of the connected queue pairs travel
//! in datagrams (paper 3, section 3.1: the set-up of queue pairs out of band; IBA, "Communication Management", has the
//! same steps). A connection takes three of them: request, acceptance, confirmation.
//!
//! Datagrams may be lost, repeated and overtaken. Each end of a connection has a [`Joint`], a state machine that
//! repeats what may be lost and ignores what it has seen. The owner draws a random number for each joint. Every
//! datagram names the number of its receiver, except a request, and an end that follows a request before any answer.
//! So a process that does not know the number cannot forge one, and a late datagram of an earlier connection finds no
//! joint ([`unknown`] answers it).
//!
//! | datagram | repeated until |
//! |---|---|
//! | request | the acceptance, the refusal, or the caller's deadline |
//! | acceptance | the confirmation, or the caller's deadline |
//! | confirmation | not by itself: each repeated acceptance is answered |
//! | refusal, end | the answer, but at most [`UNANSWERED_SENDINGS`] times |
#![forbid(unsafe_code)]

mod message;

use core::time::Duration;

pub use message::{JOIN_BYTES, JoinKind, JoinMessage, JoinPlace, PAIR_BYTES, PLACE_BYTES};

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::memory::ConnectError;
use crate::wire::fabric::Private;

/// The time from the first to the second sending of a datagram. It doubles each time.
pub const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The longest time between two sendings.
pub const MOST_WAIT: Duration = Duration::from_millis(400);
/// How often a refusal or an end is sent at most if there is no answer: for about 2 s.
pub const UNANSWERED_SENDINGS: u32 = 12;

/// The stage of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStage {
    /// The request was sent.
    Asking,
    /// The peer's request has arrived.
    Requested,
    /// This end has accepted.
    Accepting,
    /// Both queue pairs are joined.
    Ready,
    /// This end has refused the request, and repeats that.
    Refusing,
    /// This end has ended the connection, and repeats that.
    Ending,
    /// Nothing is sent any more.
    Over,
}

/// What the owner of a joint must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStep {
    /// Nothing.
    Stay,
    /// The request is accepted: join the queue pair to that of the datagram, then call [`Joint::confirm`], or else
    /// [`Joint::end`].
    Join,
    /// The peer has joined: the connection is up.
    Establish,
    /// The connection fails before it is up.
    Fail(ConnectError),
    /// The peer has ended the connection.
    Lose,
}

/// One end of a connection. Times are those of the owner's clock.
#[derive(Clone, Copy, Debug)]
pub struct Joint {
    stage: JoinStage,
    own: JoinPlace,
    peer: JoinPlace,
    ours: u64,
    /// The peer's number; 0 if it is unknown.
    theirs: u64,
    /// The description of the queue pair, which each request and each acceptance repeats.
    pair: [u8; PAIR_BYTES],
    private: Private,
    next: Duration,
    wait: Duration,
    sendings: u32,
}

impl Joint {
    /// Returns the requesting end, whose request is due at once. `number` is a random number of the owner, not 0;
    /// `pair` describes the queue pair.
    pub fn ask(
        (own, peer): (JoinPlace, JoinPlace),
        number: u64,
        pair: [u8; PAIR_BYTES],
        private: Private,
        now: Duration,
    ) -> Self {
        Self {
            stage: JoinStage::Asking,
            own,
            peer,
            ours: number,
            theirs: 0,
            pair,
            private,
            next: now,
            wait: FIRST_WAIT,
            sendings: 0,
        }
    }

    /// Returns the end that has got this request.
    pub fn requested(own: JoinPlace, number: u64, request: &JoinMessage) -> Self {
        let (peer, private) = (request.place, Private::EMPTY);
        let asked = Self::ask((own, peer), number, [0; PAIR_BYTES], private, Duration::MAX);
        Self { stage: JoinStage::Requested, theirs: request.from, ..asked }
    }

    /// Accepts the request with this queue pair, which is joined already. The acceptance is due at once. This call does
    /// nothing if the request is answered already, or if its sender has ended the connection.
    pub fn accept(&mut self, pair: [u8; PAIR_BYTES], private: Private, now: Duration) {
        if self.stage == JoinStage::Requested {
            (self.pair, self.private) = (pair, private);
            self.begin(JoinStage::Accepting, now);
        }
    }

    /// Refuses the request. The refusal is due at once. This call does nothing if [`Self::accept`] would do nothing.
    pub fn refuse(&mut self, private: Private, now: Duration) {
        if self.stage == JoinStage::Requested {
            self.private = private;
            self.begin(JoinStage::Refusing, now);
        }
    }

    /// After [`JoinStep::Join`]: the queue pair is joined. Returns the datagram to send.
    pub fn confirm(&mut self) -> JoinMessage {
        (self.stage, self.next) = (JoinStage::Ready, Duration::MAX);
        self.message(JoinKind::Confirm)
    }

    /// Ends the connection, in whatever stage. The peer learns of it by a datagram, which is due at once.
    pub fn end(&mut self, now: Duration) {
        if !matches!(self.stage, JoinStage::Refusing | JoinStage::Ending | JoinStage::Over) {
            self.private = Private::EMPTY;
            self.begin(JoinStage::Ending, now);
        }
    }

    fn begin(&mut self, stage: JoinStage, now: Duration) {
        (self.stage, self.next, self.wait, self.sendings) = (stage, now, FIRST_WAIT, 0);
    }

    /// Returns the stage.
    pub const fn stage(&self) -> JoinStage {
        self.stage
    }

    /// Returns the number of this end.
    pub const fn number(&self) -> u64 {
        self.ours
    }

    /// Returns the peer's number; 0 if it is unknown.
    pub const fn peer_number(&self) -> u64 {
        self.theirs
    }

    /// Returns where the peer receives.
    pub const fn peer(&self) -> &JoinPlace {
        &self.peer
    }

    /// Returns when the next datagram is due.
    pub const fn next(&self) -> Duration {
        self.next
    }

    /// Returns the datagram that is due, if one is, and counts it as sent.
    pub fn due(&mut self, now: Duration) -> Option<JoinMessage> {
        if now < self.next {
            return None;
        }
        let message = self.repeated()?;
        self.next = now + self.wait;
        self.wait = (2 * self.wait).min(MOST_WAIT);
        if matches!(self.stage, JoinStage::Refusing | JoinStage::Ending) {
            self.sendings += 1;
            if self.sendings == UNANSWERED_SENDINGS {
                self.finish();
            }
        }
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::SendOnce) {
            self.next = Duration::MAX;
        }
        Some(message)
    }

    /// Returns the datagram that this stage repeats.
    fn repeated(&self) -> Option<JoinMessage> {
        let kind = match self.stage {
            JoinStage::Asking => JoinKind::Request,
            JoinStage::Accepting => JoinKind::Accept,
            JoinStage::Refusing => JoinKind::Refuse,
            JoinStage::Ending => JoinKind::End,
            JoinStage::Requested | JoinStage::Ready | JoinStage::Over => return None,
        };
        Some(self.message(kind))
    }

    fn message(&self, kind: JoinKind) -> JoinMessage {
        let has_pair = matches!(kind, JoinKind::Request | JoinKind::Accept);
        let has_private = has_pair || kind == JoinKind::Refuse;
        JoinMessage {
            kind,
            place: self.own,
            to: self.theirs,
            from: self.ours,
            pair: if has_pair { self.pair } else { [0; PAIR_BYTES] },
            private: if has_private { self.private } else { Private::EMPTY },
        }
    }

    fn finish(&mut self) {
        (self.stage, self.next) = (JoinStage::Over, Duration::MAX);
    }

    /// Handles a datagram of the peer: one that names this end's number, or a request or an end from the peer's number.
    /// Returns what to do, and the datagram to answer with.
    pub fn hear(&mut self, message: &JoinMessage) -> (JoinStep, Option<JoinMessage>) {
        let is_known = self.theirs == message.from || self.theirs == 0;
        // The peer may not know this end's number yet, but only if it sends one of these.
        let is_early = message.to == 0 && matches!(message.kind, JoinKind::Request | JoinKind::End);
        let is_ours = message.to == self.ours || is_early && message.from == self.theirs;
        #[cfg(nemesia_injected_fault)]
        let is_ours = is_ours || injected(InjectedFault::HearAny);
        if !is_ours || (!is_known && message.kind != JoinKind::Ended) {
            return (JoinStep::Stay, None);
        }
        match (message.kind, self.stage) {
            (_, JoinStage::Over) => (JoinStep::Stay, unknown(&self.own, message)),
            (JoinKind::End, _) => self.hear_end(message.from),
            (JoinKind::Request, JoinStage::Accepting | JoinStage::Refusing | JoinStage::Ending)
            | (JoinKind::Accept, JoinStage::Ending) => {
                self.theirs = message.from;
                (JoinStep::Stay, self.repeated())
            }
            (JoinKind::Accept, JoinStage::Asking) => {
                self.theirs = message.from;
                (JoinStep::Join, None)
            }
            (JoinKind::Accept, JoinStage::Ready) => {
                #[cfg(nemesia_injected_fault)]
                if injected(InjectedFault::ConfirmOnce) {
                    return (JoinStep::Stay, None);
                }
                (JoinStep::Stay, Some(self.message(JoinKind::Confirm)))
            }
            (JoinKind::Confirm, JoinStage::Accepting) => {
                (self.stage, self.next) = (JoinStage::Ready, Duration::MAX);
                (JoinStep::Establish, None)
            }
            (JoinKind::Refuse, JoinStage::Asking) => {
                self.theirs = message.from;
                self.finish();
                (JoinStep::Fail(ConnectError::Refused), Some(self.message(JoinKind::Ended)))
            }
            (JoinKind::Refuse, JoinStage::Ending)
            | (JoinKind::Ended, JoinStage::Refusing | JoinStage::Ending) => {
                let answer = unknown(&self.own, message);
                self.finish();
                (JoinStep::Stay, answer)
            }
            _ => (JoinStep::Stay, None),
        }
    }

    fn hear_end(&mut self, from: u64) -> (JoinStep, Option<JoinMessage>) {
        self.theirs = from;
        let step = match self.stage {
            JoinStage::Asking | JoinStage::Requested | JoinStage::Accepting => {
                JoinStep::Fail(ConnectError::Unreachable)
            }
            JoinStage::Ready => JoinStep::Lose,
            JoinStage::Refusing | JoinStage::Ending | JoinStage::Over => JoinStep::Stay,
        };
        self.finish();
        (step, Some(self.message(JoinKind::Ended)))
    }
}

/// Returns the answer of the port at `own` to a datagram for which it has no joint, so that the peer repeats it no
/// more. `None` for a request, which is new, and for an answer.
pub fn unknown(own: &JoinPlace, message: &JoinMessage) -> Option<JoinMessage> {
    let kind = match message.kind {
        JoinKind::Accept | JoinKind::Confirm => JoinKind::End,
        JoinKind::Refuse | JoinKind::End => JoinKind::Ended,
        JoinKind::Request | JoinKind::Ended => return None,
    };
    // An honest peer answers only to a number that it knows. An end that it sends after a request has no number yet.
    if message.to == 0 && message.kind != JoinKind::End {
        return None;
    }
    let (to, from) = (message.from, message.to);
    Some(JoinMessage { kind, place: *own, to, from, pair: [0; PAIR_BYTES], private: Private::EMPTY })
}

#[cfg(test)]
mod tests;
