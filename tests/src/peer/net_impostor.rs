//! `restart-impostor-net`: as `restart-impostor`, between processes that reach each other over TCP.

use std::time::{Duration, Instant};

use nemesia::tcp::{Options, TcpPort, listen};
use nemesia::{Source, Tag};
use nemesia_core::flow::posted::LEAST;
use nemesia_core::port::memory::{Address, ConnectError, Event, MemoryPort as _, Offer};
use nemesia_core::wire::channel::{ChannelRefusal, Hello};

use super::restart::{PATIENCE, WORD, called, die_when_told, eavesdrop, never_join};
use super::{Fault, Outcome, broken, ensure};
use crate::content::seed_of;

/// The payload of the packets of the world.
const PACKET_BYTES: u32 = 4096;

/// Rank 2 knows the number of the world and the address of rank 0. It claims to be the next process of ranks that
/// live, and of rank 1, which has died and whose next process has not joined.
pub(super) fn run() -> Outcome {
    let Some((mut endpoint, heard)) = eavesdrop()? else { return never_join() };
    match endpoint.rank() {
        0 => return called(endpoint),
        1 => return die_when_told(&mut endpoint),
        _ => {}
    }
    let mut caller = NetCaller::new(&heard)?;
    for rank in [1, 2] {
        caller.claim(rank, 1, ChannelRefusal::Claimed)?;
    }
    for (rank, incarnation) in [(0, 1), (7, 1), (1, 0)] {
        caller.claim(rank, incarnation, ChannelRefusal::NotAMember)?;
    }
    endpoint.send(0, WORD, &[])?;
    endpoint.recv(Source::Rank(0), Tag::Exactly(WORD), &mut [])?;
    for incarnation in [1, 9] {
        caller.claim(1, incarnation, ChannelRefusal::NotAMember)?;
    }
    endpoint.send(0, WORD, &[])?;
    Ok(endpoint.close()?)
}

/// Requests connections with rank 0.
struct NetCaller {
    port: TcpPort,
    to: Address,
    world: u64,
    begun: Instant,
}

impl NetCaller {
    /// Finds out address and world from what was published: the places of three ranks, and then their cards.
    fn new(heard: &[String]) -> Outcome<Self> {
        let card: Vec<&str> = heard.get(3).map(|card| card.split('.').collect()).unwrap_or_default();
        let [_, world, _, address, _] = card[..] else { return broken(format!("no card in {heard:?}")) };
        let byte = |at| address.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let bytes: Option<Vec<u8>> = (0..address.len()).step_by(2).map(byte).collect();
        let to = bytes.as_deref().and_then(Address::new);
        let to = to.ok_or_else(|| Fault::Broken(format!("no address in {card:?}")))?;
        let world = u64::from_str_radix(world, 16).map_err(|error| Fault::Broken(error.to_string()))?;
        let port = listen(([127, 0, 0, 1], 0).into(), &Options::default())?;
        Ok(Self { port, to, world, begun: Instant::now() })
    }

    /// Claims to be this process of a rank, and expects this refusal.
    fn claim(&mut self, rank: u32, incarnation: u64, wanted: ChannelRefusal) -> Outcome {
        let hello = Hello {
            rank,
            world: self.world,
            rail: 0,
            receives: LEAST as u16,
            packet_bytes: PACKET_BYTES,
            token: seed_of(&[rank.into(), incarnation]),
            incarnation,
            agreements: 0,
        };
        let deadline = self.begun.elapsed() + PATIENCE;
        let offer = Offer { private: hello.encode(), shared_receive: false, deadline };
        let asked = self.port.connect(&self.to, &offer).map_err(|error| Fault::Broken(error.to_string()))?;
        loop {
            match self.port.poll_event(self.begun.elapsed()) {
                Some(Event::Failed { connection, error: ConnectError::Refused, private }) => {
                    self.port.close(connection);
                    let refusal = ChannelRefusal::decode(&private);
                    return ensure(connection == asked && refusal == Some(wanted), || {
                        format!("rank {rank}, incarnation {incarnation}: {refusal:?} instead of {wanted:?}")
                    });
                }
                None | Some(Event::Closed { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Some(event) => return broken(format!("rank {rank}, incarnation {incarnation}: {event:?}")),
            }
        }
    }
}
