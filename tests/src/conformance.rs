//! The promises of the engine: one suite, run over every transport and every kind of world.
//!
//! A case is a script that every rank of a world runs, with its own rank, the same seed and the same number of
//! steps. It acts through [`Actor`](actor::Actor) only, so it does not know what is below:
//!
//! - engines in one thread ([`world`]), where a seed decides which rank acts next: over the shared-memory port
//!   ([`in_memory`]), or over channels on any memory port ([`over_channels`]): simulated, TCP, verbs;
//! - one engine in this process over a port of a test ([`world::complete`]);
//! - real processes with their endpoints ([`endpoint`], the program `conformance`), under any launcher.
//!
//! `NEMESIA_TEST_CHECK` selects cases by words in their names, `NEMESIA_TEST_SEED` repeats a run (exactly, where the
//! fabric is simulated or in memory), and `NEMESIA_TEST_STEPS` is the number of random operations of all ranks
//! together. A run of 10^6 in the simulator, in optimised code:
//!
//! ```sh
//! NEMESIA_TEST_CHECK=random NEMESIA_TEST_STEPS=1000000 NEMESIA_TEST_SEED=1 \
//!     cargo test --profile proofs -p nemesia-tests --test conformance -- --nocapture simulated
//! ```
//!
//! Under any launcher, also over several machines or network namespaces: `mpiexec.hydra -n 4 conformance --seed 1
//! --steps 10000` ([`program`]).
//!
//! | module | subject |
//! |---|---|
//! | [`matching`] | order, wildcards, masks, contexts, sources; unexpected messages up to the ceiling; cancelling; messages to oneself |
//! | [`probes`] | probes and matched probes |
//! | [`large`] | every size, truncation, lists, large messages both ways, many under way |
//! | [`one_sided`] | puts, gets and atomic operations, what is refused, notifications |
//! | [`active`] | active messages in one packet and in several |
//! | [`failure`] | a rank that dies, a rank that finishes |
//! | [`restart`] | a rank that comes back |
//! | [`random`] | everything at once, against an [oracle](nemesia_verification::oracle) |

pub mod active;
pub mod actor;
pub mod buffer;
pub mod cases;
pub mod endpoint;
pub mod engine;
pub mod failure;
pub mod in_memory;
pub mod large;
pub mod launched;
pub mod matching;
pub mod one_sided;
mod open;
pub mod over_channels;
pub mod probes;
pub mod program;
pub mod random;
pub mod restart;
mod script;
pub mod world;

/// The parameters of a run: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of random operations of all ranks together.
    pub steps: u64,
}
