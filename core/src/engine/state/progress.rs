//! The limit and the result of one progress step.
#![forbid(unsafe_code)]

use crate::port::PeerId;

/// Most packets that one call of [`Engine::progress`](crate::engine::Engine::progress) delivers.
pub const PACKETS_A_TURN: usize = 64;

/// The result of a call of [`Engine::progress`](crate::engine::Engine::progress).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of packets delivered and sent, and of pieces copied. 0 if there was nothing to do.
    pub packets: usize,
    /// A peer that failed since the last call. Its requests are complete.
    pub failed: Option<PeerId>,
}
