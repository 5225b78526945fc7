//! Which processes of other machines are connected (paper 2 leaves this to the network of SCI).
//!
//! Inside a machine the kernel reports the user of the other end of a TCP connection. Between machines a process must
//! prove that it knows the key of the job ([`nemesia_core::job_key`]). Without a key, nothing is connected, unless
//! `VIPL_TRUST=any` permits it in both processes.
//!
//! A process that says that it is on this machine must have an end of the connection here. So a request reaches the
//! program, and an answer is believed, only after the other process was checked.

use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nemesia_core::job_key::{Challenges, JobKey, Nonces};
use nemesia_core::via::ViaError;
use nemesia_core::via::setup::{SetupFrame, SetupKind, SetupNetwork};
use nemesia_core::wire::hello::Challenge;

use super::settings::Settings;
use crate::config::Config;
use crate::os::ShmError;
use crate::os::owner::is_peer_of_same_user;
use crate::transport::hosts;

/// No challenge: the process has no key.
const NO_CHALLENGE: Challenge = Challenge { number: 0, random: [0; 16] };

/// What a process knows about processes of other machines.
#[derive(Debug)]
pub(super) struct HostTrust {
    /// The number of this machine and network namespace.
    machine: [u8; 16],
    key: Option<JobKey>,
    permits_any: bool,
    start: Instant,
    drawn: Mutex<(Challenges, Nonces)>,
}

impl HostTrust {
    /// Reads the key of the job. If the key cannot be read, it draws a key that no other process has.
    pub(super) fn new(settings: Settings) -> Result<Self, ShmError> {
        let found = Config::from_env().map(|config| config.job_key.key());
        let key = match found {
            Ok(Ok(key)) => key,
            _ => Some(JobKey::from_bytes(crate::os::random()?)),
        };
        Self::with(machine(&hosts::machine(), &hosts::namespace("net")), key, settings.trusts_any)
    }

    fn with(machine: [u8; 16], key: Option<JobKey>, permits_any: bool) -> Result<Self, ShmError> {
        let drawn = (Challenges::new(crate::os::random()?), Nonces::new(crate::os::random()?));
        Ok(Self { machine, key, permits_any, start: Instant::now(), drawn: Mutex::new(drawn) })
    }

    /// Caller: returns the part of a request, with a number that is used once.
    pub(super) fn begin(&self) -> SetupNetwork {
        SetupNetwork { nonce: self.drawn().1.draw(), ..self.plain() }
    }

    /// Returns the part of a frame that has only the number of this machine.
    pub(super) const fn plain(&self) -> SetupNetwork {
        SetupNetwork::new(self.machine)
    }

    /// Returns whether a frame comes from another machine or network namespace.
    pub(super) fn is_elsewhere(&self, frame: &SetupFrame) -> bool {
        frame.network.machine != self.machine
    }

    fn drawn(&self) -> std::sync::MutexGuard<'_, (Challenges, Nonces)> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called process: returns the part of the first answer to a request.
    ///
    /// # Errors
    /// [`ViaError::NotReachable`]: the request comes from another machine, and there is neither a key nor the
    /// permission to do without.
    pub(super) fn challenge(&self, request: &SetupFrame) -> Result<SetupNetwork, ViaError> {
        if !self.is_elsewhere(request) {
            return Ok(self.plain());
        }
        let challenge = match self.key {
            Some(_) => self.drawn().0.issue(self.start.elapsed()),
            None if self.permits_any => NO_CHALLENGE,
            None => return Err(ViaError::NotReachable),
        };
        Ok(SetupNetwork { challenge, ..self.plain() })
    }

    /// Caller: checks the first answer to a request, which came by this stream. Any process can listen on a port: only
    /// one that is checked may hold up the caller.
    ///
    /// # Errors
    /// [`ViaError::NoMatch`]: a process of another user of this machine. [`ViaError::NotReachable`]: it has not proven
    /// that it knows the key, or only one of both has a key, or none and this one may not do without.
    pub(super) fn believe(
        &self,
        answer: &SetupFrame,
        request: &SetupFrame,
        stream: &TcpStream,
    ) -> Result<(), ViaError> {
        if !self.is_elsewhere(answer) {
            return if is_peer_of_same_user(stream) { Ok(()) } else { Err(ViaError::NoMatch) };
        }
        let is_proven = match &self.key {
            _ if answer.kind != SetupKind::Pending => true,
            Some(key) => answer.is_answer_proven(key, request),
            None => self.permits_any && answer.network.challenge == NO_CHALLENGE,
        };
        if is_proven { Ok(()) } else { Err(ViaError::NotReachable) }
    }

