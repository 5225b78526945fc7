//! The properties of a world, drawn from the seed, so that every seed has other scarcities.

use nemesia_core::engine::Tuning;
use nemesia_core::store::cost;

use crate::fabric::{Conditions, Pull};
use crate::rng::Rng;

/// No handlers exist with this number or above.
pub(crate) const HANDLERS: u16 = 4;
/// The bytes in each rank's region that belong to one origin alone, for puts and gets; behind them are values
/// for all.
pub(crate) const OWN: usize = 1200;
pub(crate) const VALUES: usize = 256;

/// Returns the size of each rank's region in bytes.
pub(crate) const fn region_bytes(ranks: u32) -> usize {
    ranks as usize * OWN + VALUES
}

/// The storage and the settings of each engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The number of requests at first, and at most.
    pub(crate) requests: usize,
    pub(crate) most_requests: usize,
    /// Units of 64 bytes for unexpected messages.
    pub(crate) units: usize,
    pub(crate) buckets: usize,
    pub(crate) eager_bytes: usize,
    pub(crate) window: u32,
    pub(crate) pull_bytes: u64,
    pub(crate) run_bytes: u64,
    /// The size from which both sides copy a message, and that from which copies pass by the caches.
    pub(crate) assist_bytes: u64,
    pub(crate) non_temporal_bytes: u64,
    /// The most peers of an engine at the same time, if it is opened alone and peers are added while traffic runs.
    pub(crate) most_peers: Option<u32>,
    /// No rank is connected with another until an operation names it.
    pub(crate) unmet: bool,
}

/// A world and the frequencies of its events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) conditions: Conditions,
    pub(crate) terms: Terms,
    /// The longest usual message. One in `long` messages has up to `largest` bytes.
    pub(crate) usual: usize,
    pub(crate) largest: usize,
    pub(crate) long: usize,
    pub(crate) contexts: u16,
    pub(crate) tags: usize,
    /// The position of the bits in which tags differ.
    pub(crate) shift: u32,
    /// The largest number of posted receives, of waiting messages, and of sends under way at one rank.
    pub(crate) many: usize,
    /// One operation in so many stops a rank for a while or for ever; 0 means never.
    pub(crate) stall: usize,
    pub(crate) death: usize,
    /// One operation in so many starts a dead rank again; 0 means never.
    pub(crate) restart: usize,
    /// The number of operations between two points at which the world must come to rest.
    pub(crate) rest: usize,
    /// How often each operation is tried, relative to the sum.
    pub(crate) weights: [usize; OPERATIONS.len()],
}

/// An operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    SendSynchronous,
    Receive,
    Progress,
    Cancel,
    Probe,
    Claim,
    ReceiveClaimed,
    Bypass,
    Remote,
    Await,
    Acknowledge,
    Grow,
}

/// Every operation, with its weight in an even world.
const OPERATIONS: [(Operation, usize); 13] = [
    (Operation::Send, 20),
    (Operation::SendSynchronous, 4),
    (Operation::Receive, 24),
    (Operation::Progress, 36),
    (Operation::Cancel, 3),
    (Operation::Probe, 3),
    (Operation::Claim, 3),
    (Operation::ReceiveClaimed, 3),
    (Operation::Bypass, 6),
    (Operation::Remote, 12),
    (Operation::Await, 1),
    (Operation::Acknowledge, 1),
    (Operation::Grow, 1),
];

