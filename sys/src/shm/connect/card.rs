//! What a process publishes before it connects: where it is, and the facts that a call would say.
//!
//! With these facts a world can check at its start that its processes fit, although they connect later. What others
//! publish is untrusted: every field is checked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nemesia_core::link::token::LinkToken;
use nemesia_core::peers::PeerAddress;
use nemesia_core::shared::layout::Geometry;

use crate::config::{Config, SingleCopy};
use crate::os::HandoffListener;
use crate::shm::address;
use crate::shm::peer::{Cpus, ShmWorld};
use crate::transport::hosts::HostAddress;

/// Stands for the place of a process that takes no calls of other machines.
const NOWHERE: &str = "-";

/// The published facts about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessCard {
    pub(super) host: HostAddress,
    /// It can be connected when it is first spoken to.
    pub(super) on_demand: bool,
    /// Where it takes calls of other machines, if it does.
    pub(super) called: Option<SocketAddr>,
    /// The token of the process: a secret of those that are given its card.
    pub(super) token: LinkToken,
    pub(super) geometry: Geometry,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
}

impl ProcessCard {
    /// Returns the card of this process, which listens here, and takes calls of other machines there.
    pub(super) fn here(listener: &HandoffListener, called: Option<SocketAddr>, world: &ShmWorld) -> Self {
        let ShmWorld { config, geometry, token, expedited, cpus, .. } = world;
        let (host, on_demand) = (HostAddress::of(listener.name(), config), permits_demand(world));
        let (token, geometry, expedited, cpus) = (*token, *geometry, *expedited, *cpus);
        Self { host, on_demand, called, token, geometry, expedited, cpus }
    }

    /// Returns the text to publish.
    pub(super) fn encode(&self) -> String {
        let Self { host, on_demand, called, token, geometry, expedited, cpus } = self;
        let Geometry { cells, cell_bytes, fastbox_slots } = geometry;
        let flags = u8::from(*on_demand) | u8::from(*expedited) << 1;
        let used = cpus.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
        let cpus: Vec<String> = cpus[..used].iter().map(|word| format!("{word:x}")).collect();
        let host = host.encode();
        let token = u128::from_be_bytes(*token.bytes());
        let called = called.map_or(NOWHERE.into(), place_text);
        format!(
            "{host}/{token:032x}.{called}.{cells}.{cell_bytes}.{fastbox_slots}.{flags}.{}",
            cpus.join("-")
        )
    }

    /// Decodes a published text, or returns what is wrong with it.
    pub(super) fn decode(text: &str) -> Result<Self, String> {
        let (host, facts) = text.rsplit_once('/').unwrap_or((text, ""));
        let host = HostAddress::decode(host)?;
        let facts = decode_facts(facts);
        // The text has the token, which no error shows.
        let malformed = "its address is malformed: mixed programs in one job?";
        let (token, called, geometry, flags, cpus) = facts.ok_or(malformed)?;
        let [on_demand, expedited] = [1, 2].map(|flag| flags & flag != 0);
        Ok(Self { host, on_demand, called, token, geometry, expedited, cpus })
    }

    /// Returns the address by which the process is called.
    pub(super) fn address(&self) -> PeerAddress {
        let place = address::address_at(&self.host, self.token);
        self.called.map_or(place, |called| address::with_remote(place, called)).encode()
    }
}

/// Returns whether something must be known of all peers at the start: opening can fail, or explains how each is
/// reached.
fn requires_all(config: &Config) -> bool {
    config.strict || config.explain || config.single_copy == SingleCopy::Require
}

/// Returns whether this process permits that ranks connect on demand.
pub(super) fn permits_demand(world: &ShmWorld) -> bool {
    world.config.on_demand && !world.restarts && !requires_all(&world.config)
}

/// Returns the text of a place in the network: digits of the address, 4-byte ones mapped, and of the port.
fn place_text(at: SocketAddr) -> String {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    format!("{:032x}{:04x}", u128::from(ip), at.port())
}

