//! `active SEED`: every rank floods every other with active messages whose handlers answer; contents and order
//! are checked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nemesia::{Endpoint, Error, Incoming};

use super::{Outcome, barrier, ensure, open, tell};
use crate::content::{Random, difference, filled, seed_of};

const BARRIER: u64 = 1;
const ASK: u16 = 1;
const ANSWER: u16 = 2;
const NOBODY: u16 = 900;

/// The messages that each rank sends to each.
fn questions() -> u64 {
    if crate::quick() { 300 } else { 3000 }
}

/// The arrivals at the handlers of a rank.
#[derive(Debug, Default)]
struct Seen {
    /// By sender: the last question, and the last answer.
    asked: Vec<u64>,
    answered: Vec<u64>,
    wrong: Vec<String>,
    /// Answers for which there was no room yet.
    later: VecDeque<(usize, u64)>,
}

pub(super) fn run(seed: u64) -> Outcome {
    let questions = questions();
    let mut endpoint = open()?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let seen =
        Arc::new(Mutex::new(Seen { asked: vec![0; size], answered: vec![0; size], ..Seen::default() }));
    listen(&mut endpoint, &seen);
    barrier(&mut endpoint, BARRIER)?;
    let most = endpoint.active_bytes();
    let mut random = Random::new(seed_of(&[seed, rank as u64]));
    for number in 1..=questions {
        for to in 0..size {
            // Most fit into one packet, some take several.
            let usual = if number % 100 == 0 { 100_000 } else { 2000 };
            let longest = if number == questions { most - 16 } else { usual };
            let len = random.pick(&[0, 1, 8, 40, 500, 2000, longest]).min(most - 16);
            let content = filled(seed_of(&[number, len as u64]), len);
            endpoint.send_active(to, ASK, &header(number, len), &content)?;
        }
    }
    loop {
        let finished = {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            ensure(seen.wrong.is_empty(), || seen.wrong.join("\n"))?;
            seen.answered.iter().all(|last| *last == questions)
                && seen.asked.iter().all(|last| *last == questions)
                && seen.later.is_empty()
        };
        if finished {
            break;
        }
        answer_later(&mut endpoint, &seen)?;
        endpoint.progress();
    }
    endpoint.send_active((rank + 1) % size, NOBODY, b"nobody", b"listens")?;
    let long = endpoint.send_active(0, ASK, &[], &vec![0; most + 1]);
    ensure(matches!(long, Err(Error::TooLong { .. })), || format!("a message too long: {long:?}"))?;
    barrier(&mut endpoint, BARRIER + 1)?;
    while endpoint.unhandled_messages() == 0 {
        endpoint.progress();
    }
    barrier(&mut endpoint, BARRIER + 2)?;
    tell(&format!("rank {rank}: {questions} questions for each of {size}, all answered"))?;
    Ok(endpoint.close()?)
}

fn header(number: u64, len: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

/// Returns number and length of a message if it is the next from its sender and unchanged; otherwise the
/// reason.
fn check(message: &Incoming<'_>, last: &mut u64) -> Result<u64, String> {
    let word = |at: usize| message.header().get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (Some(number), Some(len)) = (word(0), word(8)) else { return Err("a short header".into()) };
    if number != *last + 1 {
        return Err(format!("number {number} of rank {} after {last}", message.from()));
    }
    *last = number;
    let right = message.payload().len() as u64 == len
        && difference(seed_of(&[number, len]), message.payload()).is_none();
    if right { Ok(number) } else { Err(format!("number {number} of rank {}: wrong bytes", message.from())) }
}

fn listen(endpoint: &mut Endpoint, seen: &Arc<Mutex<Seen>>) {
    let asked = Arc::clone(seen);
    endpoint.set_handler(ASK, move |message| {
        let mut seen = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let from = message.from();
        let number = match check(message, &mut seen.asked[from]) {
            Ok(number) => number,
            Err(wrong) => return seen.wrong.push(wrong),
        };
        let overtakes = seen.later.iter().any(|(to, _)| *to == from);
        if overtakes || message.reply(ANSWER, &header(number, 0), &[]).is_err() {
            seen.later.push_back((from, number));
        }
    });
    let answered = Arc::clone(seen);
    endpoint.set_handler(ANSWER, move |message| {
        let mut seen = answered.lock().unwrap_or_else(PoisonError::into_inner);
        let from = message.from();
        if let Err(wrong) = check(message, &mut seen.answered[from]) {
            seen.wrong.push(wrong);
        }
    });
}

/// Sends one answer for which a handler had no room. It keeps its place until then, so that no other answer
/// overtakes it.
fn answer_later(endpoint: &mut Endpoint, seen: &Mutex<Seen>) -> Outcome {
    let lock = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    let first = lock().later.front().copied();
    if let Some((to, number)) = first {
        endpoint.send_active(to, ANSWER, &header(number, 0), &[])?;
        lock().later.pop_front();
    }
    Ok(())
}
