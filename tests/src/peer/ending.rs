//! `leaves HOW`: rank 0 leaves its world by a panic (0), by an early return (1) or by closing (2); the other
//! ranks print what they observe. `flush OWN`: rank 1 changes memory of rank 0, waits until rank 0 has closed,
//! and flushes. The memory is rank 0's own (1) or allocated by Nemesia (0).

use std::time::{Duration, Instant};

use nemesia::{Access, Endpoint, Error, Failure, RemoteKey, Source, Tag};

use super::{Fault, Outcome, broken, ensure, open, tell};

pub(super) fn leaves(how: u64) -> Outcome {
    let mut endpoint = open()?;
    if endpoint.rank() > 0 {
        let outcome = endpoint.recv(Source::Rank(0), Tag::Any, &mut [0; 8]);
        let Err(Error::PeerFailed { rank: 0, failure, .. }) = &outcome else {
            return broken(format!("rank 0 has left, and this came: {outcome:?}"));
        };
        let wanted = if how == 2 { Failure::Finished } else { Failure::Dropped };
        ensure(*failure == wanted, || format!("{failure:?} instead of {wanted:?}"))?;
        tell(&outcome.map_or_else(|error| error.to_string(), |_| String::new()))?;
        return Ok(endpoint.close()?);
    }
    match how {
        0 => {
            // As after an uncaught panic, but without its exit status, which would end the other ranks.
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _endpoint = endpoint;
                std::panic::resume_unwind(Box::new("a program panics, as it should"));
            }));
            ensure(panicked.is_err(), || "it did not panic".into())
        }
        1 => match early(endpoint) {
            Err(Fault::Library(Error::Rank { .. })) => Ok(()),
            outcome => broken(format!("an early return with {outcome:?}")),
        },
        _ => Ok(endpoint.close()?),
    }
}

fn early(mut endpoint: Endpoint) -> Outcome {
    endpoint.send(usize::MAX, 0, &[])?;
    Ok(endpoint.close()?)
}

/// What each rank writes, and how often.
const PUTS: u64 = 20;

pub(super) fn flush(own: bool) -> Outcome {
    let endpoint = open()?;
    if endpoint.rank() == 0 { lend(endpoint, own) } else { change(endpoint) }
}

/// Lends memory until the last put has arrived, and closes at once.
fn lend(mut endpoint: Endpoint, own: bool) -> Outcome {
    let memory = vec![0_u8; 4096].leak();
    let region = match own {
        // SAFETY: the bytes live for ever, and nothing else uses them.
        true => unsafe { endpoint.expose(memory.as_mut_ptr(), memory.len(), Access::ReadWrite) }?,
        false => endpoint.allocate(4096, Access::ReadWrite)?,
    };
    let key = endpoint.remote_key(region)?;
    endpoint.send(1, 1, &key.to_bytes())?;
    endpoint.wait_notified(region, 1)?;
    let mut bytes = [0; 8];
    endpoint.read_region(region, 8 * (PUTS as usize - 1), &mut bytes)?;
    ensure(u64::from_le_bytes(bytes) == PUTS - 1, || format!("{bytes:?} came"))?;
    Ok(endpoint.close()?)
}

fn change(mut endpoint: Endpoint) -> Outcome {
    let mut key = [0; nemesia::KEY_BYTES];
    endpoint.recv(Source::Rank(0), Tag::Exactly(1), &mut key)?;
    let key = RemoteKey::from_bytes(0, &key).ok_or(Fault::Broken("that is no key".into()))?;
    for number in 0..PUTS - 1 {
        endpoint.put(&key, 8 * number, &number.to_le_bytes())?;
    }
    endpoint.put_notify(&key, 8 * (PUTS - 1), &(PUTS - 1).to_le_bytes())?;
    let begun = Instant::now();
    while endpoint.failure(0).is_none() {
        ensure(begun.elapsed() < Duration::from_secs(60), || "rank 0 does not leave".into())?;
        endpoint.progress();
    }
    endpoint.flush(0)?;
    endpoint.flush(0)?;
    endpoint.flush_all()?;
    // A put that was not executed is not done.
    let late = endpoint.put(&key, 0, &[1; 8]);
    ensure(matches!(late, Err(Error::PeerFailed { rank: 0, .. })), || {
        format!("put after the end: {late:?}")
    })?;
    Ok(endpoint.close()?)
}
