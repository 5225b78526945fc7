//! Connections: made, refused, too late, too many, closed.

use std::time::Duration;

use nemesia_core::port::memory::{
    Address, CompletionSource, ConnectError, Connection, ConnectionState, Event, LostError, MemoryPort,
    PostError, Private, ReceiveQueue, Work,
};

use super::bench::Bench;
use super::{Check, Fabric, Verdict, ensure, equal};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("facts_make_sense", facts),
        ("both_sides_receive_the_private_data_of_the_other", private),
        ("a_refusal_is_reported_with_its_reason", refusal),
        ("nobody_listens", nobody),
        ("addresses_of_other_fabrics_are_not_understood", address),
        ("a_connection_that_is_not_answered_fails_in_time", deadline),
        ("a_connection_can_be_given_up", give_up),
        ("connections_in_both_directions", crossed),
        ("a_hundred_connections_opened_and_closed", many),
        ("one_connection_too_many", full),
        ("a_closed_connection_is_gone", closed),
    ]
}

fn facts<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(1)?;
    let facts = bench.facts()?;
    ensure(!facts.name.is_empty(), || "no name".into())?;
    let least = [facts.slices, facts.read_slices, facts.send_depth, facts.receive_depth, facts.connections];
    ensure(least.iter().all(|it| *it > 0), || format!("nothing fits: {facts:?}"))?;
    ensure(facts.message_bytes >= 4096, || format!("messages of {} bytes", facts.message_bytes))?;
    ensure(facts.transfer_bytes >= facts.message_bytes, || format!("shorter than a message: {facts:?}"))?;
    ensure(facts.inline_bytes <= facts.message_bytes, || "more inline than at all".into())?;
    ensure(facts.atomics || !facts.atomics_exclude_processor, || "what atomics?".into())
}

fn established(event: &Event) -> Option<(Connection, Private)> {
    match event {
        Event::Established { connection, private } => Some((*connection, *private)),
        _ => None,
    }
}

fn requested(event: &Event) -> Option<(Connection, Private)> {
    match event {
        Event::Requested { connection, private } => Some((*connection, *private)),
        _ => None,
    }
}

fn failed(event: &Event) -> Option<(Connection, ConnectError, Private)> {
    match event {
        Event::Failed { connection, error, private } => Some((*connection, *error, *private)),
        _ => None,
    }
}

/// Returns whether these are the private bytes, possibly padded with zeros.
fn is_said(found: &Private, said: &[u8]) -> bool {
    found.bytes().strip_prefix(said).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

fn ask<F: Fabric>(bench: &mut Bench<F>, a: usize, b: usize, said: &[u8]) -> Result<Connection, String> {
    let address = bench.port(b)?.address().ok_or("no address")?;
    let offer = bench.offer(said, false);
    bench.port(a)?.connect(&address, &offer).map_err(|error| error.to_string())
}

fn private<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let said: Vec<u8> = (1..=56).collect();
    for len in [56, 1, 0] {
        let active = ask(bench, 0, 1, &said[..len])?;
        equal("state", bench.port(0)?.state(active), ConnectionState::Connecting)?;
        let (passive, found) = bench.event(1, "request", requested)?;
        ensure(is_said(&found, &said[..len]), || format!("{len} bytes with the request: {found:?}"))?;
        equal("state", bench.port(1)?.state(passive), ConnectionState::Requested)?;
        let answer = bench.offer(&said[56 - len..], false);
        bench.port(1)?.accept(passive, &answer).map_err(|error| error.to_string())?;
        let (connection, found) = bench.event(0, "established", established)?;
        equal("connection", connection, active)?;
        ensure(is_said(&found, &said[56 - len..]), || format!("{len} bytes with the answer: {found:?}"))?;
        equal("connection", bench.event(1, "established", established)?.0, passive)?;
        equal(
            "states",
            [bench.port(0)?.state(active), bench.port(1)?.state(passive)],
            [ConnectionState::Ready; 2],
        )?;
        let again = bench.port(1)?.accept(passive, &answer);
        equal("accepted again", again, Err(ConnectError::State))?;
        bench.close(0, active)?;
        bench.lost(1, passive)?;
        bench.close(1, passive)?;
    }
    Ok(())
}

fn refusal<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let active = ask(bench, 0, 1, b"please")?;
    let id = bench.post_small(0, ReceiveQueue::Of(active))?;
    let (passive, _) = bench.event(1, "request", requested)?;
    let no = Private::new(b"no").unwrap_or(Private::EMPTY);
    bench.port(1)?.refuse(passive, no).map_err(|error| error.to_string())?;
    equal("state", bench.port(1)?.state(passive), ConnectionState::Gone)?;
    equal("refused again", bench.port(1)?.refuse(passive, no), Err(ConnectError::State))?;
    let (connection, error, said) = bench.event(0, "failed", failed)?;
    equal("failed", (connection, error), (active, ConnectError::Refused))?;
    ensure(is_said(&said, b"no"), || format!("said with the refusal: {said:?}"))?;
    bench.fails(0, id)?;
    bench.close(0, active)?;
    let (a, b) = bench.connect(0, 1)?;
    bench.works((0, a), (1, b))
}

