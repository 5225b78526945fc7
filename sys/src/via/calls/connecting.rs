//! Connections (paper 2, section 1.4.1): client-server calls block, peer-to-peer calls do not.

use std::time::Instant;

use nemesia_core::via::setup::{SetupFrame, SetupKind, ViaAddress};
use nemesia_core::via::{ViAttributes, ViState, ViaError};

use super::vis::disconnect;
use super::{Provider, deadline};
use crate::via::listener::{self, Listener};
use crate::via::objects::{ConnectWaiter, PeerAttempt, Requested};
use crate::via::state::ViaState;
use crate::via::{client, peers, server};

impl Provider {
    /// Listens, if that has not happened before: from then on other processes find this one.
    fn listen(&self, state: &mut ViaState) -> Result<(), ViaError> {
        if state.listener.is_none() {
            state.listener = Some(Listener::bind(self.0.settings)?);
            state.must_poke = true;
        }
        Ok(())
    }

    /// Waits for the request of a client at a local address. Returns the connection to accept or reject, the address of
    /// the client, and the attributes of its VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::Timeout`], [`ViaError::ErrorResource`] if no port is free.
    pub fn connect_wait(
        &self,
        nic: u64,
        local: ViaAddress,
        limit: u64,
    ) -> Result<(u64, ViaAddress, ViAttributes), ViaError> {
        let number = {
            let mut state = self.lock();
            state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
            self.listen(&mut state)?;
            let number = state.next_waiter;
            state.next_waiter += 1;
            state.waiters.push(ConnectWaiter { number, local, arrived: None });
            number
        };
        let attempt = |state: &mut ViaState| {
            let at = state.waiters.iter().position(|waiter| waiter.number == number)?;
            state.waiters[at].arrived.is_some().then(|| state.waiters.remove(at).arrived).flatten()
        };
        let found = self.0.wait(deadline(limit), |_| {}, attempt);
        let mut state = self.lock();
        // A request may arrive just after the last attempt.
        let found = found.ok().or_else(|| attempt(&mut state));
        state.waiters.retain(|waiter| waiter.number != number);
        let (stream, frame) = found.ok_or(ViaError::Timeout)?;
        let requested = Requested { nic, stream, frame };
        let handle = state.requests.insert(|_| requested).ok_or(ViaError::ErrorResource)?;
        Ok((handle, frame.local, frame.attributes))
    }

    /// Accepts the request of a client.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`]; [`ViaError::InvalidState`] unless the VI is idle; the first attribute that does
    /// not match, of which the client is not informed: the request can be accepted with another VI, or rejected;
    /// [`ViaError::Timeout`] if the client waits no longer.
    pub fn connect_accept(&self, request: u64, vi: u64) -> Result<(), ViaError> {
        let (mut requested, attributes) = {
            let mut state = self.lock();
            let requested = state.requests.get(request).ok_or(ViaError::InvalidParameter)?;
            let (nic, theirs) = (requested.nic, requested.frame.attributes);
            let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
            if object.nic != nic {
                return Err(ViaError::InvalidParameter);
            }
            if object.model.state() != ViState::Idle {
                return Err(ViaError::InvalidState);
            }
            object.model.attributes.match_with(&theirs)?;
            object.model.begin_connect()?;
            let attributes = object.model.attributes;
            (state.requests.remove(request).ok_or(ViaError::InvalidParameter)?, attributes)
        };
        let link = server::accept(self.0, &mut requested.stream, &requested.frame, (vi, attributes));
        self.settle(vi, link.map(|link| (link, requested.frame.attributes))).map(drop)
    }

    /// Gives a VI its connection, or takes it back to idle.
    fn settle(
        &self,
        vi: u64,
        result: Result<(crate::via::objects::NewViLink, ViAttributes), ViaError>,
    ) -> Result<ViAttributes, ViaError> {
        let mut state = self.lock();
        match result {
            Ok((link, remote)) => {
                if let Some(object) = state.vis.get_mut(vi) {
                    object.remote = Some(remote);
                }
                if state.connect(vi, link) { Ok(remote) } else { Err(ViaError::InvalidState) }
            }
            Err(reason) => {
                if let Some(object) = state.vis.get_mut(vi) {
                    object.model.abandon_connect();
                }
                Err(reason)
            }
        }
    }

