//! Counters agree with the events: with each other at both ends, and with what was sent.

use crate::simulation::{Report, Simulation};
use crate::violation::{Check, ensure};
use crate::world::{PeerCounters, WorldPort};

/// Pairs of counters: what left one end, and what arrived at the other, by kind and by path.
const BOTH_ENDS: [(&str, &str); 20] = [
    ("eager_sent", "eager_received"),
    ("eager_sent_bytes", "eager_received_bytes"),
    ("rts_sent", "rts_received"),
    ("rts_sent_bytes", "rts_received_bytes"),
    ("cts_sent", "cts_received"),
    ("cts_sent_bytes", "cts_received_bytes"),
    ("data_sent", "data_received"),
    ("data_sent_bytes", "data_received_bytes"),
    ("fin_sent", "fin_received"),
    ("fin_sent_bytes", "fin_received_bytes"),
    ("active_sent", "active_received"),
    ("active_sent_bytes", "active_received_bytes"),
    ("rma_sent", "rma_received"),
    ("rma_sent_bytes", "rma_received_bytes"),
    ("rma_reply_sent", "rma_reply_received"),
    ("rma_reply_sent_bytes", "rma_reply_received_bytes"),
    ("fastbox_sent", "fastbox_received"),
    ("fastbox_sent_bytes", "fastbox_received_bytes"),
    ("cell_sent", "cell_received"),
    ("cell_sent_bytes", "cell_received_bytes"),
];

fn value(counters: &PeerCounters, name: &str) -> Option<u64> {
    let mut found = None;
    counters.each(|field, value| found = found.or((field.name == name).then_some(value)));
    found
}

impl<P: WorldPort> Simulation<P> {
    /// Checks the counters of the living ranks when nothing is under way any more.
    pub(crate) fn check_counters(&mut self) -> Check {
        let alive = self.alive();
        for &from in &alive {
            for &to in &alive {
                // Ranks that were opened alone may never have met.
                if self.ranks[from as usize].reported[to as usize] == Report::Nothing {
                    self.check_pair(from, to)?;
                }
            }
        }
        Ok(())
    }

    fn check_pair(&mut self, from: u32, to: u32) -> Check {
        let (sender, receiver) = (self.world.counters(from, to), self.world.counters(to, from));
        for (sent, received) in BOTH_ENDS {
            let (left, came) = (value(&sender, sent), value(&receiver, received));
            ensure!(
                left.is_some() && left == came,
                "rank {from} counts {left:?} {sent} to rank {to}, which counts {came:?} {received}"
            );
        }
        // Of the processes that exist now.
        let first = self.ranks[to as usize].first[from as usize];
        let messages = (self.sent[from as usize][to as usize].len() - first) as u64;
        let counted = sender.eager_sent + sender.rts_sent;
        ensure!(counted == messages, "rank {from} counts {counted} messages to rank {to}, of {messages}");
        let PeerCounters { matched_posted, matched_bypass, unexpected, .. } = receiver;
        let found = matched_posted + matched_bypass + unexpected;
        ensure!(found == messages, "rank {to} counts {found} messages of rank {from}, of {messages}");
        let (spent, used) = (sender.credit_spent, receiver.credit_used);
        ensure!(spent == used, "rank {from} has spent {spent} units at rank {to}, which counts {used}");
        let PeerCounters { large_pulled, large_assisted, large_streamed, .. } = receiver;
        let answered = sender.fin_received + sender.cts_received;
        let large = large_pulled + large_assisted + large_streamed;
        ensure!(large <= answered, "rank {to} counts {large} large messages, of {answered} answered");
        Ok(())
    }
}
