//! The members of a world whose ranks may be restarted: a table in the launcher.
//!
//! Every process joins with the address at which the others reach it, and gets a *turn*, a growing number. A
//! restarted process connects to the members that joined before it, and later members connect to it. So of any
//! two that start at the same time, one connects. The other one queries this table whether the connecting
//! process is the one that it claims to be.

use super::wire::{self, PmiReply};
use std::num::NonZeroU64;

/// The version of this part of the protocol, which is not PMI's.
pub(super) const VERSION: u32 = 1;

/// A process that is a member of the world as some rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// How often its rank had been started before.
    pub incarnation: u64,
    /// Its position in the order of joining, over all ranks and incarnations.
    pub turn: NonZeroU64,
    /// The address at which it is reached.
    pub address: String,
}

/// The state of one rank.
#[derive(Debug, Default)]
struct MemberSlot {
    incarnation: u64,
    /// Whether some process of this rank has joined.
    taken: bool,
    member: Option<Member>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Members {
    slots: Vec<MemberSlot>,
    turn: NonZeroU64,
    /// Whether any rank may be started again. Otherwise no process can join.
    open: bool,
}

impl Members {
    pub(super) fn new(size: usize, open: bool) -> Self {
        let slots = std::iter::repeat_with(MemberSlot::default).take(size).collect();
        Self { slots, turn: NonZeroU64::MIN, open }
    }

    /// Returns whether a process of every rank has joined: only then is there a world to come back to.
    pub(super) fn has_formed(&self) -> bool {
        self.slots.iter().all(|slot| slot.taken)
    }

    /// Records the end of a rank's process.
    pub(super) fn leave(&mut self, rank: usize) {
        if let Some(slot) = self.slots.get_mut(rank) {
            slot.member = None;
        }
    }

    /// Returns the incarnation of the next process of a rank.
    pub(super) fn next_incarnation(&mut self, rank: usize) -> u64 {
        self.leave(rank);
        self.slots.get_mut(rank).map_or(0, |slot| {
            slot.incarnation += 1;
            slot.incarnation
        })
    }

    /// Returns whether this rank was restarted: it takes part in no barrier.
    pub(super) fn is_restart(&self, rank: usize) -> bool {
        self.slots.get(rank).is_some_and(|slot| slot.incarnation > 0)
    }

    /// Adds `rank`, whose address is untrusted. Returns its turn, or the reason why it cannot join.
    pub(super) fn join(
        &mut self,
        rank: usize,
        (version, incarnation): (u32, u64),
        address: &str,
        longest: usize,
    ) -> Result<NonZeroU64, &'static str> {
        let formed = self.has_formed();
        let Some(slot) = self.slots.get_mut(rank).filter(|_| self.open) else {
            return Err("no_rank_is_started_again_here");
        };
        if version != VERSION {
            return Err("version_not_known");
        }
        if incarnation != slot.incarnation {
            return Err("that_is_another_incarnation");
        }
        if slot.member.is_some() {
            return Err("joined_before");
        }
        if incarnation > 0 && !formed {
            return Err("the_world_was_not_complete_when_the_rank_died");
        }
        if !wire::is_value(address) || address.len() >= longest {
            return Err("address_too_long_or_malformed");
        }
        let turn = self.turn;
        self.turn = turn.saturating_add(1);
        slot.taken = true;
        slot.member = Some(Member { incarnation, turn, address: address.to_owned() });
        Ok(turn)
    }

    /// Returns the present member for `rank`.
    pub(super) fn answer(&self, rank: usize) -> PmiReply<'_> {
        match self.member(rank) {
            Some(Member { incarnation, turn, address }) => {
                PmiReply::Member { incarnation: *incarnation, turn: turn.get(), address: Some(address) }
            }
            None => PmiReply::Member { incarnation: 0, turn: 0, address: None },
        }
    }

    fn member(&self, rank: usize) -> Option<&Member> {
        self.slots.get(rank)?.member.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: u32 = VERSION;

    #[test]
    fn a_rank_joins_once_in_each_incarnation_and_in_no_other() {
        let mut members = Members::new(2, true);
        assert_eq!(members.join(0, (V, 0), "a", 8).map(NonZeroU64::get), Ok(1));
        assert_eq!(members.join(0, (V, 0), "b", 8), Err("joined_before"));
        assert!(!members.has_formed());
        assert_eq!(members.join(1, (V, 1), "b", 8), Err("that_is_another_incarnation"));
        assert_eq!(members.join(1, (V + 1, 0), "b", 8), Err("version_not_known"));
        assert_eq!(members.join(2, (V, 0), "b", 8), Err("no_rank_is_started_again_here"));
        for address in ["", "b c", "12345678"] {
            assert_eq!(members.join(1, (V, 0), address, 8), Err("address_too_long_or_malformed"));
        }
        assert_eq!(members.join(1, (V, 0), "b", 8).map(NonZeroU64::get), Ok(2));
        assert!(members.has_formed() && !members.is_restart(1));
        assert_eq!(members.next_incarnation(1), 1);
        assert!(members.member(1).is_none() && members.has_formed() && members.is_restart(1));
        assert_eq!(members.join(1, (V, 0), "b", 8), Err("that_is_another_incarnation"));
        assert_eq!(members.join(1, (V, 1), "c", 8).map(NonZeroU64::get), Ok(3));
        let member = Member { incarnation: 1, turn: NonZeroU64::new(3).unwrap(), address: "c".into() };
        assert_eq!(members.member(1), Some(&member));
    }

    #[test]
    fn no_rank_rejoins_a_world_that_was_never_complete() {
        let mut members = Members::new(2, true);
        members.join(0, (V, 0), "a", 8).unwrap();
        members.leave(0);
        assert_eq!(members.next_incarnation(0), 1);
        let refused = Err("the_world_was_not_complete_when_the_rank_died");
        assert_eq!(members.join(0, (V, 1), "a", 8), refused);
    }

    #[test]
    fn without_restarts_there_are_no_members() {
        let mut members = Members::new(1, false);
        assert_eq!(members.join(0, (V, 0), "a", 8), Err("no_rank_is_started_again_here"));
        assert!(members.member(0).is_none() && members.member(7).is_none());
    }
}
