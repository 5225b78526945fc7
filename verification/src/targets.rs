//! Fuzz targets: functions that take any bytes, and fail if a promise is broken.
//!
//! `cargo fuzz` calls them with bytes of its own, or with those of a file, as other fuzzers want it.

use nemesia_core::wire::placement::{
    FIXED_BYTES, Frame, HANDSHAKE_BYTES, Handshake, HandshakeError, MOST_FRAME_BYTES, Parsed,
};

mod channel;
// Its memory is that of real processes, which loom cannot model.
#[cfg(not(nemesia_loom))]
mod direct;
mod joining;
mod link;
mod list;
mod meeting;
mod one_sided;
mod peer;
mod prefix;
mod rendezvous;
mod ring;
mod vipl;
mod vipl_descriptor;
mod vipl_network;
mod vipl_page;

pub use channel::channel_decoder;
#[cfg(not(nemesia_loom))]
pub use direct::direct_pipe;
pub use joining::joining;
pub use link::link_decoder;
pub use list::list_of_runs;
pub use meeting::meeting_decoder;
pub use one_sided::one_sided_decoder;
pub use peer::placement_peer;
pub use prefix::message_prefix;
pub use rendezvous::rendezvous_decoder;
pub use ring::ring_decoder;
pub use vipl::{vipl_peer, vipl_setup};
pub use vipl_descriptor::vipl_descriptor;
pub use vipl_network::vipl_network;
pub use vipl_page::vipl_page;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Returns the broken promise, if any.
    pub run: fn(&[u8]) -> Result<(), String>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "placement-decoder", run: placement_decoder },
    Target { name: "placement-peer", run: placement_peer },
    Target { name: "list-of-runs", run: list_of_runs },
    Target { name: "message-prefix", run: message_prefix },
    Target { name: "meeting-decoder", run: meeting_decoder },
    Target { name: "channel-decoder", run: channel_decoder },
    Target { name: "ring-decoder", run: ring_decoder },
    Target { name: "one-sided-decoder", run: one_sided_decoder },
    Target { name: "rendezvous-decoder", run: rendezvous_decoder },
    Target { name: "vipl-setup", run: vipl_setup },
    Target { name: "vipl-peer", run: vipl_peer },
    Target { name: "vipl-descriptor", run: vipl_descriptor },
    Target { name: "vipl-page", run: vipl_page },
    Target { name: "vipl-network", run: vipl_network },
    Target { name: "joining", run: joining },
    Target { name: "link-decoder", run: link_decoder },
    #[cfg(not(nemesia_loom))]
    Target { name: "direct-pipe", run: direct_pipe },
];

/// Decodes the bytes as frames of the placement, and as a handshake. What is accepted must be encoded to the same
/// bytes; what is too short must become a frame, or malformed, with more bytes.
///
/// # Errors
/// The broken promise.
pub fn placement_decoder(input: &[u8]) -> Result<(), String> {
    let mut rest = input;
    while !rest.is_empty() {
        match Frame::parse(rest) {
            Parsed::Frame(frame, len) => {
                let (bytes, count) = frame.encode();
                if count != len || rest.get(..len) != bytes.get(..len) {
                    return Err(format!("{frame:?} of {len} bytes is encoded otherwise"));
                }
                rest = &rest[len..];
            }
            Parsed::Short if rest.len() >= MOST_FRAME_BYTES => {
                return Err(format!("{} bytes are too few for a frame", rest.len()));
            }
            Parsed::Short => {
                let mut longer = rest.to_vec();
                longer.resize(MOST_FRAME_BYTES, 0);
                if Frame::parse(&longer) == Parsed::Short {
                    return Err("a frame is never complete".into());
                }
                break;
            }
            Parsed::Malformed => rest = &rest[1..],
        }
    }
    let Some(bytes) = input.first_chunk::<HANDSHAKE_BYTES>() else { return Ok(()) };
    let check = bytes.first_chunk::<FIXED_BYTES>().map_or(Ok(()), Handshake::check);
    match Handshake::decode(bytes) {
        Ok(_) if check.is_err() => Err("a handshake is decoded whose beginning is invalid".into()),
        Ok(handshake) if handshake.encode() != *bytes => Err(format!("{handshake:?} is encoded otherwise")),
        Err(HandshakeError::Version { .. }) if check.is_ok() => Err("versions are told apart late".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns bytes with some structure: few values, and words that occur in frames.
    fn input(rng: &mut Rng) -> Vec<u8> {
        let len = rng.below(600);
        (0..len).map(|_| if rng.one_in(3) { rng.next() as u8 } else { rng.below(16) as u8 }).collect()
    }

    #[test]
    fn the_corpus_breaks_no_promise() {
        let (corpus, mut files) = (concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"), 0);
        for target in TARGETS {
            let inputs = std::fs::read_dir(format!("{corpus}/{}", target.name)).into_iter().flatten();
            for path in inputs.map(|entry| entry.unwrap().path()) {
                assert_eq!((target.run)(&std::fs::read(&path).unwrap()), Ok(()), "{}", path.display());
                files += 1;
            }
        }
        assert!(files > 0, "no file in {corpus}");
    }

    #[test]
    fn no_bytes_break_a_promise() {
        let mut rng = Rng::new(5, 0);
        for target in TARGETS {
            for round in 0..300 {
                let input = input(&mut rng);
                assert_eq!((target.run)(&input), Ok(()), "{}, round {round}: {input:?}", target.name);
            }
        }
    }
}
