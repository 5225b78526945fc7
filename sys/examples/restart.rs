//! A rank that dies and is restarted: the other ranks readmit it and go on.
//!
//! ```sh
//! cargo build --release --example restart
//! cargo run --release -- run -n 3 --restart 1 --prefix -- target/release/examples/restart
//! ```
//!
//! Each rank adds up the words of the others, round by round. In its first life the last rank kills itself
//! after some rounds. In its second life it asks rank 0 for the number of the present round, and goes on from
//! there.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use nemesia::{Config, Endpoint, Source, Tag};

const ROUNDS: u64 = 10;
/// The last rank dies in this round.
const DEADLY: u64 = 4;
/// The tag of the number of the next round.
const NEXT: u64 = 1 << 32;

fn main() -> ExitCode {
    match add_up_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error returned from `main` would be printed in its debug form, without the line that names the
            // remedy.
            let _ = writeln!(std::io::stderr(), "restart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn add_up_all() -> Result<(), Box<dyn Error>> {
    let mut endpoint = Endpoint::open(&Config::from_env()?)?;
    if endpoint.size() < 2 {
        return Err("start several processes: nemesia run -n 3 --restart 1 -- PROGRAM".into());
    }
    let (rank, last) = (endpoint.rank(), endpoint.size() - 1);
    let mut round = 0;
    if endpoint.incarnation() > 0 {
        // Waits until rank 0 has readmitted this process.
        let mut next = [0; 8];
        endpoint.recv(Source::Rank(0), Tag::Exactly(NEXT), &mut next)?;
        round = u64::from_le_bytes(next);
        say(&format!("rank {rank}: back as incarnation {}, in round {round}", endpoint.incarnation()))?;
    }
    while round < ROUNDS {
        if rank == last && round == DEADLY && endpoint.incarnation() == 0 {
            say(&format!("rank {rank}: dies in round {round}"))?;
            std::process::abort();
        }
        let sum = add_up(&mut endpoint, round);
        // All ranks agree on whether all have completed the round.
        let agreed = endpoint.agree(u64::from(sum.is_ok()))?;
        if agreed.flags == 1 && agreed.gone.is_empty() {
            say(&format!("rank {rank}: round {round}, sum {}", sum?))?;
            round += 1;
            continue;
        }
        for gone in agreed.gone {
            // Until the new process has joined, operations with it fail.
            while !endpoint.wait_restarted(None)?.contains(&gone) {}
            endpoint.readmit(gone)?;
            if rank == 0 {
                endpoint.send(gone, NEXT, &round.to_le_bytes())?;
            }
        }
        // The round is repeated.
    }
    Ok(endpoint.close()?)
}

/// Adds up the words of all ranks in a round. The rank exchanges words with every other rank, even if one is
/// gone, because the others wait for it.
fn add_up(endpoint: &mut Endpoint, round: u64) -> Result<u64, nemesia::Error> {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let word = rank as u64 + round;
    let mut sum = Ok(word);
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        let reported = endpoint.send(to, round, &word.to_le_bytes());
        let mut word = [0; 8];
        let heard = endpoint.recv(Source::Rank(from), Tag::Exactly(round), &mut word);
        sum = reported.and(heard).and_then(|_| Ok(sum? + u64::from_le_bytes(word)));
    }
    sum
}

fn say(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
