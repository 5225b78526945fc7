//! What a process publishes before it connects: where it is, and the facts that a call would say.
//!
//! With these facts a world can check at its start that its processes fit, although they connect later. What others
//! publish is untrusted: every field is checked.

use nemesia_core::link::token::LinkToken;
use nemesia_core::peers::PeerAddress;
use nemesia_core::shared::layout::Geometry;

use crate::config::{Config, NetChoice, SingleCopy};
use crate::os::HandoffListener;
use crate::shm::address;
use crate::shm::peer::{Cpus, ShmWorld};
use crate::transport::hosts::HostAddress;

/// The published facts about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessCard {
    pub(super) host: HostAddress,
    /// It can be connected when it is first spoken to.
    pub(super) on_demand: bool,
    /// It was given a key of the job, so that its world reaches other machines even if all ranks run on one.
    pub(super) has_key: bool,
    /// The token of the process: a secret of those that are given its card.
    pub(super) token: LinkToken,
    pub(super) geometry: Geometry,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
}

impl ProcessCard {
    /// Returns the card of this process, which listens here. `restarts`: its ranks may be started again.
    pub(super) fn here(listener: &HandoffListener, world: &ShmWorld, restarts: bool) -> Self {
        let ShmWorld { config, geometry, token, expedited, cpus, .. } = world;
        let host = HostAddress::of(listener.name(), config);
        let on_demand = config.on_demand && !restarts && !requires_all(config);
        let has_key = config.job_key.is_given() && matches!(config.net, NetChoice::Auto | NetChoice::Tcp);
        let (token, geometry, expedited, cpus) = (*token, *geometry, *expedited, *cpus);
        Self { host, on_demand, has_key, token, geometry, expedited, cpus }
    }

    /// Returns the text to publish.
    pub(super) fn encode(&self) -> String {
        let Self { host, on_demand, has_key, token, geometry, expedited, cpus } = self;
        let Geometry { cells, cell_bytes, fastbox_slots } = geometry;
        let flags = u8::from(*on_demand) | u8::from(*expedited) << 1 | u8::from(*has_key) << 2;
        let used = cpus.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
        let cpus: Vec<String> = cpus[..used].iter().map(|word| format!("{word:x}")).collect();
        let host = host.encode();
        let token = u128::from_be_bytes(*token.bytes());
        format!("{host}/{token:032x}.{cells}.{cell_bytes}.{fastbox_slots}.{flags}.{}", cpus.join("-"))
    }

    /// Decodes a published text, or returns what is wrong with it.
    pub(super) fn decode(text: &str) -> Result<Self, String> {
        let (host, facts) = text.rsplit_once('/').unwrap_or((text, ""));
        let host = HostAddress::decode(host)?;
        let facts = decode_facts(facts);
        // The text has the token, which no error shows.
        let malformed = "its address is malformed: mixed programs in one job?";
        let (token, geometry, flags, cpus) = facts.ok_or(malformed)?;
        let [on_demand, expedited, has_key] = [1, 2, 4].map(|flag| flags & flag != 0);
        Ok(Self { host, on_demand, has_key, token, geometry, expedited, cpus })
    }

    /// Returns the address by which the process is called.
    pub(super) fn address(&self) -> PeerAddress {
        address::address_at(&self.host, self.token).encode()
    }
}

/// Returns whether something must be known of all peers at the start: opening can fail, or explains how each is
/// reached.
fn requires_all(config: &Config) -> bool {
    config.strict || config.explain || config.single_copy == SingleCopy::Require
}

fn decode_facts(text: &str) -> Option<(LinkToken, Geometry, u8, Cpus)> {
    let fields: Vec<&str> = text.splitn(7, '.').collect();
    let [token, cells, cell_bytes, fastbox_slots, flags, words] = fields[..] else { return None };
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
    Some((LinkToken::from_bytes(token.to_be_bytes()), geometry, flags.parse().ok()?, cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> ProcessCard {
        let listener = HandoffListener::bind().unwrap();
        ProcessCard {
            host: HostAddress::of(listener.name(), &Config::default()),
            on_demand: true,
            has_key: false,
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
            ProcessCard { on_demand: false, expedited: true, ..one.clone() },
            ProcessCard { cpus: [u64::MAX; 8], has_key: true, ..one.clone() },
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
        for facts in ["", "T.2.3.4.5", "x.2.3.4.5.6", "T.2.3.4.256.6", &format!("T.2.3.4.5.{nine}")] {
            let facts = facts.replace('T', &token);
            let error = ProcessCard::decode(&format!("{host}/{facts}")).unwrap_err();
            assert!(error.contains("mixed programs"), "{error}");
        }
        assert!(ProcessCard::decode(&format!("{host}/{facts}.7")).is_err());
        assert!(ProcessCard::decode("hello").unwrap_err().contains("not one of nemesia"));
    }
}
