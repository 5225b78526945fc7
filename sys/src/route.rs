//! The route of each peer, the facilities in use, and why others were refused: no silent swap.

use std::fmt;

use nemesia_core::port::channel::RendezvousChoice;

use crate::Failure;
use crate::config::Config;
use crate::explain::{Verdict, local};
use crate::opening::ranges;

/// The transport over sockets, whose packets are larger.
const TCP: &str = "tcp";

/// The route of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The rank.
    pub rank: usize,
    /// The transport of its messages: `shm`, `tcp`, `verbs`, or `self`.
    pub transport: &'static str,
    /// The facilities in use with that transport, and the others with the reason.
    pub facilities: Vec<Verdict>,
    /// The other transports, and why each was refused.
    pub refused: Vec<Verdict>,
    /// Its failure, if it has failed.
    pub failure: Option<Failure>,
}

impl Route {
    /// Returns whether everything but the rank is the same.
    fn is_like(&self, other: &Self) -> bool {
        Self { rank: other.rank, ..self.clone() } == *other
    }
}

/// The route of each rank, and the warnings. As text it has one line for each group of ranks with the same route, and
/// one for each warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// This process's rank.
    pub rank: usize,
    /// The number of ranks of the world; of an endpoint that was opened alone, the number of places for peers.
    pub size: usize,
    /// One route for each rank, in order, and for each further peer of a world.
    pub routes: Vec<Route>,
    /// See [`Endpoint::warnings`](crate::Endpoint::warnings).
    pub warnings: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = format!("nemesia: rank {} of {}", self.rank, self.size);
        let mut groups: Vec<(&Route, Vec<usize>)> = Vec::new();
        for route in &self.routes {
            match groups.iter_mut().find(|(first, _)| first.is_like(route)) {
                Some((_, ranks)) => ranks.push(route.rank),
                None => groups.push((route, vec![route.rank])),
            }
        }
        for (route, ranks) in groups {
            write!(f, "{us}: {} over {}", ranges(&ranks), route.transport)?;
            for Verdict { name, usable, reason } in route.facilities.iter().chain(&route.refused) {
                write!(f, "; {}{name}: {reason}", if *usable { "" } else { "not " })?;
            }
            match route.failure {
                Some(failure) => writeln!(f, "; gone: {failure}")?,
                None => writeln!(f)?,
            }
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "{us}: warning: {warning}"))
    }
}

/// The facts about a peer that the handshake established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    /// It has registered for `membarrier`.
    pub(crate) expedited: bool,
    /// No other process can write its own segment.
    pub(crate) sealed: bool,
    /// The size of the huge pages of its own segment, in bytes.
    pub(crate) page: Option<usize>,
    /// The reason why its memory cannot be read, if it cannot.
    pub(crate) unreadable: Option<String>,
}

/// Facts known when the peers are met.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Whether `membarrier` serves every process of the world, so that no process executes fences.
    pub(crate) expedited: bool,
    /// The facts about each rank except this one.
    pub(crate) met: Vec<Option<Met>>,
    /// The transport to each rank on another machine. Empty if there is none.
    pub(crate) remote: Vec<Option<&'static str>>,
    /// The other transports between machines, and why they are not used. Empty if no rank is on another machine.
    pub(crate) unused: Vec<Verdict>,
}

impl Facts {
    /// Returns the route of a rank from `us`; `pulls` says whether its memory is still read, `beside` has what the
    /// port to other machines says about the rank.
    pub(crate) fn route(
        &self,
        config: &Config,
        (us, rank): (usize, usize),
        (pulls, beside): (bool, Vec<Verdict>),
        failure: Option<Failure>,
    ) -> Route {
        if let Some(transport) = self.remote.get(rank).copied().flatten() {
            return self.remote_route(config, (transport, rank), beside, failure);
        }
        let mut refused: Vec<Verdict> = local().collect();
        let Some(met) = self.met.get(rank).and_then(Option::as_ref) else {
            if rank != us {
                let reason =
                    "there is no connection: it was not spoken to, or has not readmitted this process";
                let facilities = vec![Verdict::new("connected", false, reason)];
                return Route { rank, transport: "shm", facilities, refused, failure };
            }
            let reason = "a message to oneself is matched in place";
            refused.insert(0, Verdict::new("shm", false, reason));
            return Route { rank, transport: "self", facilities: Vec::new(), refused, failure };
        };
        Route { rank, transport: "shm", facilities: self.facilities(config, met, pulls), refused, failure }
    }

