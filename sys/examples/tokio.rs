//! Messages in an event loop: an endpoint and other tasks share one thread of `tokio`, and none of them polls.
//!
//! ```sh
//! cargo build --release --example tokio
//! cargo run --release -- run -n 2 -- target/release/examples/tokio
//! ```
//!
//! Rank 0 sends a number, rank 1 sends back its successor, and so on. Meanwhile another task of each process
//! counts how often it runs. It would never run if a wait for a message blocked the thread.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nemesia::{AsyncEndpoint, Config, Endpoint, Source, Tag};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const TRIPS: u64 = 200;
const TAG: u64 = 7;

/// Moves the messages of the endpoint, as a task. The operations of the other tasks need no `unsafe`.
async fn drive(endpoint: AsyncEndpoint) -> Result<(), Box<dyn Error + Send + Sync>> {
    // SAFETY: the descriptor stays the same, and stays open until it is dropped: the rule of tokio for descriptors.
    let fd = unsafe { AsyncFd::register_with_interest(endpoint.event_fd()?, Interest::READABLE) }?;
    let readable = || async {
        fd.readable().await?.clear_ready();
        Ok(())
    };
    Ok(endpoint.drive(readable).await?)
}

async fn send(endpoint: &AsyncEndpoint, to: usize, number: u64) -> Result<(), nemesia::Error> {
    endpoint.send(to, TAG, number.to_le_bytes().to_vec()).await.0.map(drop)
}

async fn recv(endpoint: &AsyncEndpoint, from: usize) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let (received, bytes) = endpoint.recv(Source::Rank(from), Tag::Exactly(TAG), vec![0; 8]).await;
    received?;
    Ok(u64::from_le_bytes(bytes.as_slice().try_into()?))
}

/// Runs the exchange of both ranks. Returns the last number.
async fn talk(endpoint: &AsyncEndpoint, rank: usize) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let mut number = 0;
    for _ in 0..TRIPS {
        if rank == 0 {
            send(endpoint, 1, number).await?;
            number = recv(endpoint, 1).await?;
        } else {
            number = recv(endpoint, 0).await? + 1;
            // Occasionally the other side waits for a while.
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            send(endpoint, 0, number).await?;
        }
    }
    Ok(number)
}

/// Another task, which runs every millisecond.
async fn count(turns: Arc<AtomicU64>) {
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> ExitCode {
    match count_up() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error returned from `main` would be printed in its debug form, without the line that names the
            // remedy.
            let _ = writeln!(std::io::stderr(), "tokio: {error}");
            ExitCode::FAILURE
        }
    }
}

fn count_up() -> Result<(), Box<dyn Error + Send + Sync>> {
    let endpoint = Endpoint::open(&Config::from_env()?)?;
    if endpoint.size() != 2 {
        return Err("start two processes: nemesia run -n 2 -- PROGRAM".into());
    }
    let (rank, endpoint) = (endpoint.rank(), endpoint.into_async());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let turns = Arc::new(AtomicU64::new(0));
    let number = runtime.block_on(async {
        tokio::spawn(count(Arc::clone(&turns)));
        let driver = tokio::spawn(drive(endpoint.clone()));
        let number = talk(&endpoint, rank).await?;
        endpoint.close()?;
        // The driver returns because the endpoint is closed.
        driver.await??;
        Ok::<_, Box<dyn Error + Send + Sync>>(number)
    })?;
    let turns = turns.load(Ordering::Relaxed);
    writeln!(std::io::stdout(), "rank {rank}: {number} after {TRIPS} trips, {turns} turns of another task")?;
    Ok(())
}