    /// Rejects the request of a client.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn connect_reject(&self, request: u64) -> Result<(), ViaError> {
        let mut requested = self.lock().requests.remove(request).ok_or(ViaError::InvalidParameter)?;
        let code = ViaError::Reject.code() as u8;
        let refused = server::answer(self.0, &requested.frame, SetupKind::Refused, code);
        // A client that has left needs no answer.
        let _ = listener::send(&mut requested.stream, &refused);
        Ok(())
    }

    fn frame(
        &self,
        kind: SetupKind,
        vi: u64,
        attributes: ViAttributes,
        addresses: [ViaAddress; 2],
    ) -> SetupFrame {
        let [local, remote] = addresses;
        let attributes = ViAttributes { ptag: 0, ..attributes };
        SetupFrame {
            kind,
            reason: 0,
            process: self.0.process,
            vi,
            attributes,
            meeting: [0; 16],
            local,
            remote,
            network: self.0.trust.begin(),
        }
    }

    /// Connects a VI to one of a server that waits at the remote address. Returns the attributes of that VI.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], also for a time limit of 0; [`ViaError::InvalidState`], also if another thread
    /// disconnects the VI; [`ViaError::Reject`], [`ViaError::Timeout`], [`ViaError::NotReachable`].
    pub fn connect_request(
        &self,
        vi: u64,
        local: ViaAddress,
        remote: ViaAddress,
        limit: u64,
    ) -> Result<ViAttributes, ViaError> {
        if limit == 0 {
            return Err(ViaError::InvalidParameter);
        }
        let attributes = {
            let mut state = self.lock();
            let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
            object.model.begin_connect()?;
            object.model.attributes
        };
        let frame = self.frame(SetupKind::Request, vi, attributes, [local, remote]);
        let waits = || {
            let state = self.lock();
            state.vis.get(vi).is_some_and(|object| object.model.state() == ViState::ConnectPending)
        };
        let result = client::call(self.0, &frame, deadline(limit), false, waits);
        self.settle(vi, result)
    }

    /// Disconnects a VI, in any state: its descriptors are flushed, and it is idle.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn disconnect(&self, vi: u64) -> Result<(), ViaError> {
        let mut state = self.lock();
        state.vis.get(vi).ok_or(ViaError::InvalidParameter)?;
        disconnect(&mut state, vi);
        Ok(())
    }

    /// Begins to connect a VI to one of a peer, which does the same. Does not wait.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], also for a time limit of 0; [`ViaError::InvalidState`],
    /// [`ViaError::ErrorResource`].
    pub fn peer_request(
        &self,
        vi: u64,
        local: ViaAddress,
        remote: ViaAddress,
        limit: u64,
    ) -> Result<(), ViaError> {
        if limit == 0 {
            return Err(ViaError::InvalidParameter);
        }
        let mut state = self.lock();
        state.vis.get(vi).ok_or(ViaError::InvalidParameter)?;
        self.listen(&mut state)?;
        let number = state.next_waiter;
        state.next_waiter += 1;
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        object.model.begin_connect()?;
        let deadline: Option<Instant> = deadline(limit);
        object.peer = Some(PeerAttempt {
            number,
            local,
            remote,
            deadline,
            is_answering: false,
            is_calling: false,
            result: None,
        });
        let frame = self.frame(SetupKind::PeerRequest, vi, object.model.attributes, [local, remote]);
        peers::start((vi, number), frame).inspect_err(|_| disconnect(&mut state, vi))
    }

    /// Returns the attributes of the peer's VI if the connection exists.
    ///
    /// # Errors
    /// [`ViaError::NotDone`]; [`ViaError::InvalidState`] if there was no request; the reason of a failure.
    pub fn peer_done(&self, vi: u64) -> Result<ViAttributes, ViaError> {
        peer_result(&mut self.lock(), vi)
    }

    /// Waits for the end of a request, which has its own time limit.
    ///
    /// # Errors
    /// As [`Provider::peer_done`], without `NotDone`.
    pub fn peer_wait(&self, vi: u64) -> Result<ViAttributes, ViaError> {
        let attempt = |state: &mut ViaState| match peer_result(state, vi) {
            Err(ViaError::NotDone) => None,
            result => Some(result),
        };
        self.0.wait(None, |_| {}, attempt)?
    }
}

fn peer_result(state: &mut ViaState, vi: u64) -> Result<ViAttributes, ViaError> {
    let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
    let attempt = object.peer.as_ref().ok_or(ViaError::InvalidState)?;
    let result = attempt.result.ok_or(ViaError::NotDone)?;
    object.peer = None;
    result
}
