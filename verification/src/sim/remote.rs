//! One-sided operations and active messages: what a rank starts, and an oracle that executes each on plain
//! bytes when its packet is taken, in the order started.

mod model;

use crate::memory::{Loan, fill};
use crate::remotes::{Open, Remote, RemoteState, Remotes};
use crate::simulation::{Report, Simulation};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};
use crate::world::{CompletionError, Failure, Handled, Order, Outcome, StartError, Verb, WorldPort};
use model::{execute, some_order};

impl<P: WorldPort> Simulation<P> {
    fn side(&mut self, rank: u32) -> &mut RemoteState {
        &mut self.remotes.sides[rank as usize]
    }

    /// Starts an operation on the region of some rank, or sends it an active message.
    pub(crate) fn start_remote(&mut self, from: u32) -> Check {
        let ranks = self.shape.conditions.ranks;
        if self.side(from).open.len() >= 4 * self.shape.many {
            return self.progress(from).map(drop);
        }
        let order = some_order(&mut self.rng, from, ranks, self.shape.conditions.packet_bytes);
        self.start_order(from, order)
    }

    /// Flushes to a rank that has closed: what it has executed is done, and the rest is not.
    pub(crate) fn flush_gone(&mut self, from: u32, to: u32) -> Check {
        self.start_order(from, Order { to, offset: 0, len: 0, key: 0, verb: Verb::Flush, delivered: false })
    }

    fn start_order(&mut self, from: u32, order: Order) -> Check {
        let to = order.to;
        // An operation on the own region waits behind messages to itself. Its end is visible, but not its
        // order among the operations of others.
        let waits = from == to && !self.side(from).own.is_empty();
        if waits && !order.verb.concerns_one_origin() {
            return self.progress(from).map(drop);
        }
        // A get may see what is put later, unless a fence stands between them.
        if matches!(order.verb, Verb::Put { .. }) && self.has_open_get(from, to) {
            let fenced = self.world.fence(from, to);
            self.side(from).fences += 1;
            if fenced.is_err() || self.world.fabric().is_dead(from) {
                return Ok(());
            }
        }
        let nothing = match order.verb {
            Verb::Get | Verb::FetchAccumulate(..) => order.len == 0,
            Verb::Flush => !self.world.is_unflushed(from, to),
            Verb::Active { .. } => from == to,
            _ => false,
        };
        // Recorded before it is started: it may leave, and its origin die, in the same call.
        let number = self.remotes.operations.len();
        let done = nothing && !matches!(order.verb, Verb::Active { .. });
        self.remotes.operations.push(Remote { order, taken: 0, done, answer: Vec::new() });
        if !nothing {
            self.remotes.queue(from, to).push_back(number);
        }
        let started = self.world.start(from, &order);
        self.note(|| {
            format!("rank {from} starts {number}, {order:?}: {}", if started.is_ok() { "ok" } else { "no" })
        });
        if self.world.fabric().is_dead(from) {
            return Ok(());
        }
        match started {
            Ok(handle) => {
                self.side(from).open.push(Open { handle, number });
                if !nothing && self.rank(to).gone.is_some() {
                    // A flush to a rank that has closed only waits for that rank's last report: no rank
                    // executes it.
                    self.remotes.queue(from, to).pop_back();
                }
                if nothing && !done || waits && !nothing {
                    self.side(from).own.push_back(number);
                    return Ok(());
                }
                // An operation on itself with nothing before it is executed at once.
                if from == to && !nothing { self.execute(from, to, usize::MAX) } else { Ok(()) }
            }
            Err(error) => {
                if !nothing {
                    self.remotes.queue(from, to).pop_back();
                }
                self.check_start(from, to, &error)
            }
        }
    }

    fn check_start(&mut self, from: u32, to: u32, error: &StartError) -> Check {
        let StartError::PeerFailed { peer, failure } = *error else { return self.refused(from, error) };
        let knows = self.rank(from).reported[to as usize].failure();
        ensure!(
            peer == to && knows == Some(failure),
            "rank {from} can't reach rank {to}, as {peer} is gone ({failure})"
        );
        Ok(())
    }