    /// Caller: returns the confirmation of a request, as the answer to the first answer. `own` returns the part of this
    /// process with its memory ports.
    ///
    /// # Errors
    /// [`ViaError::NotReachable`]: the other process is on another machine, and only one of both has a key, or none and
    /// this one may not do without.
    pub(super) fn confirm(
        &self,
        request: &SetupFrame,
        answer: &SetupFrame,
        own: impl FnOnce(SetupNetwork) -> SetupNetwork,
    ) -> Result<SetupFrame, ViaError> {
        let confirm = SetupFrame { network: self.plain(), ..*request };
        if !self.is_elsewhere(answer) {
            return Ok(confirm);
        }
        let confirm = SetupFrame { network: own(confirm.network), ..confirm };
        let challenge = answer.network.challenge;
        match &self.key {
            Some(key) if challenge != NO_CHALLENGE => {
                let nonce = self.drawn().1.draw();
                let network = SetupNetwork { challenge, nonce, ..confirm.network };
                Ok(SetupFrame { network, ..confirm }.prove_request(key))
            }
            None if self.permits_any && challenge == NO_CHALLENGE => Ok(confirm),
            _ => Err(ViaError::NotReachable),
        }
    }

    /// Called process: checks a confirmation, which came by this stream. A proof is accepted once.
    ///
    /// # Errors
    /// [`ViaError::NotReachable`]: it is not proven, or comes from another user of this machine.
    pub(super) fn check(&self, confirm: &SetupFrame, stream: &TcpStream) -> Result<(), ViaError> {
        if !self.is_elsewhere(confirm) {
            return if is_peer_of_same_user(stream) { Ok(()) } else { Err(ViaError::NotReachable) };
        }
        let Some(key) = &self.key else {
            return if self.permits_any { Ok(()) } else { Err(ViaError::NotReachable) };
        };
        let mut drawn = self.drawn();
        let number = confirm.network.challenge.number;
        let challenge = drawn.0.find(number, self.start.elapsed());
        if challenge != Some(confirm.network.challenge) || !confirm.is_request_proven(key) {
            return Err(ViaError::NotReachable);
        }
        drawn.0.redeem(number);
        Ok(())
    }

    /// Called process: returns a first answer, or an acceptance, with its proof, if there is a key.
    pub(super) fn prove(&self, answer: SetupFrame, to: &SetupFrame) -> SetupFrame {
        self.key.map_or(answer, |key| answer.prove_answer(&key, to))
    }

    /// Caller: checks an acceptance.
    ///
    /// # Errors
    /// [`ViaError::NotReachable`]: it is not proven, or comes from another machine than the first answer.
    pub(super) fn check_answer(
        &self,
        accepted: &SetupFrame,
        confirm: &SetupFrame,
        is_elsewhere: bool,
    ) -> Result<(), ViaError> {
        let is_proven = match &self.key {
            _ if !is_elsewhere => true,
            Some(key) => accepted.is_answer_proven(key, confirm),
            None => self.permits_any,
        };
        let is_same = self.is_elsewhere(accepted) == is_elsewhere;
        if is_same && is_proven { Ok(()) } else { Err(ViaError::NotReachable) }
    }
}

