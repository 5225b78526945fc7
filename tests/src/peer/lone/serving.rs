//! Requests of others.

use nemesia::{Error, PeerRef, Source};

use super::LonePlace;
use super::asking::PeerStep;
use super::buffers::{
    HEADER_BYTES, LoneHeader, REPLY, REPLY_BODY, REQUEST, REQUEST_BODY, Transfer, body, check,
};
use crate::peer::{Outcome, broken, ensure};

/// The receives that are posted for requests. Further requests are unexpected messages.
const POSTED: usize = 2;

/// A request of another process that is not answered.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) peer: PeerRef,
    header: LoneHeader,
    /// The request's body; then the reply's header and body.
    transfers: Vec<Transfer>,
}

impl LonePlace {
    /// Continues with the requests of others. Returns whether anything has changed.
    pub(super) fn serve(&mut self) -> Outcome<bool> {
        let mut moved = self.hear()?;
        for mut service in std::mem::take(&mut self.services) {
            let (before, mut whole) = (service.transfers.len(), Ok(true));
            for transfer in &mut service.transfers {
                whole = whole.and_then(|whole| Ok(whole & transfer.is_complete(&mut self.endpoint)?));
            }
            let whole = whole.and_then(|whole| {
                if whole && before == 1 {
                    self.reply(&mut service)?;
                }
                Ok(whole && before > 1)
            });
            match self.step(service.header.name, whole)? {
                PeerStep::Ready(false) if before == service.transfers.len() => self.services.push(service),
                PeerStep::Ready(false) => {
                    check(service.header.nonce, 0, &service.transfers[0].bytes)?;
                    self.services.push(service);
                    moved = true;
                }
                PeerStep::Ready(true) => moved = true,
                // The requester is gone, or asks again.
                PeerStep::Again | PeerStep::Died => {
                    self.end(&mut service.transfers)?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Receives requests.
    fn hear(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for mut receive in std::mem::take(&mut self.listening) {
            if !receive.is_complete(&mut self.endpoint)? {
                self.listening.push(receive);
                continue;
            }
            moved = true;
            let rank = receive.status.map_or(0, |status| status.rank);
            let header = LoneHeader::decode(&receive.bytes)?;
            self.accept(rank, header)?;
        }
        while self.listening.len() < POSTED {
            let len = HEADER_BYTES as u64;
            self.listening.push(Transfer::receive(&mut self.endpoint, Source::Any, REQUEST, len)?);
        }
        Ok(moved)
    }

    /// Checks from whom a request is, and begins to receive its body.
    fn accept(&mut self, rank: usize, header: LoneHeader) -> Outcome {
        let LoneHeader { address, name, round, nonce, lens } = header;
        ensure(self.directory.address(name)? == address, || format!("{header:?} is not from {name}"))?;
        // A process that replaces another one learns the round with its first command, and others may ask it before.
        let is_round = self.round == 0 || round <= self.round + 1;
        ensure(is_round, || format!("round {} and {header:?}", self.round))?;
        let Some(peer) = self.endpoint.peer_of(rank) else {
            // It was released: its connection has ended, with this last message.
            return Ok(());
        };
        let seen = *self.endpoint.address_of(peer)?;
        if seen != address {
            let seen = self.directory.find(&seen, &self.present)?;
            return broken(format!("{}: rank {rank} is {seen:?}, but {header:?} came from it", self.name));
        }
        let from = Source::Rank(rank);
        match Transfer::receive(&mut self.endpoint, from, REQUEST_BODY | nonce, lens[0]) {
            Ok(body) => self.services.push(Service { peer, header, transfers: vec![body] }),
            Err(error) => _ = self.step::<()>(name, Err(error))?,
        }
        Ok(())
    }

    fn reply(&mut self, service: &mut Service) -> Result<(), Error> {
        let LoneHeader { nonce, lens, .. } = service.header;
        let rank = self.endpoint.rank_of(service.peer)?;
        let address = *self.endpoint.address()?;
        let header = LoneHeader { address, name: self.name, round: self.round, nonce, lens }.encode();
        let endpoint = &mut self.endpoint;
        service.transfers.push(Transfer::send(endpoint, rank, REPLY | nonce, header)?);
        service.transfers.push(Transfer::send(endpoint, rank, REPLY_BODY | nonce, body(nonce, 1, lens[1]))?);
        Ok(())
    }
}
