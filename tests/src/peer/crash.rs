//! Modes in which a rank is killed from outside.
//!
//! `crash SEED`: two ranks exchange messages for ever. `survive VICTIM ROUNDS`: two of three ranks continue.
//! `notice`: rank 0 waits for rank 2, which dies, and exchanges messages with rank 1 all the time.

use nemesia::{Endpoint, Error, Failure, Request, Source, Tag};
use nemesia_core::port::PortFault;

use super::{Arena, Fault, Outcome, broken, ensure, open, tell};
use crate::content::{Random, difference, filled, seed_of};

/// The activity of the endpoint when its peer dies.
#[derive(Clone, Copy, Debug)]
enum Activity {
    Both,
    Send,
    Receive,
    Poll,
    /// Several large messages each way at once.
    Flood,
}

const SIZES: [usize; 7] = [0, 8, 700, 5000, 40_000, 300_000, 3 << 20];
/// The messages under way in each direction of a flood: eager, announced, and large enough for a
/// sender-assisted copy.
const FLOOD: [usize; 6] = [3 << 20, 100, 70_000, 1 << 20, 8, 300_000];

/// Ends only by an error.
pub(super) fn run(seed: u64) -> Outcome {
    tell("start")?;
    // Outlives the endpoint.
    let mut arena = Arena::default();
    let mut endpoint = open()?;
    tell("open")?;
    let (partner, mut random) = (endpoint.rank() ^ 1, Random::new(seed));
    // A sending rank faces a receiving one.
    let activities = [Activity::Both, Activity::Send, Activity::Receive, Activity::Poll, Activity::Flood];
    let activity = match (activities[seed as usize % activities.len()], endpoint.rank()) {
        (Activity::Send, 1) => Activity::Receive,
        (Activity::Receive, 1) => Activity::Send,
        (activity, _) => activity,
    };
    for message in 0.. {
        let len = random.pick(&SIZES);
        if matches!(activity, Activity::Flood) {
            flood(&mut endpoint, &mut arena, partner, message)?;
            continue;
        }
        turn(&mut endpoint, partner, activity, message, len)?;
    }
    Ok(())
}

fn turn(endpoint: &mut Endpoint, partner: usize, activity: Activity, message: u64, len: usize) -> Outcome {
    let rank = endpoint.rank() as u64;
    let content = |from: u64| seed_of(&[from, message]);
    let tag = Tag::Exactly(message);
    let mut buf = vec![0; len];
    match activity {
        Activity::Send => endpoint.send(partner, message, &filled(content(rank), len))?,
        Activity::Receive => {
            endpoint.recv(Source::Rank(partner), tag, &mut buf)?;
        }
        Activity::Both | Activity::Poll | Activity::Flood => {
            let out = filled(content(rank), len);
            let (from, into, poll) = (&out, &mut buf, matches!(activity, Activity::Poll));
            endpoint.scope(move |scope| {
                let receive = scope.irecv(Source::Rank(partner), tag, into)?;
                let send = scope.isend(partner, message, from)?;
                while poll && scope.test(receive)?.is_none() {}
                if !poll {
                    scope.wait(receive)?;
                }
                scope.wait(send).map(drop)
            })?;
        }
    }
    if !matches!(activity, Activity::Send)
        && let Some(at) = difference(content(partner as u64), &buf)
    {
        return broken(format!("message {message}: wrong at byte {at} of {len}"));
    }
    Ok(())
}

/// Exchanges large messages in both directions at once; the receives of every other one are posted late. Every
/// complete message must be intact, although the partner dies before the rest is complete.
fn flood(endpoint: &mut Endpoint, arena: &mut Arena, partner: usize, message: u64) -> Outcome {
    let mut open = Vec::new();
    let mut outcome = start_flood(endpoint, arena, partner, message, &mut open);
    for (request, expected) in open {
        match (endpoint.wait(request), expected) {
            (Ok(status), Some((content, at))) => {
                let got = arena.bytes(at);
                let wrong = difference(content, got);
                ensure(status.len == got.len() && wrong.is_none(), || {
                    format!("flood {message}: wrong at byte {wrong:?} of {}", got.len())
                })?;
            }
            (Ok(_), None) => {}
            (Err(error), _) => outcome = outcome.and(Err(error.into())),
        }
    }
    ensure(arena.intact(), || format!("flood {message}: bytes beside a buffer"))?;
    arena.0.clear();
    outcome
}

/// Starts as many as possible. For each receive, records the expected content and the place in the arena.
fn start_flood(
    endpoint: &mut Endpoint,
    arena: &mut Arena,
    partner: usize,
    message: u64,
    open: &mut Vec<(Request, Option<(u64, usize)>)>,
) -> Outcome {
    let content = |from: usize, at: usize| seed_of(&[from as u64, message, at as u64]);
    let tag = |at: usize| message << 8 | at as u64;
    let every = |half: usize| (half..FLOOD.len()).step_by(2);
    let rank = endpoint.rank();
    for at in every(0) {
        let posted = arena.irecv(endpoint, Source::Rank(partner), Tag::Exactly(tag(at)), FLOOD[at])?;
        open.push((posted, Some((content(partner, at), arena.0.len() - 1))));
    }
    for (at, len) in FLOOD.iter().enumerate() {
        let sent = arena.isend(endpoint, partner, tag(at), &filled(content(rank, at), *len))?;
        open.push((sent, None));
    }
    for at in every(1) {
        let posted = arena.irecv(endpoint, Source::Rank(partner), Tag::Exactly(tag(at)), FLOOD[at])?;
        open.push((posted, Some((content(partner, at), arena.0.len() - 1))));
    }
    Ok(())
}

