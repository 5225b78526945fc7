//! The history of each end of a connection, as the simulation records it from all ports.

use std::collections::BTreeMap;
use std::time::Duration;

use nemesia_core::joining::{FIRST_WAIT, JoinMessage, JoinPlace, JoinStage, UNANSWERED_SENDINGS};
use nemesia_core::port::memory::ConnectError;

use super::owner::{OwnedJoint, OwnerEvent, pair_of, private_of};
use crate::violation::{Check, Violation, ensure};

/// The time in which an end must have learned that the other one has ended the connection.
const LEARNED: Duration = Duration::from_secs(30);

/// An end of a connection.
#[derive(Debug)]
struct PastEnd {
    place: JoinPlace,
    /// The place of the other end.
    peer: JoinPlace,
    is_asker: bool,
    /// When it has entered its stage.
    since: Duration,
    /// The number of the other end: that of the asker, or that with which the asker has joined.
    partner: Option<u64>,
    has_accepted: bool,
    has_refused: bool,
    is_up: bool,
    ended: Option<Duration>,
    /// When the first of the called ends of this asker has ended.
    called_ended: Option<Duration>,
    /// The latest called end for the request of this asker.
    called: Option<u64>,
}

/// The ends of all connections.
#[derive(Debug, Default)]
pub(super) struct JoinHistory {
    ends: BTreeMap<u64, PastEnd>,
}

impl JoinHistory {
    fn end(&mut self, number: u64) -> Result<&mut PastEnd, Violation> {
        self.ends.get_mut(&number).ok_or_else(|| Violation(format!("no end has the number {number:x}")))
    }

    fn add(&mut self, number: u64, (place, peer): (JoinPlace, JoinPlace), since: Duration) -> Check {
        let end = PastEnd {
            place,
            peer,
            is_asker: true,
            since,
            partner: None,
            has_accepted: false,
            has_refused: false,
            is_up: false,
            ended: None,
            called_ended: None,
            called: None,
        };
        let is_new = self.ends.insert(number, end).is_none();
        ensure!(is_new, "two ends have the number {number:x}");
        Ok(())
    }

    /// A port requests a connection.
    pub(super) fn asked(&mut self, number: u64, places: (JoinPlace, JoinPlace), now: Duration) -> Check {
        self.add(number, places, now)
    }

    /// A port reports a request. Returns whether it has reported the same request before.
    fn requested(
        &mut self,
        number: u64,
        place: JoinPlace,
        message: &JoinMessage,
        now: Duration,
    ) -> Result<bool, Violation> {
        let asker = message.from;
        let twin = self.end(asker)?.called;
        let is_pending = twin.is_some_and(|twin| self.ends.get(&twin).is_some_and(|end| end.ended.is_none()));
        ensure!(!is_pending, "{number:x}: the request of {asker:x} is reported twice, also for {twin:x?}");
        let end = self.end(asker)?;
        ensure!(end.is_asker && end.peer == place, "{asker:x} has not asked {place:?}");
        ensure!(message.pair == pair_of(asker), "{number:x} gets another queue pair than that of {asker:x}");
        ensure!(message.private == private_of(asker), "{number:x} gets other private data");
        let is_again = end.called.replace(number).is_some();
        let peer = end.place;
        self.add(number, (place, peer), now)?;
        let end = self.end(number)?;
        (end.is_asker, end.partner) = (false, Some(asker));
        Ok(is_again)
    }

    /// The owner of an end has answered its request.
    pub(super) fn answered(&mut self, number: u64, accepts: bool, now: Duration) -> Check {
        let end = self.end(number)?;
        (end.since, end.has_accepted, end.has_refused) = (now, accepts, !accepts);
        if accepts { Ok(()) } else { self.ended(number, now) }
    }

    /// The owner has ended a connection, or an end is reported as failed or lost.
    pub(super) fn ended(&mut self, number: u64, now: Duration) -> Check {
        let end = self.end(number)?;
        end.ended = end.ended.or(Some(now));
        if let Some(asker) = end.partner.filter(|_| !end.is_asker) {
            let asker = self.end(asker)?;
            asker.called_ended = asker.called_ended.or(Some(now));
        }
        Ok(())
    }

    /// Checks what a port reports after a datagram. Returns whether a request is reported again after its end.
    pub(super) fn reported(
        &mut self,
        (number, event): (u64, OwnerEvent),
        place: JoinPlace,
        message: &JoinMessage,
        now: Duration,
    ) -> Result<bool, Violation> {
        match event {
            OwnerEvent::Requested => return self.requested(number, place, message, now),
            OwnerEvent::Joined => self.joined(number, message, now)?,
            OwnerEvent::NotJoined => {
                ensure!(self.end(message.from)?.has_accepted, "{number:x} is to join before the acceptance");
                self.ended(number, now)?;
            }
            OwnerEvent::Established => self.established(number, now)?,
            OwnerEvent::Failed(error) => self.failed(number, error, message, now)?,
            OwnerEvent::Lost => {
                let end = self.end(number)?;
                ensure!(end.is_up && end.ended.is_none(), "{number:x} is lost, but was not established");
                self.ended(number, now)?;
            }
        }
        Ok(false)
    }

