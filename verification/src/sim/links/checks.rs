//! What must hold in a world of links.

use std::time::Duration;

use nemesia_core::link::machine::terms::{LinkEnding, LinkStage};
use nemesia_core::link::wire::RefusalCode;

use super::owner::SimProcess;
use super::{LinksWorld, MOST_EVENTS};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

/// The longest time until a link is open if nothing hinders it: datagrams may be lost several times.
const PROMPT: Duration = Duration::from_secs(7);

/// What two processes make until a link is open, if nothing hinders it: each for its call, and one for its answer.
const TRIES: u32 = 3;

impl LinksWorld {
    /// Checks that the reason of an end is what has happened.
    pub(super) fn check_end(&mut self, (at, peer): (usize, usize), was_open: bool, end: LinkEnding) {
        self.truth.disturb(at, peer);
        let now = self.network.now;
        let since = self.processes[at].as_mut().and_then(|process| process.since.remove(&peer));
        let lives = self.is_alive(peer) && self.listens(peer);
        let other = self.processes.get(peer).and_then(Option::as_ref);
        let is_right = match end {
            // A process that has departed has left.
            LinkEnding::Died => !lives && !self.truth.departed.contains(&(peer, at)),
            LinkEnding::Left => self.truth.left.contains(&(peer, at)),
            LinkEnding::Dropped => self.truth.dropped.contains(&peer),
            LinkEnding::Disconnected => {
                self.truth.left.contains(&(at, peer)) || self.truth.dropped.contains(&at)
            }
            LinkEnding::Lost => {
                let may = was_open && self.truth.is_losing;
                may && (!lives || self.truth.is_cut(at, peer) || self.has_given_up(peer, at))
            }
            LinkEnding::Unreachable => {
                self.tally.count(Event::LinkUnreachable);
                let (own, hosts) = (self.processes[at].as_ref(), &self.truth.hosts);
                let had = since.unwrap_or(Duration::ZERO);
                // Or it had no place for a connection, so that it could not even refuse in words.
                let could_not = |it: &SimProcess| it.last_stop > had || it.desk.last_full > had;
                let has_ip = self.truth.ports.values().any(|of| *of == peer);
                let is_blocked =
                    has_ip && self.truth.blocked.contains(&(hosts[at], hosts[peer.min(hosts.len() - 1)]));
                !lives
                    || is_blocked
                    || other.is_some_and(could_not)
                    || own.is_some_and(could_not)
                    || now < had + self.limits.patience && since.is_some()
            }
            LinkEnding::Refused(code) => {
                self.tally.count(Event::LinkRefused);
                let has_waited = since.is_none_or(|since| now >= since + self.limits.patience);
                let is_passing = matches!(code, RefusalCode::Full | RefusalCode::Challenge);
                if is_passing { has_waited } else { self.may_refuse(at, peer, code) }
            }
        };
        if !is_right {
            let lasted = since.map(|since| now - since);
            self.truth.violate(format!("{at}: the link with {peer} ends: {end:?} after {lasted:?}"));
        }
    }

    /// Checks that a link is open in time between two processes that nothing disturbs.
    pub(super) fn check_opened(&mut self, at: usize, peer: usize) {
        let Some(since) = self.processes[at].as_mut().and_then(|process| process.since.remove(&peer)) else {
            return;
        };
        let lasted = self.network.now - since;
        let is_free = |of: usize| {
            let process = self.processes.get(of).and_then(Option::as_ref);
            process.is_some_and(|it| {
                it.last_stop == Duration::ZERO && it.desk.last_full == Duration::ZERO && !it.desk.is_short
            })
        };
        let is_disturbed = self.truth.disturbed.contains(&[at.min(peer), at.max(peer)])
            || self.truth.is_cut(at, peer)
            || !self.truth.blocked.is_empty()
            || self.limits.most_undecided < 100;
        if !is_disturbed && is_free(at) && is_free(peer) && lasted > PROMPT {
            self.truth.violate(format!("{at} is open to {peer} only after {lasted:?}"));
        }
        let tries = self.truth.tries.get(&[at.min(peer), at.max(peer)]).copied().unwrap_or(0);
        if !is_disturbed && is_free(at) && is_free(peer) && tries > TRIES {
            self.truth.violate(format!("{at} is open to {peer} only after {tries} tries"));
        }
    }

    /// Returns whether a process has ended a call or link with a peer by itself.
    fn has_given_up(&self, at: usize, peer: usize) -> bool {
        self.truth.given_up.contains(&(at, peer))
    }

