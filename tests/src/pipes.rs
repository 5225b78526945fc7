//! The suite of the RDMA Channel's pipes over all designs and troubles, for any memory port.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nemesia_core::port::memory::MemoryPort;
use nemesia_core::rdma_channel::Design;
use nemesia_verification::pipes::{PipeFabric, PipeRun, PipeTally, PipeTrouble, run};

use crate::{quick, seed};

/// The time in which a world over real ports must come to its end.
pub const HANGS: Duration = Duration::from_secs(60);
/// Most seeds after those that a test asked for.
pub const MORE: u64 = 10;
/// All troubles.
pub const TROUBLES: [PipeTrouble; 3] = [PipeTrouble::None, PipeTrouble::Death, PipeTrouble::Hostile];

/// Ports of this machine, whose time is real.
pub struct RealPipes<O, P> {
    open: O,
    start: Instant,
    port: PhantomData<fn() -> P>,
}

impl<O, P> fmt::Debug for RealPipes<O, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealPipes").field("start", &self.start).finish_non_exhaustive()
    }
}

impl<P: MemoryPort, O: FnMut() -> Result<P, String>> RealPipes<O, P> {
    /// Makes the ports with this function.
    pub fn new(open: O) -> Self {
        Self { open, start: Instant::now(), port: PhantomData }
    }
}

impl<P: MemoryPort, O: FnMut() -> Result<P, String>> PipeFabric for RealPipes<O, P> {
    type Port = P;

    fn port(&mut self) -> Result<P, String> {
        (self.open)()
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed()
    }
}

/// Runs worlds of all designs with all troubles. Returns what happened in those of each design.
///
/// # Panics
/// A promise was broken, or a design carried nothing.
pub fn all_pass<F: PipeFabric>(
    seeds: u64,
    sizes: (usize, usize, Duration),
    fabric: impl Fn(u64) -> F,
) -> BTreeMap<&'static str, PipeTally> {
    all_pass_until(seeds, sizes, fabric, |_, _| true)
}

/// Does the same, and more: a few short worlds may have too little in them, so up to [`MORE`] seeds follow until enough
/// has happened in the worlds of the design of this name.
///
/// # Panics
/// See [`all_pass`].
pub fn all_pass_until<F: PipeFabric>(
    seeds: u64,
    (steps, processes, most_time): (usize, usize, Duration),
    fabric: impl Fn(u64) -> F,
    is_enough: impl Fn(&str, &PipeTally) -> bool,
) -> BTreeMap<&'static str, PipeTally> {
    let seeds = if quick() { seeds.div_ceil(10) } else { seeds };
    let mut tallies = BTreeMap::new();
    for design in Design::ALL {
        let tally: &mut PipeTally = tallies.entry(design.name()).or_default();
        for (at, trouble) in (0..seeds + MORE).flat_map(|at| TROUBLES.map(|trouble| (at, trouble))) {
            if at >= seeds && is_enough(design.name(), tally) {
                break;
            }
            let seed = seed().wrapping_add(at);
            let calm = None;
            let what =
                PipeRun { design, seed, steps, processes, trouble, calm, most_turns: 100_000, most_time };
            match run(fabric(seed), &what) {
                Ok(one) => tally.add(&one),
                Err(why) => assert!(why.is_empty(), "{what:?}: {why}"),
            }
        }
        assert!(tally.bytes > 0 && tally.idle_puts > 0 && tally.cut > 0, "{}: {tally:?}", design.name());
    }
    tallies
}

/// Returns whether long runs moved as the design of this name says: read by the receiver in the zero-copy designs, also
/// written by the sender in the push alternative, copied as well in the learned design, and only copied in the others.
pub fn moves_long_runs_as(name: &str, tally: &PipeTally) -> bool {
    let is = |design: Design| design.name() == name;
    let (learns, pushes) = (is(Design::Learned), is(Design::ZeroCopyPush) || is(Design::Learned));
    let reads = is(Design::ZeroCopy) || pushes;
    // A few runs are too few to learn from.
    let has_learned = !learns || tally.copied > 0 || tally.exposed + tally.pushed < 500;
    reads == (tally.exposed > 0 && tally.lent > 0) && pushes == (tally.pushed > 0) && has_learned
}