    fn joined(&mut self, number: u64, message: &JoinMessage, now: Duration) -> Check {
        let other = self.end(message.from)?;
        let is_offered = !other.is_asker && other.has_accepted && other.partner == Some(number);
        ensure!(is_offered, "{number:x} joins {:x}, which has not accepted it", message.from);
        ensure!(message.pair == pair_of(message.from), "{number:x} joins another queue pair");
        ensure!(message.private == private_of(message.from), "{number:x} gets other private data");
        let end = self.end(number)?;
        ensure!(end.is_asker && !end.is_up && end.ended.is_none(), "{number:x} joins once more");
        (end.is_up, end.partner, end.since) = (true, Some(message.from), now);
        Ok(())
    }

    fn established(&mut self, number: u64, now: Duration) -> Check {
        let end = self.end(number)?;
        ensure!(!end.is_asker && end.has_accepted, "{number:x} is established, but has not accepted");
        ensure!(!end.is_up && end.ended.is_none(), "{number:x} is established once more, or after its end");
        (end.is_up, end.since) = (true, now);
        let asker = end.partner.unwrap_or(0);
        let other = self.end(asker)?;
        let has_joined = other.is_up && other.partner == Some(number);
        ensure!(has_joined, "{number:x} is established, but {asker:x} has not joined it");
        Ok(())
    }

    fn failed(&mut self, number: u64, error: ConnectError, message: &JoinMessage, now: Duration) -> Check {
        let end = self.end(number)?;
        let (is_up, is_ended) = (end.is_asker && end.is_up, end.ended.is_some());
        ensure!(!is_up && !is_ended, "{number:x} fails ({error}) although it is up, or has ended");
        if error == ConnectError::Refused {
            let other = self.end(message.from)?;
            let is_true = other.has_refused && other.partner == Some(number);
            ensure!(is_true, "{number:x} is refused by {:x}, which has not done so", message.from);
            ensure!(message.private == private_of(message.from), "{number:x} gets other private data");
        } else {
            let other = self.end(message.from)?;
            ensure!(other.ended.is_some(), "{number:x} fails, but {:x} has not ended", message.from);
        }
        self.ended(number, now)
    }

    /// Checks an attempt to connect that has ended at its deadline, if there was time enough for an answer.
    pub(super) fn expired(&mut self, number: u64, stage: JoinStage, had_time: bool, now: Duration) -> Check {
        ensure!(!had_time, "{number:x} gets no answer while it is {stage:?}, although the other port lives");
        self.ended(number, now)
    }

    /// Returns the place of the other end.
    pub(super) fn peer(&mut self, number: u64) -> Result<JoinPlace, Violation> {
        Ok(self.end(number)?.peer)
    }

    /// Returns when the other end has ended.
    fn other_ended(&self, end: &PastEnd) -> Option<Duration> {
        match end.partner {
            Some(partner) => self.ends.get(&partner).and_then(|other| other.ended),
            None => end.called_ended,
        }
    }

    /// Checks a joint of a port that lives: it sends with moderation, and learns in time that the other end has ended.
    pub(super) fn check(&self, owned: &OwnedJoint, now: Duration, is_peer_alive: bool) -> Check {
        let (number, stage) = (owned.joint.number(), owned.joint.stage());
        ensure!(
            owned.sendings <= UNANSWERED_SENDINGS,
            "{number:x} has sent its end {} times",
            owned.sendings
        );
        let Some(end) = self.ends.get(&number) else { return Ok(()) };
        let waits = matches!(stage, JoinStage::Asking | JoinStage::Accepting | JoinStage::Ready);
        ensure!(!waits || end.ended.is_none(), "{number:x} is {stage:?} after its end");
        if let Some(ended) = self.other_ended(end).filter(|_| waits && is_peer_alive) {
            let is_late = now > ended.max(end.since) + LEARNED;
            ensure!(!is_late, "{number:x} is {stage:?}, and has not learned that the other end has ended");
        }
        Ok(())
    }

    /// Checks an end that is left when nothing happens any more.
    pub(super) fn check_rest(&self, owned: &OwnedJoint, is_peer_alive: bool) -> Check {
        let (number, stage) = (owned.joint.number(), owned.joint.stage());
        ensure!(stage == JoinStage::Ready, "{number:x} stays {stage:?}");
        let end = self.ends.get(&number).filter(|end| end.is_up && end.ended.is_none());
        let partner = end.and_then(|end| self.ends.get(&end.partner?));
        let is_pair = partner.is_some_and(|it| it.is_up && it.ended.is_none() && it.partner == Some(number));
        ensure!(is_pair || !is_peer_alive, "{number:x} is ready, and the other end is not");
        ensure!(owned.joint.peer_number() == end.and_then(|end| end.partner).unwrap_or(0), "{number:x} errs");
        Ok(())
    }
}

/// Checks that a joint which has just sent does not send again at once.
pub(super) fn check_wait(owned: &OwnedJoint, now: Duration) -> Check {
    let next = owned.joint.next();
    ensure!(next >= now + FIRST_WAIT, "{:x} sends without a pause", owned.joint.number());
    Ok(())
}
