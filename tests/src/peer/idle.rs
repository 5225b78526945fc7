//! Waiting. `idle MILLISECONDS`: rank 1 keeps all others waiting for this time; each reports the cost of its waiting.
//! `woken COUNT WAKER`: the rank WAKER sends to rank 0 when rank 0 sleeps, until so many messages have ended a sleep.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nemesia::{Arm, Endpoint, Error, Source, Tag};

use super::{Outcome, broken, ensure, open, tell};

/// How long nothing comes at first: longer than any sleep.
const SILENCE: Duration = Duration::from_millis(500);
/// The most messages of `woken`: a sleep may end by its time limit just before its message comes.
const MOST_ROUNDS: u64 = 5000;
const MESSAGE: u64 = 1;
const MORE: u64 = 2;
/// The limit of a wait for the other process.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(millis: u64) -> Outcome {
    let mut endpoint = open()?;
    if endpoint.rank() == 1 {
        std::thread::sleep(Duration::from_millis(millis));
        for rank in (0..endpoint.size()).filter(|rank| *rank != 1) {
            endpoint.send(rank, 1, &[])?;
        }
    } else {
        let (start, before) = (Instant::now(), processor_time()?);
        endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut [])?;
        let (passed, spent) = (start.elapsed(), processor_time()?.saturating_sub(before));
        tell(&format!("{:.2}", 100.0 * spent.as_secs_f64() / passed.as_secs_f64()))?;
    }
    Ok(endpoint.close()?)
}

/// Returns the processor time of this process so far, user and system.
fn processor_time() -> Outcome<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure, which lives here.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return broken("getrusage failed");
    }
    // SAFETY: filled, since the call succeeded.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

pub(super) fn woken(count: u64, waker: usize) -> Outcome {
    let mut endpoint = open()?;
    match endpoint.rank() {
        0 => sleep(&mut endpoint, count, waker)?,
        rank if rank == waker => wake(&mut endpoint)?,
        _ => {}
    }
    Ok(endpoint.close()?)
}

/// Sleeps until so many messages have ended a sleep. Asks for each message.
fn sleep(endpoint: &mut Endpoint, count: u64, waker: usize) -> Outcome {
    endpoint.send(waker, MESSAGE, &std::process::id().to_ne_bytes())?;
    // Until a sleep has lasted: on a busy machine polls and yields alone may take all of the time.
    let begun = Instant::now();
    loop {
        let silent = endpoint.in_context(0).probe_timeout(Source::Rank(waker), Tag::Any, SILENCE);
        ensure(matches!(silent, Err(Error::Timeout(_))), || {
            format!("nothing was sent, and this came: {silent:?}")
        })?;
        let waits = endpoint.counters().waits;
        if waits.sleeps > waits.sleeps_woken {
            break;
        }
        // A descriptor that is readable without a reason would end every sleep at once.
        ensure(begun.elapsed() < LIMIT, || format!("no sleep lasted: {waits:?}"))?;
    }
    let (mut rounds, mut ended) = (0, 0);
    while ended < count {
        ensure(rounds < MOST_ROUNDS, || format!("{ended} of {rounds} messages ended a sleep"))?;
        rounds += 1;
        endpoint.send(waker, MORE, &[1])?;
        let woken = endpoint.counters().waits.sleeps_woken;
        if rounds % 4 == 0 {
            wait_in_a_loop(endpoint, waker)?;
        }
        endpoint.recv(Source::Rank(waker), Tag::Exactly(MESSAGE), &mut [])?;
        ended += u64::from(endpoint.counters().waits.sleeps_woken > woken);
    }
    endpoint.send(waker, MORE, &[0])?;
    tell(&format!("{ended} of {rounds} messages ended a sleep"))
}

/// Waits for a message as a program with an event loop does.
fn wait_in_a_loop(endpoint: &mut Endpoint, waker: usize) -> Outcome {
    let begun = Instant::now();
    while endpoint.iprobe(Source::Rank(waker), Tag::Exactly(MESSAGE))?.is_none() {
        ensure(begun.elapsed() < LIMIT, || "no message came".into())?;
        if endpoint.arm() == Arm::Armed {
            let fd = endpoint.event_fd()?.as_raw_fd();
            let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the kernel fills one entry, which lives here. A signal only ends the wait earlier.
            unsafe { libc::poll(&raw mut asked, 1, LIMIT.as_millis() as i32) };
        }
    }
    Ok(())
}

/// Sends each message that rank 0 asks for, as soon as rank 0 sleeps.
fn wake(endpoint: &mut Endpoint) -> Outcome {
    let mut pid = [0; 4];
    endpoint.recv(Source::Rank(0), Tag::Exactly(MESSAGE), &mut pid)?;
    let process = format!("/proc/{}/stat", u32::from_ne_bytes(pid));
    let mut more = [0];
    loop {
        endpoint.recv(Source::Rank(0), Tag::Exactly(MORE), &mut more)?;
        if more == [0] {
            return Ok(());
        }
        let begun = Instant::now();
        while !is_asleep(&process)? {
            ensure(begun.elapsed() < LIMIT, || "rank 0 never sleeps".into())?;
            std::thread::yield_now();
        }
        endpoint.send(0, MESSAGE, &[])?;
    }
}

/// Returns whether a process sleeps, from its file `stat`.
fn is_asleep(stat: &str) -> Outcome<bool> {
    let text = std::fs::read_to_string(stat)?;
    // The name before the state may contain anything, also a parenthesis.
    Ok(text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S')))
}
