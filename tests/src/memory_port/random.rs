//! All operations against a model: three ports, random operations of random sizes on random connections.

use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection, MemoryPort, PostError, ReceiveQueue, RegionAccess, Work,
    WorkOutcome,
};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{Random, filled};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![("random_operations_equal_a_model", random)]
}

/// The bytes of each window. Each connection writes in its own window, so that the model knows the contents.
const WINDOW: u32 = 9000;
const OPERATIONS: usize = 400;

/// One direction of a connection.
struct Flow {
    from: (usize, Connection),
    to: (usize, Connection),
    /// The start of its window in the target's memory.
    base: u64,
    /// The upper half of its request numbers.
    tag: u64,
    /// The contents of the window after everything posted is done.
    model: Vec<u8>,
    next: u64,
    /// All requests below this number have completed.
    done: u64,
    /// The ranges written since the last read, on a fabric that places several writes in any order.
    dirty: Vec<(u64, u32)>,
    /// Reads under way: number, destination, expected bytes.
    reads: Vec<(u64, u64, Vec<u8>)>,
    /// Messages under way: number and bytes.
    messages: Vec<(u64, Vec<u8>)>,
}

struct State {
    /// The source, target and sink memory of each node.
    memories: Vec<[Memory; 3]>,
    flows: Vec<Flow>,
    most: u32,
}

fn random<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(3)?;
    let most = bench.most_transfer()?.min(WINDOW);
    let mut state = State { memories: Vec::new(), flows: Vec::new(), most };
    for node in 0..3 {
        let len = WINDOW as usize * 8;
        let memory = [
            bench.memory(node, len, RegionAccess::NONE)?,
            bench.open_memory(node, len)?,
            bench.sink(node, len)?,
        ];
        memory[0].put(0, &filled(node as u64, len));
        state.memories.push(memory);
    }
    let pairs = [(0, 1), (1, 2), (2, 0), (0, 1)];
    let allowed = if bench.facts()?.connections < 4 { 1 } else { pairs.len() };
    for (at, (a, b)) in pairs.into_iter().take(allowed).enumerate() {
        let (x, y) = bench.connect(a, b)?;
        let base = at as u64 * u64::from(WINDOW);
        for (from, to) in [((a, x), (b, y)), ((b, y), (a, x))] {
            let model = vec![0; WINDOW as usize];
            let (next, done, dirty, reads, messages) = (0, 0, Vec::new(), Vec::new(), Vec::new());
            let tag = (state.flows.len() as u64) << 32;
            state.flows.push(Flow { from, to, base, tag, model, next, done, dirty, reads, messages });
        }
    }
    for _ in 0..OPERATIONS {
        let at = bench.random.below(state.flows.len() as u64) as usize;
        step(bench, &mut state, at)?;
        for _ in 0..bench.random.below(4) {
            bench.turn();
        }
    }
    (0..state.flows.len()).try_for_each(|at| drain(bench, &mut state, at))?;
    for flow in &state.flows {
        // A completion may not prove placement.
        bench.flush(flow.from, flow.to)?;
        let found = state.memories[flow.to.0][1].get(flow.base, WINDOW as usize);
        ensure(found == flow.model, || format!("window of {:?}", flow.from))?;
    }
    Ok(())
}

/// Returns a position and a length in a window.
fn range(random: &mut Random, most: u32) -> (u64, u32) {
    let len = match random.below(4) {
        0 => random.below(9) as u32,
        1 => random.below(600) as u32,
        _ => random.below(u64::from(most) + 1) as u32,
    }
    .min(most);
    (random.below(u64::from(WINDOW - len) + 1), len)
}

