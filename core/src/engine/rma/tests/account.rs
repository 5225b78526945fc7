//! Flushes of peers that are gone.

use super::forged::forge;
use super::{ALL, BYTES, Fabric, RemoteKey, World, tiny};
use crate::engine::rma::{Datatype, Reduction, Refusal};
use crate::engine::tests::world::{AMPLE, RequestHandle};
use crate::engine::{CompletionError, Failure, RequestId, StartError};
use crate::port::PortFault;
use crate::shared::tests::fabric::FabricRegion;
use crate::shared::tests::fabric::WorldShape;
use crate::wire::Kind;
use crate::wire::rma::ACCOUNT;

const GONE: CompletionError = CompletionError::PeerFailed { peer: 1, failure: Failure::Finished };

impl World<'_> {
    /// Rank 1 leaves, in the state of rank 0.
    fn leave(&mut self) {
        self.engine(0).depart(1, Failure::Finished);
        assert!((0..100).any(|_| self.engine(0).drain(1)), "draining does not end");
        self.engine(0).fail(1, Failure::Finished);
    }

    /// Starts a put and an accumulate, of several packets each.
    fn change(&mut self, key: &RemoteKey) {
        let put = self.put(0, key, 8, &[7; 600]).unwrap();
        let sum = (Datatype::U64, Reduction::Sum);
        let add = self.accumulate(0, (key, 1024), sum.0, sum.1, &[1; 600]).unwrap();
        self.settle();
        self.good(put);
        self.good(add);
    }

    fn flushed(&mut self) -> Result<(), CompletionError> {
        match self.flush(0, 1) {
            Ok(RequestHandle { id: RequestId::SENT, .. }) => Ok(()),
            Ok(handle) => self.done(handle).0.map(drop),
            Err(StartError::PeerFailed { peer, failure }) => {
                Err(CompletionError::PeerFailed { peer, failure })
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn operations_executed_before_the_target_closed_are_done_whenever_they_are_flushed() {
    for before in [false, true] {
        let fabric = Fabric::new(tiny(2));
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        world.change(&key);
        // A flush that arrives at the target too late.
        let early = before.then(|| world.flush(0, 1).unwrap());
        world.engine(1).settle_accounts();
        assert!(!world.engine(1).sends_pending());
        world.leave();
        if let Some(early) = early {
            world.good(early);
        }
        for _ in 0..2 {
            assert_eq!(world.flushed(), Ok(()));
        }
        assert!(!world.engine(0).is_unflushed(1));
        world.assert_empty(&[0], "a target that closed");
    }
}

#[test]
fn a_target_without_a_report_may_have_executed_nothing() {
    for flushes_before in [false, true] {
        let fabric = Fabric::new(tiny(2));
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        world.change(&key);
        if flushes_before {
            let flush = world.flush(0, 1).unwrap();
            world.settle();
            world.good(flush);
        }
        world.leave();
        let wanted = if flushes_before { Ok(()) } else { Err(GONE) };
        assert_eq!([world.flushed(), world.flushed()], [wanted; 2]);
    }
}

#[test]
fn operations_after_the_target_had_settled_are_lost_and_a_flush_reports_it() {
    for more in 0..3 {
        let fabric = Fabric::new(WorldShape { fastbox_slots: 64, ..tiny(2) });
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        world.change(&key);
        world.engine(1).settle_accounts();
        let (put, get) = match more {
            0 => (Some(world.put(0, &key, 0, &[1; 8]).unwrap()), None),
            // More packets than there is space for: some never leave.
            1 => (Some(world.put(0, &key, 0, &[1; BYTES]).unwrap()), None),
            _ => (None, Some(world.get(0, &key, 0, 8).unwrap())),
        };
        let flush = world.flush(0, 1).unwrap();
        world.leave();
        assert_eq!(world.done(flush).0, Err(GONE), "{more}");
        assert_eq!(world.flushed(), Err(GONE), "{more}");
        if let Some(get) = get {
            assert_eq!(world.done(get).0, Err(GONE));
        }
        if let Some(put) = put {
            assert_eq!(world.done(put).0.is_err(), more == 1);
        }
        world.assert_empty(&[0], "operations that are lost");
    }
}

#[test]
fn refusals_before_the_target_closed_are_reported_by_one_flush() {
    for flushes_before in [false, true] {
        let fabric = Fabric::new(tiny(2));
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        world.change(&key);
        let put = world.put(0, &RemoteKey { key: 8, ..key }, 0, &[1; 8]).unwrap();
        world.settle();
        world.good(put);
        let flush = flushes_before.then(|| world.flush(0, 1).unwrap());
        world.engine(1).settle_accounts();
        world.leave();
        let refused = Err(CompletionError::Refused { peer: 1, refusal: Refusal::Key, count: 1 });
        let first = match flush {
            Some(flush) => world.done(flush).0.map(drop),
            None => world.flushed(),
        };
        assert_eq!(first, refused);
        assert_eq!(world.flushed(), Ok(()));
        world.assert_empty(&[0], "refusals");
    }
}

#[test]
fn a_target_that_is_there_again_has_nothing_of_the_account_before() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 7);
    world.change(&key);
    world.replace(1, Failure::Died);
    assert!(world.flushed().is_err());
    world.readmit(0, 1);
    assert_eq!(world.flushed(), Ok(()), "nothing was asked of the new one");
}

#[test]
fn accounts_that_can_not_be_are_faults() {
    // Code, length, the number reported as done, and whether an honest peer may report it after two puts of one
    // packet each.
    for (code, len, executed, good) in [
        (0, 8, 2, true),
        (0, 8, 0, true),
        (0, 8, 3, false),
        (0, 8, u64::MAX, false),
        (0, 7, 2, false),
        (0, 0, 2, false),
        (Refusal::Key.code(), 8, 2, false),
        (6, 8, 2, false),
        (ACCOUNT >> 1, 8, 2, false),
    ] {
        let fabric = Fabric::new(WorldShape { fastbox_slots: 64, ..tiny(3) });
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        for _ in 0..2 {
            let put = world.put(0, &key, 0, &[1; 8]).unwrap();
            world.good(put);
        }
        let failure = forge(&mut world, Kind::RmaReply, ACCOUNT | code, executed, &[0; 8][..len]);
        let fault = Failure::Fault(PortFault::Protocol { kind: Kind::RmaReply });
        assert_eq!(failure, (!good).then_some(fault), "{code} {len} {executed}");
        if good && executed > 0 {
            // A number below an earlier report is a fault.
            let failure = forge(&mut world, Kind::RmaReply, ACCOUNT, executed - 1, &[0; 8]);
            assert_eq!(failure, Some(fault));
        }
    }
}
