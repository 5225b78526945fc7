//! The datagrams that join queue pairs, which any process may send that knows the key of a port, and the ends of
//! connections that hear them.

use core::time::Duration;

use nemesia_core::joining::{
    JOIN_BYTES, JoinKind, JoinMessage, JoinPlace, JoinStage, JoinStep, Joint, PAIR_BYTES, unknown,
};
use nemesia_core::wire::fabric::Private;

use super::vipl::Input;

/// The ends of a script.
const ENDS: usize = 4;
/// The place of the ends, and that of their peers.
const OWN: JoinPlace = JoinPlace { number: 1, key: 2, lid: 3, gid: [4; 16] };
const PEER: JoinPlace = JoinPlace { number: 5, key: 6, lid: 7, gid: [8; 16] };
/// The numbers of the ends and of their peers begin with these.
const OURS: u64 = 0x100;
const THEIRS: u64 = 0x200;

/// An end, and what has happened to it.
struct FuzzedJoint {
    joint: Joint,
    joins: u32,
    has_ended: bool,
}

/// Decodes the bytes as a datagram, as they are, and with a valid beginning. Then executes them as a script: datagrams
/// and calls of the owner for a few ends of connections.
///
/// # Errors
/// The broken promise.
pub fn joining(input: &[u8]) -> Result<(), String> {
    let mut bytes = [0; JOIN_BYTES];
    bytes.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    check_decoder(&bytes)?;
    mend(&mut bytes, input.len() as u8);
    check_decoder(&bytes)?;
    let mut input = Input(input);
    let mut ends: Vec<FuzzedJoint> = (0..ENDS).map(|at| new_end(at, input.byte())).collect();
    let mut now = Duration::ZERO;
    while !input.0.is_empty() {
        let at = usize::from(input.byte()) % ENDS;
        match input.byte() % 16 {
            0 => ends[at].joint.accept([1; PAIR_BYTES], Private::EMPTY, now),
            1 => ends[at].joint.refuse(Private::EMPTY, now),
            2 => {
                ends[at].joint.end(now);
                ends[at].has_ended = true;
            }
            3 => {
                now += Duration::from_millis(4 * u64::from(input.byte()));
                check_due(&mut ends[at].joint, now)?;
            }
            4 => ends[at] = new_end(at, input.byte()),
            _ => hear(&mut ends[at], at, &mut input, now)?,
        }
    }
    Ok(())
}

/// Gives bytes the beginning of a datagram, and what else random bytes hardly have.
fn mend(bytes: &mut [u8; JOIN_BYTES], kind: u8) {
    let valid = JoinMessage {
        kind: JoinKind::Request,
        place: PEER,
        to: 0,
        from: 1,
        pair: [0; PAIR_BYTES],
        private: Private::EMPTY,
    };
    let valid = valid.to_bytes();
    bytes[..2].copy_from_slice(&valid[..2]);
    bytes[2] = 1 + kind % 6;
    bytes[3] %= 64;
    bytes[7] = 0;
}

/// Checks that a datagram which is decoded is encoded to bytes that are decoded alike.
fn check_decoder(bytes: &[u8]) -> Result<(), String> {
    match JoinMessage::from_bytes(bytes) {
        Some(message) if JoinMessage::from_bytes(&message.to_bytes()) != Some(message) => {
            Err(format!("{message:?} is decoded otherwise when it was encoded"))
        }
        _ => Ok(()),
    }
}

fn new_end(at: usize, choice: u8) -> FuzzedJoint {
    let number = OURS + at as u64;
    let request = datagram(JoinKind::Request, 0, THEIRS + at as u64);
    let joint = if choice.is_multiple_of(2) {
        Joint::ask((OWN, PEER), number, [2; PAIR_BYTES], Private::EMPTY, Duration::ZERO)
    } else {
        Joint::requested(OWN, number, &request)
    };
    FuzzedJoint { joint, joins: 0, has_ended: false }
}

fn datagram(kind: JoinKind, to: u64, from: u64) -> JoinMessage {
    JoinMessage { kind, place: PEER, to, from, pair: [3; PAIR_BYTES], private: Private::EMPTY }
}

/// Returns a number of an end, of its peer, of others, or 0.
fn number(at: usize, input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0..3 => OURS + at as u64,
        3..6 => THEIRS + at as u64,
        6 => 0,
        _ => input.word(),
    }
}

/// Lets an end send, and checks that it waits before it sends again.
fn check_due(joint: &mut Joint, now: Duration) -> Result<(), String> {
    let stage = joint.stage();
    let Some(message) = joint.due(now) else { return Ok(()) };
    let is_silent = matches!(stage, JoinStage::Requested | JoinStage::Ready | JoinStage::Over);
    if is_silent || joint.due(now).is_some() || message.from != joint.number() {
        return Err(format!("an end that is {stage:?} sends {message:?}"));
    }
    check_decoder(&message.to_bytes())
}

/// Passes a datagram to an end.
fn hear(end: &mut FuzzedJoint, at: usize, input: &mut Input<'_>, now: Duration) -> Result<(), String> {
    let kind = JoinKind::ALL[usize::from(input.byte()) % JoinKind::ALL.len()];
    let (to, from) = (number(at, input), number(at, input));
    let mut bytes = datagram(kind, to, from).to_bytes();
    if input.byte().is_multiple_of(8) {
        bytes[usize::from(input.byte()) % JOIN_BYTES] = input.byte();
    }
    let Some(message) = JoinMessage::from_bytes(&bytes) else { return Ok(()) };
    let stage = end.joint.stage();
    let (step, answer) = end.joint.hear(&message);
    let broken = |what: &str| Err(format!("{what}: an end that is {stage:?} hears {message:?}: {step:?}"));
    let is_final = matches!(stage, JoinStage::Refusing | JoinStage::Ending | JoinStage::Over);
    let names_end = message.to == end.joint.number();
    let fits = match step {
        JoinStep::Stay => end.joint.stage() == stage || is_final,
        JoinStep::Join => stage == JoinStage::Asking && names_end,
        JoinStep::Establish => stage == JoinStage::Accepting && names_end,
        JoinStep::Fail(_) => !is_final && stage != JoinStage::Ready,
        JoinStep::Lose => stage == JoinStage::Ready,
    };
    if !fits {
        return broken("the step contradicts the stage");
    }
    end.joins += u32::from(matches!(step, JoinStep::Join | JoinStep::Establish));
    if end.joins > 1 || end.has_ended && step != JoinStep::Stay {
        return broken("too much happens");
    }
    if stage == JoinStage::Over && end.joint.stage() != JoinStage::Over {
        return broken("an end begins again");
    }
    end.has_ended |= matches!(step, JoinStep::Fail(_) | JoinStep::Lose);
    if step == JoinStep::Join {
        if input.byte().is_multiple_of(4) {
            end.joint.end(now);
            end.has_ended = true;
        } else if end.joint.confirm().to != message.from {
            return broken("the confirmation names another end");
        }
    }
    for answer in answer.into_iter().chain(unknown(&OWN, &message)) {
        check_decoder(&answer.to_bytes())?;
        if JoinMessage::from_bytes(&answer.to_bytes()) != Some(answer) || answer.to == 0 {
            return broken("the answer is no datagram, or names nobody");
        }
    }
    Ok(())
}
