//! Random worlds of engines that are opened alone, beside a model: processes meet, part and come again under the same
//! numbers, and each message arrives at the process for which it was meant, from the process that sent it.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom, pattern};
use crate::engine::{Failure, StartError};
use crate::flow::CeilingError;
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::fabric::{Fabric, Reading, WorldShape, tiny};
use crate::shared::tests::{Rng, contents, portion};

/// Number of processes at the same time.
const RANKS: u32 = 4;

/// A message that was sent, or waits to be sent.
#[derive(Clone, Copy, Debug)]
struct GrownMessage {
    tag: u64,
    len: usize,
}

/// The processes of a world, and what each has added and sent.
struct GrowTwin<'a> {
    world: World<'a>,
    rng: Rng,
    most: u32,
    /// For each process and number, whether it has that peer.
    met: Vec<Vec<bool>>,
    /// For each receiver and number, the messages of the last peer with that number that were not received, in order.
    due: Vec<Vec<VecDeque<GrownMessage>>>,
    sends: Vec<RequestHandle>,
    tags: u64,
    met_again: usize,
    refused: usize,
}

impl<'a> GrowTwin<'a> {
    fn new(fabric: &'a Fabric, rng: Rng, room: WorldRoom, most: u32) -> Self {
        let count = RANKS as usize;
        Self {
            world: World::alone(fabric, room, most),
            rng,
            most,
            met: vec![vec![false; count]; count],
            due: vec![vec![VecDeque::new(); count]; count],
            sends: vec![],
            tags: 0,
            met_again: 0,
            refused: 0,
        }
    }

    fn rank(&mut self) -> PeerId {
        self.rng.below(RANKS as usize) as u32
    }

    fn pair(&mut self) -> (PeerId, PeerId) {
        let one = self.rank();
        (one, (one + 1 + self.rng.below(RANKS as usize - 1) as u32) % RANKS)
    }

    fn has_met(&self, me: PeerId, peer: PeerId) -> bool {
        self.met[me as usize][peer as usize]
    }

    fn due(&mut self, me: PeerId, from: PeerId) -> &mut VecDeque<GrownMessage> {
        &mut self.due[me as usize][from as usize]
    }

    /// Returns the reason for which a process must refuse a peer.
    fn refusal(&self, me: PeerId, peer: PeerId) -> Option<CeilingError> {
        let peers = &self.world.engines[me as usize].peers;
        let stored = |from: u32| peers.get(from as usize).map_or(0, |it| it.account.stored());
        if stored(peer) > 0 {
            return Some(CeilingError::Stored { peer, units: stored(peer) });
        }
        let used = (0..RANKS).filter(|&it| it != me && (self.has_met(me, it) || stored(it) > 0));
        (used.count() as u32 == self.most)
            .then_some(CeilingError::Connections { peers: self.most, needed: self.most + 1 })
    }

    fn meet(&mut self) {
        let (one, other) = self.pair();
        if self.has_met(one, other) {
            return;
        }
        self.world.settle();
        for [me, peer] in [[one, other], [other, one]] {
            if let Some(due) = self.refusal(me, peer) {
                assert_eq!(self.world.engine(me).add_peer(peer), Err(due));
                self.refused += 1;
                return;
            }
        }
        // What was not received is lost with its sender.
        self.due(one, other).clear();
        self.due(other, one).clear();
        let former = self.world.engine(one).failure(other);
        self.met_again += usize::from(former.is_some_and(|failure| failure != Failure::Absent));
        self.world.meet(one, other).unwrap();
        self.met[one as usize][other as usize] = true;
        self.met[other as usize][one as usize] = true;
    }

    fn send(&mut self) {
        let (from, to) = self.pair();
        self.tags += 1;
        let (tag, len) = (self.tags, [0, 8, 60, 200, 256, 700, 3000][self.rng.below(7)]);
        match self.world.isend_in(0, from, to, tag, contents(tag, len)) {
            Ok(send) => {
                assert!(self.has_met(from, to), "rank {from} sends to rank {to}, which is not there");
                self.sends.push(send);
                self.due(to, from).push_back(GrownMessage { tag, len });
            }
            Err(error) => {
                let is_right = matches!(error, StartError::PeerFailed { peer, .. } if peer == to);
                assert!(is_right && !self.has_met(from, to), "{error}");
            }
        }
    }

