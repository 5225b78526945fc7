//! The fuzz target of the direct pipe: what the other process of a machine may write into the memory that both have
//! mapped.

mod memory;

use nemesia_core::rdma_channel::{DirectPipe, PipeError};

use memory::{MOST_LIST, SharedPipe, get, put};

/// The bytes of a ring.
const RING: usize = 4096;

/// Reads bytes of the input, zeros after its end.
struct PipeScript<'a>(&'a [u8]);

impl PipeScript<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    /// Returns the lengths of a list of two entries.
    fn lens(&mut self) -> [usize; 2] {
        [self.byte(), self.byte()].map(|byte| match byte {
            0..128 => byte.into(),
            _ => usize::from(byte - 127) * (MOST_LIST / 2 / 128),
        })
    }
}

/// One end, and what it has done.
struct FuzzedEnd<'a> {
    pipe: DirectPipe<'a>,
    put: usize,
    got: usize,
    /// The violation that it has found.
    failed: Option<PipeError>,
}

/// Returns the byte at a position of a stream.
const fn byte(end: usize, position: usize) -> u8 {
    ((position ^ position >> 8).wrapping_mul(31) + end) as u8
}

/// Executes the bytes as a script: puts and gets of two processes, and words that one of them writes into the memory.
/// Until the first such word, each stream arrives as it was put. At any time, counts stay within the lists, nothing is
/// written beside them, and a pipe that has failed stays failed.
///
/// # Errors
/// The broken promise.
pub fn direct_pipe(input: &[u8]) -> Result<(), String> {
    let shared = SharedPipe::new(RING);
    let mut ends =
        shared.ends().ok_or("no memory")?.map(|pipe| FuzzedEnd { pipe, put: 0, got: 0, failed: None });
    let (mut script, mut corrupt) = (PipeScript(input), false);
    while !script.0.is_empty() {
        let (code, at) = (script.byte(), usize::from(script.byte() % 2));
        match code % 8 {
            0..3 => check_put(&mut ends, at, script.lens(), corrupt)?,
            3..6 => check_get(&mut ends, at, script.lens(), corrupt)?,
            kind => {
                corrupt = true;
                write_word(&shared, &mut script, kind == 6);
            }
        }
    }
    Ok(())
}

fn check_put(
    ends: &mut [FuzzedEnd<'_>; 2],
    at: usize,
    lens: [usize; 2],
    corrupt: bool,
) -> Result<(), String> {
    let end = &mut ends[at];
    let from = end.put;
    let result = put(&mut end.pipe, lens, |position| byte(at, from + position));
    if let Ok(count) = result {
        if count > lens.iter().sum() {
            return Err(format!("{count} bytes of a list of {lens:?} were put"));
        }
        end.put += count;
    }
    outcome(end, result.map(|_| lens.iter().sum::<usize>() > 0), corrupt)
}

fn check_get(
    ends: &mut [FuzzedEnd<'_>; 2],
    at: usize,
    lens: [usize; 2],
    corrupt: bool,
) -> Result<(), String> {
    let [sent, end] = [ends[1 - at].put, at];
    let end = &mut ends[end];
    let got = get(&mut end.pipe, lens)?;
    if let Ok(bytes) = &got {
        let wrong = bytes.iter().enumerate().position(|(of, found)| *found != byte(1 - at, end.got + of));
        end.got += bytes.len();
        if !corrupt && (wrong.is_some() || end.got > sent) {
            return Err(format!("{} of {sent} bytes arrived, the wrong one is {wrong:?}", end.got));
        }
    }
    outcome(end, got.map(|_| lens.iter().sum::<usize>() > 0), corrupt)
}

/// Checks that a pipe fails only by violations, and stays failed. A call without bytes need not report the failure.
fn outcome(end: &mut FuzzedEnd<'_>, result: Result<bool, PipeError>, corrupt: bool) -> Result<(), String> {
    match (result, end.failed) {
        (Err(error), _) if !corrupt => Err(format!("a pipe failed between honest ends: {error}")),
        (Err(error), None) => {
            end.failed = Some(error);
            Ok(())
        }
        (Err(error), Some(first)) if error != first => Err(format!("first {first}, then {error}")),
        (Ok(true), Some(first)) => Err(format!("the pipe goes on after: {first}")),
        _ => Ok(()),
    }
}

/// Writes a word of the memory: a position, a word near the beginning of a fastbox, or any other.
fn write_word(shared: &SharedPipe, script: &mut PipeScript<'_>, near: bool) {
    let (place, kind) = (script.byte(), script.byte());
    let words = shared.words();
    let at = match place % 8 {
        // The words that positions lie in, of both directions.
        0..3 if near => usize::from(place % 8) * 16,
        3..6 if near => words / 2 + usize::from(place % 8 - 3) * 16,
        6 if near => 512 + usize::from(script.byte() % 32),
        7 if near => words / 2 + 512 + usize::from(script.byte() % 32),
        _ => (usize::from(place) << 8 | usize::from(script.byte())) % words,
    };
    let now = shared.word(at);
    shared.set(
        at,
        match kind % 9 {
            0 => 0,
            1 => u64::MAX,
            2 => now.wrapping_add(1),
            3 => now.wrapping_sub(1),
            4 => shared.word((at + usize::from(script.byte())) % words),
            5 => script.word(),
            6 => now.wrapping_add(1 << 32),
            7 => now ^ 1 << (script.byte() % 64),
            _ => script.byte().into(),
        },
    );
}
