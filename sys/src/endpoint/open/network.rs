//! The network of an endpoint that opens alone: the port to other machines, and the calls.
//!
//! It takes part in the network if it has a key of the job from the settings. Otherwise nothing listens.

use std::sync::Arc;

use crate::config::{Config, NetChoice};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::{ProcessOrigin, Watch, interfaces};
use crate::transport::net::{NetPort, NotOpen, StreamDoor};

const ALONE: &str = "endpoints that open alone, and worlds of one rank,";

/// Opens the port to other machines, if there is a key of the job and the settings permit it.
pub(super) fn open(
    config: &Config,
    origin: &Arc<ProcessOrigin>,
    (watch, warnings): (&mut Watch, &mut Vec<String>),
) -> Result<Option<NetPort>, Error> {
    let key = config.job_key.key().map_err(|problem| Error::Transport { transport: "network", problem })?;
    let Some(key) = key.filter(|_| config.net != NetChoice::Off) else { return Ok(None) };
    if config.net == NetChoice::Verbs {
        let why = format!("NEMESIA_NET=verbs: {ALONE} reach other machines over TCP only; use auto or tcp");
        config.give_up(why, warnings)?;
        return Ok(None);
    }
    let wished = config.place.of_devices();
    if !wished.is_empty() {
        config.give_up(format!("{wished}: {ALONE} reach other machines over TCP only"), warnings)?;
    }
    match NetPort::alone(config, key, origin, warnings).map_err(NotOpen::reason) {
        Ok(port) => {
            if let Some(descriptor) = port.descriptor() {
                watch.attend_net(descriptor)?;
            }
            Ok(Some(port))
        }
        Err(problem) => {
            config.give_up(format!("other machines are not reached: {}", problem?), warnings)?;
            Ok(None)
        }
    }
}

/// Begins to listen for calls of other machines, if the endpoint has a port to them.
pub(super) fn listen(endpoint: &Endpoint) -> Result<Option<StreamDoor>, Error> {
    let Some(net) = endpoint.net() else { return Ok(None) };
    let (Some(key), Some(channel)) = (net.job_key(), net.address()) else { return Ok(None) };
    let config = &endpoint.config;
    let chosen = interfaces::choose(config.net_address.as_deref(), config.place.family);
    let listener = chosen.and_then(|it| StreamDoor::bind(it.address));
    let listening = listener.and_then(|listener| StreamDoor::new(config, key, (listener, &channel)));
    listening.map(Some).map_err(|problem| Error::Transport { transport: "tcp", problem })
}