    fn remote_route(
        &self,
        config: &Config,
        (transport, rank): (&'static str, usize),
        beside: Vec<Verdict>,
        failure: Option<Failure>,
    ) -> Route {
        let packet_bytes = config.net_packet_bytes(transport == TCP);
        let packets = format!("up to {packet_bytes} bytes, {} ahead", config.net_receives);
        let why = if config.local {
            "the place that it published, and its hand-over socket, show that it does not share this machine"
        } else {
            "NEMESIA_LOCAL is off"
        };
        let refused = std::iter::once(Verdict::new("shm", false, why)).chain(self.unused.iter().cloned());
        let rendezvous = match config.net_rendezvous {
            RendezvousChoice::Auto => "large messages are read, written or sent in packets, as measured",
            RendezvousChoice::Read => "this process reads large messages",
            RendezvousChoice::Write => "the sender writes large messages, and reports the end by a packet",
            RendezvousChoice::WriteNotify => {
                "the sender writes large messages, and the last write reports the end"
            }
            RendezvousChoice::Stream => "large messages travel in packets",
        };
        let mut facilities =
            vec![Verdict::new("packets", true, packets), Verdict::new("rendezvous", true, rendezvous)];
        facilities.extend(beside);
        Route { rank, transport, facilities, refused: refused.collect(), failure }
    }

    fn facilities(&self, config: &Config, met: &Met, pulls: bool) -> Vec<Verdict> {
        let fastbox = format!("up to {} bytes, {} slots", config.fastbox_bytes(), config.fastbox_slots);
        let cells = format!("{} of {} bytes", config.cells, config.cell_bytes);
        let membarrier = match (self.expedited, met.expedited) {
            (true, _) => "no send needs a full fence",
            (false, true) => "some process of the world is refused it, so every send needs a full fence",
            (false, false) => "it is refused there, so every send needs a full fence",
        };
        let seal = if met.sealed {
            "only it can write its own segment"
        } else {
            "others could write its own segment"
        };
        let huge = match met.page {
            Some(page) => format!("its cells are in pages of {page} bytes"),
            None => "its cells are in ordinary pages".to_owned(),
        };
        let single_copy = match (pulls, &met.unreadable) {
            (true, _) => "large messages are read from the sender's memory",
            (false, Some(problem)) => problem.as_str(),
            (false, None) => "the kernel has come to refuse it",
        };
        vec![
            Verdict::new("fastbox", true, fastbox),
            Verdict::new("cells", true, cells),
            Verdict::new("membarrier", self.expedited, membarrier),
            Verdict::new("seal", met.sealed, seal),
            Verdict::new("huge pages", met.page.is_some(), huge),
            Verdict::new("single copy", pulls, single_copy),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MET: Met = Met { expedited: true, sealed: true, page: None, unreadable: None };

    fn explanation(expedited: bool, met: Vec<Option<Met>>) -> Explanation {
        let facts = Facts { expedited, met, remote: Vec::new(), unused: Vec::new() };
        let route = |rank| facts.route(&Config::default(), (0, rank), (true, Vec::new()), None);
        Explanation {
            rank: 0,
            size: facts.met.len(),
            routes: (0..facts.met.len()).map(route).collect(),
            warnings: vec!["one".into()],
        }
    }

    #[test]
    fn ranks_that_are_reached_alike_share_a_line() {
        let unlike = Met { page: Some(2 << 20), ..MET };
        let text = explanation(true, vec![None, Some(MET), Some(MET), Some(unlike), Some(MET)]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("nemesia: rank 0 of 5: rank 0 over self; not shm: "), "{text}");
        assert!(
            lines[1].starts_with("nemesia: rank 0 of 5: ranks 1-2, 4 over shm; fastbox: up to 232 bytes"),
            "{text}"
        );
        assert!(lines[1].contains("; not tcp: ") && lines[1].contains("; not verbs: "), "{text}");
        assert!(lines[2].contains(": rank 3 over shm;") && lines[2].contains("; huge pages: "), "{text}");
        assert_eq!(lines[3], "nemesia: rank 0 of 5: warning: one");
    }

    #[test]
    fn a_fence_is_explained_by_whoever_causes_it() {
        let refused = Met { expedited: false, ..MET };
        let routes = explanation(false, vec![None, Some(MET), Some(refused)]).routes;
        let reason = |rank: usize| {
            let fence = routes[rank].facilities.iter().find(|verdict| verdict.name == "membarrier").unwrap();
            assert!(!fence.usable);
            fence.reason.as_str()
        };
        assert!(reason(1).starts_with("some process"), "{}", reason(1));
        assert!(reason(2).starts_with("it is refused there"), "{}", reason(2));
    }

    #[test]
    fn memory_that_can_not_be_read_is_explained() {
        let reason = |unreadable: Option<&str>| {
            let facts = Facts {
                expedited: true,
                met: vec![Some(Met { unreadable: unreadable.map(str::to_owned), ..MET })],
                remote: Vec::new(),
                unused: Vec::new(),
            };
            let route = facts.route(&Config::default(), (1, 0), (false, Vec::new()), None);
            let copy = route.facilities.into_iter().find(|verdict| verdict.name == "single copy").unwrap();
            assert!(!copy.usable);
            copy.reason
        };
        assert_eq!(reason(Some("Yama says no")), "Yama says no");
        assert_eq!(reason(None), "the kernel has come to refuse it");
    }
}