impl Shape {
    /// Draws a world of `ranks` ranks, or of a few if `ranks` is not given.
    pub(crate) fn new(rng: &mut Rng, ranks: Option<u32>) -> Self {
        let ranks = ranks.unwrap_or_else(|| rng.pick(&[2, 2, 3, 3, 4, 5, 8]));
        let packet_bytes = rng.pick(&[256, 256, 512, 1024, 4096]);
        // Some messages take several pieces even in a single copy.
        let lengths =
            [(packet_bytes, 20), (4 * packet_bytes, 20), (80_000, 10), (200_000, 30), (700_000, 150)];
        let (largest, long) = rng.pick(&lengths);
        let conditions = Conditions {
            ranks,
            packet_bytes,
            cells: rng.pick(&[1, 2, 3, 4, 16, 64]),
            places: rng.pick(&[0, 1, 4, 16]),
            small: rng.pick(&[48, 104, packet_bytes]),
            delay: rng.pick(&[0, 1, 5, 20]),
            refusal: rng.pick(&[0, 0, 20, 3]),
            pull: rng.pick(&[Pull::Never, Pull::Sometimes, Pull::Sometimes, Pull::Always]),
            accesses: rng.pick(&[0, 0, 1, 3, 100]),
            puts: rng.one_in(2),
            assists: !rng.one_in(3),
            scatter: rng.one_in(3),
            prefers_eager: rng.one_in(3),
            gathers: rng.one_in(3),
        };
        let requests = rng.pick(&[8, 32, 256]);
        let packet = cost(packet_bytes) as usize;
        let each = rng.pick(&[1, 2, 5, packet, 4 * packet, 40 * packet]);
        let terms = Terms {
            requests,
            most_requests: rng.pick(&[requests, 256]),
            // One unit for each rank is the least with which an engine starts.
            units: 1 + (ranks as usize - 1) * each + rng.below(each + 1),
            buckets: rng.pick(&[0, 1, 3, 16]),
            eager_bytes: rng.pick(&[0, 48, 200, packet_bytes]),
            window: rng.pick(&[1, 8, 64, 4096]),
            pull_bytes: rng.pick(&[1000, 256 << 10, u64::MAX]),
            run_bytes: rng.pick(&[16, 16, 4 << 10]),
            assist_bytes: Tuning::default().assist_bytes,
            non_temporal_bytes: Tuning::default().non_temporal_bytes,
            most_peers: None,
            unmet: false,
        };
        let mut weights = OPERATIONS.map(|(_, weight)| (weight * rng.pick(&[0, 1, 2, 2, 2, 6])).div_ceil(2));
        // A world that never makes progress tests nothing.
        weights[Operation::Progress as usize] += 1;
        let blocking = rng.one_in(4);
        if blocking {
            // Blocking receives only, as in a program that never posts receives.
            weights[Operation::Receive as usize] = 0;
            weights[Operation::Bypass as usize] = 60;
        }
        let death = rng.pick(&[0, 0, 0, 60, 200, 1000, 5000]);
        let restart = if death > 0 { rng.pick(&[0, 20, 100, 500]) } else { 0 };
        let (terms, death, restart) = Self::grown(rng, ranks, (terms, death, restart));
        Self {
            conditions,
            terms,
            usual: rng.pick(&[60, 300, 3000]).min(largest),
            largest,
            long,
            contexts: rng.pick(&[1, 2, 3]),
            tags: rng.pick(&[1, 2, 4]),
            shift: rng.pick(&[0, 31, 62]),
            many: if blocking { 1 } else { rng.pick(&[4, 12, 12, 40]) },
            stall: rng.pick(&[0, 0, 100, 1000]),
            death,
            restart,
            rest: rng.pick(&[200, 1000, 5000]),
            weights,
        }
    }

    /// Draws a world over shared memory. What happens there is visible at once, and copies end before they return.
    pub(crate) fn shared(rng: &mut Rng, ranks: Option<u32>) -> Self {
        let mut shape = Self::new(rng, ranks);
        let conditions = &mut shape.conditions;
        conditions.cells = rng.pick(&[4, 4, 8, 32]);
        (conditions.delay, conditions.accesses) = (0, 0);
        (conditions.puts, conditions.prefers_eager, conditions.gathers) = (false, false, false);
        let terms = &mut shape.terms;
        terms.pull_bytes = rng.pick(&[0, 1, 512, 6000, u64::MAX]);
        terms.run_bytes = rng.pick(&[0, 16, u64::MAX]);
        terms.assist_bytes = rng.pick(&[1 << 10, 8 << 10]);
        terms.non_temporal_bytes = rng.pick(&[0, 500, u64::MAX]);
        (shape.largest, shape.long) = rng.pick(&[(9 * 256, 4), (20_000, 8), (80_000, 20)]);
        shape.usual = shape.usual.min(shape.largest);
        if rng.one_in(3) {
            // Small messages for receives that are not posted. Other progress would take the messages first.
            terms.eager_bytes = conditions.packet_bytes;
            shape.largest = conditions.packet_bytes;
            shape.usual = rng.pick(&[8, 60, conditions.packet_bytes]);
            (shape.many, shape.rest) = (12, 1000);
            for (operation, weight) in [
                (Operation::Receive, 4),
                (Operation::Progress, 2),
                (Operation::Remote, 2),
                (Operation::Bypass, 60),
            ] {
                shape.weights[operation as usize] = weight;
            }
        }
        shape
    }

    /// Lets a third of the worlds grow from engines that are opened alone. In most of these, processes come and go, so
    /// that numbers are used again. In a sixth, ranks connect on demand.
    fn grown(rng: &mut Rng, ranks: u32, usual: (Terms, usize, usize)) -> (Terms, usize, usize) {
        let (mut terms, death, restart) = usual;
        match rng.below(6) {
            0 | 1 => {}
            2 => {
                // A rank that was started again is connected by those that readmit it.
                terms.unmet = true;
                return (terms, death, 0);
            }
            _ => return usual,
        }
        let (death, restart) = rng.pick(&[(death, restart), (60, 20), (200, 20), (200, 100)]);
        terms.most_peers = Some(rng.pick(&[1, ranks - 1, ranks - 1, ranks, 100]).max(1));
        // Half of the memory is set aside for peers.
        terms.units = 2 * terms.units + 1;
        (terms, death, restart)
    }

    /// Returns the operation at this position among the weights.
    pub(crate) fn operation(&self, mut at: usize) -> Operation {
        for (&weight, (operation, _)) in self.weights.iter().zip(OPERATIONS) {
            if at < weight {
                return operation;
            }
            at -= weight;
        }
        Operation::Progress
    }
}
