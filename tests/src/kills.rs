//! Kills at random moments: what the other rank must see, and that nothing is left behind.

use std::time::{Duration, Instant};

use nemesia::bootstrap::ExitKind;

use crate::content::Random;
use crate::job::{Job, report};
use crate::leftovers::Traces;
use crate::seed;

/// The exit status of the program `peer`: a peer has failed.
pub const PEER_FAILED: ExitKind = ExitKind::Exited(3);
/// The time for a start, and for an end.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs so many jobs of two ranks, and kills one rank of each when both have printed `at work`. The other rank must
/// name it in its error.
///
/// `job` gets the number of the job, from which it makes its random choices.
///
/// # Errors
///
/// A job that can't be started or does not end. A promise that is broken panics.
pub fn one_of_two_is_killed(kills: u32, job: impl Fn(u64) -> Job) -> Result<(), String> {
    let (traces, mut random) = (Traces::now(), Random::new(seed()));
    for kill in 0..kills {
        let number = random.next() >> 20;
        let world = job(number).spawn(2)?;
        let deadline = Instant::now() + LIMIT;
        while !(0..2).all(|rank| world.output(rank).contains("at work")) {
            assert!(Instant::now() < deadline, "kill {kill}, seed {number}: not at work");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = random.below(2) as usize;
        world.signal(victim, 9);
        let ranks = world.wait(LIMIT)?;
        let other = &ranks[1 - victim];
        assert_eq!(other.kind, PEER_FAILED, "kill {kill}, seed {number}:\n{}", report(&ranks));
        assert!(other.errors.contains(&format!("rank {victim}")), "{}", report(&ranks));
    }
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}