fn step<F: Fabric>(bench: &mut Bench<F>, state: &mut State, at: usize) -> Verdict {
    let facts = bench.facts()?;
    let message = facts.message_bytes;
    let ordered = facts.ordered_within_write && facts.ordered_among_writes;
    let State { memories, flows, most } = state;
    let flow = &mut flows[at];
    let ((place, len), start) = (range(&mut bench.random, *most), bench.random.below(u64::from(WINDOW)));
    let id = flow.tag | flow.next;
    let work = Work { fence: true, ..Work::new(flow.from.1, id) };
    let [source, _, sink] = &memories[flow.from.0];
    let target = &memories[flow.to.0][1];
    let overlaps =
        |(start, size): &(u64, u32)| *start < place + u64::from(len) && place < *start + u64::from(*size);
    // A read proves that the writes before it are placed, and later requests wait for it.
    let kind = match bench.random.below(3) {
        0 if flow.dirty.iter().any(overlaps) => 1,
        kind => kind,
    };
    let len = if kind == 2 { len.min(message) } else { len };
    let bytes = source.get(start, len as usize);
    let part = [source.slice(start, len)];
    // At most one message waits, so that its receive is known to be posted; and one read, so that its room is
    // its own.
    if kind == 1 && !flow.reads.is_empty() || kind == 2 && !flow.messages.is_empty() {
        return drain(bench, state, at);
    }
    let room = flow.base;
    if kind == 2 {
        let [_, _, into] = &memories[flow.to.0];
        let receive = [into.slice(room + u64::from(WINDOW) * 4, len)];
        bench
            .port(flow.to.0)?
            .receive(ReceiveQueue::Of(flow.to.1), id, &receive)
            .map_err(|e| e.to_string())?;
    }
    let port = bench.port(flow.from.0)?;
    let posted = match kind {
        0 => port.write(work, CompletionSource::Gather(&part), target.at(room + place), None),
        1 => port.read(work, &[sink.slice(room, len)], target.at(room + place)),
        _ => port.send(work, CompletionSource::Gather(&part), None),
    };
    match posted {
        Ok(()) => {}
        Err(PostError::QueueFull) if kind != 2 => return drain(bench, state, at),
        Err(PostError::QueueFull) => {
            // The receive is posted: it takes this message once there is room.
            drain_sends(bench, flow, sink)?;
            let again = bench.port(flow.from.0)?.send(work, CompletionSource::Gather(&part), None);
            again.map_err(|error| format!("after everything has completed: {error}"))?;
        }
        Err(other) => return Err(format!("operation {kind} of {len} bytes: {other}")),
    }
    flow.next += 1;
    match kind {
        0 => {
            flow.model[place as usize..][..len as usize].copy_from_slice(&bytes);
            if !ordered {
                flow.dirty.push((place, len));
            }
        }
        1 => {
            flow.reads.push((id, room, flow.model[place as usize..][..len as usize].to_vec()));
            flow.dirty.clear();
        }
        _ => flow.messages.push((id, bytes)),
    }
    Ok(())
}

/// Waits until the send queue of a flow is empty.
fn drain_sends<F: Fabric>(bench: &mut Bench<F>, flow: &mut Flow, sink: &Memory) -> Verdict {
    if flow.next > flow.done {
        let id = flow.tag | (flow.next - 1);
        flow.done = flow.next;
        let (node, connection) = flow.from;
        let mut failed = None;
        bench.until(&format!("everything up to {id:#x}"), |bench| {
            let done = &bench.nodes[node].done;
            let is_bad = |it: &&Completion| {
                it.connection == connection && matches!(it.outcome, WorkOutcome::Failed(_))
            };
            failed = done.iter().find(is_bad).copied();
            failed.is_some() || done.iter().any(|it| it.id == id && it.outcome == WorkOutcome::Done)
        })?;
        // A failure is not a stall.
        equal("work that failed", failed, None)?;
        bench.nodes[node].done.retain(|it| it.connection != connection || it.outcome != WorkOutcome::Done);
    }
    for (_, room, wanted) in flow.reads.drain(..) {
        ensure(sink.get(room, wanted.len()) == wanted, || format!("a read of {} bytes", wanted.len()))?;
    }
    Ok(())
}

/// Waits until a flow has nothing under way.
fn drain<F: Fabric>(bench: &mut Bench<F>, state: &mut State, at: usize) -> Verdict {
    let State { memories, flows, .. } = state;
    let flow = &mut flows[at];
    drain_sends(bench, flow, &memories[flow.from.0][2])?;
    for (id, wanted) in std::mem::take(&mut flow.messages) {
        equal("message", bench.received(flow.to.0, id)?, (wanted.len() as u32, None, false))?;
        let found = memories[flow.to.0][2].get(flow.base + u64::from(WINDOW) * 4, wanted.len());
        ensure(found == wanted, || format!("a message of {} bytes", wanted.len()))?;
    }
    Ok(())
}