fn nobody<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let address = bench.port(1)?.address().ok_or("no address")?;
    if let Some(port) = bench.nodes[1].port.take() {
        bench.fabric.kill(port);
    }
    let mut offer = bench.offer(b"hello", false);
    let silent = bench.fabric.is_silent();
    if silent {
        offer.deadline = bench.now + Duration::from_secs(1);
    }
    match bench.port(0)?.connect(&address, &offer) {
        // Some fabrics report this at once.
        Err(ConnectError::NotListening | ConnectError::Unreachable) => return Ok(()),
        Err(other) => return Err(format!("no listener: {other}")),
        Ok(_) => {}
    }
    let (connection, error, _) = bench.event(0, "failed", failed)?;
    let known = [ConnectError::NotListening, ConnectError::Unreachable, ConnectError::Refused];
    let is_known = if silent { error == ConnectError::TimedOut } else { known.contains(&error) };
    ensure(is_known, || format!("no listener: {error}"))?;
    bench.close(0, connection)
}

fn address<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(1)?;
    for bytes in [&[] as &[u8], b"x", &[0xff; 108], b"no such fabric has an address like this"] {
        let wrong = Address::new(bytes).ok_or("too long")?;
        let offer = bench.offer(&[], false);
        let asked = bench.port(0)?.connect(&wrong, &offer);
        equal("connect", asked, Err(ConnectError::Address))?;
    }
    Ok(())
}

fn deadline<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let address = bench.port(1)?.address().ok_or("no address")?;
    let mut offer = bench.offer(&[], false);
    offer.deadline = bench.now + Duration::from_millis(5);
    let active = bench.port(0)?.connect(&address, &offer).map_err(|error| error.to_string())?;
    let id = bench.post_small(0, ReceiveQueue::Of(active))?;
    // The other side never answers.
    let (connection, error, _) = bench.event(0, "failed", failed)?;
    equal("failed", (connection, error), (active, ConnectError::TimedOut))?;
    bench.fails(0, id)?;
    bench.close(0, active)?;
    equal("state", bench.port(0)?.state(active), ConnectionState::Gone)
}

fn give_up<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let active = ask(bench, 0, 1, b"first")?;
    bench.close(0, active)?;
    let later = ask(bench, 0, 1, b"second")?;
    // The first request may have arrived or not; its outcome does not matter here.
    let passive = loop {
        let (passive, said) = bench.event(1, "request", requested)?;
        if is_said(&said, b"second") {
            break passive;
        }
    };
    let answer = bench.offer(&[], false);
    bench.port(1)?.accept(passive, &answer).map_err(|error| error.to_string())?;
    equal("established", bench.event(0, "established", established)?.0, later)
}

fn crossed<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (there, back) = (ask(bench, 0, 1, b"0")?, ask(bench, 1, 0, b"1")?);
    for node in [0, 1] {
        let (passive, _) = bench.event(node, "request", requested)?;
        let answer = bench.offer(&[], false);
        bench.port(node)?.accept(passive, &answer).map_err(|error| error.to_string())?;
    }
    for (node, own) in [(0, there), (1, back)] {
        let both = [bench.event(node, "first", established)?.0, bench.event(node, "second", established)?.0];
        ensure(both.contains(&own) && both[0] != both[1], || format!("{both:?} at {node}"))?;
    }
    Ok(())
}

fn many<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let count = bench.facts()?.connections.min(100);
    for _ in 0..2 {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(bench.connect(0, 1)?);
        }
        for (a, b) in all.iter().rev() {
            bench.works((0, *a), (1, *b))?;
        }
        for (a, b) in all {
            bench.close(0, a)?;
            bench.lost(1, b)?;
            bench.close(1, b)?;
        }
    }
    Ok(())
}

fn full<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let limit = bench.facts()?.connections;
    if limit > 1000 {
        return Ok(());
    }
    let mut asked = Vec::new();
    for _ in 0..limit {
        asked.push(ask(bench, 0, 1, &[])?);
    }
    let address = bench.port(1)?.address().ok_or("no address")?;
    let offer = bench.offer(&[], false);
    let more = bench.port(0)?.connect(&address, &offer);
    equal("one more", more, Err(ConnectError::Full { limit }))?;
    bench.close(0, asked[0])?;
    let more = bench.port(0)?.connect(&address, &offer);
    ensure(more.is_ok(), || format!("after one was closed: {more:?}"))
}

fn closed<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let id = bench.post_small(1, ReceiveQueue::Of(b))?;
    bench.close(0, a)?;
    bench.port(0)?.close(a);
    equal("state", bench.port(0)?.state(a), ConnectionState::Gone)?;
    let sent = bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&[]), None);
    equal("send", sent, Err(PostError::NotReady))?;
    let posted = bench.port(0)?.receive(ReceiveQueue::Of(a), 1, &[]);
    equal("receive", posted, Err(PostError::NotReady))?;
    let why = bench.event(1, "lost", |event| match event {
        Event::Lost { connection, error } if *connection == b => Some(*error),
        _ => None,
    })?;
    ensure(matches!(why, LostError::Closed | LostError::Unreachable | LostError::Unknown(_)), || {
        format!("closed by the peer: {why}")
    })?;
    bench.fails(1, id)?;
    equal("state", bench.port(1)?.state(b), ConnectionState::Lost)?;
    let sent = bench.port(1)?.send(Work::new(b, 1), CompletionSource::Gather(&[]), None);
    equal("send", sent, Err(PostError::NotReady))?;
    bench.close(1, b)?;
    // A new connection is not confused with the old one.
    let (new, _) = bench.connect(0, 1)?;
    ensure(new != a, || "a number is used again".into())?;
    equal("state of the old one", bench.port(0)?.state(a), ConnectionState::Gone)
}
