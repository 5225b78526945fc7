//! Probes of connections: a device notices that a peer is gone only if it sends something.

use std::ptr;
use std::time::Duration;

use nemesia_core::port::memory::{Connection, LostError};
use rdma_core_sys as raw;

use super::VerbsPort;
use super::link::VerbsLink;
use super::tag::{Queue, WorkTag};
use crate::cm::CmStage;

/// The shortest and the longest time between two probes.
const MOST_OFTEN: Duration = Duration::from_secs(1);
const LEAST_OFTEN: Duration = Duration::from_secs(15);

/// When idle connections are probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    /// `None`: never.
    interval: Option<Duration>,
    next: Duration,
}

impl Probing {
    /// Returns the times for peers that count as gone after this silence. iWARP has no probe: its writes end in the TCP
    /// of this machine.
    pub(super) fn new(silence: Duration, is_infiniband: bool) -> Self {
        let interval = (silence / 2).clamp(MOST_OFTEN, LEAST_OFTEN);
        Self { interval: is_infiniband.then_some(interval), next: interval }
    }
}

/// Writes no bytes into the memory of the peer, whose device answers without its process (IBA, "RDMA WRITE": neither
/// address nor key of such a write are checked). The send queue has a place for that beside those of the caller.
fn probe(connection: Connection, link: &mut VerbsLink) -> Result<(), i32> {
    let Some(pair) = &link.pair else { return Ok(()) };
    let Connection { index, generation } = connection;
    // SAFETY: zeros are a value of every field.
    let mut wr: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = WorkTag { queue: Queue::Probe, index, generation, sequence: 0 }.encode();
    (wr.opcode, wr.send_flags) = (raw::IBV_WR_RDMA_WRITE, raw::IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (ptr::null_mut(), 0);
    // SAFETY: the request has no parts.
    unsafe { pair.post_send(&mut wr) }?;
    link.probed = true;
    Ok(())
}

impl VerbsPort {
    /// Probes the connections on which the device has no request to report. A probe behind a long read would fail on
    /// rxe (see `long.rs`), and the report of that read shows by itself that the peer is there.
    pub(super) fn probe_idle(&mut self) {
        let Some(interval) = self.probing.interval else { return };
        if self.now < self.probing.next || self.failed {
            return;
        }
        self.probing.next = self.now + interval;
        // RDMA-CM reports the removal of a device.
        if self.is_joined() && self.device.is_removed() {
            return self.fail_port(raw::IBV_EVENT_DEVICE_FATAL);
        }
        let suspects = &mut self.suspects;
        self.links.each(|connection, link| {
            if link.stage != CmStage::Ready || link.probed || link.sends.awaits_report() {
                return;
            }
            if let Err(code) = probe(connection, link) {
                link.cause.get_or_insert(LostError::Unknown(code.unsigned_abs()));
                suspects.push(connection.index);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_fit_twice_into_the_silence_and_are_rare() {
        let every = |seconds| Probing::new(Duration::from_secs(seconds), true).interval;
        assert_eq!(every(10), Some(Duration::from_secs(5)));
        assert_eq!((every(0), every(3600)), (Some(MOST_OFTEN), Some(LEAST_OFTEN)));
        assert_eq!(Probing::new(Duration::from_secs(10), false).interval, None);
    }
}
