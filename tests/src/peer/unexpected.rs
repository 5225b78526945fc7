//! `unexpected HOW`: messages that the receiver does not want yet, and receives that no message satisfies.
//!
//! | HOW | what |
//! |---|---|
//! | 0 | Rank 0 tests for the last message until it has come: the ceiling grows, and the memory with it. |
//! | 1 | Rank 0 waits for the last message at the ceiling, gets the error, and then receives the others first. |
//! | 2 | Rank 0 gives up instead, and the sender ends with it. |
//! | 3 | Rank 0 leaves everything, and the sender's close names it. |
//! | 4 | A receive from any source outlives all other ranks. |

use std::time::Duration;

use nemesia::{Endpoint, Error, Source, Tag};

use super::{Fault, Outcome, broken, ensure, open, tell};

/// Messages of one unit of 64 bytes each: 1.9 MiB.
const MANY: u64 = 30_000;
const LAST: u64 = u64::MAX;
/// Between two looks at a peer that is waited for.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn run(how: u64) -> Outcome {
    let before = resident()?;
    let mut endpoint = open()?;
    let opened = resident()?.saturating_sub(before);
    ensure(opened < 16 << 20, || format!("opening took {opened} bytes, with a ceiling of 64 MiB"))?;
    match (how, endpoint.rank()) {
        (4, 0) => outlive(endpoint),
        (4, 1) => Ok(()),
        (4, _) => Ok(endpoint.close()?),
        (_, 0) => receive(endpoint, how, opened),
        (3, _) => close_at_the_ceiling(endpoint),
        (_, _) => send(&mut endpoint, how).and_then(|()| Ok(endpoint.close()?)),
    }
}

/// Returns the bytes of private memory that are present.
fn resident() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kibibytes.map(|count| count << 10).ok_or_else(|| Fault::Broken("/proc/self/status has no RssAnon".into()))
}

fn send(endpoint: &mut Endpoint, how: u64) -> Outcome {
    for number in (0..MANY).chain([LAST]) {
        match endpoint.send(0, number, &number.to_le_bytes()) {
            Err(Error::PeerFailed { rank: 0, .. }) if how == 2 => return tell("rank 0 has given up"),
            sent => sent?,
        }
    }
    ensure(how != 2, || "every message had room".into())
}

fn receive(mut endpoint: Endpoint, how: u64, opened: u64) -> Outcome {
    let from = Source::Rank(1);
    let mut got = [0; 8];
    let mut next = 0;
    match how {
        0 => {
            let buf = got.as_mut_ptr();
            // SAFETY: the buffer lives, unused, until the request is complete.
            let last = unsafe { endpoint.irecv(from, Tag::Exactly(LAST), buf, 8) }?;
            while endpoint.test(last)?.is_none() {}
            ensure(got == LAST.to_le_bytes(), || "wrong bytes".into())?;
            let now = resident()?.saturating_sub(opened);
            ensure(now > MANY * 64, || format!("{now} bytes for {MANY} messages"))?;
        }
        3 => {
            while endpoint.failure(1).is_none() {
                endpoint.progress();
                // For half a minute nothing else happens.
                std::thread::sleep(PAUSE);
            }
            return Ok(());
        }
        _ => loop {
            match endpoint.recv(from, Tag::Exactly(LAST), &mut got) {
                Ok(_) => break,
                Err(error @ Error::Unexpected { .. }) => {
                    tell(&format!("full: {error}"))?;
                    if how == 2 {
                        return Ok(());
                    }
                    for number in next..(next + 5000).min(MANY) {
                        endpoint.recv(from, Tag::Exactly(number), &mut got)?;
                    }
                    next = (next + 5000).min(MANY);
                }
                Err(error) => return Err(error.into()),
            }
        },
    }
    for number in (next..MANY).rev() {
        endpoint.recv(from, Tag::Exactly(number), &mut got)?;
        ensure(got == number.to_le_bytes(), || format!("message {number} has other bytes"))?;
    }
    Ok(endpoint.close()?)
}

fn close_at_the_ceiling(mut endpoint: Endpoint) -> Outcome {
    let bytes = [1; 8];
    // Three times as many as there is room for.
    for _ in 0..3000 {
        // SAFETY: the bytes outlive the endpoint.
        let _ = unsafe { endpoint.isend(0, 1, bytes.as_ptr(), 8) }?;
    }
    let held = |endpoint: &Endpoint| endpoint.peer_counters(0).is_some_and(|it| it.credit_holds > 0);
    while !held(&endpoint) {
        endpoint.progress();
    }
    match endpoint.close() {
        Err(error @ Error::Held { rank: 0, .. }) => tell(&format!("held: {error}")),
        closed => broken(format!("the close was {closed:?}")),
    }
}

fn outlive(mut endpoint: Endpoint) -> Outcome {
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let any = unsafe { endpoint.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }?;
    while (1..endpoint.size()).any(|rank| endpoint.failure(rank).is_none()) {
        let now = endpoint.test(any)?;
        ensure(now.is_none(), || "a message has come from nowhere".into())?;
    }
    ensure(endpoint.test(any)?.is_none(), || "it is complete".into())?;
    endpoint.send(0, 7, b"my own 8")?;
    let status = endpoint.wait(any)?;
    ensure((status.rank, &got) == (0, b"my own 8"), || format!("{status:?}"))?;
    Ok(endpoint.close()?)
}
