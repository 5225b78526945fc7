//! Requests of this process, and the replies to them.

use std::time::{Duration, Instant};

use nemesia::{Error, Failure, PeerError, PeerRef, Source};

use super::LonePlace;
use super::buffers::{
    HEADER_BYTES, LoneHeader, REPLY, REPLY_BODY, REQUEST, REQUEST_BODY, SIZES, Transfer, body, check,
};
use super::directory::LoneName;
use crate::peer::{Outcome, broken, ensure, tell};

/// No reply takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(100);
/// The most processes that one asks in a round.
const MOST_ASKED: u64 = 4;

/// A request of this process that has no reply yet.
#[derive(Debug)]
pub(super) struct Question {
    to: LoneName,
    nonce: u64,
    lens: [u64; 2],
    /// The request's header and body, then the reply's.
    transfers: Vec<Transfer>,
    since: Instant,
}

/// What has become of a step with a peer.
pub(super) enum PeerStep<T> {
    Ready(T),
    /// The peer has disconnected, or is about to: connect again.
    Again,
    /// The peer is dead.
    Died,
}

impl LonePlace {
    /// Asks some of the processes that are present, in any order.
    pub(super) fn begin_round(&mut self) -> Outcome {
        self.is_done = false;
        let mut slots: Vec<u32> =
            (0..self.present.len() as u32).filter(|slot| *slot != self.name.slot).collect();
        for _ in 0..=self.random.below(MOST_ASKED) {
            if slots.is_empty() {
                break;
            }
            let slot = slots.swap_remove(self.random.below(slots.len() as u64) as usize);
            let to = LoneName { slot, life: self.present[slot as usize] };
            let lens = [self.random.pick(&SIZES), self.random.pick(&SIZES)];
            let question = Question { to, nonce: 0, lens, transfers: Vec::new(), since: Instant::now() };
            self.counts[0] += 1;
            self.asked.insert(to);
            if let Some(question) = self.put(question)? {
                self.questions.push(question);
            }
        }
        Ok(())
    }

    /// Sends a request, connecting first if necessary. Returns the question unless the process is dead.
    fn put(&mut self, mut question: Question) -> Outcome<Option<Question>> {
        let address = self.directory.address(question.to)?;
        loop {
            let peer = self.endpoint.connect(&address)?;
            ensure(self.endpoint.address_of(peer)? == &address, || format!("{peer:?} has another address"))?;
            question.nonce = (self.random.next() >> 16) | 1;
            match self.begin(peer, &mut question) {
                Ok(()) => return Ok(Some(question)),
                Err(error) => {
                    let next = self.step::<()>(question.to, Err(error))?;
                    self.end(&mut question.transfers)?;
                    match next {
                        PeerStep::Died => return Ok(None),
                        _ => self.check_patience(&question)?,
                    }
                }
            }
        }
    }

    fn begin(&mut self, peer: PeerRef, question: &mut Question) -> Result<(), Error> {
        let rank = self.endpoint.rank_of(peer)?;
        let Question { nonce, lens, .. } = *question;
        let address = *self.endpoint.address()?;
        let header = LoneHeader { address, name: self.name, round: self.round, nonce, lens }.encode();
        let endpoint = &mut self.endpoint;
        let from = Source::Rank(rank);
        let transfers = &mut question.transfers;
        transfers.push(Transfer::receive(endpoint, from, REPLY | nonce, HEADER_BYTES as u64)?);
        transfers.push(Transfer::receive(endpoint, from, REPLY_BODY | nonce, lens[1])?);
        transfers.push(Transfer::send(endpoint, rank, REQUEST, header)?);
        transfers.push(Transfer::send(endpoint, rank, REQUEST_BODY | nonce, body(nonce, 0, lens[0]))?);
        Ok(())
    }