/// Returns the place in the network with this text.
fn place_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_at_checked(32).filter(|(_, port)| port.len() == 4)?;
    let ip = Ipv6Addr::from(u128::from_str_radix(ip, 16).ok()?).to_canonical();
    let port = u16::from_str_radix(port, 16).ok()?;
    (port != 0 && !ip.is_unspecified()).then(|| SocketAddr::new(ip, port))
}

fn decode_facts(text: &str) -> Option<(LinkToken, Option<SocketAddr>, Geometry, u8, Cpus)> {
    let fields: Vec<&str> = text.splitn(8, '.').collect();
    let [token, called, cells, cell_bytes, fastbox_slots, flags, words] = fields[..] else { return None };
    let geometry = Geometry {
        cells: cells.parse().ok()?,
        cell_bytes: cell_bytes.parse().ok()?,
        fastbox_slots: fastbox_slots.parse().ok()?,
    };
    let mut cpus = Cpus::default();
    for (at, word) in words.split('-').enumerate() {
        *cpus.get_mut(at)? = u64::from_str_radix(word, 16).ok()?;
    }
    let token = u128::from_str_radix(token, 16).ok().filter(|_| token.len() == 32)?;
    let token = LinkToken::from_bytes(token.to_be_bytes());
    let called = if called == NOWHERE { None } else { Some(place_of(called)?) };
    Some((token, called, geometry, flags.parse().ok()?, cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> ProcessCard {
        let listener = HandoffListener::bind().unwrap();
        ProcessCard {
            host: HostAddress::of(listener.name(), &Config::default()),
            on_demand: true,
            called: Some("[2001:db8::7]:65535".parse().unwrap()),
            token: LinkToken::from_bytes([0xff; 16]),
            geometry: Geometry { cells: 64, cell_bytes: 4096, fastbox_slots: 64 },
            expedited: false,
            cpus: [u64::MAX, 0, 5, 0, 0, 0, 0, 0],
        }
    }

    #[test]
    fn a_card_survives_its_text() {
        let one = card();
        let others = [
            one.clone(),
            ProcessCard { on_demand: false, expedited: true, called: None, ..one.clone() },
            ProcessCard { called: Some("10.77.0.1:1".parse().unwrap()), ..one.clone() },
            ProcessCard { cpus: [u64::MAX; 8], ..one.clone() },
            ProcessCard { cpus: [0; 8], ..one },
        ];
        for card in others {
            let text = card.encode();
            assert!(text.len() <= 512, "{} characters: launchers limit values", text.len());
            assert_eq!(ProcessCard::decode(&text), Ok(card));
        }
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        let card = card();
        let text = card.encode();
        for end in 0..text.len() {
            // A shorter last number is another number.
            assert_ne!(ProcessCard::decode(&text[..end]).as_ref(), Ok(&card));
        }
        let (host, facts) = text.split_once('/').unwrap();
        let nine = ["1"; 9].join("-");
        let token = "1".repeat(32);
        let nowhere =
            ["0".repeat(36), "1".repeat(35), "1".repeat(37), "+".repeat(36), "0".repeat(32) + "0001"];
        let nowhere = nowhere.map(|place| format!("T.{place}.2.3.4.5.6"));
        let others = ["", "T.-.2.3.4.5", "x.-.2.3.4.5.6", "T.-.2.3.4.256.6", &format!("T.-.2.3.4.5.{nine}")];
        for facts in nowhere.iter().map(String::as_str).chain(others) {
            let facts = facts.replace('T', &token);
            let error = ProcessCard::decode(&format!("{host}/{facts}")).unwrap_err();
            assert!(error.contains("mixed programs"), "{error}");
        }
        assert!(ProcessCard::decode(&format!("{host}/{facts}.7")).is_err());
        assert!(ProcessCard::decode("hello").unwrap_err().contains("not one of nemesia"));
    }
}
