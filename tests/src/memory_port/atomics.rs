//! Atomic operations.

use nemesia_core::port::memory::{MemoryPort, PostError, RegionAccess, Work};

use super::bench::Bench;
use super::{Check, Fabric, Verdict, equal};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("atomics_or_a_clear_no", alone),
        ("atomics_of_several_peers_do_not_lose_any", together),
        ("atomics_need_alignment_and_rights", wrong),
    ]
}

fn alone<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, _) = bench.connect(0, 1)?;
    let (to, from) = (bench.open_memory(1, 64)?, bench.memory(0, 64, RegionAccess::LOCAL)?);
    let (work, into, at) = (Work::new(a, 1), from.slice(8, 8), to.at(16));
    if !bench.facts()?.atomics {
        let port = bench.port(0)?;
        equal("fetch and add", port.fetch_add(work, into, at, 1), Err(PostError::Unsupported))?;
        return equal("swap", port.compare_swap(work, into, at, 0, 1), Err(PostError::Unsupported));
    }
    to.put(16, &u64::MAX.to_ne_bytes());
    bench.port(0)?.fetch_add(work, into, at, 5).map_err(|error| error.to_string())?;
    bench.succeeds(0, 1)?;
    equal("old value, and that which wrapped", (from.word(8), to.word(16)), (u64::MAX, 4))?;
    let swap = |bench: &mut Bench<F>, expected, new| {
        bench.port(0)?.compare_swap(work, into, at, expected, new).map_err(|error| error.to_string())?;
        bench.succeeds(0, 1)?;
        Ok::<_, String>((from.word(8), to.word(16)))
    };
    equal("swap of what it is not", swap(bench, 3, 9)?, (4, 4))?;
    equal("swap of what it is", swap(bench, 4, 1 << 63)?, (4, 1 << 63))?;
    equal("around it", (to.word(8), to.word(24), from.word(0), from.word(16)), (0, 0, 0, 0))
}

fn together<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(3)?;
    if !bench.facts()?.atomics {
        return Ok(());
    }
    let (a, b) = (bench.connect(0, 2)?.0, bench.connect(1, 2)?.0);
    let to = bench.open_memory(2, 8)?;
    let from = [bench.memory(0, 512, RegionAccess::LOCAL)?, bench.memory(1, 512, RegionAccess::LOCAL)?];
    let depth = u64::from(bench.facts()?.send_depth.min(20));
    let mut seen = Vec::new();
    for _ in 0..5 {
        for id in 0..depth {
            for (node, connection) in [(0, a), (1, b)] {
                let (work, into) = (Work::new(connection, id), from[node].slice(8 * id, 8));
                bench.port(node)?.fetch_add(work, into, to.at(0), 1).map_err(|error| error.to_string())?;
            }
        }
        for id in 0..depth {
            for (node, from) in from.iter().enumerate() {
                bench.succeeds(node, id)?;
                seen.push(from.word(8 * id));
            }
        }
    }
    seen.sort_unstable();
    equal("every value once", seen, (0..10 * depth).collect())?;
    equal("sum", to.word(0), 10 * depth)
}

fn wrong<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    if !bench.facts()?.atomics {
        return Ok(());
    }
    let (a, b) = bench.connect(0, 1)?;
    let to = bench.open_memory(1, 64)?;
    let from = bench.memory(0, 64, RegionAccess::LOCAL)?;
    to.put(0, &[7; 64]);
    let work = Work::new(a, 1);
    // It is refused at once or by its completion, and never executed.
    match bench.port(0)?.fetch_add(work, from.slice(0, 8), to.at(4), 1) {
        Err(PostError::Alignment) => bench.works((0, a), (1, b))?,
        Err(other) => return Err(format!("not aligned: {other}")),
        Ok(()) => {
            bench.fails(0, 1)?;
            bench.lost(1, b)?;
        }
    }
    equal("untouched", to.get(0, 64), vec![7; 64])?;
    let (a, b) = bench.connect(0, 1)?;
    let short = bench.port(0)?.fetch_add(Work::new(a, 2), from.slice(0, 4), to.at(0), 1);
    equal("room of four bytes", short, Err(PostError::Alignment))?;
    bench.works((0, a), (1, b))?;
    let weak = bench.memory(1, 64, RegionAccess { remote_atomic: false, ..RegionAccess::ALL })?;
    bench.port(0)?.fetch_add(Work::new(a, 3), from.slice(0, 8), weak.at(0), 1).map_err(|e| e.to_string())?;
    bench.fails(0, 3)?;
    bench.lost(1, b)?;
    equal("untouched", weak.word(0), 0)
}
