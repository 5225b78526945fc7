//! The stages of a connection, and the meaning of each event of the connection manager in each stage.

use nemesia_core::port::memory::{ConnectError, LostError};
use rdma_core_sys as raw;

/// The manager's reason if the peer itself has refused: `IB_CM_REJ_CONSUMER_DEFINED`.
const CONSUMER: i32 = 28;
/// The manager's reason if no process listens: `IB_CM_REJ_INVALID_SERVICE_ID`.
const NO_LISTENER: i32 = 8;
/// The manager's reason if the peer's manager no longer knows the connection: `IB_CM_REJ_STALE_CONN`.
const STALE: i32 = 10;

/// A side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connects.
    Active,
    /// The side that accepts.
    Passive,
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmStage {
    /// The address is being resolved.
    Resolving,
    /// The route is being resolved.
    Routing,
    /// The request was sent.
    Asking,
    /// The peer's request has arrived.
    Requested,
    /// We have accepted.
    Accepting,
    /// It is up.
    Ready,
    /// It has ended.
    Over,
}

/// The reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Stay,
    /// Resolve the route.
    Route,
    /// Send the request.
    Ask,
    /// The peer accepts: bring the queue pair up, and confirm. Then it is ready.
    Confirm,
    /// It is up.
    Establish,
    /// The connection fails before it is up.
    Fail(ConnectError),
    /// The connection was up and has ended.
    Lose(LostError),
    /// The device is being pulled out.
    Unplug,
}

/// Returns the reaction to an event. `kind` and `status` are the manager's. Unknown events end no connection
/// that is up, and fail one that is not.
pub fn step(stage: CmStage, kind: u32, status: i32) -> Step {
    match (kind, stage) {
        (raw::RDMA_CM_EVENT_DEVICE_REMOVAL, _) => Step::Unplug,
        (_, CmStage::Over) => Step::Stay,
        (raw::RDMA_CM_EVENT_ADDR_RESOLVED, CmStage::Resolving) => Step::Route,
        (raw::RDMA_CM_EVENT_ROUTE_RESOLVED, CmStage::Routing) => Step::Ask,
        (raw::RDMA_CM_EVENT_CONNECT_RESPONSE, CmStage::Asking) => Step::Confirm,
        (raw::RDMA_CM_EVENT_ESTABLISHED, CmStage::Asking | CmStage::Accepting) => Step::Establish,
        // The connection was used before the manager has reported it.
        (raw::RDMA_CM_EVENT_ESTABLISHED | raw::RDMA_CM_EVENT_CONNECT_RESPONSE, CmStage::Ready) => Step::Stay,
        (raw::RDMA_CM_EVENT_DISCONNECTED | raw::RDMA_CM_EVENT_TIMEWAIT_EXIT, CmStage::Ready) => {
            Step::Lose(LostError::Closed)
        }
        (raw::RDMA_CM_EVENT_UNREACHABLE, CmStage::Ready) => Step::Lose(LostError::Unreachable),
        (raw::RDMA_CM_EVENT_CONNECT_ERROR | raw::RDMA_CM_EVENT_REJECTED, CmStage::Ready) => {
            Step::Lose(LostError::Unknown(status.unsigned_abs()))
        }
        // A new address of the network device, multicast, and unknown events.
        (raw::RDMA_CM_EVENT_ADDR_CHANGE, _) | (_, CmStage::Ready) => Step::Stay,
        (
            raw::RDMA_CM_EVENT_ADDR_ERROR | raw::RDMA_CM_EVENT_ROUTE_ERROR | raw::RDMA_CM_EVENT_UNREACHABLE,
            _,
        ) => Step::Fail(ConnectError::Unreachable),
        (raw::RDMA_CM_EVENT_REJECTED, _) => Step::Fail(rejected(status)),
        // The peer was there and has gone.
        (raw::RDMA_CM_EVENT_DISCONNECTED | raw::RDMA_CM_EVENT_TIMEWAIT_EXIT, _) => {
            Step::Fail(ConnectError::Unreachable)
        }
        _ => Step::Fail(ConnectError::System(status.saturating_abs())),
    }
}

