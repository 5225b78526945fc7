//! The last step of connecting two machines: the connection of their memory ports.

use std::time::{Duration, Instant};

use nemesia_core::port::memory::Address;
use nemesia_core::via::ViaError;
use nemesia_core::via::setup::{SetupFrame, SetupNetwork};

use super::network::{Network, PortTicket, transport_of};
use super::objects::NewViLink;
use super::provider::Shared;
use super::state::ViaState;
use crate::transport::net::Transport;

/// The attempts of a caller to connect the ports: a device may refuse one that it cannot take at once.
const MOST_CALLS: usize = 5;
/// The time after which a waiting process looks whether the other one still waits.
const STEP: Duration = Duration::from_millis(50);

/// Executes a call with a memory port, which is opened if it is not.
fn with_network<T>(
    shared: &Shared,
    transport: Transport,
    call: impl FnOnce(&mut Network) -> Result<T, ViaError>,
) -> Result<T, ViaError> {
    let mut state = shared.lock();
    state.must_poke = true;
    call(state.networks.open(transport)?)
}

/// Connects to the memory port that an acceptance names, and whose ticket it has, while `goes_on` returns true.
pub(super) fn go(
    shared: &Shared,
    accepted: &SetupFrame,
    deadline: Instant,
    goes_on: impl FnMut() -> bool,
) -> Result<NewViLink, ViaError> {
    let address = accepted.network.port.ok_or(ViaError::NotReachable)?;
    let transport = transport_of(accepted.network.ports).ok_or(ViaError::NotReachable)?;
    let of = PortTicket { transport, ticket: accepted.meeting };
    let (mut goes_on, mut calls) = (goes_on, 0);
    loop {
        calls += 1;
        let called = with_network(shared, transport, |network| network.call(of.ticket, &address));
        let found = called.and_then(|()| complete(shared, (of, None), deadline, &mut goes_on));
        match found {
            Err(ViaError::NotReachable | ViaError::ErrorResource)
                if calls < MOST_CALLS && Instant::now() < deadline && goes_on() =>
            {
                std::thread::sleep(STEP);
            }
            found => return found,
        }
    }
}

/// Expects a connection with a ticket, sends the acceptance that `accept` makes of the address of the memory port, and
/// waits, while `goes_on` returns true. The ticket comes with the ports of the other process.
pub(super) fn receive(
    shared: &Shared,
    (of, theirs): (PortTicket, Option<&SetupNetwork>),
    deadline: Instant,
    accept: impl FnOnce(Address) -> Result<(), ViaError>,
    mut goes_on: impl FnMut() -> bool,
) -> Result<NewViLink, ViaError> {
    let address = with_network(shared, of.transport, |network| network.expect(of.ticket))?;
    if let Err(error) = accept(address) {
        shared.lock().abandon_network(of);
        return Err(error);
    }
    loop {
        match complete(shared, (of, theirs), deadline, &mut goes_on) {
            // The caller tries again.
            Err(ViaError::NotReachable) if Instant::now() < deadline && goes_on() => {
                with_network(shared, of.transport, |network| {
                    network.renew(of.ticket);
                    Ok(())
                })?;
            }
            found => return found,
        }
    }
}

/// Waits until the connection with a ticket exists or has failed.
fn complete(
    shared: &Shared,
    (of, theirs): (PortTicket, Option<&SetupNetwork>),
    deadline: Instant,
    goes_on: &mut impl FnMut() -> bool,
) -> Result<NewViLink, ViaError> {
    // A port that does not exist any more has failed.
    let attempt = |state: &mut ViaState| {
        state.networks.get_mut(of.transport).map_or(Some(false), |network| network.outcome(of.ticket))
    };
    let mut is_last = false;
    loop {
        let step = deadline.min(Instant::now() + STEP);
        match shared.wait(Some(step), ViaState::drive_network, attempt) {
            Ok(true) => {
                let explanation = shared.lock().networks.explain(of.transport, theirs);
                return Ok(NewViLink::Network(of, explanation));
            }
            Ok(false) => {
                shared.lock().abandon_network(of);
                return Err(ViaError::NotReachable);
            }
            Err(_) if is_last || Instant::now() >= deadline => {
                shared.lock().abandon_network(of);
                return Err(ViaError::Timeout);
            }
            // The connection may exist already when the other process ends its request.
            Err(_) => is_last = !goes_on(),
        }
    }
}