/// The victim exchanges messages with each survivor, and the survivors with each other, in lock-step. The
/// victim must be killed; then the survivors exchange `rounds` rounds more.
pub(super) fn survive(victim: usize, rounds: u64) -> Outcome {
    let mut endpoint = open()?;
    tell("open")?;
    let rank = endpoint.rank();
    if rank == victim {
        for message in 0.. {
            for other in (0..3).filter(|other| *other != victim) {
                turn(&mut endpoint, other, Activity::Both, message, SIZES[message as usize % 5])?;
            }
        }
    }
    let other = 3 - rank - victim;
    let (mut alone, mut left) = (false, rounds);
    for message in 0_u64.. {
        // Both survivors are informed in the same round that both know of the death.
        let mine = [u8::from(alone)];
        let mut theirs = [0];
        endpoint.send(other, message, &mine)?;
        endpoint.recv(Source::Rank(other), Tag::Exactly(message), &mut theirs)?;
        if alone && theirs == mine {
            if left == 0 {
                break;
            }
            left -= 1;
            turn(&mut endpoint, other, Activity::Both, message | 1 << 32, SIZES[message as usize % 5])?;
        }
        if !alone {
            alone = bereaved(&mut endpoint, victim, message)?;
        }
    }
    tell(&format!("rank {rank}: {rounds} rounds without rank {victim}"))?;
    Ok(endpoint.close()?)
}

/// Returns whether a failure of this rank means that its process died. Over shared memory the kernel reports the death;
/// over a network the connection is lost. If there was none yet, the kernel of its machine reports over TCP that
/// nothing listens at its address.
fn is_death(endpoint: &Endpoint, rank: usize, failure: Failure) -> bool {
    let explanation = endpoint.explain();
    let transport = explanation.routes.get(rank).map(|route| route.transport);
    match failure {
        Failure::Died => matches!(transport, Some("shm" | "tcp")),
        Failure::Unreachable => transport == Some("tcp"),
        Failure::Fault(PortFault::Lost(_) | PortFault::Work(_)) => matches!(transport, Some("tcp" | "verbs")),
        _ => false,
    }
}

/// Returns whether the victim has died by now. If so, checks that the required errors come, and end when
/// acknowledged.
fn bereaved(endpoint: &mut Endpoint, victim: usize, message: u64) -> Outcome<bool> {
    match turn(endpoint, victim, Activity::Both, message, SIZES[message as usize % 5]) {
        Ok(()) => return Ok(false),
        Err(Fault::Library(Error::PeerFailed { rank, failure, .. }))
            if rank == victim && is_death(endpoint, victim, failure) => {}
        Err(fault) => return Err(fault),
    }
    let of_victim = |outcome: &Result<(), Error>| match outcome {
        Err(Error::PeerFailed { rank, .. }) => *rank == victim,
        _ => false,
    };
    let send = endpoint.send(victim, 0, &[]);
    ensure(of_victim(&send), || format!("a send to the dead: {send:?}"))?;
    let never = Tag::Exactly(u64::MAX);
    let any = endpoint.recv(Source::Any, never, &mut []).map(drop);
    ensure(of_victim(&any), || format!("a receive from anybody, before the acknowledgement: {any:?}"))?;
    endpoint.acknowledge_failures();
    let mut arena = Arena::default();
    let any = arena.irecv(endpoint, Source::Any, never, 8)?;
    let open = endpoint.test(any)?.is_none();
    ensure(open && endpoint.cancel(any), || "a receive from anybody, after the acknowledgement".into())?;
    let _ = endpoint.test(any); // frees its slot
    let dead = endpoint.recv(Source::Rank(victim), never, &mut []).map(drop);
    ensure(of_victim(&dead), || format!("a receive from the dead: {dead:?}"))?;
    Ok(true)
}

/// Rank 0 posts a receive from rank 2, which dies without a message. Rank 0 continues to exchange messages with
/// rank 1 by blocking calls until it has detected the death, without ever waiting for rank 2.
pub(super) fn notice() -> Outcome {
    let mut endpoint = open()?;
    let mut arena = Arena::default();
    let (stop, go) = (Tag::Exactly(1), Tag::Exactly(2));
    match endpoint.rank() {
        0 => {
            let from_dead = arena.irecv(&mut endpoint, Source::Rank(2), go, 8)?;
            endpoint.send(2, 2, &[])?;
            while endpoint.failure(2).is_none() {
                endpoint.send(1, 1, &[1])?;
                endpoint.recv(Source::Rank(1), stop, &mut [0])?;
            }
            endpoint.send(1, 1, &[0])?;
            let death = endpoint.wait(from_dead);
            let named = matches!(death, Err(Error::PeerFailed { rank: 2, failure, .. })
                if is_death(&endpoint, 2, failure));
            ensure(named, || format!("{death:?}"))?;
        }
        1 => loop {
            let mut more = [0];
            endpoint.recv(Source::Rank(0), stop, &mut more)?;
            if more == [0] {
                break;
            }
            endpoint.send(0, 1, &more)?;
        },
        _ => {
            endpoint.recv(Source::Rank(0), go, &mut [])?;
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }
    Ok(endpoint.close()?)
}