/// Translates the peer's refusal. InfiniBand reports a reason of its own, iWARP a negative error number.
fn rejected(status: i32) -> ConnectError {
    match status {
        CONSUMER => ConnectError::Refused,
        NO_LISTENER => ConnectError::NotListening,
        STALE => ConnectError::Unreachable,
        status if status == -libc::ECONNREFUSED || status == -libc::ECONNRESET => ConnectError::Refused,
        status if status == -libc::ETIMEDOUT => ConnectError::Unreachable,
        status => ConnectError::System(status.saturating_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [CmStage; 7] = [
        CmStage::Resolving,
        CmStage::Routing,
        CmStage::Asking,
        CmStage::Requested,
        CmStage::Accepting,
        CmStage::Ready,
        CmStage::Over,
    ];

    #[test]
    fn the_way_to_a_connection() {
        assert_eq!(step(CmStage::Resolving, raw::RDMA_CM_EVENT_ADDR_RESOLVED, 0), Step::Route);
        assert_eq!(step(CmStage::Routing, raw::RDMA_CM_EVENT_ROUTE_RESOLVED, 0), Step::Ask);
        assert_eq!(step(CmStage::Asking, raw::RDMA_CM_EVENT_CONNECT_RESPONSE, 0), Step::Confirm);
        assert_eq!(step(CmStage::Asking, raw::RDMA_CM_EVENT_ESTABLISHED, 0), Step::Establish);
        assert_eq!(step(CmStage::Accepting, raw::RDMA_CM_EVENT_ESTABLISHED, 0), Step::Establish);
        assert_eq!(step(CmStage::Ready, raw::RDMA_CM_EVENT_DISCONNECTED, 0), Step::Lose(LostError::Closed));
    }

    #[test]
    fn a_refusal_says_who_refused() {
        let refused = |status| step(CmStage::Asking, raw::RDMA_CM_EVENT_REJECTED, status);
        assert_eq!(refused(28), Step::Fail(ConnectError::Refused));
        assert_eq!(refused(8), Step::Fail(ConnectError::NotListening));
        assert_eq!(refused(-libc::ECONNREFUSED), Step::Fail(ConnectError::Refused));
        assert_eq!(refused(-7777), Step::Fail(ConnectError::System(7777)));
        assert_eq!(refused(i32::MIN), Step::Fail(ConnectError::System(i32::MAX)));
    }

    #[test]
    fn every_event_in_every_stage_ends_where_it_should() {
        for stage in STAGES {
            for kind in (0..40).chain([u32::MAX]) {
                for status in [0, -5, 28, i32::MIN] {
                    let step = step(stage, kind, status);
                    match stage {
                        // A connection that is over stays so, except for the end of the device.
                        CmStage::Over => assert!(matches!(step, Step::Stay | Step::Unplug), "{kind}"),
                        // A connection that is up does not fail, and one that is not up is not lost.
                        CmStage::Ready => {
                            assert!(matches!(step, Step::Stay | Step::Lose(_) | Step::Unplug), "{kind}");
                        }
                        _ => assert!(!matches!(step, Step::Lose(_)), "{kind}"),
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_unknown_or_out_of_order_fails_what_is_not_up_and_leaves_alone_what_is() {
        for stage in [CmStage::Resolving, CmStage::Asking, CmStage::Requested, CmStage::Accepting] {
            assert_eq!(step(stage, 99, -5), Step::Fail(ConnectError::System(5)));
            assert!(matches!(step(stage, raw::RDMA_CM_EVENT_ROUTE_RESOLVED, 0), Step::Fail(_)));
        }
        assert_eq!(step(CmStage::Ready, 99, -5), Step::Stay);
    }
}