    fn may_refuse(&self, at: usize, peer: usize, code: RefusalCode) -> bool {
        let other = self.processes.get(peer).and_then(Option::as_ref);
        match code {
            RefusalCode::Shape => {
                let shapes = &self.truth.shapes;
                shapes.get(peer).is_none_or(|shape| *shape != shapes[at])
            }
            RefusalCode::Version => self.is_varied,
            RefusalCode::Unknown => {
                other.is_none_or(|it| !it.desk.admits || it.is_closing || it.rank.is_some())
            }
            RefusalCode::Ended => {
                // A caller that has ended since may have been one.
                let caller = self.processes[at].as_ref();
                caller.is_none_or(|it| it.rank.is_some()) && !self.ranks.is_empty()
            }
            RefusalCode::Path => self.truth.pathless.contains(&[at.min(peer), at.max(peer)]),
            _ => false,
        }
    }

    /// Checks the limits of all processes.
    pub(super) fn check_limits(&self) -> Check {
        for process in self.processes.iter().flatten() {
            let at = process.desk.at;
            let most = self.limits.most_undecided + self.ranks.len() as u32;
            let undecided = process.links.undecided();
            ensure!(undecided <= most, "{at} has {undecided} undecided calls, at most {most}");
            for door in process.links.unproved() {
                let most = self.limits.most_unproved;
                ensure!(door <= most, "{at} has {door} connections without proof, at most {most}");
            }
        }
        Ok(())
    }

    /// Leaves the processes alone, then lets some speak, and checks what is left.
    pub(crate) fn finish(&mut self) -> Check {
        self.is_resting = true;
        self.rest()?;
        self.check_rest()?;
        self.truth.blocked.clear();
        for _ in 0..self.processes.len().min(12) {
            let [at, peer] = [0; 2].map(|_| self.rng.below(self.processes.len()));
            if self.listens(at) {
                self.speak(at, peer);
            }
        }
        self.rest()?;
        self.check_rest()
    }

    fn rest(&mut self) -> Check {
        let until = self.network.now + 4 * self.limits.patience + Duration::from_secs(30);
        for _ in 0..MOST_EVENTS * self.processes.len() {
            if !self.pass(until)? {
                return self.check_limits();
            }
        }
        Err(Violation("the processes do not come to rest".into()))
    }

    /// Checks what is left when nothing happens any more.
    fn check_rest(&self) -> Check {
        // A local shortage never ends a peer: a process that is short calls on.
        let calls = |process: &SimProcess| {
            let stages = (0..self.processes.len()).map(|peer| self.stage(process.desk.at, peer));
            stages.filter(|it| matches!(it, LinkStage::Calling | LinkStage::Proving)).count()
        };
        let is_calm = !self.processes.iter().flatten().any(|it| it.desk.is_short && calls(it) > 0);
        for process in self.processes.iter().flatten() {
            let at = process.desk.at;
            let links = &process.links;
            ensure!(!is_calm || links.undecided() == 0, "{at} keeps {} undecided calls", links.undecided());
            ensure!(!is_calm || links.unproved() == [0; 2], "{at} keeps connections without proof");
            let mut open = 0;
            for peer in 0..self.processes.len() {
                match self.stage(at, peer) {
                    LinkStage::Idle | LinkStage::Ended => {}
                    LinkStage::Calling | LinkStage::Proving if process.desk.is_short => {}
                    LinkStage::Answered if !is_calm => {}
                    LinkStage::Open => {
                        open += 1;
                        self.check_open(at, peer)?;
                    }
                    stage => {
                        let (made, most) = (process.desk.made.len(), process.desk.most_numbers);
                        let what = format!("{made} of {most} numbers, {} carriers", links.carriers());
                        return Err(Violation(format!("{at} rests in {stage:?} with {peer}: {what}")));
                    }
                }
            }
            if !is_calm {
                continue;
            }
            let (carriers, made) = (links.carriers(), process.desk.made.len());
            ensure!(carriers == open, "{at} has {open} open links and {carriers} carriers");
            ensure!(made == open, "{at} has {open} open links and resources of {made}");
            let used = self.network.uses.keys().filter(|(of, _)| *of == at).count();
            ensure!(used == open, "{at} has {open} open links, and {used} carriers are not closed");
        }
        Ok(())
    }

    /// Checks that the peer has the same link.
    fn check_open(&self, at: usize, peer: usize) -> Check {
        ensure!(self.is_alive(peer), "{at} is open to {peer}, which is dead");
        let made = |at: usize, peer: usize| {
            let process = self.processes[at].as_ref()?;
            process.desk.made.get(&self.link(at, peer)?).copied()
        };
        let (ours, theirs) = (made(at, peer), made(peer, at));
        let pair = ours.zip(theirs);
        let agree = pair.is_some_and(|(ours, theirs)| (ours.own, ours.peers) == (theirs.peers, theirs.own));
        ensure!(agree, "{at} and {peer} do not agree: {ours:?}, {theirs:?}");
        Ok(())
    }
}