    fn has_open_get(&self, from: u32, to: u32) -> bool {
        let Remotes { sides, operations, .. } = &self.remotes;
        sides[from as usize].open.iter().any(|open| {
            let Order { to: target, verb, .. } = operations[open.number].order;
            target == to && verb == Verb::Get
        })
    }

    /// Lets a rank wait for notifications.
    pub(crate) fn await_notifications(&mut self, rank: u32) -> Check {
        let any_failed = self.rank(rank).any_failed;
        let RemoteState { notified, awaits, .. } = self.side(rank);
        if awaits.len() > 3 {
            return Ok(());
        }
        let (notified, count) = (*notified, *notified + self.rng.below(4) as u64);
        match self.world.await_notifications(rank, count) {
            Ok(handle) => {
                ensure!(!any_failed || count <= notified, "rank {rank} awaits what may never come");
                self.side(rank).awaits.push((handle, count));
                Ok(())
            }
            Err(StartError::PeerFailed { .. }) => {
                ensure!(any_failed && count > notified, "rank {rank} may not await {count} notifications");
                Ok(())
            }
            Err(error) => self.refused(rank, &error),
        }
    }

    /// Executes a packet that a rank has taken, of an operation or of an active message.
    pub(crate) fn execute(&mut self, from: u32, to: u32, len: usize) -> Check {
        let number = self.remotes.queue(from, to).pop_front();
        let number = number
            .ok_or_else(|| Violation(format!("rank {to} takes an operation that {from} has not started")))?;
        let Remotes { sides, operations, under_way, .. } = &mut self.remotes;
        let (remote, side) = (&mut operations[number], &mut sides[to as usize]);
        remote.done = execute(remote, &mut side.model, len);
        if !remote.done {
            under_way[from as usize][to as usize].push_front(number);
            return Ok(());
        }
        match remote.order.verb {
            Verb::Put { notify } => side.notified += u64::from(notify),
            verb if verb.is_handled() => side.due.push_back((from, number)),
            Verb::Active { .. } => side.unhandled += 1,
            _ => {}
        }
        Ok(())
    }

    /// Checks that a rank has handled what it must, in order, and nothing else.
    pub(crate) fn check_handled(&mut self, rank: u32) -> Check {
        self.check_replies(rank)?;
        for handled in self.world.handled(rank) {
            let due = if handled.from == rank {
                let due = self.next_own_message(rank);
                self.execute_own(rank)?;
                due
            } else {
                self.side(rank).due.pop_front()
            };
            let Handled { from, handler, .. } = handled;
            let len = handled.bytes.len();
            let nobody = || {
                Violation(format!(
                    "rank {rank} handles {len} bytes of rank {from} for {handler}, which no rank sent"
                ))
            };
            let (from, number) = due.ok_or_else(nobody)?;
            self.count(Event::Active);
            self.check_message(rank, from, number, &handled)?;
        }
        let RemoteState { due, .. } = &self.remotes.sides[rank as usize];
        ensure!(due.is_empty(), "rank {rank} has not handled {due:?}");
        Ok(())
    }

    /// Returns the next message to itself for which a rank has a handler.
    fn next_own_message(&mut self, rank: u32) -> Option<(u32, usize)> {
        let Remotes { sides, operations, .. } = &mut self.remotes;
        let own = &mut sides[rank as usize].own;
        let at = own.iter().position(|&number| operations[number].order.verb.is_handled())?;
        Some((rank, own.remove(at)?))
    }

    /// Executes what waited behind messages to itself that are handled now.
    fn execute_own(&mut self, rank: u32) -> Check {
        while let Some(&number) = self.side(rank).own.front()
            && !matches!(self.remotes.operations[number].order.verb, Verb::Active { .. })
        {
            self.side(rank).own.pop_front();
            self.execute(rank, rank, usize::MAX)?;
        }
        Ok(())
    }

