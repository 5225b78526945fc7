//! `restart-impostor-net`: as `restart-impostor`, between processes that reach each other over TCP.

use std::time::{Duration, Instant};

use nemesia::tcp::{Options, TcpPort, listen};
use nemesia::{Source, Tag};
use nemesia_core::flow::posted::LEAST;
use nemesia_core::job_key::{CallTerms, JobKey, KEY_BYTES};
use nemesia_core::port::memory::{Address, ConnectError, Event, MemoryPort as _, Offer, Private};
use nemesia_core::wire::channel::ChannelRefusal;
use nemesia_core::wire::hello::{Challenge, Hello, HelloContent, Proof};

use super::restart::{PATIENCE, WORD, called, die_when_told, eavesdrop, never_join};
use super::{Fault, Outcome, broken, ensure};
use crate::content::seed_of;

/// The payload of the packets of the world.
const PACKET_BYTES: u32 = 4096;

/// Rank 2 knows the key of the job and the address of rank 0. It claims to be the next process of ranks that
/// live, and of rank 1, which has died and whose next process has not joined. With another key it can claim nothing.
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
    let known = std::mem::replace(&mut caller.key, JobKey::from_bytes([1; KEY_BYTES]));
    for rank in [0, 1, 2, 7] {
        caller.claim(rank, 1, ChannelRefusal::WrongKey)?;
    }
    caller.key = known;
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
    key: JobKey,
    begun: Instant,
}

impl NetCaller {
    /// Finds out address, world and key from what was published: the places of three ranks, and then their cards.
    fn new(heard: &[String]) -> Outcome<Self> {
        let card: Vec<&str> = heard.get(3).map(|card| card.split('.').collect()).unwrap_or_default();
        let [_, world, key, _, address, _, _] = card[..] else {
            return broken(format!("no card in {heard:?}"));
        };
        let to = bytes_of(address).as_deref().and_then(Address::new);
        let key = bytes_of(key).and_then(|bytes| bytes.try_into().ok()).map(JobKey::from_bytes);
        let key = key.ok_or_else(|| Fault::Broken(format!("no key in {card:?}")))?;
        let to = to.ok_or_else(|| Fault::Broken(format!("no address in {card:?}")))?;
        let world = u64::from_str_radix(world, 16).map_err(|error| Fault::Broken(error.to_string()))?;
        let port = listen(([127, 0, 0, 1], 0).into(), &Options::default())?;
        Ok(Self { port, to, world, key, begun: Instant::now() })
    }

    /// Claims to be this process of a rank, and expects this refusal.
    fn claim(&mut self, rank: u32, incarnation: u32, wanted: ChannelRefusal) -> Outcome {
        let hello = Hello {
            rank,
            rail: 0,
            receives: LEAST as u16,
            packet_bytes: PACKET_BYTES,
            token: seed_of(&[rank.into(), incarnation.into()]),
            incarnation,
            content: HelloContent::Call,
        };
        let what = format!("rank {rank}, incarnation {incarnation}");
        let private = self.request(&hello, &what)?;
        let challenge = Challenge::decode(&private);
        let challenge =
            challenge.ok_or_else(|| Fault::Broken(format!("{what}: {private:?}, no challenge")))?;
        let refusal = ChannelRefusal::decode(&self.request(&self.answer(&hello, challenge), &what)?);
        ensure(refusal == Some(wanted), || format!("{what}: {refusal:?} instead of {wanted:?}"))
    }

    /// Returns the request that answers a challenge of rank 0.
    fn answer(&self, hello: &Hello, challenge: Challenge) -> Hello {
        let (nonce, number) = (1, challenge.number);
        let content = |proof| HelloContent::Request { number, nonce, proof };
        let hello = Hello { content: content(Proof::default()), ..*hello };
        let terms = CallTerms {
            world: self.world,
            challenge,
            nonce,
            caller: hello.common(),
            caller_address: &[],
            callee: 0,
            callee_address: self.to.bytes(),
        };
        Hello { content: content(self.key.request_proof(&terms)), ..hello }
    }

    /// Requests a connection, and returns the private data of its refusal.
    fn request(&mut self, hello: &Hello, what: &str) -> Outcome<Private> {
        let deadline = self.begun.elapsed() + PATIENCE;
        let offer = Offer { private: hello.encode(), shared_receive: false, deadline };
        let asked = self.port.connect(&self.to, &offer).map_err(|error| Fault::Broken(error.to_string()))?;
        loop {
            match self.port.poll_event(self.begun.elapsed()) {
                Some(Event::Failed { connection, error: ConnectError::Refused, private })
                    if connection == asked =>
                {
                    self.port.close(connection);
                    return Ok(private);
                }
                None | Some(Event::Closed { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Some(event) => return broken(format!("{what}: {event:?}")),
            }
        }
    }
}

/// Returns the bytes with these hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let byte = |at| digits.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..digits.len()).step_by(2).map(byte).collect()
}
