//! `replies`: rank 1 sends requests for ever and takes no reply; the test stops and kills it. Rank 2 sends
//! requests too, and all of them are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nemesia::{Endpoint, Error, Source, Tag};

use super::{Outcome, broken, ensure, open, tell};

const ASK: u16 = 1;
const ANSWER: u16 = 2;
const GO: u64 = 1;
const END: u64 = 2;
const QUESTIONS: usize = 500;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run() -> Outcome {
    let mut endpoint = open()?;
    match endpoint.rank() {
        0 => answer(&mut endpoint)?,
        1 => return ask_for_ever(&mut endpoint),
        _ => ask(&mut endpoint)?,
    }
    // A regular end would wait for rank 1 to take its replies.
    std::process::exit(0)
}

/// Answers all ranks until rank 2 has received all its answers.
fn answer(endpoint: &mut Endpoint) -> Outcome {
    let refused: Arc<[AtomicUsize; 3]> = Arc::default();
    let counts = Arc::clone(&refused);
    endpoint.set_handler(ASK, move |message| {
        let payload = message.payload().to_vec();
        if let Err(Error::Replies { .. }) = message.reply(ANSWER, &[], &payload) {
            counts[message.from()].fetch_add(1, Relaxed);
        }
    });
    let deadline = Instant::now() + LIMIT;
    while refused[1].load(Relaxed) == 0 {
        endpoint.progress();
        ensure(Instant::now() < deadline, || "rank 1 takes its replies".into())?;
    }
    tell("rank 1 takes no replies")?;
    endpoint.send(2, GO, &[])?;
    endpoint.recv(Source::Rank(2), Tag::Exactly(END), &mut [])?;
    let count = refused[2].load(Relaxed);
    ensure(count == 0, || format!("{count} replies to rank 2 were refused"))
}

/// Sends requests, and makes no progress in between, because progress would take replies.
fn ask_for_ever(endpoint: &mut Endpoint) -> Outcome {
    loop {
        for _ in 0..20 {
            // SAFETY: the bytes are static.
            let asked = unsafe { endpoint.isend_active(0, ASK, &raw const *b"", &raw const *b"question") };
            // This fails only if rank 0 was not scheduled for long: it has not received the last requests.
            match asked.and_then(|request| endpoint.wait(request)) {
                Ok(_) => {}
                Err(Error::PeerFailed { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one request after the other, each when the previous one has been answered.
fn ask(endpoint: &mut Endpoint) -> Outcome {
    let answers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answers);
    endpoint.set_handler(ANSWER, move |_| {
        count.fetch_add(1, Relaxed);
    });
    endpoint.recv(Source::Rank(0), Tag::Exactly(GO), &mut [])?;
    for number in 0..QUESTIONS {
        endpoint.send_active(0, ASK, &[], b"question")?;
        let deadline = Instant::now() + LIMIT;
        while answers.load(Relaxed) == number {
            endpoint.progress();
            if Instant::now() > deadline {
                return broken(format!("question {number} is not answered"));
            }
        }
    }
    endpoint.send(0, END, &[])?;
    tell("all is answered")
}
