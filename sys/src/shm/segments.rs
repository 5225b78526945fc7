//! The segments of this process, those of a peer, and their descriptors.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use nemesia_core::shared::layout::{Geometry, Identity, MAX_QUEUES, SegmentKind, queue_of};

use super::extent::header;
use super::{ORDINARY, unsealed};
use crate::config::{Config, SingleCopy};
use crate::error::Error;
use crate::os::life::{LifeMark, PeerLife};
use crate::os::{Access, AttachLimits, ForeignFd, Segment, SegmentBacking, SegmentOptions, ShmError};

/// Slack in a segment's size: it may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;
/// Most descriptors of a call: own segment, first inbox, link segment, and perhaps a further inbox and a life
/// mark.
pub(super) const MOST_DESCRIPTORS: usize = 5;

/// The segments of this process that its connections share.
#[derive(Debug)]
pub(crate) struct OwnSegments {
    pub(super) own: Segment,
    /// The first one exists from the start, a further one from the first peer that needs it.
    inboxes: [OnceLock<Segment>; MAX_QUEUES],
    pub(super) sizes: Geometry,
    epoch: u64,
    options: SegmentOptions,
    /// The life mark, if peers may read the memory of this process.
    life: Option<LifeMark>,
}

/// The segment with the structures of this process for one peer.
#[derive(Debug)]
pub(super) struct OwnLink {
    /// The number by which this process knows the peer.
    pub(super) number: u32,
    pub(super) segment: Segment,
}

impl OwnLink {
    /// Closes the descriptor of the segment. Call this when the peer's call or answer is there and ours has left: only
    /// that peer maps the segment, and it needs no descriptor of ours any more.
    pub(super) fn close_descriptor(&mut self) {
        self.segment.close_descriptor();
    }
}

impl OwnSegments {
    /// Makes the segments that every process has, sealed as far as the kernel can.
    pub(super) fn new(
        config: &Config,
        sizes: Geometry,
        epoch: u64,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let bytes = sizes.own().total;
        let own = Segment::create_sealed("nemesia-own", bytes, &config.segments)?;
        let identity = Identity { kind: SegmentKind::Own, geometry: sizes, number: 0, epoch };
        header(&own)?.publish(&identity, bytes as u64);
        warnings.extend(own.warnings().iter().cloned());
        if own.huge() {
            warnings.push(ORDINARY.into());
        }
        if !own.write_sealed() {
            config.give_up(unsealed(config.segments.backing).into(), warnings)?;
        }
        let options = config.segments.for_foreign_writers();
        let is_read = config.single_copy != SingleCopy::Off;
        let life = is_read.then(LifeMark::own).flatten();
        let this =
            Self { own, inboxes: [const { OnceLock::new() }; MAX_QUEUES], sizes, epoch, options, life };
        warnings.extend(this.inbox(0)?.warnings().iter().cloned());
        Ok(this)
    }

    /// Returns the inbox with this receive queue, which is made if it does not exist.
    pub(super) fn inbox(&self, queue: usize) -> Result<&Segment, Error> {
        let place = &self.inboxes[queue];
        if let Some(inbox) = place.get() {
            return Ok(inbox);
        }
        let bytes = self.sizes.inbox(queue).total;
        let inbox = Segment::create("nemesia-inbox", bytes, &self.options)?;
        inbox.seal_seals()?;
        self.publish(&inbox, SegmentKind::Inbox, queue as u32, bytes)?;
        Ok(place.get_or_init(|| inbox))
    }

    /// Makes the link segment for the peer that this process knows by this number, and the inbox that serves it.
    pub(super) fn link(&self, number: u32) -> Result<OwnLink, Error> {
        self.inbox(queue_of(number))?;
        let bytes = self.sizes.link().total;
        let segment = Segment::create_sealed("nemesia-link", bytes, &self.options)?;
        self.publish(&segment, SegmentKind::Link, number, bytes)?;
        Ok(OwnLink { number, segment })
    }

    fn publish(&self, segment: &Segment, kind: SegmentKind, number: u32, bytes: usize) -> Result<(), Error> {
        let identity = Identity { kind, geometry: self.sizes, number, epoch: self.epoch };
        header(segment)?.publish(&identity, bytes as u64);
        Ok(())
    }

    /// Returns the descriptors of all segments that the peer of this link maps, and of the life mark.
    pub(super) fn descriptors<'a>(&'a self, link: &'a OwnLink) -> Vec<BorrowedFd<'a>> {
        let queue = queue_of(link.number);
        let further = if queue > 0 { self.inboxes[queue].get() } else { None };
        let all = [Some(&self.own), self.inboxes[0].get(), Some(&link.segment), further];
        let life = self.life.as_ref().and_then(LifeMark::fd);
        all.into_iter().flatten().filter_map(Segment::fd).chain(life).collect()
    }
}

