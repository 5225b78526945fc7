//! The parameters of the engine.
#![forbid(unsafe_code)]

/// Parameters that the layer above chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest message that is sent eagerly, in bytes, limited by the port's packet size. Larger messages use
    /// rendezvous.
    pub eager_bytes: usize,
    /// Credit window of a peer, in units of 64 bytes. The window is smaller when less memory is free.
    pub window: u32,
    /// Smallest message, in bytes, of which a waiting sender copies a part for the receiver (sender-assisted
    /// copy). `u64::MAX` disables this.
    pub assist_bytes: u64,
    /// As `assist_bytes`, for receive buffers that the sender may map for writing.
    pub lent_assist_bytes: u64,
    /// Smallest message, in bytes, that the receiver copies out of packets with non-temporal stores.
    /// `u64::MAX` disables this. A good value is about the size of the last-level cache.
    pub non_temporal_bytes: u64,
    /// Most bytes of a message that the receiver reads in one step, at least 1. A step should take some ten
    /// microseconds, so that other transfers also progress.
    pub pull_bytes: u64,
    /// Smallest average length, in bytes, of the contiguous runs of a scattered buffer for which the engine
    /// makes one kernel call per run.
    pub run_bytes: u64,
    /// Smallest put or get, in bytes, that is done by remote memory access instead of packets, on ports that can do
    /// that. `u64::MAX` disables this, also for the regions of this process.
    pub direct_bytes: u64,
}

impl Tuning {
    /// Returns the bytes from which a message may be copied by both sides.
    pub(super) fn least_assist_bytes(&self) -> u64 {
        self.assist_bytes.min(self.lent_assist_bytes)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            eager_bytes: 8 << 10,
            window: 4096,
            assist_bytes: 48 << 10,
            lent_assist_bytes: 48 << 10,
            non_temporal_bytes: 32 << 20,
            pull_bytes: 256 << 10,
            run_bytes: 4 << 10,
            direct_bytes: u64::MAX,
        }
    }
}