/// Returns the number of a machine and a network namespace: those of one boot differ by their namespace.
fn machine(boot: &str, namespace: &str) -> [u8; 16] {
    let (boot, namespace) = (u128::from_str_radix(boot, 16), namespace.parse::<u128>());
    (boot.unwrap_or(0) ^ namespace.unwrap_or(0)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use nemesia_core::via::setup::ViaAddress;
    use nemesia_core::via::{Reliability, ViAttributes};

    const KEY: JobKey = JobKey::from_bytes([7; 32]);

    fn trust(machine: u8, key: Option<JobKey>, permits_any: bool) -> HostTrust {
        HostTrust::with([machine; 16], key, permits_any).unwrap()
    }

    fn request(from: &HostTrust) -> SetupFrame {
        let attributes = ViAttributes {
            reliability: Reliability::Delivery,
            max_transfer: 64,
            qos: 0,
            ptag: 0,
            rdma_write: false,
            rdma_read: false,
        };
        SetupFrame {
            kind: SetupKind::Request,
            reason: 0,
            process: [1; 16],
            vi: 2,
            attributes,
            meeting: [0; 16],
            local: ViaAddress::new([10, 0, 0, 1], b"a").unwrap(),
            remote: ViaAddress::new([10, 0, 0, 2], b"b").unwrap(),
            network: from.begin(),
        }
    }

    /// Returns the two ends of a connection inside of this process.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    /// Returns the first answer of a process in which a call waits.
    fn pending(called: &HostTrust, request: &SetupFrame) -> Result<SetupFrame, ViaError> {
        let pending =
            SetupFrame { kind: SetupKind::Pending, network: called.challenge(request)?, ..*request };
        Ok(called.prove(pending, request))
    }

    /// Returns the result of the four frames.
    fn handshake(caller: &HostTrust, called: &HostTrust) -> Result<(), ViaError> {
        let (request, (there, here)) = (request(caller), pair());
        let pending = pending(called, &request)?;
        caller.believe(&pending, &request, &there)?;
        let confirm =
            caller.confirm(&SetupFrame { kind: SetupKind::Confirm, ..request }, &pending, |own| own)?;
        called.check(&confirm, &here)?;
        let answer = SetupFrame { kind: SetupKind::Accepted, network: called.plain(), ..request };
        let is_elsewhere = caller.is_elsewhere(&pending);
        caller.check_answer(&called.prove(answer, &confirm), &confirm, is_elsewhere)
    }

    #[test]
    fn machines_connect_with_the_same_key_or_if_both_permit_any() {
        let refused = Err(ViaError::NotReachable);
        let other = JobKey::from_bytes([8; 32]);
        for (caller, called, result) in [
            (trust(1, Some(KEY), false), trust(2, Some(KEY), false), Ok(())),
            (trust(1, Some(KEY), false), trust(2, Some(other), false), refused),
            (trust(1, Some(KEY), true), trust(2, None, true), refused),
            (trust(1, None, true), trust(2, Some(KEY), true), refused),
            (trust(1, None, false), trust(2, None, false), refused),
            (trust(1, None, true), trust(2, None, false), refused),
            (trust(1, None, false), trust(2, None, true), refused),
            (trust(1, None, true), trust(2, None, true), Ok(())),
            // One machine needs no key.
            (trust(1, None, false), trust(1, Some(KEY), false), Ok(())),
        ] {
            assert_eq!(handshake(&caller, &called), result, "{caller:?} {called:?}");
        }
    }

    #[test]
    fn a_recorded_confirmation_is_refused() {
        let (caller, called) = (trust(1, Some(KEY), false), trust(2, Some(KEY), false));
        let request = request(&caller);
        let network = called.challenge(&request).unwrap();
        let confirm = caller.confirm(&request, &SetupFrame { network, ..request }, |own| own).unwrap();
        let (changed, (_there, here)) = (SetupFrame { vi: 3, ..confirm }, pair());
        assert_eq!(called.check(&changed, &here), Err(ViaError::NotReachable));
        assert_eq!(called.check(&confirm, &here), Ok(()));
        assert_eq!(called.check(&confirm, &here), Err(ViaError::NotReachable));
    }

    #[test]
    fn a_process_whose_end_of_the_connection_is_not_on_this_machine_is_refused() {
        let (caller, called) = (trust(1, Some(KEY), false), trust(1, Some(KEY), false));
        let (request, (there, here)) = (request(&caller), pair());
        // To the kernel, an end that no process has is the same as one in another machine.
        drop(there);
        assert_eq!(called.check(&request, &here), Err(ViaError::NotReachable));
        for kind in [SetupKind::Pending, SetupKind::Busy, SetupKind::Refused] {
            let answer = SetupFrame { kind, ..request };
            assert_eq!(caller.believe(&answer, &request, &here), Err(ViaError::NoMatch));
        }
    }

    #[test]
    fn a_first_answer_of_another_machine_is_believed_only_with_a_proof_for_this_request() {
        let (caller, called) = (trust(1, Some(KEY), false), trust(2, Some(KEY), false));
        let (first, next, (there, _here)) = (request(&caller), request(&caller), pair());
        let answer = pending(&called, &first).unwrap();
        assert_eq!(caller.believe(&answer, &first, &there), Ok(()));
        assert_eq!(caller.believe(&answer, &next, &there), Err(ViaError::NotReachable), "recorded before");
        let network = SetupNetwork { proof: first.network.proof, ..answer.network };
        let without = SetupFrame { network, ..answer };
        assert_eq!(caller.believe(&without, &first, &there), Err(ViaError::NotReachable));
    }

    #[test]
    fn an_acceptance_of_another_machine_than_the_first_answer_is_refused() {
        let (caller, here) = (trust(1, None, true), trust(1, None, true));
        let request = request(&caller);
        let answer = SetupFrame { network: here.plain(), ..request };
        assert_eq!(caller.check_answer(&answer, &request, true), Err(ViaError::NotReachable));
        assert_eq!(caller.check_answer(&answer, &request, false), Ok(()));
    }

    #[test]
    fn namespaces_of_one_boot_are_different_machines() {
        let boot = "0123456789abcdef0123456789abcdef";
        assert_ne!(machine(boot, "4026531840"), machine(boot, "4026532000"));
        assert_eq!(machine(boot, "5"), machine(boot, "5"));
    }
}
