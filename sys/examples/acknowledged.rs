//! The cost of immediate data and of acknowledged sends, by a ping-pong of two processes.
//!
//! ```sh
//! cargo build --release --example acknowledged
//! cargo run --release -- run -n 2 -- target/release/examples/acknowledged [BYTES]
//! ```
//!
//! Rank 0 prints the median time of one way in nanoseconds, for standard sends, sends with immediate data, and
//! synchronous sends, each of which waits until its receiver has the message. The kinds alternate in short batches, so
//! that a disturbance of the machine meets all of them.

use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use nemesia::{Config, Endpoint, SendOp, Source, Tag};

const BATCHES: usize = 101;
const TRIPS: usize = 2000;
const TAG: u64 = 7;
const KINDS: [(&str, Kind); 4] = [
    ("standard", Kind { immediate: None, synchronous: false }),
    ("immediate", Kind { immediate: Some(1), synchronous: false }),
    ("synchronous", Kind { immediate: None, synchronous: true }),
    ("both", Kind { immediate: Some(1), synchronous: true }),
];

#[derive(Clone, Copy)]
struct Kind {
    immediate: Option<u64>,
    synchronous: bool,
}

fn send(endpoint: &mut Endpoint, to: usize, bytes: &[u8], kind: Kind) -> Result<(), nemesia::Error> {
    let op = SendOp::new(to, TAG, bytes);
    match (kind.immediate, kind.synchronous) {
        (None, false) => endpoint.send(to, TAG, bytes),
        (None, true) => endpoint.send_op(op.synchronous()),
        (Some(immediate), false) => endpoint.send_op(op.immediate(immediate)),
        (Some(immediate), true) => endpoint.send_op(op.immediate(immediate).synchronous()),
    }
}

/// Returns the nanoseconds of one way.
fn batch(endpoint: &mut Endpoint, buf: &mut [u8], kind: Kind) -> Result<f64, Box<dyn Error>> {
    let peer = 1 - endpoint.rank();
    let start = Instant::now();
    for _ in 0..TRIPS {
        if endpoint.rank() == 0 {
            send(endpoint, peer, buf, kind)?;
        }
        let status = endpoint.recv(Source::Rank(peer), Tag::Exactly(TAG), buf)?;
        if status.immediate != kind.immediate {
            return Err(format!("received {status:?}").into());
        }
        if endpoint.rank() == 1 {
            send(endpoint, peer, buf, kind)?;
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = std::env::args().nth(1).map_or(Ok(8), |bytes| bytes.parse())?;
    let mut endpoint = Endpoint::open(&Config::from_env()?)?;
    if endpoint.size() != 2 {
        return Err("start two processes: nemesia run -n 2".into());
    }
    let mut buf = vec![0; bytes];
    let mut times = KINDS.map(|_| Vec::with_capacity(BATCHES));
    for _ in 0..BATCHES {
        for (times, (_, kind)) in times.iter_mut().zip(KINDS) {
            times.push(batch(&mut endpoint, &mut buf, kind)?);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[BATCHES / 2]
    });
    if endpoint.rank() == 0 {
        for ((name, _), median) in KINDS.iter().zip(medians) {
            let ratio = median / medians[0];
            writeln!(std::io::stdout(), "{name:12} {median:8.1} ns, {ratio:.2} times a standard send")?;
        }
    }
    endpoint.barrier()?;
    Ok(endpoint.close()?)
}
