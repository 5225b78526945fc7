//! Windows that are widened.

use std::vec;

use super::{FlowOp, FlowTwin};

#[test]
fn window_is_widened_while_there_is_plenty_and_nobody_waits() {
    let mut twin = FlowTwin::new(4000, 3, 60, 4).unwrap();
    for _ in 0..5 {
        twin.apply(FlowOp::Widen(0));
    }
    assert_eq!(twin.ledger.window_of(&twin.accounts[0]), 480, "three doublings");
    assert_eq!(twin.accounts[1].window(), 60);
    // It is refilled when it falls below half.
    twin.apply(FlowOp::Learn(0));
    let mut seen = vec![];
    for _ in 0..70 {
        twin.apply(FlowOp::Send(0, 4));
        twin.apply(FlowOp::Arrive(0, false));
        twin.apply(FlowOp::Learn(0));
        seen.push(twin.accounts[0].window());
    }
    assert!(seen.contains(&480) && seen.iter().all(|&window| window >= 236), "{seen:?}");
    // The next process of this rank has the usual one.
    twin.apply(FlowOp::Close(0));
    twin.apply(FlowOp::Open(0));
    assert_eq!(twin.accounts[0].window(), 60);
    // With 650 units of the pool left, four windows of 240 are too many, but not four of 120.
    twin.apply(FlowOp::Reserve(twin.ledger.free() - 650));
    twin.apply(FlowOp::Widen(1));
    twin.apply(FlowOp::Widen(1));
    assert_eq!(twin.ledger.window_of(&twin.accounts[1]), 120);
}
