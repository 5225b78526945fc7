//! Messages in allocated memory: they are copied through mappings, whatever becomes of the memory.

use nemesia_tests::job::{Job, report};
use nemesia_tests::kills::one_of_two_is_killed;
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn job(args: &str) -> Job {
    Job::new(PEER, SCRATCH, args)
}

/// Returns the numbers that a rank reported: messages pulled and assisted, parts pushed, messages streamed.
fn counts(output: &str) -> Option<[u64; 4]> {
    let line = output.lines().find(|line| line.contains(" pulled, "))?;
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

#[test]
fn messages_in_allocated_memory_arrive_at_every_size_and_offset() -> Result<(), String> {
    let seed = seed();
    job(&format!("allocated {seed} 0")).succeed(2)?;
    job(&format!("allocated {seed} 0")).env("NEMESIA_ASSIST_BYTES", "65536").succeed(2)?;
    let tiny = [("NEMESIA_CELLS", "4"), ("NEMESIA_FASTBOX_SLOTS", "4"), ("NEMESIA_CELL_BYTES", "256")];
    let tiny =
        tiny.into_iter().fold(job(&format!("allocated {seed} 0")), |job, (name, value)| job.env(name, value));
    tiny.succeed(2)?;
    // The kernel does not seal this memory, so that only what is lent for writing can be mapped.
    job(&format!("allocated {seed} 0")).env("NEMESIA_BACKING", "devshm").succeed(2).map(drop)
}

/// Without copies by the kernel, every message that is not streamed was copied through a mapping.
#[test]
fn allocated_memory_is_mapped_and_waiting_senders_write_only_what_is_lent_for_it() -> Result<(), String> {
    const NAME: &str = "allocated_memory_is_mapped_and_waiting_senders_write_only_what_is_lent_for_it";
    let job = job(&format!("allocated {} 1", seed())).env("NEMESIA_SINGLE_COPY", "off");
    let ranks = job.env("NEMESIA_ASSIST_BYTES", "65536").succeed(2)?;
    let mut pushed = 0;
    for rank in &ranks {
        let [pulled, assisted, parts, streamed] = counts(&rank.output).ok_or_else(|| report(&ranks))?;
        if pulled + assisted == 0 {
            skip(NAME, "regions can't be mapped here");
            return Ok(());
        }
        say(&format!("{pulled} pulled, {assisted} assisted, {parts} parts pushed, {streamed} streamed"));
        // Only messages that lie partly outside of a region.
        assert!(streamed <= 2 && pulled >= 20 && assisted >= 50, "{}", report(&ranks));
        pushed += parts;
    }
    assert!(pushed > 0, "no sender has written through a mapping\n{}", report(&ranks));
    Ok(())
}

#[test]
fn a_region_that_is_freed_during_a_message_lives_until_its_end() -> Result<(), String> {
    for copies in ["auto", "off"] {
        let ranks = job("allocated-freed").env("NEMESIA_SINGLE_COPY", copies).succeed(2)?;
        assert!(ranks.iter().all(|rank| rank.output.contains("all are freed")), "{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn memory_that_the_receiver_cannot_map_arrives_in_another_way() -> Result<(), String> {
    for copies in ["auto", "off"] {
        let ranks = job("allocated-replaced").env("NEMESIA_SINGLE_COPY", copies).succeed(2)?;
        let all = ranks.iter().all(|rank| rank.output.contains("all arrived without a mapping"));
        assert!(all, "{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn a_killed_process_ends_messages_in_its_allocated_memory() -> Result<(), String> {
    let count = if quick() { 5 } else { 30 };
    one_of_two_is_killed(count, |number| {
        job(&format!("allocated-crash {number}")).env("NEMESIA_ASSIST_BYTES", "65536")
    })?;
    say(&format!("{count} processes were killed during messages in their memory"));
    Ok(())
}
