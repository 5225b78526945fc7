//! Every interleaving of two small ends of a connection, driven step by step through `core/src/flow/posted.rs`
//! itself.
//!
//! Each step sends, delivers, gives up, recalls or takes one buffer. All numbers only grow, so a search ends
//! if the protocol comes to rest, and reaches [`MOST_STATES`] if updates answer each other for ever. The
//! search visits every reachable state of a [`ChannelShape`].

use std::collections::HashSet;

use nemesia_core::flow::posted::{Credits, LEAST, Next, Stamp};
use nemesia_core::flow::shares::SharedPool;

use crate::violation::{Check, Violation, ensure};

/// More states than any shape has.
const MOST_STATES: usize = 2_000_000;
/// More updates than a correct protocol sends.
const MOST_UPDATES: u32 = 40;

/// The sizes of the two ends. Of two numbers, the first belongs to the first end.
#[derive(Clone, Copy, Debug)]
struct ChannelShape {
    /// The packets with content that each end sends.
    packets: [u8; 2],
    /// The receives posted at the start.
    receives: [u32; 2],
    /// The buffers that no connection owns.
    spare: [u32; 2],
    /// How often an end may recall receives.
    recalls: [u8; 2],
    /// How often other connections of the process take a spare buffer.
    guests: [u8; 2],
}

const SHAPES: [ChannelShape; 5] = [
    ChannelShape { packets: [9, 9], receives: [3, 3], spare: [0, 0], recalls: [0, 0], guests: [0, 0] },
    ChannelShape { packets: [4, 4], receives: [3, 4], spare: [2, 0], recalls: [0, 0], guests: [1, 0] },
    ChannelShape { packets: [5, 2], receives: [3, 3], spare: [3, 1], recalls: [0, 0], guests: [0, 0] },
    ChannelShape { packets: [3, 2], receives: [6, 3], spare: [1, 0], recalls: [1, 1], guests: [0, 0] },
    ChannelShape { packets: [12, 0], receives: [3, 3], spare: [0, 3], recalls: [0, 2], guests: [0, 1] },
];

/// The state of one end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    credits: Credits,
    pool: SharedPool,
    to_send: u8,
    /// Packets that arrived and are not released.
    held: u32,
    recalls: u8,
    guests: u8,
    taken: u32,
    /// Packets without content that were sent.
    updates: u32,
    /// Packets under way to the other end, in order, each with whether it has content.
    wire: Vec<(bool, Stamp)>,
}

type State = [End; 2];

/// One step of one end.
#[derive(Clone, Copy, Debug)]
enum ChannelStep {
    Send,
    Control,
    Deliver,
    Release,
    Recall,
    Take,
}

const STEPS: [ChannelStep; 6] = [
    ChannelStep::Deliver,
    ChannelStep::Release,
    ChannelStep::Send,
    ChannelStep::Control,
    ChannelStep::Recall,
    ChannelStep::Take,
];

impl End {
    fn new(shape: &ChannelShape, at: usize) -> Self {
        let mut credits = Credits::new(shape.receives[at]);
        // The other end has reported its number of receives.
        let _ = credits.open(shape.receives[1 - at]);
        let mut pool = SharedPool::new();
        // One more buffer is kept for another connection, which never needs it.
        pool.add(shape.receives[at] + shape.spare[at] + 1);
        let kept = pool.reserve(LEAST + 1);
        let own = (0..LEAST).all(|_| pool.take(true));
        let more = (LEAST..shape.receives[at]).all(|_| pool.take(false));
        debug_assert!(kept && own && more);
        Self {
            credits,
            pool,
            to_send: shape.packets[at],
            held: 0,
            recalls: shape.recalls[at],
            guests: shape.guests[at],
            taken: 0,
            updates: 0,
            wire: Vec::new(),
        }
    }

    fn post(&mut self, content: bool) {
        self.wire.push((content, self.credits.stamp()));
        self.credits.sent();
    }
}

/// Returns the state after a step of an end; `None` if the end cannot take the step.
fn after(state: &State, at: usize, step: ChannelStep) -> Result<Option<State>, Violation> {
    let mut next = state.clone();
    let [a, b] = &mut next;
    let (end, other) = if at == 0 { (a, b) } else { (b, a) };
    let credits = &end.credits;
    match step {
        ChannelStep::Send if end.to_send > 0 && credits.can_send() => {
            end.to_send -= 1;
            end.post(true);
        }
        ChannelStep::Control
            if credits.can_update()
                || (credits.is_recalling() || credits.has_surplus()) && credits.can_send() =>
        {
            end.updates += 1;
            end.post(false);
        }
        ChannelStep::Deliver if !other.wire.is_empty() => {
            let (content, stamp) = other.wire.remove(0);
            deliver(end, content, stamp)?;
        }
        ChannelStep::Release if end.held > 0 => {
            end.held -= 1;
            release(end);
        }
        ChannelStep::Recall if end.recalls > 0 => {
            end.recalls -= 1;
            if !end.credits.shrink() {
                return Ok(None);
            }
        }
        ChannelStep::Take if end.guests > 0 && end.pool.take(false) => {
            end.guests -= 1;
            end.taken += 1;
        }
        _ => return Ok(None),
    }
    Ok(Some(next))
}