    fn check_message(&mut self, rank: u32, from: u32, number: usize, handled: &Handled) -> Check {
        let Order { verb, len, key, .. } = self.remotes.operations[number].order;
        let mut bytes = vec![0; len];
        fill(key, &mut bytes);
        let is = Verb::Active { handler: handled.handler, header: handled.header };
        ensure!(
            handled.from == from && is == verb,
            "rank {rank} handles {} bytes for {} of rank {}, not number {number} of rank {from}",
            handled.bytes.len(),
            handled.handler,
            handled.from
        );
        ensure!(
            handled.bytes == bytes,
            "active message {number} of rank {from} to rank {rank} has wrong bytes"
        );
        Ok(())
    }

    /// Checks the requests of a rank.
    pub(crate) fn complete_remote(&mut self, rank: u32) -> Check {
        for open in std::mem::take(&mut self.side(rank).open) {
            match self.world.test(open.handle) {
                Some(outcome) => self.check_remote(rank, &open, outcome)?,
                None => {
                    let to = self.remotes.operations[open.number].order.to;
                    let gone = matches!(self.rank(rank).reported[to as usize], Report::Failed(_));
                    ensure!(
                        !gone,
                        "rank {rank} waits for operation {} on rank {to}, which is gone",
                        open.number
                    );
                    self.side(rank).open.push(open);
                }
            }
        }
        for (handle, count) in std::mem::take(&mut self.side(rank).awaits) {
            let notified = self.side(rank).notified;
            let Some(outcome) = self.world.test(handle) else {
                ensure!(notified < count, "rank {rank} awaits {count} notifications, and has {notified}");
                self.side(rank).awaits.push((handle, count));
                continue;
            };
            self.end_loan(handle.loan)?;
            match outcome {
                Ok(_) => self.count(Event::Notified),
                Err(CompletionError::PeerFailed { .. }) => continue,
                Err(message_end) => {
                    return Err(Violation(format!("rank {rank} awaited notifications: {message_end}")));
                }
            }
            ensure!(notified >= count, "rank {rank} awaited {count} notifications, and has {notified}");
        }
        Ok(())
    }

    fn end_loan(&mut self, loan: Loan) -> Check {
        self.world.fabric().memory.end(loan, |_| ())
    }

