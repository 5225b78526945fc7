//! A port that owns joints, as the port over verbs does.

use std::collections::BTreeMap;
use std::time::Duration;

use nemesia_core::joining::{
    JoinKind, JoinMessage, JoinPlace, JoinStage, JoinStep, Joint, PAIR_BYTES, unknown,
};
use nemesia_core::port::memory::ConnectError;
use nemesia_core::wire::fabric::Private;

/// A joint, and what its owner knows of it.
#[derive(Debug)]
pub(super) struct OwnedJoint {
    pub(super) joint: Joint,
    /// When the owner ends an attempt to connect.
    pub(super) deadline: Duration,
    /// How often the end or the refusal was sent when it was due.
    pub(super) sendings: u32,
}

/// What a port reports of one of its joints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerEvent {
    Requested,
    /// The queue pair was joined to that of the datagram, and this is confirmed.
    Joined,
    /// The queue pair could not be joined to that of the datagram.
    NotJoined,
    Established,
    Failed(ConnectError),
    Lost,
}

/// A port.
#[derive(Debug)]
pub(super) struct OwnerPort {
    pub(super) place: JoinPlace,
    pub(super) joints: BTreeMap<u64, OwnedJoint>,
    /// The datagrams that it has sent, and their destinations.
    pub(super) outgoing: Vec<(JoinPlace, JoinMessage)>,
}

/// Returns the description of the queue pair of the end with this number.
pub(super) fn pair_of(number: u64) -> [u8; PAIR_BYTES] {
    let mut pair = [0; PAIR_BYTES];
    for (word, bytes) in pair.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&number.rotate_left(word as u32).to_le_bytes());
    }
    pair
}

/// Returns the private data that the end with this number sends.
pub(super) fn private_of(number: u64) -> Private {
    Private::new(&(!number).to_le_bytes()).unwrap_or(Private::EMPTY)
}

impl OwnerPort {
    pub(super) const fn new(place: JoinPlace) -> Self {
        Self { place, joints: BTreeMap::new(), outgoing: Vec::new() }
    }

    /// Requests a connection. `number` is the random number of the new joint.
    pub(super) fn connect(&mut self, number: u64, to: JoinPlace, now: Duration, deadline: Duration) {
        let joint = Joint::ask((self.place, to), number, pair_of(number), private_of(number), now);
        self.joints.insert(number, OwnedJoint { joint, deadline, sendings: 0 });
    }

    /// Accepts a request. Returns false if its sender has ended it.
    pub(super) fn accept(&mut self, number: u64, now: Duration, deadline: Duration) -> bool {
        match self.joints.get_mut(&number) {
            Some(owned) if owned.joint.stage() == JoinStage::Requested => {
                owned.joint.accept(pair_of(number), private_of(number), now);
                owned.deadline = deadline;
                true
            }
            _ => false,
        }
    }

    /// Refuses a request. Returns false if its sender has ended it.
    pub(super) fn refuse(&mut self, number: u64, now: Duration) -> bool {
        match self.joints.get_mut(&number) {
            Some(owned) if owned.joint.stage() == JoinStage::Requested => {
                owned.joint.refuse(private_of(number), now);
                true
            }
            _ => false,
        }
    }

    /// Ends a connection or an attempt to connect.
    pub(super) fn close(&mut self, number: u64, now: Duration) {
        if let Some(owned) = self.joints.get_mut(&number) {
            owned.joint.end(now);
            owned.deadline = Duration::MAX;
        }
    }

    /// Handles a datagram. A new joint gets the given number. If `can_join` is false, no queue pair can be joined.
    /// Returns the number of the joint for which something has happened.
    pub(super) fn hear(
        &mut self,
        message: &JoinMessage,
        number: u64,
        can_join: bool,
        now: Duration,
    ) -> Option<(u64, OwnerEvent)> {
        let Some(ours) = self.find(message) else {
            if message.kind == JoinKind::Request {
                let joint = Joint::requested(self.place, number, message);
                self.joints.insert(number, OwnedJoint { joint, deadline: Duration::MAX, sendings: 0 });
                return Some((number, OwnerEvent::Requested));
            }
            self.outgoing.extend(unknown(&self.place, message).map(|answer| (message.place, answer)));
            return None;
        };
        let owned = self.joints.get_mut(&ours)?;
        let (step, answer) = owned.joint.hear(message);
        let mut reply = answer;
        let event = match step {
            JoinStep::Stay => None,
            JoinStep::Join if can_join => {
                reply = Some(owned.joint.confirm());
                Some(OwnerEvent::Joined)
            }
            JoinStep::Join => {
                owned.joint.end(now);
                Some(OwnerEvent::NotJoined)
            }
            JoinStep::Establish => Some(OwnerEvent::Established),
            JoinStep::Fail(error) => Some(OwnerEvent::Failed(error)),
            JoinStep::Lose => Some(OwnerEvent::Lost),
        };
        if event.is_some() {
            owned.deadline = Duration::MAX;
        }
        self.outgoing.extend(reply.map(|reply| (*owned.joint.peer(), reply)));
        self.forget(ours);
        event.map(|event| (ours, event))
    }

    /// Returns the number of the joint to which a datagram belongs.
    fn find(&self, message: &JoinMessage) -> Option<u64> {
        if message.to != 0 {
            return self.joints.contains_key(&message.to).then_some(message.to);
        }
        let is_of = |joint: &Joint| joint.peer_number() == message.from && *joint.peer() == message.place;
        self.joints.iter().find(|(_, owned)| is_of(&owned.joint)).map(|(number, _)| *number)
    }

    /// Forgets a joint that is over.
    fn forget(&mut self, number: u64) {
        if self.joints.get(&number).is_some_and(|owned| owned.joint.stage() == JoinStage::Over) {
            self.joints.remove(&number);
        }
    }

    /// Returns when the port must act next.
    pub(super) fn next(&self) -> Duration {
        let times = self.joints.values().map(|owned| owned.joint.next().min(owned.deadline));
        times.min().unwrap_or(Duration::MAX)
    }

    /// Sends the datagrams that are due, and ends the attempts to connect whose deadlines have passed. Returns these.
    pub(super) fn act(&mut self, now: Duration) -> Vec<(u64, JoinStage)> {
        let mut expired = Vec::new();
        for (number, owned) in &mut self.joints {
            if owned.deadline <= now {
                expired.push((*number, owned.joint.stage()));
                owned.joint.end(now);
                owned.deadline = Duration::MAX;
            }
            if let Some(message) = owned.joint.due(now) {
                owned.sendings += u32::from(matches!(message.kind, JoinKind::Refuse | JoinKind::End));
                self.outgoing.push((*owned.joint.peer(), message));
            }
        }
        self.joints.retain(|_, owned| owned.joint.stage() != JoinStage::Over);
        expired
    }
}
