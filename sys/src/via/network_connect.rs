//! The last step of connecting two machines: the connection of their memory ports.

use std::time::{Duration, Instant};

use nemesia_core::port::memory::{Address, MemoryPort as _};
use nemesia_core::via::ViaError;
use nemesia_core::via::setup::SetupFrame;

use super::network::{Network, NetworkLink};
use super::provider::Shared;
use super::state::ViaState;

/// The time after which a waiting process looks whether the other one still waits.
const STEP: Duration = Duration::from_millis(50);

/// Executes a call with the memory port, which is opened if it is not.
fn with_network<T>(
    shared: &Shared,
    call: impl FnOnce(&mut Network) -> Result<T, ViaError>,
) -> Result<T, ViaError> {
    let mut state = shared.lock();
    if state.network.is_none() {
        state.network = Some(Network::open(shared.settings.address, shared.settings.silence)?);
    }
    state.must_poke = true;
    call(state.network.as_mut().ok_or(ViaError::ErrorResource)?)
}

/// Connects to the memory port that an acceptance names, and whose ticket it has, while `goes_on` returns true.
pub(super) fn go(
    shared: &Shared,
    accepted: &SetupFrame,
    deadline: Instant,
    goes_on: impl FnMut() -> bool,
) -> Result<NetworkLink, ViaError> {
    let address = accepted.network.port.ok_or(ViaError::NotReachable)?;
    with_network(shared, |network| network.call(accepted.meeting, &address))?;
    complete(shared, accepted.meeting, deadline, goes_on)
}

/// Expects a connection with a ticket, sends the acceptance that `accept` makes of the address of the memory port, and
/// waits, while `goes_on` returns true.
pub(super) fn receive(
    shared: &Shared,
    ticket: [u8; 16],
    deadline: Instant,
    accept: impl FnOnce(Address) -> Result<(), ViaError>,
    goes_on: impl FnMut() -> bool,
) -> Result<NetworkLink, ViaError> {
    let address = with_network(shared, |network| network.expect(ticket))?;
    if let Err(error) = accept(address) {
        abandon(shared, ticket);
        return Err(error);
    }
    complete(shared, ticket, deadline, goes_on)
}

/// Ends an attempt.
fn abandon(shared: &Shared, ticket: [u8; 16]) {
    if let Some(network) = &mut shared.lock().network {
        network.abandon(ticket);
    }
}

/// Waits until the connection with a ticket exists or has failed.
fn complete(
    shared: &Shared,
    ticket: [u8; 16],
    deadline: Instant,
    mut goes_on: impl FnMut() -> bool,
) -> Result<NetworkLink, ViaError> {
    let attempt = |state: &mut ViaState| state.network.as_mut()?.take_outcome(ticket);
    let mut is_last = false;
    loop {
        let step = deadline.min(Instant::now() + STEP);
        match shared.wait(Some(step), ViaState::drive_network, attempt) {
            Ok(outcome) => {
                let connection = outcome?;
                return with_network(shared, |network| {
                    NetworkLink::new(network, connection).inspect_err(|_| network.port.close(connection))
                });
            }
            Err(_) if is_last || Instant::now() >= deadline => {
                abandon(shared, ticket);
                return Err(ViaError::Timeout);
            }
            // The connection may exist already when the other process ends its request.
            Err(_) => is_last = !goes_on(),
        }
    }
}
