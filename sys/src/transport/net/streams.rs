//! Further connections with a peer, beside the first one. They carry its large packets in turn (paper 5, section 4.2);
//! small ones stay on the first connection.
//!
//! The process that has requested the first connection with a peer requests the others: each when the one before it is
//! ready. No operation waits for them. If the peer's setting is lower, or the peer has no room, there are fewer.

use std::time::{Duration, Instant};

use nemesia_core::port::PeerId;
use nemesia_core::port::channel::ChannelEvent;
use nemesia_core::port::memory::Address;

use super::connect::{RETRY_AFTER, is_passing};
use super::{NetPort, with};

/// The requests of one connection after which it is given up.
const TRIES: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamStage {
    /// It is requested from this time on.
    Due(Instant),
    Requested,
    /// The request failed, and the connection is not closed yet.
    Closing,
}

/// The next connection with a peer.
#[derive(Debug)]
struct WantedStream {
    peer: PeerId,
    rail: u32,
    to: Address,
    stage: StreamStage,
    tries: u32,
}

/// The further connections that are being made.
#[derive(Debug)]
pub(super) struct FurtherStreams {
    /// The connections of a peer, the first one included.
    count: u32,
    wanted: Vec<WantedStream>,
    /// Why peers have fewer connections.
    refused: Vec<(PeerId, String)>,
}

impl FurtherStreams {
    pub(super) const fn new(count: u32) -> Self {
        Self { count, wanted: Vec::new(), refused: Vec::new() }
    }

    fn find(&mut self, peer: PeerId, rail: u32) -> Option<&mut WantedStream> {
        self.wanted.iter_mut().find(|it| (it.peer, it.rail) == (peer, rail))
    }

    fn give_up(&mut self, peer: PeerId, why: String) {
        self.forget(peer);
        self.refused.push((peer, why));
    }

    /// Forgets what was wanted of a former process of a peer.
    fn forget(&mut self, peer: PeerId) {
        self.wanted.retain(|it| it.peer != peer);
        self.refused.retain(|(refused, _)| *refused != peer);
    }
}

impl NetPort {
    /// Requests the further connections of peers whose first one is there. It gets every event, before those who only
    /// know first connections.
    pub(super) fn widen(&mut self, events: &[ChannelEvent]) {
        if self.streams.count < 2 || self.origin.is_elsewhere() {
            return;
        }
        for event in events {
            match *event {
                ChannelEvent::Up { peer, rail: 0 } => {
                    let to = self.addresses.get(peer as usize).copied().flatten();
                    self.want_streams(peer, to);
                }
                ChannelEvent::Up { peer, rail } => {
                    let count = self.streams.count;
                    let Some(it) = self.streams.find(peer, rail) else { continue };
                    (it.rail, it.stage, it.tries) = (rail + 1, StreamStage::Due(Instant::now()), 0);
                    self.streams.wanted.retain(|it| it.rail < count);
                }
                ChannelEvent::Failed { peer, rail, error, refusal } => {
                    let Some(it) = self.streams.find(peer, rail) else { continue };
                    if is_passing(error, refusal) && it.tries < TRIES {
                        it.stage = StreamStage::Closing;
                    } else {
                        let why = refusal.map_or_else(|| error.to_string(), |refusal| refusal.to_string());
                        self.streams.give_up(peer, why);
                    }
                }
                ChannelEvent::Closed { peer, rail } => {
                    if let Some(it) = self.streams.find(peer, rail)
                        && it.stage == StreamStage::Closing
                    {
                        it.stage = StreamStage::Due(Instant::now() + RETRY_AFTER);
                    }
                }
                ChannelEvent::Called { .. } | ChannelEvent::Refused { .. } => {}
            }
        }
        self.request_streams();
    }

    /// Requests the further connections with a peer whose first one is there, at this address, if there are to be some.
    pub(super) fn want_streams(&mut self, peer: PeerId, to: Option<Address>) {
        if self.streams.count < 2 {
            return;
        }
        self.streams.forget(peer);
        let (Some(to), true) = (to, with!(&self.any, it => it.channel.has_requested(peer))) else { return };
        let stage = StreamStage::Due(Instant::now());
        self.streams.wanted.push(WantedStream { peer, rail: 1, to, stage, tries: 0 });
    }

    /// Sends the requests that are due.
    fn request_streams(&mut self) {
        let now = Instant::now();
        // A peer whose earlier connections are not all ready has failed or was closed.
        self.streams
            .wanted
            .retain(|it| with!(&self.any, any => any.channel.report(it.peer)).ready >= it.rail);
        let mut gone = Vec::new();
        for it in &mut self.streams.wanted {
            let StreamStage::Due(at) = it.stage else { continue };
            if now < at {
                continue;
            }
            it.tries += 1;
            let (peer, rail) = (it.peer, it.rail);
            // The peer may compute for as long as it likes before it accepts.
            match with!(&mut self.any, any => any.channel.connect(peer, rail, &it.to, Duration::MAX)) {
                Ok(()) => it.stage = StreamStage::Requested,
                Err(_) if it.tries < TRIES => it.stage = StreamStage::Due(now + RETRY_AFTER),
                Err(error) => gone.push((peer, error.to_string())),
            }
        }
        gone.into_iter().for_each(|(peer, why)| self.streams.give_up(peer, why));
    }

    /// Returns whether a peer has all the connections that it should have, and how many; `None` if one is all.
    pub(super) fn explain_streams(&self, peer: PeerId) -> Option<(&'static str, bool, String)> {
        let (count, ready) = (self.streams.count, with!(&self.any, it => it.channel.report(peer)).ready);
        let refused = self.streams.refused.iter().find(|(refused, _)| *refused == peer);
        let why = match refused {
            Some((_, why)) => format!("{ready} of {count} connections; the peer refuses more: {why}"),
            None => format!("{ready} of {count} connections"),
        };
        (count > 1).then_some(("streams", ready > 1, why))
    }
}
