//! Simulated byte streams under the placement that ships ([`nemesia_core::port::placement`]): a memory port
//! whose every step is drawn from a seed.
//!
//! All ports of a [`StreamFabric`] live in one thread. Time passes when [`StreamFabric::pass`] is called. Then
//! connections are made and bytes arrive, each at random. A stream takes and returns any number of bytes, so
//! that frames and payloads are split at all places. If a process dies, a random part of the bytes that it sent
//! is lost.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::port::placement::{PlacementOptions, PlacementPort};

use crate::storage::PlacementVectors;

mod network;
mod stream;

use network::Network;
pub use stream::{SimStream, SimStreams};

/// A port over simulated streams.
pub type StreamPort = PlacementPort<SimStreams, PlacementVectors>;

/// The properties of the streams, and of the ports over them.
#[derive(Clone, Copy, Debug)]
pub struct StreamConditions {
    /// The limits of each port.
    pub options: PlacementOptions,
    /// A possible step is taken once in so many attempts; 1 means no delay.
    pub delay: usize,
    /// The most bytes that are under way in one direction of a stream.
    pub capacity: usize,
    /// The most bytes that one call transfers.
    pub most: usize,
    /// Whether a process can read the memory of others, as on one machine.
    pub pulls: bool,
}

impl StreamConditions {
    /// Wide streams.
    pub const WIDE: Self = Self {
        options: PlacementOptions {
            connections: 256,
            regions: 64,
            send_depth: 32,
            receive_depth: 32,
            shared_receive_depth: 64,
            patience: Duration::from_millis(1),
            reads_ahead: true,
        },
        delay: 2,
        capacity: 1 << 20,
        most: 1 << 20,
        pulls: false,
    };

    /// Streams that take a few bytes at a time, under ports with as little of everything as possible.
    pub const NARROW: Self = Self {
        options: PlacementOptions {
            connections: 4,
            regions: 12,
            send_depth: 2,
            receive_depth: 2,
            shared_receive_depth: 3,
            ..Self::WIDE.options
        },
        delay: 3,
        capacity: 200,
        most: 50,
        pulls: false,
    };

    /// Streams between processes that can read each other's memory.
    pub const PULLING: Self = Self { pulls: true, ..Self::WIDE };
}

/// The streams that connect the ports.
#[derive(Clone, Debug)]
pub struct StreamFabric(Rc<RefCell<Network>>);

impl StreamFabric {
    /// Returns a fabric without ports. The same seed and the same calls give the same history.
    pub fn new(seed: u64, conditions: StreamConditions) -> Self {
        Self(Rc::new(RefCell::new(Network::new(seed, conditions))))
    }

    /// Adds a port. Dropping the port is the death of its process.
    ///
    /// # Errors
    /// Never: the simulation has random numbers at all times.
    pub fn port(&self) -> Result<StreamPort, i32> {
        let options = self.0.borrow().conditions.options;
        PlacementPort::new(SimStreams::new(Rc::clone(&self.0)), &options)
    }

    /// Returns a source of streams without a port, for a peer that does not follow the protocol.
    pub fn source(&self) -> SimStreams {
        SimStreams::new(Rc::clone(&self.0))
    }

    /// Sets the addresses to which no stream may copy, because streams do not copy in order. A stream that tries it
    /// panics.
    pub fn keep_off(&self, addresses: Range<u64>) {
        self.0.borrow_mut().kept_off = addresses;
    }

    /// Lets a little time pass. Returns the time.
    pub fn pass(&self) -> Duration {
        self.0.borrow_mut().pass()
    }
}

#[cfg(test)]
mod tests {
    use nemesia_core::payload::LentMemory;
    use nemesia_core::port::memory::{
        Completion, CompletionSource, Connection, Event, MemoryPort, Offer, Private, RegionAccess, Slice,
        Work, WorkOutcome,
    };

    use super::*;

    /// Bytes of the memory of each side.
    const ROOM: usize = 1 << 18;

    /// Returns new memory twice: to be registered, and to be inspected. It is never freed.
    #[allow(unsafe_code, reason = "memory is lent by its address")]
    fn memory() -> [LentMemory; 2] {
        let base = Vec::leak(vec![0_u64; ROOM / 8]).as_mut_ptr().cast::<u8>();
        // SAFETY: never freed, and the only reference to it has ended.
        [(), ()].map(|()| unsafe { LentMemory::from_raw(base, ROOM) })
    }

    fn offer() -> Offer {
        Offer { private: Private::EMPTY, shared_receive: false, deadline: Duration::from_secs(1000) }
    }

    fn connect(fabric: &StreamFabric, ports: &mut [StreamPort; 2]) -> Connection {
        let active = ports[0].connect(&ports[1].address().unwrap(), &offer()).unwrap();
        loop {
            let now = fabric.pass();
            for at in [1, 0] {
                ports[at].poll(&mut [Completion::EMPTY; 4]);
                match ports[at].poll_event(now) {
                    Some(Event::Requested { connection, .. }) => {
                        ports[at].accept(connection, &offer()).unwrap();
                    }
                    Some(Event::Established { connection, .. }) if at == 0 && connection == active => {
                        return active;
                    }
                    Some(Event::Failed { .. }) => panic!("no connection"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn the_last_word_of_a_write_is_placed_last_and_by_no_stream() {
        for conditions in [StreamConditions::WIDE, StreamConditions::NARROW, StreamConditions::PULLING] {
            let fabric = StreamFabric::new(1, conditions);
            let mut ports = [(), ()].map(|()| fabric.port().unwrap());
            let ([lent, source], [theirs, target]) = (memory(), memory());
            let from = ports[0].register(lent, RegionAccess::LOCAL).unwrap();
            let to = ports[1].register(theirs, RegionAccess::ALL).unwrap();
            let key = ports[1].key(to).unwrap();
            let connection = connect(&fabric, &mut ports);
            let lens = [1, 3, 8, 9, 100, 4095, 4096, 4103, 5000, 65_541, 200_000];
            let of_each = lens.into_iter().flat_map(|len: u32| [0_u64, 1, 6, 60].map(|at| (len, at)));
            for (value, (len, at)) in (1_u8..).zip(of_each) {
                assert!(source.write(3, &vec![value; len as usize]));
                let end = at + u64::from(len);
                let last = end - u64::from(len.min(8))..end;
                fabric.keep_off(target.address() + last.start..target.address() + last.end);
                let part = [Slice { region: from, offset: 3, len }];
                let work = Work::new(connection, value.into());
                ports[0].write(work, CompletionSource::Gather(&part), key.at(at), None).unwrap();
                let mut is_done = false;
                while !is_done {
                    fabric.pass();
                    let mut done = [Completion::EMPTY; 4];
                    let count = ports[0].poll(&mut done);
                    is_done = done[..count].iter().any(|it| it.outcome == WorkOutcome::Done);
                    ports[1].poll(&mut [Completion::EMPTY; 4]);
                    let mut found = vec![0; len as usize];
                    assert!(target.read(at, &mut found));
                    let (rest, last) = found.split_at((last.start - at) as usize);
                    let is_here = last.contains(&value);
                    let all = |bytes: &[u8]| bytes.iter().all(|byte| *byte == value);
                    assert!(!is_here || all(last) && all(rest), "{len} bytes at {at}");
                    assert!(!is_done || is_here, "{len} bytes at {at}");
                }
            }
        }
    }
}
