//! The fuzz target of messages in several runs: what a sender may write into an RTS, and into the table of the runs.

use nemesia_core::port::{AccessError, RemoteRun, RunTable};
use nemesia_core::wire::listed::{ListedBytes, MOST_RUNS, RUN_BYTES};
use nemesia_core::wire::rendezvous::{Descriptor, RTS_BYTES, Rts};

/// Bytes that choose a part of the list.
const CHOICE_BYTES: usize = 4;
const DESCRIPTOR: usize = 24;

/// Decodes the first bytes as an RTS, and as the description of a list. The other bytes are its table. What is accepted
/// must be encoded to the same bytes. Every part of a list that is held must have the requested length, and lie within
/// the runs of the table; a list that is not held has no part.
///
/// # Errors
/// The broken promise.
pub fn list_of_runs(input: &[u8]) -> Result<(), String> {
    if let Some(rts) = Rts::decode(input, input.len()) {
        let bytes = rts.encode();
        if input.get(..RTS_BYTES) != bytes.get(..RTS_BYTES) {
            return Err(format!("{rts:?} is encoded otherwise"));
        }
    }
    let Some((content, rest)) = input.split_at_checked(DESCRIPTOR) else { return Ok(()) };
    let Some((choice, table)) = rest.split_first_chunk::<CHOICE_BYTES>() else { return Ok(()) };
    for list in lists(content, table) {
        hold(&list, table, u32::from_le_bytes(*choice).into())?;
    }
    Ok(())
}

/// Returns the list that the content describes, and one that fits the table, because random bytes hardly do.
fn lists(content: &[u8], table: &[u8]) -> Vec<ListedBytes> {
    let described = Descriptor::new(Descriptor::LIST, content).and_then(|descriptor| descriptor.list());
    let runs = table.as_chunks::<RUN_BYTES>().0;
    let len = runs.iter().map(|run| (u128::from_le_bytes(*run) >> 64) as u64).fold(0, u64::wrapping_add);
    let fitting = ListedBytes { table: 0, count: runs.len(), serial: 0, len };
    described.into_iter().chain((1..=MOST_RUNS).contains(&runs.len()).then_some(fitting)).collect()
}

fn hold(list: &ListedBytes, table: &[u8], choice: u64) -> Result<(), String> {
    let descriptor = Descriptor::of_list(list).ok_or_else(|| format!("{list:?} is not encoded"))?;
    if descriptor.list() != Some(*list) {
        return Err(format!("{list:?} is decoded otherwise"));
    }
    let mut runs = RunTable::new();
    let held = runs.hold(0, &descriptor, |_, to| {
        let from = table.get(..to.len()).ok_or(AccessError::Range)?;
        to.copy_from_slice(from);
        Ok(())
    });
    let (at, len) = (choice % (list.len / 2).max(1), choice.rotate_left(7) % (list.len / 2).max(1));
    let whole = runs.part(0, list.len).map(Iterator::collect::<Vec<_>>);
    let part = runs.part(at, len).map(Iterator::collect::<Vec<_>>);
    let (Some(whole), Some(part)) = (whole, part) else {
        return held.map_or(Ok(()), |()| Err(format!("{list:?} has no part")));
    };
    held.map_err(|error| format!("{list:?} has a part, but: {error}"))?;
    let sum = |runs: &[RemoteRun]| runs.iter().map(|run| u128::from(run.len)).sum::<u128>();
    if sum(&whole) != list.len.into() || sum(&part) != len.into() {
        return Err(format!("{len} bytes from {at} of {list:?} have another length"));
    }
    let lies_in = |run: &RemoteRun| {
        let end = run.address.checked_add(run.len);
        whole.iter().any(|it| it.address <= run.address && end.is_some_and(|end| end <= it.address + it.len))
    };
    if !part.iter().all(lies_in) || runs.part(list.len, 1).is_some() {
        return Err(format!("{len} bytes from {at} of {list:?} lie elsewhere"));
    }
    Ok(())
}