    /// Continues with the requests of this process. Returns whether anything has changed.
    pub(super) fn ask(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for mut question in std::mem::take(&mut self.questions) {
            let mut whole = Ok(true);
            for transfer in &mut question.transfers {
                whole = whole.and_then(|whole| Ok(whole & transfer.is_complete(&mut self.endpoint)?));
            }
            let again = match self.step(question.to, whole)? {
                PeerStep::Ready(true) => {
                    self.check_reply(&question)?;
                    None
                }
                PeerStep::Ready(false) => {
                    self.check_patience(&question)?;
                    self.questions.push(question);
                    continue;
                }
                PeerStep::Died => {
                    self.end(&mut question.transfers)?;
                    None
                }
                PeerStep::Again => {
                    self.counts[2] += 1;
                    self.end(&mut question.transfers)?;
                    self.put(question)?
                }
            };
            moved = true;
            self.questions.extend(again);
        }
        Ok(moved)
    }

    /// Ends the operations with a peer whose connection has ended.
    pub(super) fn end(&mut self, transfers: &mut Vec<Transfer>) -> Outcome {
        transfers.drain(..).try_for_each(|transfer| transfer.end(&mut self.endpoint))
    }

    fn check_reply(&mut self, question: &Question) -> Outcome {
        let [header, body, ..] = &question.transfers[..] else { return broken("no reply") };
        let header = LoneHeader::decode(&header.bytes)?;
        let Question { to, nonce, lens, .. } = *question;
        let right =
            LoneHeader { address: self.directory.address(to)?, name: to, round: header.round, nonce, lens };
        ensure(header == right, || format!("the reply to {right:?} is {header:?}"))?;
        check(nonce, 1, &body.bytes)?;
        self.counts[1] += 1;
        Ok(())
    }

    fn check_patience(&mut self, question: &Question) -> Outcome {
        let Question { to, nonce, since, .. } = question;
        ensure(since.elapsed() < PATIENCE, || {
            let states: Vec<_> = question.transfers.iter().map(|it| it.status.is_some()).collect();
            let warnings = self.endpoint.warnings();
            let address = self.directory.address(*to).ok();
            let peer = (1..self.endpoint.size()).filter_map(|rank| self.endpoint.peer_of(rank));
            let mut peer = peer.filter(|it| self.endpoint.address_of(*it).ok() == address.as_ref());
            let stage = peer.next().map(|it| self.endpoint.stage_of(it));
            format!(
                "{stage:?}: no reply of {to} to {nonce:x}; reply, its body, request, its body: {states:?}; {warnings:?}"
            )
        })
    }

    /// Returns what an error of an operation with this process means. Errors that it must not have end this process.
    pub(super) fn step<T>(&mut self, with: LoneName, outcome: Result<T, Error>) -> Outcome<PeerStep<T>> {
        use nemesia::PeerEnd::{Disconnected, Left, Lost};
        match outcome {
            Ok(value) => Ok(PeerStep::Ready(value)),
            Err(Error::PeerFailed { failure, .. }) if is_death(failure) => {
                tell(&format!("died {with}"))?;
                Ok(PeerStep::Died)
            }
            Err(Error::PeerFailed { failure: Failure::Finished | Failure::Absent, .. }) => {
                Ok(PeerStep::Again)
            }
            Err(Error::NoPeer(PeerError::Stale | PeerError::Ended(Left | Disconnected | Lost))) => {
                Ok(PeerStep::Again)
            }
            Err(error) => {
                let warnings = self.endpoint.warnings();
                broken(format!("{} with {with}: {error} ({error:?}); {warnings:?}", self.name))
            }
        }
    }
}

/// Returns whether a process has died. Over the network, which jobs of several hosts name, its connection is lost.
fn is_death(failure: Failure) -> bool {
    use nemesia_core::port::PortFault::{Lost, Work};
    match failure {
        Failure::Died => true,
        Failure::Fault(Lost(_) | Work(_)) | Failure::Unreachable => std::env::var_os("NEMESIA_NET").is_some(),
        _ => false,
    }
}
