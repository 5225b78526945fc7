//! One-sided operations on plain bytes, and the random choice of operations.

use crate::memory::fill;
use crate::remotes::Remote;
use crate::rng::Rng;
use crate::shape::{HANDLERS, OWN, VALUES};
use crate::world::{Comparison, Datatype, Order, Reduction, Verb, combine, swap};

/// The bytes before the data in a put's packet.
const HEAD: usize = 16;
/// The longest header of an active message.
const HEADER: usize = 24;

/// Executes a packet of an operation on a region, and sets what the origin gets. Returns whether everything is
/// done.
pub(super) fn execute(remote: &mut Remote, model: &mut [u8], len: usize) -> bool {
    let Remote { order, taken, answer, .. } = remote;
    let Order { offset: at, len: all, key, .. } = *order;
    let part = (all - *taken).min(len.saturating_sub(HEAD));
    match order.verb {
        Verb::Put { .. } | Verb::Accumulate(..) | Verb::FetchAccumulate(..) => {
            let mut bytes = vec![0; all];
            fill(key, &mut bytes);
            let end = *taken + part;
            match order.verb {
                Verb::Accumulate(datatype, reduction) => {
                    for value in (*taken..end).step_by(datatype.bytes()) {
                        update(model, at + value, datatype, |old| {
                            combine(datatype, reduction, old, load(&bytes, value, datatype.bytes()))
                        });
                    }
                }
                Verb::FetchAccumulate(datatype, reduction) => {
                    if answer.is_empty() {
                        // The operands stay unchanged.
                        answer.clone_from(&bytes);
                    }
                    for value in (*taken..end).step_by(datatype.bytes()) {
                        let operand = load(&bytes, value, datatype.bytes());
                        let change = |old| combine(datatype, reduction, old, operand);
                        answer.extend(update(model, at + value, datatype, change));
                    }
                }
                _ => model[at + *taken..at + end].copy_from_slice(&bytes[*taken..end]),
            }
            *taken = end;
            end == all
        }
        Verb::Get => {
            *answer = model[at..at + all].to_vec();
            true
        }
        Verb::Fetch(datatype, reduction, operand) => {
            *answer = update(model, at, datatype, |old| combine(datatype, reduction, old, operand));
            true
        }
        Verb::CompareSwap(datatype, comparison, values) => {
            *answer = update(model, at, datatype, |old| swap(datatype, comparison, old, values));
            true
        }
        // The packets of a message hold only its bytes.
        Verb::Active { .. } => {
            *taken += len.min(all - *taken);
            *taken == all
        }
        Verb::Flush => true,
    }
}

/// Reads a little-endian value of `len` bytes.
fn load(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Changes a value. Returns its former bytes.
fn update(model: &mut [u8], at: usize, datatype: Datatype, change: impl FnOnce(u64) -> u64) -> Vec<u8> {
    let value = &mut model[at..at + datatype.bytes()];
    let old = value.to_vec();
    let new = change(load(&old, 0, old.len())).to_le_bytes();
    value.copy_from_slice(&new[..old.len()]);
    old
}

/// Returns a random operation of a rank.
pub(super) fn some_order(rng: &mut Rng, from: u32, ranks: u32, packet: usize) -> Order {
    let datatype = rng.pick(&Datatype::ALL);
    let some = rng.pick(&Reduction::ALL);
    let reduction = if datatype.allows(some) { some } else { Reduction::Sum };
    let size = datatype.bytes();
    let place = rng.below(VALUES / size) * size;
    let value = ranks as usize * OWN + place;
    let len = if rng.one_in(3) { rng.below(OWN) } else { rng.below(40) };
    let own = from as usize * OWN + rng.below(OWN - len);
    let (offset, len, verb) = match rng.below(11) {
        0 | 1 => (own, len, Verb::Put { notify: rng.one_in(3) }),
        2 | 3 => (own, len, Verb::Get),
        4 => {
            let count = rng.below((VALUES - place) / size + 1);
            (value, count * size, Verb::Accumulate(datatype, reduction))
        }
        5 => (value, size, Verb::Fetch(datatype, reduction, rng.next())),
        // Often the present value: values begin as 0.
        6 => {
            let some = rng.pick(&Comparison::ALL);
            let comparison = if datatype.allows_comparison(some) { some } else { Comparison::Less };
            (value, size, Verb::CompareSwap(datatype, comparison, [rng.below(2) as u64, rng.below(2) as u64]))
        }
        7 => (0, 0, Verb::Flush),
        8 => {
            let count = rng.below((VALUES - place) / size + 1);
            (value, count * size, Verb::FetchAccumulate(datatype, reduction))
        }
        _ => {
            let handler = rng.below(HANDLERS.into()) as u16 + u16::from(rng.one_in(20)) * HANDLERS;
            let most = if rng.one_in(4) { packet } else { 100 };
            let most = if rng.one_in(12) { 5 * packet } else { most };
            let len = rng.below(most + 1);
            (0, len, Verb::Active { handler, header: rng.below(HEADER.min(len) + 1) })
        }
    };
    let to = rng.below(ranks as usize) as u32;
    let delivered = matches!(verb, Verb::Put { .. } | Verb::Accumulate(..)) && rng.one_in(3);
    Order { to, offset, len, key: rng.next(), verb, delivered }
}
