//! Settings of the RDMA Channel ([`crate::rdma_channel`]).

use nemesia_core::rdma_channel::{ChunkFill, Design};

use super::Config;

/// The design of the pipes of the RDMA Channel. Both ends of a pipe must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelDesign {
    /// [`ChannelDesign::Direct`] inside a machine, [`Design::Learned`] between machines.
    #[default]
    Auto,
    /// Nemesia's structures in memory that both processes have mapped. Only inside a machine.
    Direct,
    /// A design of paper 1, or the learned one, over a memory port: inside a machine that of [`crate::shm::pipe`].
    Paper(Design),
}

impl ChannelDesign {
    /// All values, in the order of the setting.
    pub const ALL: [Self; 8] = [
        Self::Auto,
        Self::Direct,
        Self::Paper(Design::Basic),
        Self::Paper(Design::Piggyback),
        Self::Paper(Design::Pipelined),
        Self::Paper(Design::ZeroCopy),
        Self::Paper(Design::ZeroCopyPush),
        Self::Paper(Design::Learned),
    ];

    /// Returns the name, as in NEMESIA_CHANNEL_DESIGN.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Paper(design) => design.name(),
        }
    }

    /// Returns the design of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|design| design.name() == name)
    }
}

/// The sizes of the pipes of the RDMA Channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelSettings {
    pub(crate) design: ChannelDesign,
    pub(crate) fill: ChunkFill,
    pub(crate) ring_bytes: u32,
    pub(crate) chunk_bytes: u32,
    pub(crate) zero_copy_from: u32,
    pub(crate) keeps_registrations: bool,
}

impl Default for ChannelSettings {
    fn default() -> Self {
        Self {
            design: ChannelDesign::Auto,
            fill: ChunkFill::TwoFlags,
            ring_bytes: 256 << 10,
            chunk_bytes: 16 << 10,
            zero_copy_from: 32 << 10,
            keeps_registrations: true,
        }
    }
}

impl Config {
    /// Sets the design of the pipes of the RDMA Channel. All processes must agree, but a process may choose another one
    /// for a single peer ([`ChannelGroup::set_design`](crate::rdma_channel::ChannelGroup::set_design)).
    #[must_use]
    pub fn channel_design(self, design: ChannelDesign) -> Self {
        self.with(["NEMESIA_CHANNEL_DESIGN"], |config| config.channel.design = design)
    }

    /// Sets the bytes of a pipe's ring in each direction, and of its chunks: powers of two, at least 4096 and 64, at
    /// most 1 GiB and half of the ring. All processes must agree.
    #[must_use]
    pub fn channel_sizes(self, ring_bytes: u32, chunk_bytes: u32) -> Self {
        let names = ["NEMESIA_CHANNEL_RING_BYTES", "NEMESIA_CHANNEL_CHUNK_BYTES"];
        self.with(names, |config| {
            (config.channel.ring_bytes, config.channel.chunk_bytes) = (ring_bytes, chunk_bytes);
        })
    }

    /// Sets the bytes from which on the zero-copy designs do not copy. All processes must agree.
    #[must_use]
    pub fn channel_zero_copy_from(self, bytes: u32) -> Self {
        let names = ["NEMESIA_CHANNEL_ZERO_COPY_BYTES"];
        self.with(names, |config| config.channel.zero_copy_from = bytes.max(1))
    }

    /// Sets whether registrations of buffers with an RDMA device are kept for their next use.
    #[must_use]
    pub fn channel_keeps_registrations(self, keep: bool) -> Self {
        self.with(["NEMESIA_CHANNEL_REGISTRATIONS"], |config| config.channel.keeps_registrations = keep)
    }
}
