//! Processes that connect while the port is in use: restarted ranks, and peers of an endpoint that opened alone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::peer::{MappedPeer, SaidProcess};
use super::segments::{OwnLink, OwnSegments, Unjoined};
use super::views::NewLink;
use super::{Port, make_places, met, readable};
use crate::config::{Config, SingleCopy};
use crate::error::Error;
use crate::os::{HandoffConnection, RemoteMemory, Watch};
use crate::route::Met;

/// A process without a link to this one yet, with all parts of a link.
#[derive(Debug)]
pub(crate) struct JoiningProcess {
    /// The number by which this process knows it: in a world, its rank.
    pub(crate) number: usize,
    pub(crate) incarnation: u64,
    /// The number of agreements so far.
    pub(crate) agreements: u64,
    pub(crate) met: Met,
    link: NewLink,
    memory: Option<RemoteMemory>,
    pub(super) connection: Arc<HandoffConnection>,
    pidfd: Option<OwnedFd>,
}

impl JoiningProcess {
    /// Returns a process that has said this, for which we have made this link segment, and asks whether its memory may
    /// be read.
    pub(super) fn new(
        (config, ours): (&Config, &Arc<OwnSegments>),
        link: OwnLink,
        (said, mapped): (&SaidProcess, MappedPeer),
        connection: Arc<HandoffConnection>,
    ) -> Result<Self, Unjoined> {
        let number = link.number as usize;
        let MappedPeer { segments, memory } = mapped;
        let memory = readable(config, memory);
        if let (Err(problem), SingleCopy::Require) = (&memory, config.single_copy) {
            return Err(format!("no single copy through the kernel: {problem}").into());
        }
        let met = met(&segments, said.expedited, memory.as_ref().err().cloned());
        let link = NewLink::new(ours, link, segments)?;
        Ok(Self {
            number,
            incarnation: said.incarnation,
            agreements: said.agreements,
            met,
            link,
            memory: memory.ok(),
            pidfd: connection.pidfd(),
            connection,
        })
    }

    /// Grants the process credit, in units. Call it before the process may send.
    pub(super) fn grant(&self, units: u64) {
        self.link.grant(units);
    }

    /// Closes the descriptor of the segment of this process for it, which it has got.
    pub(super) fn close_descriptor(&mut self) {
        self.link.own_mut().close_descriptor();
    }

    /// Returns the segment of this process for it.
    pub(super) const fn own_link(&self) -> &OwnLink {
        self.link.own()
    }

    /// Links the port with the process, and unmaps its predecessor's segments.
    ///
    /// # Errors
    /// The process cannot be watched; nothing is changed.
    pub(crate) fn enter(self, port: &mut Port, watch: &mut Watch) -> Result<Met, Error> {
        let Self { number, met, link, memory, connection, pidfd, .. } = self;
        drop(watch.remove(number));
        watch.add(number, Arc::clone(&connection), pidfd)?;
        make_places(port, number + 1);
        let host = port.host_mut();
        host.memories[number] = memory;
        host.connections[number] = Arc::downgrade(&connection);
        if !met.expedited {
            port.fence_always();
        }
        link.open(port);
        Ok(met)
    }
}