/// The segments of a peer, as mapped in this process.
#[derive(Debug)]
pub(super) struct PeerSegments {
    /// The number by which the peer knows this process.
    pub(super) number: u32,
    pub(super) own: Segment,
    /// The inbox with the peer's sleep word.
    pub(super) first_inbox: Segment,
    /// The inbox with the receive queue that serves this process, if it is another one.
    pub(super) further_inbox: Option<Segment>,
    pub(super) link: Segment,
}

/// The reason why the segments of a process cannot be used.
#[derive(Debug)]
pub(crate) enum Unjoined {
    /// This process lacks descriptors or memory now.
    Shortage(ShmError),
    Problem(String),
}

impl fmt::Display for Unjoined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shortage(error) => error.fmt(f),
            Self::Problem(problem) => f.write_str(problem),
        }
    }
}

impl From<ShmError> for Unjoined {
    fn from(error: ShmError) -> Self {
        if error.is_shortage() { Self::Shortage(error) } else { Self::Problem(error.to_string()) }
    }
}

impl From<Error> for Unjoined {
    fn from(error: Error) -> Self {
        match error {
            Error::Shm(error) => error.into(),
            error => Self::Problem(error.to_string()),
        }
    }
}

impl From<String> for Unjoined {
    fn from(problem: String) -> Self {
        Self::Problem(problem)
    }
}

/// The values by which the segments of a peer are validated.
pub(super) struct Expected<'a> {
    pub(super) config: &'a Config,
    pub(super) sizes: Geometry,
    /// Our own segment is sealed against writing, so this kernel can seal the peers' as well.
    pub(super) sealed: bool,
    /// The peer's epoch, and the number by which it knows this process: less than
    /// [`MAX_PEERS`](nemesia_core::shared::layout::MAX_PEERS).
    pub(super) epoch: u64,
    pub(super) number: u32,
}

impl PeerSegments {
    /// Maps and validates the segments of a peer, and its life mark. What only it writes is mapped read-only. After a
    /// shortage this function may be called again, because the descriptors are left.
    pub(super) fn attach(
        expected: &Expected<'_>,
        fds: &[ForeignFd],
    ) -> Result<(Self, Option<PeerLife>), Unjoined> {
        let queue = queue_of(expected.number);
        let (sent, wanted) = (fds.len(), if queue > 0 { 4 } else { 3 });
        if sent != wanted && sent != wanted + 1 {
            return Err(format!("it sent {sent} descriptors instead of {wanted}").into());
        }
        let mut fds = fds.iter().map(copy);
        let mut attach = |kind, number, total| {
            let fd = fds.next().ok_or_else(|| "it sent too few descriptors".to_owned())?;
            expected.attach(fd?, kind, number, total)
        };
        let (sizes, number) = (expected.sizes, expected.number);
        let segments = Self {
            number,
            own: attach(SegmentKind::Own, 0, sizes.own().total)?,
            first_inbox: attach(SegmentKind::Inbox, 0, sizes.inbox(0).total)?,
            link: attach(SegmentKind::Link, number, sizes.link().total)?,
            further_inbox: match queue {
                0 => None,
                queue => Some(attach(SegmentKind::Inbox, queue as u32, sizes.inbox(queue).total)?),
            },
        };
        let life = fds.next().map(|fd| PeerLife::attach(fd?)).transpose()?.flatten();
        Ok((segments, life))
    }
}

fn copy(fd: &ForeignFd) -> Result<ForeignFd, ShmError> {
    fd.try_clone().map_err(|errno| ShmError::system("copying the descriptor of a peer's segment", errno))
}

impl Expected<'_> {
    fn attach(
        &self,
        fd: ForeignFd,
        kind: SegmentKind,
        number: u32,
        total: usize,
    ) -> Result<Segment, Unjoined> {
        let access = if kind == SegmentKind::Inbox { Access::ReadWrite } else { Access::ReadOnly };
        let allow_unsealed = self.config.segments.backing == SegmentBacking::DevShm;
        let keeps_pages = access == Access::ReadOnly && self.sealed;
        let limits = AttachLimits { lengths: total..=total + ROUNDING, allow_unsealed, keeps_pages };
        let segment = Segment::attach(fd, access, limits)?;
        let identity = Identity { kind, geometry: self.sizes, number, epoch: self.epoch };
        let checked = header(&segment).and_then(|header| header.check(&identity, total as u64));
        checked.map_err(|error| error.to_string())?;
        Ok(segment)
    }
}
