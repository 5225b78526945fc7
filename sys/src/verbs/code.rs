//! Codes of devices: numbers, translated where their meaning is known.

use nemesia_core::port::memory::{LostError, WorkError};
use rdma_core_sys as raw;

/// Translates the status of a completion (`ibv_wc_status` in `ibv_poll_cq(3)`) into an error of the memory
/// port.
pub(crate) fn work_error(status: u32) -> WorkError {
    match status {
        raw::IBV_WC_LOC_LEN_ERR => WorkError::Length,
        raw::IBV_WC_LOC_PROT_ERR
        | raw::IBV_WC_LOC_ACCESS_ERR
        | raw::IBV_WC_LOC_QP_OP_ERR
        | raw::IBV_WC_MW_BIND_ERR => WorkError::Local,
        raw::IBV_WC_WR_FLUSH_ERR => WorkError::Flushed,
        raw::IBV_WC_REM_ACCESS_ERR => WorkError::Refused,
        raw::IBV_WC_REM_INV_REQ_ERR | raw::IBV_WC_REM_INV_RD_REQ_ERR => WorkError::Invalid,
        raw::IBV_WC_REM_OP_ERR | raw::IBV_WC_REM_ABORT_ERR => WorkError::RemoteOperation,
        raw::IBV_WC_RNR_RETRY_EXC_ERR => WorkError::NoReceive,
        raw::IBV_WC_RETRY_EXC_ERR | raw::IBV_WC_RESP_TIMEOUT_ERR => WorkError::PeerLost,
        raw::IBV_WC_GENERAL_ERR => WorkError::General,
        other => WorkError::Unknown(other),
    }
}

/// Returns why a connection is lost whose work request failed with this error.
pub(crate) fn lost_error(error: WorkError) -> LostError {
    match error {
        WorkError::PeerLost => LostError::Unreachable,
        // A flushed request has not failed itself: the connection had ended.
        WorkError::Flushed => LostError::Closed,
        _ => LostError::Work,
    }
}

/// Returns why a connection is lost whose queue pair had this event; `None` for events that end nothing.
pub(crate) fn pair_error(event: u32) -> Option<LostError> {
    match event {
        raw::IBV_EVENT_QP_ACCESS_ERR => Some(LostError::Access),
        raw::IBV_EVENT_QP_REQ_ERR => Some(LostError::Protocol),
        raw::IBV_EVENT_QP_FATAL | raw::IBV_EVENT_PATH_MIG_ERR => Some(LostError::Unknown(event)),
        // Established, drained, migrated, or the last receive of a shared queue: no errors.
        _ => None,
    }
}

/// Describes the status of a completion in words.
pub fn describe_status(status: u32) -> &'static str {
    const WORDS: [&str; 24] = [
        "success",
        "local length error",
        "local operation error of the queue pair",
        "local operation error of the end-to-end context",
        "local protection error",
        "flushed: the queue pair was in the error state",
        "memory window not bound",
        "bad response",
        "local access error",
        "remote side: invalid request",
        "remote side: access refused",
        "remote side: operation failed",
        "no answer after all retries",
        "no receive posted at the remote side after all retries",
        "reliable datagram domain violation",
        "remote side: invalid reliable datagram request",
        "remote side: aborted",
        "invalid end-to-end context number",
        "invalid state of the end-to-end context",
        "fatal error",
        "no response in time",
        "general error",
        "tag matching error",
        "tag matching rendezvous incomplete",
    ];
    WORDS.get(status as usize).copied().unwrap_or("a status that is unknown here")
}

/// Describes an asynchronous event in words.
pub fn describe_event(event: u32) -> &'static str {
    const WORDS: [&str; 20] = [
        "completion queue error",
        "queue pair: fatal error",
        "queue pair: invalid request from the peer",
        "queue pair: access violation by the peer",
        "queue pair: communication established",
        "queue pair: send queue drained",
        "queue pair: path migrated",
        "queue pair: path migration failed",
        "device: fatal error",
        "port: active",
        "port: error",
        "port: LID changed",
        "port: partition keys changed",
        "port: subnet manager changed",
        "shared receive queue: error",
        "shared receive queue: limit reached",
        "queue pair: last receive taken",
        "port: subnet manager asks to register again",
        "port: GIDs changed",
        "work queue: fatal error",
    ];
    WORDS.get(event as usize).copied().unwrap_or("an event that is unknown here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_means_something_and_an_unknown_one_keeps_its_number() {
        for code in (0..64).chain([u32::MAX, 1 << 31]) {
            assert!(!describe_status(code).is_empty() && !describe_event(code).is_empty());
            let _ = (work_error(code), pair_error(code));
        }
        assert_eq!(work_error(77), WorkError::Unknown(77));
        assert_eq!(
            work_error(21),
            WorkError::General,
            "siw reports this status when a peer breaks the protocol"
        );
        assert_eq!(describe_status(77), "a status that is unknown here");
        assert_eq!(describe_status(raw::IBV_WC_TM_RNDV_INCOMPLETE), "tag matching rendezvous incomplete");
        assert_eq!(describe_event(raw::IBV_EVENT_WQ_FATAL), "work queue: fatal error");
        assert_eq!(pair_error(99), None);
    }
}
