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

use nemesia::{Config, Endpoint, SendOptions, Source, Tag};

const BATCHES: usize = 101;
const TRIPS: usize = 2000;
const TAG: u64 = 7;
const KINDS: [(&str, SendOptions); 4] = [
    ("standard", SendOptions { immediate: None, synchronous: false }),
    ("immediate", SendOptions { immediate: Some(1), synchronous: false }),
    ("synchronous", SendOptions { immediate: None, synchronous: true }),
    ("both", SendOptions { immediate: Some(1), synchronous: true }),
];

fn send(
    endpoint: &mut Endpoint,
    to: usize,
    bytes: &[u8],
    options: SendOptions,
) -> Result<(), nemesia::Error> {
    if options == SendOptions::default() {
        return endpoint.send(to, TAG, bytes);
    }
    endpoint.send_with(to, TAG, bytes, options)
}

/// Returns the nanoseconds of one way.
fn batch(endpoint: &mut Endpoint, buf: &mut [u8], options: SendOptions) -> Result<f64, Box<dyn Error>> {
    let peer = 1 - endpoint.rank();
    let start = Instant::now();
    for _ in 0..TRIPS {
        if endpoint.rank() == 0 {
            send(endpoint, peer, buf, options)?;
        }
        let status = endpoint.recv(Source::Rank(peer), Tag::Exactly(TAG), buf)?;
        if status.immediate != options.immediate {
            return Err(format!("received {status:?}").into());
        }
        if endpoint.rank() == 1 {
            send(endpoint, peer, buf, options)?;
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
        for (times, (_, options)) in times.iter_mut().zip(KINDS) {
            times.push(batch(&mut endpoint, &mut buf, options)?);
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
