//! The port of an endpoint to peers on other machines that are connected one by one.
//!
//! The address of an endpoint names a place for their calls from the start. The endpoint listens there once others may
//! know the address, and opens the port with the first peer elsewhere: an endpoint whose peers all run on its machine
//! polls nothing more.

use std::sync::Arc;

use nemesia_core::port::memory::Address;

use crate::config::{Config, NetChoice};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::{ProcessOrigin, Watch};
use crate::transport::net::{NetPort, NotOpen, StreamDoor};

const ALONE: &str = "endpoints that open alone, and worlds of one rank,";

/// Returns the place for calls of other machines of an endpoint that opens alone, or why it has none.
pub(super) fn find_door(
    config: &Config,
    warnings: &mut Vec<String>,
) -> Result<Result<StreamDoor, String>, Error> {
    let wished = config.place.of_devices();
    if !wished.is_empty() && config.net != NetChoice::Off {
        config.give_up(format!("{wished}: {ALONE} reach other machines over TCP only"), warnings)?;
    }
    let mut found = Vec::new();
    let door = StreamDoor::find(config, &mut found)?;
    found.retain(|warning| !warnings.contains(warning));
    warnings.extend(found);
    Ok(door)
}

/// Opens the port of the process with this rank, before there is a peer for it, if its packets are smaller than those
/// inside the machine: the engine has one size. Without a port, a warning says why.
pub(super) fn open_small(
    config: &Config,
    (rank, packet_bytes): (u32, usize),
    origin: &Arc<ProcessOrigin>,
    (watch, warnings): (&mut Watch, &mut Vec<String>),
) -> Result<Option<NetPort>, Error> {
    let is_small = (config.net_packet_bytes(true) as usize) < packet_bytes;
    if !is_small || !matches!(config.net, NetChoice::Auto | NetChoice::Tcp) {
        return Ok(None);
    }
    match open(config, rank, origin, (watch, warnings)) {
        Ok(port) => Ok(Some(port)),
        Err(Error::Transport { problem, .. }) => {
            config.give_up(format!("other machines are not reached: {problem}"), warnings)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Opens the port of the process with this rank.
fn open(
    config: &Config,
    rank: u32,
    origin: &Arc<ProcessOrigin>,
    (watch, warnings): (&mut Watch, &mut Vec<String>),
) -> Result<NetPort, Error> {
    match NetPort::for_peers(config, rank, origin, warnings).map_err(NotOpen::reason) {
        Ok(port) => {
            if let Some(descriptor) = port.descriptor() {
                watch.attend_net(descriptor)?;
            }
            Ok(port)
        }
        Err(problem) => Err(Error::Transport { transport: "tcp", problem: problem? }),
    }
}

impl Endpoint {
    /// Returns the address at which this process takes further streams of peers on other machines. The port to them is
    /// opened if it is not open.
    ///
    /// # Errors
    /// The kernel's refusal, or in strict mode a preference that cannot be met.
    pub(in crate::endpoint) fn open_port(&mut self) -> Result<Address, Error> {
        let problem = |problem: &str| Error::Transport { transport: "tcp", problem: problem.into() };
        if self.net().is_none() {
            let (rank, mut warnings) = (self.engine.rank(), Vec::new());
            let watch = (&mut self.waiter.watch, &mut warnings);
            let port = open(&self.config, rank, &self.origin, watch)?;
            warnings.retain(|warning| !self.warnings.contains(warning));
            self.warnings.extend(warnings);
            if self.engine.port_mut().enter_remote(port).is_some() {
                return Err(problem("its packets are smaller than those inside the machine"));
            }
        }
        self.net().and_then(NetPort::address).ok_or_else(|| problem("the port takes no streams"))
    }
}