    /// Receives a stored message of a process that is there, or has left.
    fn receive(&mut self) {
        let (me, from) = (self.rank(), self.rank());
        let source = if self.rng.one_in(2) { Source::Any } else { Source::Rank(from) };
        let wanted = Pattern { ignore: u64::MAX, ..pattern(source, 0) };
        let Some(found) = self.world.engine(me).iprobe(&wanted) else { return };
        let receive = self.world.irecv(me, wanted, 3000).unwrap();
        self.world.settle();
        let (outcome, bytes) = self.world.done(receive);
        let status = outcome.unwrap();
        assert_eq!((status.peer, status.tag), (found.peer, found.tag));
        let has_met = self.has_met(me, status.peer);
        let due = self.due(me, status.peer);
        // Messages that were only announced, or not sent, are lost with their sender.
        while !has_met && due.front().is_some_and(|it| it.tag < status.tag) {
            due.pop_front();
        }
        let Some(GrownMessage { tag, len }) = due.pop_front() else {
            panic!("rank {me} receives {status:?}, which was not sent to it")
        };
        assert_eq!((status.tag, status.len), (tag, len), "rank {me} from rank {}", status.peer);
        assert!(bytes.starts_with(&contents(tag, len)), "the contents of message {tag}");
    }

    /// A process ends, and the next one with its number is opened alone.
    fn replace(&mut self) {
        let rank = self.rank();
        if self.rng.one_in(2) {
            self.world.settle();
        }
        let failure = if self.rng.one_in(2) { Failure::Finished } else { Failure::Died };
        self.world.replace(rank, failure);
        for other in 0..RANKS {
            self.met[other as usize][rank as usize] = false;
            self.met[rank as usize][other as usize] = false;
            self.due(rank, other).clear();
            self.world.engine(other).acknowledge();
        }
        self.sends.retain(|send| send.rank != rank);
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..2 => self.meet(),
            2..9 => self.send(),
            9..15 => self.receive(),
            15 => self.replace(),
            _ => {
                let rank = self.rank();
                self.world.engine(rank).progress();
            }
        }
        self.world.assert_backed();
        let Self { world, sends, .. } = self;
        sends.retain(|send| world.test(*send).is_none());
    }

    /// Receives everything from the processes that are there, and what is stored of those that have left.
    fn finish(&mut self) {
        self.world.settle();
        for (me, from) in (0..RANKS).flat_map(|me| (0..RANKS).map(move |from| (me, from))) {
            while let Some(GrownMessage { tag, len }) = self.due(me, from).pop_front() {
                let Ok(receive) = self.world.irecv(me, pattern(Source::Rank(from), tag), len) else {
                    assert!(!self.has_met(me, from), "message {tag} of rank {from} is lost");
                    continue;
                };
                self.world.settle();
                assert_eq!(self.world.done(receive).1, contents(tag, len), "message {tag}");
            }
        }
        self.world.settle();
        for send in std::mem::take(&mut self.sends) {
            self.world.done(send).0.unwrap();
        }
        self.world.assert_empty(&[0, 1, 2, 3], "in the end");
        for (met, engine) in self.met.iter().zip(&self.world.engines) {
            let there = met.iter().filter(|met| **met).count() as u32;
            assert_eq!(engine.ledger.reserves_used(), there, "a reserve is lost");
        }
    }
}

#[test]
fn peers_come_and_leave_and_come_again_and_no_message_is_mistaken() {
    let (mut met_again, mut refused) = (0, 0);
    for seed in 0..portion(60) {
        let mut rng = Rng::new(seed);
        let reading = [Reading::Never, Reading::Always][rng.below(2)];
        let fabric = Fabric::reading(WorldShape { cells: 8, ..tiny(RANKS) }, reading, seed);
        let units = [8192, 400, 100][rng.below(3)];
        let most = 1 + rng.below(RANKS as usize) as u32;
        let mut twin = GrowTwin::new(&fabric, rng, WorldRoom { units, ..AMPLE }, most);
        (0..400).for_each(|_| twin.step());
        twin.finish();
        (met_again, refused) = (met_again + twin.met_again, refused + twin.refused);
    }
    assert!(met_again > 0 && refused > 0, "{met_again} and {refused}");
}
