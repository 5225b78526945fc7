//! The start of a connection: rank 1 publishes the address of its port through the launcher, and rank 0
//! connects.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia_core::port::memory::{
    Address, Connection, Event, KEY_BYTES, MemoryKey, MemoryPort, Offer, Private,
};

/// The key of rank 1's address.
const KEY: &str = "nemesia-perf-port";
/// The limit of waiting. Both processes are on this machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Publishes rank 1's port. Returns its address to rank 0.
pub(super) fn exchange(bootstrap: &mut Bootstrap, own: &Address) -> Result<Option<Address>, String> {
    if bootstrap.rank() == 1 {
        bootstrap.put(KEY, &hex(own.bytes())).map_err(text)?;
    }
    bootstrap.barrier().map_err(text)?;
    if bootstrap.rank() == 1 {
        return Ok(None);
    }
    let said = bootstrap.get(KEY).map_err(text)?;
    let address = unhex(&said).and_then(|bytes| Address::new(&bytes));
    address
        .map(Some)
        .ok_or_else(|| format!("rank 1 reports '{said}' as the address of its port, which is no address"))
}

/// Connects or accepts, and exchanges keys. `prepare` is called as soon as receives can be posted.
pub(super) fn join<P: MemoryPort>(
    port: &mut P,
    to: Option<&Address>,
    own: MemoryKey,
    start: Instant,
    mut prepare: impl FnMut(&mut P, Connection) -> Result<(), String>,
) -> Result<(Connection, MemoryKey), String> {
    let private = Private::new(&own.to_bytes()).unwrap_or(Private::EMPTY);
    let deadline = start.elapsed() + PATIENCE;
    let offer = Offer { private, shared_receive: false, deadline };
    let mut peer = None;
    let mut mine = None;
    if let Some(to) = to {
        let connection = port.connect(to, &offer).map_err(text)?;
        prepare(port, connection)?;
        mine = Some(connection);
    }
    while start.elapsed() < deadline {
        match port.poll_event(start.elapsed()) {
            Some(Event::Requested { connection, private }) if mine.is_none() && to.is_none() => {
                peer = key(private);
                prepare(port, connection)?;
                port.accept(connection, &offer).map_err(text)?;
                mine = Some(connection);
            }
            Some(Event::Requested { connection, .. }) => {
                port.refuse(connection, Private::EMPTY).map_err(text)?;
            }
            Some(Event::Established { connection, private }) if mine == Some(connection) => {
                let peer = if to.is_some() { key(private) } else { peer };
                return peer.map(|peer| (connection, peer)).ok_or_else(|| "the peer sent no key".to_owned());
            }
            Some(Event::Failed { error, .. }) => return Err(format!("the two can't be connected: {error}")),
            Some(Event::Lost { error, .. }) => return Err(error.to_string()),
            Some(Event::PortFailed { code }) => return Err(failed(code)),
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
    Err("the two were not connected in time".to_owned())
}

/// Returns the message for a port that has failed.
pub(super) fn failed(code: u32) -> String {
    format!("the port failed, with code {code}")
}

fn key(private: Private) -> Option<MemoryKey> {
    private.bytes().first_chunk::<KEY_BYTES>().map(MemoryKey::from_bytes)
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_travel_as_digits() {
        assert_eq!(hex(&[0, 255, 16]), "00ff10");
        assert_eq!(unhex("00ff10").unwrap(), [0, 255, 16]);
        assert_eq!(unhex("0g"), None);
    }
}
