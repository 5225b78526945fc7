//! Worlds of four ranks on two hosts that connect on demand: ranks 0 and 1 share a host, and ranks 2 and 3.
//!
//! `demand`: ranks 0 and 2 talk, and later all; each rank counts its connections between the hosts. `demand-ends HOW`:
//! rank 3 closes (0), drops its endpoint (1) or is killed (2) before a rank of the other host has met it.
//! `demand-apart`: no rank reaches the other host.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nemesia::{Config, Endpoint, Error, Failure, Source, Tag};

use super::{Outcome, all_to_all, barrier, broken, ensure, open};

const CROSSING: u64 = 1;
const CHECK: u64 = 2;
const CHECKED: u64 = 3;
const GO: u64 = 4;
const LEFT: u64 = 5;
const BARRIER: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the number of connections over TCP that this process has accepted, made or inherited.
fn connections() -> Outcome<usize> {
    sockets("01")
}

/// Returns the number of sockets over TCP at which this process listens.
pub(super) fn listeners() -> Outcome<usize> {
    sockets("0A")
}

/// Returns the number of sockets over TCP in this state that this process has.
fn sockets(state: &str) -> Outcome<usize> {
    let table = std::fs::read_to_string("/proc/self/net/tcp")?;
    let socket = |line: &str| {
        let mut fields = line.split_whitespace().skip(3);
        let is_so = fields.next()? == state;
        fields.nth(5).filter(|_| is_so).map(|inode| format!("socket:[{inode}]"))
    };
    let sockets: BTreeSet<String> = table.lines().skip(1).filter_map(socket).collect();
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // The descriptor of the directory itself is closed by now.
        let link = std::fs::read_link(entry?.path()).unwrap_or_default();
        count += usize::from(sockets.contains(link.to_string_lossy().as_ref()));
    }
    Ok(count)
}

/// Waits until there are so many connections: that of a call ends a little after the one that it has made.
pub(super) fn settle(endpoint: &mut Endpoint, wanted: usize) -> Outcome {
    let begun = Instant::now();
    loop {
        endpoint.progress();
        let count = connections()?;
        if count == wanted {
            return Ok(());
        }
        ensure(begun.elapsed() < LIMIT, || format!("{count} connections instead of {wanted}"))?;
    }
}

fn hear(endpoint: &mut Endpoint, from: usize, tag: u64) -> Outcome {
    Ok(endpoint.recv(Source::Rank(from), Tag::Exactly(tag), &mut []).map(drop)?)
}

/// Sends to another rank and receives from it, both at once.
fn cross(endpoint: &mut Endpoint, other: usize, tag: u64) -> Outcome {
    Ok(endpoint.scope(|scope| {
        scope.isend(other, tag, &[])?;
        scope.irecv(Source::Rank(other), Tag::Exactly(tag), &mut [])?;
        scope.wait_all()
    })?)
}

pub(super) fn connects() -> Outcome {
    // Some are those of the launcher.
    let inherited = connections()?;
    let mut endpoint = open()?;
    let rank = endpoint.rank();
    ensure(connections()? == inherited, || "there are connections without a message".into())?;
    let neighbour = rank ^ 1;
    if rank.is_multiple_of(2) {
        let other = 2 - rank;
        // Both call at once.
        cross(&mut endpoint, other, CROSSING)?;
        settle(&mut endpoint, inherited + 1)?;
        endpoint.send(neighbour, CHECK, &[])?;
        hear(&mut endpoint, neighbour, CHECKED)?;
        cross(&mut endpoint, other, CHECKED)?;
        endpoint.send(neighbour, GO, &[])?;
    } else {
        hear(&mut endpoint, neighbour, CHECK)?;
        let count = connections()? - inherited;
        ensure(count == 0, || format!("{count} connections of a rank that does not talk"))?;
        endpoint.send(neighbour, CHECKED, &[])?;
        hear(&mut endpoint, neighbour, GO)?;
    }
    for len in [8, 102_400] {
        all_to_all::run_in(&mut endpoint, 10, len)?;
    }
    settle(&mut endpoint, inherited + 2)?;
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}

pub(super) fn ends(how: u64) -> Outcome {
    let mut endpoint = open()?;
    let rank = endpoint.rank();
    let wanted = match (rank, how) {
        (3, 0) => return Ok(endpoint.close()?),
        (3, 1) => return Ok(()),
        (3, _) => {
            // SAFETY: takes no memory.
            unsafe { libc::raise(libc::SIGKILL) };
            return broken("it lives on");
        }
        (_, 0) => Failure::Finished,
        (_, 1) => Failure::Dropped,
        _ => Failure::Died,
    };
    // Over TCP, a refused connection does not show whether the process died or a firewall refuses.
    let is_refused = |failure| wanted == Failure::Died && failure == Failure::Unreachable;
    if rank != 2 {
        hear(&mut endpoint, 2, LEFT)?;
    }
    for turn in 0..2 {
        let outcome = match (rank + turn) % 2 {
            0 => endpoint.recv(Source::Rank(3), Tag::Any, &mut [0; 8]).map(drop),
            _ => endpoint.send(3, 0, &[1; 100_000]),
        };
        let is_wanted = matches!(&outcome, Err(Error::PeerFailed { rank: 3, failure, .. })
            if *failure == wanted || is_refused(*failure));
        ensure(is_wanted, || format!("{outcome:?} instead of {wanted:?}"))?;
    }
    if rank == 2 {
        (0..2).try_for_each(|other| endpoint.send(other, LEFT, &[]))?;
    }
    if wanted != Failure::Finished {
        let any = endpoint.recv(Source::Any, Tag::Any, &mut []);
        ensure(matches!(any, Err(Error::PeerFailed { rank: 3, .. })), || format!("any source: {any:?}"))?;
    }
    let agreed = endpoint.agree(1)?;
    ensure(agreed.gone == [3], || format!("{agreed:?}"))?;
    let ranking = endpoint.shrink()?;
    ensure(ranking.world() == [0, 1, 2], || format!("{ranking:?}"))?;
    endpoint.agree(0)?;
    Ok(endpoint.close()?)
}

/// The address of each host is one to which the other has no route.
pub(super) fn apart() -> Outcome {
    let first = std::env::var("PMI_RANK").is_ok_and(|rank| rank == "0" || rank == "1");
    let address = if first { "10.78.0.1" } else { "10.79.0.1" };
    let config = Config::from_env().map_err(Error::from)?.net_address(Some(address));
    let mut endpoint = Endpoint::open(&config)?;
    let rank = endpoint.rank();
    let other = (rank + 2) % 4;
    let outcome = endpoint.send(other, 0, &[1; 100_000]);
    let failure = match &outcome {
        Err(Error::PeerFailed { rank, failure, .. }) if *rank == other => Some(*failure),
        _ => None,
    };
    ensure(failure == Some(Failure::Unreachable), || format!("{outcome:?}"))?;
    let has_reason = format!("{outcome:?}").contains("set NEMESIA_NET_ADDRESS");
    ensure(has_reason, || format!("no reason in the error: {outcome:?}"))?;
    let named = format!("rank {other} cannot be connected with: ");
    let is_named = |warning: &String| warning.contains(&named) && warning.contains("NEMESIA_NET_ADDRESS");
    ensure(endpoint.warnings().iter().any(is_named), || format!("{:?}", endpoint.warnings()))?;
    // Those that share the host talk on.
    cross(&mut endpoint, rank ^ 1, GO)?;
    Ok(endpoint.close()?)
}