/// Delivers a packet as `core/src/port/channel/arrive.rs` does.
fn deliver(end: &mut End, content: bool, stamp: Stamp) -> Check {
    let fault = |what: &dyn std::fmt::Display| Violation(format!("an honest end is accused: {what}"));
    end.credits.arrive().map_err(|error| fault(&error))?;
    end.credits.hear(stamp).map_err(|error| fault(&error))?;
    let dry = end.credits.is_dry();
    if content {
        end.held += 1;
    } else {
        release(end);
    }
    if dry {
        let may = |end: &End| end.pool.may_grow(end.credits.extra(), 0, 0);
        if may(end) {
            end.credits.keep();
        }
        for _ in 0..end.credits.wanted(u32::MAX) {
            if may(end) && end.pool.take(false) {
                end.credits.grown();
                let (extra, left) = (end.credits.extra(), end.pool.spare());
                ensure!(extra <= left + 1, "a connection grows by {extra}, and leaves {left} to all others");
            }
        }
    }
    Ok(())
}

fn release(end: &mut End) {
    match end.credits.release() {
        Next::Post => end.credits.posted(),
        Next::Retire => end.pool.put(false),
    }
}

/// Checks what must hold in every state.
fn check(shape: &ChannelShape, state: &State) -> Check {
    for at in [0, 1] {
        let (end, other) = (&state[at], &state[1 - at]);
        let (flying, window) = (other.wire.len() as u32, end.credits.window());
        ensure!(flying <= window, "{flying} packets are on their way to {window} receives");
        let (size, held) = (end.credits.size(), end.held);
        ensure!(size == window + held, "{size} buffers, but {window} posted and {held} held");
        ensure!(size >= LEAST, "a connection is left with {size} buffers");
        ensure!(end.updates < MOST_UPDATES, "the ends do not come to rest: {} updates", end.updates);
        let all = shape.receives[at] + shape.spare[at] + 1;
        let found = end.pool.free() + size + end.taken;
        ensure!(found == all, "{found} buffers instead of {all}");
        ensure!(end.pool.is_sound(), "a buffer that is kept for another connection is gone");
        let promised = other.credits.left() + flying;
        ensure!(promised <= window, "{promised} credits for {window} receives");
    }
    Ok(())
}

/// Checks what must hold when nothing can happen any more.
fn check_rest(state: &State) -> Check {
    for (end, other) in [(&state[0], &state[1]), (&state[1], &state[0])] {
        ensure!(end.to_send == 0, "nothing can happen, and {} packets were not sent", end.to_send);
        let (left, size) = (end.credits.left(), other.credits.size());
        let known = left + other.credits.unreturned();
        ensure!(known == size, "{left} credits, {} unreturned, for {size}", other.credits.unreturned());
        ensure!(left > 1, "at rest, and there is no credit but the reserve");
    }
    Ok(())
}

/// Checks every state of a shape. Returns the number of states.
fn explore(shape: &ChannelShape) -> Result<usize, Violation> {
    let start = [End::new(shape, 0), End::new(shape, 1)];
    let mut seen = HashSet::from([start.clone()]);
    let mut stack = vec![start];
    while let Some(state) = stack.pop() {
        check(shape, &state)?;
        let mut moved = false;
        for at in [0, 1] {
            for step in STEPS {
                let Some(next) = after(&state, at, step)? else { continue };
                // Recalls and other connections may stop at any time.
                moved |= !matches!(step, ChannelStep::Recall | ChannelStep::Take);
                if !seen.contains(&next) {
                    seen.insert(next.clone());
                    stack.push(next);
                }
            }
        }
        if !moved {
            check_rest(&state)?;
        }
        ensure!(seen.len() < MOST_STATES, "the ends do not come to rest");
    }
    Ok(seen.len())
}

/// Explores all shapes. Returns the number of states.
pub(crate) fn prove() -> Result<usize, Violation> {
    let mut states = 0;
    for shape in &SHAPES {
        let found = explore(shape);
        states += found.map_err(|violation| Violation(format!("{violation}, in {shape:?}")))?;
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_come_to_rest_whatever_happens() {
        for shape in &SHAPES {
            let found = explore(shape);
            assert!(found.as_ref().is_ok_and(|states| *states > 500), "{shape:?}: {found:?}");
        }
    }
}
