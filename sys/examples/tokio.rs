//! Messages in an event loop: an endpoint and other tasks share one thread of `tokio`, and none of them polls.
//!
//! ```sh
//! cargo build --release --example tokio
//! cargo run --release -- run -n 2 -- target/release/examples/tokio
//! ```
//!
//! Rank 0 sends a number, rank 1 sends back its successor, and so on. Meanwhile another task of each process
//! counts how often it runs. It would never run if a wait for a message blocked the thread.

use std::cell::Cell;
use std::error::Error;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use nemesia::{Arm, Config, Endpoint, Request, Source, Status, Tag};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

const TRIPS: u64 = 200;
const TAG: u64 = 7;

/// An endpoint with its descriptor in the loop.
struct Evented {
    endpoint: Endpoint,
    fd: AsyncFd<OwnedFd>,
    // The buffers are in this structure, after the endpoint, and not in the functions below: a future can be
    // dropped while its request is in progress, and the bytes must then still exist.
    out: Box<[u8; 8]>,
    into: Box<[u8; 8]>,
}

impl Evented {
    fn new(mut endpoint: Endpoint) -> Result<Self, Box<dyn Error>> {
        let fd = endpoint.event_fd()?.try_clone_to_owned()?;
        // SAFETY: the descriptor stays the same, and stays open until it is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self { endpoint, fd, out: Box::default(), into: Box::default() })
    }

    /// Waits for a request while other tasks run.
    async fn complete(&mut self, request: Request) -> Result<Status, Box<dyn Error>> {
        loop {
            if let Some(status) = self.endpoint.test(request)? {
                return Ok(status);
            }
            // In this order: any event after arming makes the descriptor readable.
            if self.endpoint.arm() == Arm::Armed {
                self.fd.readable().await?.clear_ready();
            }
        }
    }

    async fn send(&mut self, to: usize, number: u64) -> Result<(), Box<dyn Error>> {
        *self.out = number.to_le_bytes();
        // SAFETY: the bytes outlive the endpoint, and nothing writes them until the next send.
        let request = unsafe { self.endpoint.isend(to, TAG, self.out.as_ptr(), self.out.len()) }?;
        self.complete(request).await.map(drop)
    }

    async fn recv(&mut self, from: usize) -> Result<u64, Box<dyn Error>> {
        let (base, len) = (self.into.as_mut_ptr(), self.into.len());
        // SAFETY: the bytes outlive the endpoint, and are read when the request is complete.
        let request = unsafe { self.endpoint.irecv(Source::Rank(from), Tag::Exactly(TAG), base, len) }?;
        self.complete(request).await?;
        Ok(u64::from_le_bytes(*self.into))
    }
}

/// Runs the exchange of both ranks. Returns the last number.
async fn talk(evented: &mut Evented) -> Result<u64, Box<dyn Error>> {
    let (rank, mut number) = (evented.endpoint.rank(), 0);
    for _ in 0..TRIPS {
        if rank == 0 {
            evented.send(1, number).await?;
            number = evented.recv(1).await?;
        } else {
            number = evented.recv(0).await? + 1;
            // Occasionally the other side waits for a while.
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            evented.send(0, number).await?;
        }
    }
    Ok(number)
}

/// Another task, which runs every millisecond.
async fn count(turns: Rc<Cell<u64>>) {
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        turns.set(turns.get() + 1);
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

fn count_up() -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::open(&Config::from_env()?)?;
    if endpoint.size() != 2 {
        return Err("start two processes: nemesia run -n 2 -- PROGRAM".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (tasks, turns) = (LocalSet::new(), Rc::new(Cell::new(0)));
    tasks.spawn_local(count(Rc::clone(&turns)));
    let (number, endpoint) = tasks.block_on(&runtime, async {
        let mut evented = Evented::new(endpoint)?;
        let number = talk(&mut evented).await?;
        Ok::<_, Box<dyn Error>>((number, evented.endpoint))
    })?;
    let (rank, turns) = (endpoint.rank(), turns.get());
    writeln!(std::io::stdout(), "rank {rank}: {number} after {TRIPS} trips, {turns} turns of another task")?;
    Ok(endpoint.close()?)
}
