//! The number of a work request in the device, which every completion returns, also a failed one.

/// The queue of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// A connection's send queue.
    Send,
    /// A connection's receive queue.
    Receive,
    /// The shared receive queue; the sequence number is then a place in its slab.
    Shared,
    /// A connection's send queue, for a probe of this port.
    Probe,
}

/// The parts of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkTag {
    pub(super) queue: Queue,
    /// The place of the connection.
    pub(super) index: u32,
    /// The generation of the connection, of which only the low bits are kept.
    pub(super) generation: u32,
    /// The number of the work request in its queue.
    pub(super) sequence: u32,
}

const SEQUENCE: u32 = 32;
const GENERATION: u32 = 10;
const INDEX: u32 = 20;

/// The largest number of connections whose places fit.
pub(super) const MOST_LINKS: u32 = 1 << INDEX;

impl WorkTag {
    pub(super) const fn encode(self) -> u64 {
        let generation = (self.generation & ((1 << GENERATION) - 1)) as u64;
        let index = (self.index & (MOST_LINKS - 1)) as u64;
        let queue = match self.queue {
            Queue::Send => 0,
            Queue::Receive => 1,
            Queue::Shared => 2,
            Queue::Probe => 3,
        };
        self.sequence as u64
            | generation << SEQUENCE
            | index << (SEQUENCE + GENERATION)
            | queue << (SEQUENCE + GENERATION + INDEX)
    }

    /// Decodes a number.
    pub(super) const fn decode(number: u64) -> Self {
        let queue = match number >> (SEQUENCE + GENERATION + INDEX) {
            0 => Queue::Send,
            1 => Queue::Receive,
            2 => Queue::Shared,
            _ => Queue::Probe,
        };
        Self {
            queue,
            index: (number >> (SEQUENCE + GENERATION)) as u32 & (MOST_LINKS - 1),
            generation: (number >> SEQUENCE) as u32 & ((1 << GENERATION) - 1),
            sequence: number as u32,
        }
    }

    /// Returns whether it may belong to a connection of that generation.
    pub(super) const fn is_of(self, generation: u32) -> bool {
        self.generation == generation & ((1 << GENERATION) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_survives_the_device() {
        for queue in [Queue::Send, Queue::Receive, Queue::Shared, Queue::Probe] {
            for (index, generation, sequence) in [(0, 0, 0), (MOST_LINKS - 1, 1023, u32::MAX), (77, 5, 9)] {
                let tag = WorkTag { queue, index, generation, sequence };
                assert_eq!(WorkTag::decode(tag.encode()), tag);
            }
        }
    }

    #[test]
    fn a_generation_is_known_by_its_low_bits() {
        let tag = WorkTag { queue: Queue::Send, index: 1, generation: 1024 + 7, sequence: 0 };
        let back = WorkTag::decode(tag.encode());
        assert!(back.is_of(7) && back.is_of(1024 + 7) && !back.is_of(8));
    }
}