    fn check_remote(&mut self, rank: u32, open: &Open, outcome: Outcome) -> Check {
        let Remote { order, done, answer, .. } = &self.remotes.operations[open.number];
        let (order, done) = (*order, *done);
        let answer = answer.clone();
        let reported = self.rank(rank).reported[order.to as usize].failure();
        self.note(|| format!("operation {} of rank {rank} is complete: {outcome:?}", open.number));
        let wrong = self.world.fabric().memory.end(open.handle.loan, |bytes| bytes != answer)?;
        if let Err(message_end) = outcome {
            let known = reported.map(|failure| CompletionError::PeerFailed { peer: order.to, failure });
            ensure!(
                known == Some(message_end),
                "operation {}, {order:?}, of rank {rank}: {message_end}",
                open.number
            );
            return Ok(());
        }
        let event = match order.verb {
            Verb::Put { .. } | Verb::Accumulate(..) if order.delivered => Event::Delivered,
            Verb::Put { .. } | Verb::Accumulate(..) => Event::Put,
            Verb::Active { .. } => {
                if order.to == rank && !order.verb.is_handled() {
                    self.side(rank).own.retain(|&number| number != open.number);
                    self.side(rank).unhandled += 1;
                    self.execute_own(rank)?;
                }
                return Ok(());
            }
            Verb::Get => Event::Get,
            Verb::Fetch(..) | Verb::CompareSwap(..) | Verb::FetchAccumulate(..) => Event::Atomic,
            Verb::Flush => Event::Flush,
        };
        self.count(event);
        match order.verb {
            // The results of the call in which a rank died are unknown.
            Verb::Get | Verb::Fetch(..) | Verb::CompareSwap(..) | Verb::FetchAccumulate(..)
                if done || self.rank(order.to).gone.is_none() =>
            {
                ensure!(done, "operation {} of rank {rank} is complete before it was executed", open.number);
                ensure!(!wrong, "operation {} of rank {rank}, {order:?}, has got wrong bytes", open.number);
            }
            // Its bytes are there when it is complete.
            Verb::Put { .. } | Verb::Accumulate(..)
                if order.delivered && (done || self.rank(order.to).gone.is_none()) =>
            {
                ensure!(done, "operation {} of rank {rank} is delivered before it was executed", open.number);
            }
            Verb::Flush => {
                // Messages for handlers are no operations.
                let gone = self.rank(order.to).gone.is_some();
                let Remotes { operations, under_way, lost, .. } = &self.remotes;
                let queue = if gone { lost } else { under_way };
                let queue = &queue[rank as usize][order.to as usize];
                let is_operation =
                    |&&number: &&usize| !matches!(operations[number].order.verb, Verb::Active { .. });
                // A rank that has closed need not have seen a flush, neither this one nor an earlier one.
                let is_other =
                    |&&number: &&usize| !gone || !matches!(operations[number].order.verb, Verb::Flush);
                let first = queue.iter().filter(is_other).find(is_operation).copied();
                let all = first.is_none_or(|first| first > open.number);
                ensure!(all, "rank {rank} has flushed rank {}, which has not done {first:?}", order.to);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that in a world at rest nothing is under way between living ranks.
    pub(crate) fn check_remote_rest(&mut self) -> Check {
        let alive = self.alive();
        for &rank in &alive {
            self.side(rank).fences = 0;
            self.check_all_replies_leave(rank)?;
            let idle = self.remotes.is_idle(rank, &alive);
            let RemoteState { open, own, .. } = &self.remotes.sides[rank as usize];
            ensure!(idle, "operations of or on rank {rank} do not end: {open:?}, {own:?}");
            let side = &self.remotes.sides[rank as usize];
            let (bytes, notified) = self.world.region(rank);
            let at = bytes.iter().zip(&side.model).position(|(is, should)| is != should);
            ensure!(at.is_none(), "byte {} of the region of rank {rank} is wrong", at.unwrap_or_default());
            let expected = side.notified;
            ensure!(notified == Some(expected), "rank {rank} has {notified:?} notifications, not {expected}");
            let (expected, counted) = (side.unhandled, self.world.unhandled(rank));
            ensure!(
                counted == expected,
                "rank {rank} counts {counted} messages without handlers, not {expected}"
            );
        }
        Ok(())
    }

    /// Withdraws the requests that wait for notifications.
    pub(crate) fn cancel_awaits(&mut self, rank: u32) -> Check {
        for (handle, _) in std::mem::take(&mut self.side(rank).awaits) {
            ensure!(self.world.cancel(handle), "rank {rank} can't withdraw its waiting for notifications");
            let outcome = self.world.test(handle);
            ensure!(
                outcome == Some(Err(CompletionError::Cancelled)),
                "a withdrawn waiting of rank {rank}: {outcome:?}"
            );
            self.end_loan(handle.loan)?;
        }
        Ok(())
    }

    /// Fails the requests of a rank that wait for notifications when a peer is gone.
    pub(crate) fn fail_awaits(&mut self, rank: u32, peer: u32, failure: Failure) -> Check {
        for (handle, count) in std::mem::take(&mut self.side(rank).awaits) {
            let outcome = self.world.test(handle);
            let notified = self.side(rank).notified;
            let right = match outcome {
                Some(Ok(_)) => notified >= count,
                Some(Err(message_end)) => message_end == CompletionError::PeerFailed { peer, failure },
                None => false,
            };
            ensure!(right, "rank {rank} awaits {count} notifications from anybody: {outcome:?}");
            self.end_loan(handle.loan)?;
        }
        Ok(())
    }
}
