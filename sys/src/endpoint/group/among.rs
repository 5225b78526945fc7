//! Barriers and agreements among a list of ranks: for worlds that are a part of the launcher's.

use super::agree::{Agreed, Ranking};
use super::members::CallGroup;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// An endpoint for collective calls among a part of the ranks. All of these ranks, and no others, make the same call
/// with the same list.
#[derive(Debug)]
pub struct Among<'a> {
    endpoint: &'a mut Endpoint,
    members: CallGroup,
}

/// # Calls among some ranks
///
/// ```
/// # nemesia::testing::world(3, |mut endpoint| {
/// if endpoint.rank() != 1 {
///     let mut pair = endpoint.among(&[0, 2])?;
///     pair.barrier()?;
///     assert_eq!(pair.agree(0b11)?.flags, 0b11);
///     assert_eq!(pair.shrink()?.world(), [0, 2]);
/// }
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns this endpoint for collective calls among `members`, in rising order, this rank included. The value is
    /// not kept by the library, and can be made anew for each call.
    ///
    /// Two ranks that are both in several lists, or in a list and the world, make their calls in the same order. Other
    /// ranks need not know of them.
    ///
    /// # Errors
    /// [`Error::Members`] if the list is not in rising order or does not contain this rank. [`Error::Rank`].
    pub fn among(&mut self, members: &[usize]) -> Result<Among<'_>, Error> {
        self.check_world()?;
        let members = checked(members, (self.rank(), self.size()))?;
        Ok(Among { endpoint: self, members })
    }
}

/// Checks a list of members of a world of `size` ranks.
pub(in crate::endpoint) fn checked(
    members: &[usize],
    (rank, size): (usize, usize),
) -> Result<CallGroup, Error> {
    if !members.is_sorted_by(|one, next| one < next) || members.binary_search(&rank).is_err() {
        return Err(Error::Members);
    }
    match members.last() {
        Some(last) if *last >= size => Err(Error::Rank { rank: *last, last: size.saturating_sub(1) }),
        _ => Ok(CallGroup::Ranks(members.to_vec())),
    }
}

impl Among<'_> {
    /// As [`Endpoint::barrier`], among the members. A member that is gone ends it with an error, also if an agreement
    /// has found that before.
    ///
    /// # Errors
    /// As for [`Endpoint::barrier`]. After [`Error::PeerFailed`] or [`Error::BarrierBroken`], call [`Among::shrink`],
    /// and go on among the survivors. [`Error::AgreementUnderWay`] if a barrier of other members is not finished.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.endpoint.barrier_of(&self.members)
    }

    /// As [`Endpoint::agree`], among the members: [`Agreed::gone`] has those of them that are gone. Agreements of all
    /// ranks are not affected: they find by themselves who is gone.
    ///
    /// A process that was started again takes part once the members have readmitted it ([`Endpoint::readmit`]); other
    /// ranks need not have done so.
    ///
    /// # Errors
    /// As for [`Endpoint::agree`]. [`Error::Excluded`] concerns this agreement only. [`Error::AgreementUnderWay`] if an
    /// agreement of other members is not finished.
    pub fn agree(&mut self, flags: u64) -> Result<Agreed, Error> {
        self.endpoint.agree_of(&self.members, flags)
    }

    /// As [`Endpoint::shrink`], among the members.
    ///
    /// # Errors
    /// As for [`Among::agree`].
    pub fn shrink(&mut self) -> Result<Ranking, Error> {
        let gone = self.agree(u64::MAX)?.gone;
        let CallGroup::Ranks(members) = &self.members else { return Err(Error::Members) };
        Ranking::of(members.iter().copied(), &gone, self.endpoint.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::endpoint::tests::{pair, world};
    use crate::endpoint::{Source, Tag};

    /// Runs `work` for each endpoint in a thread of its own.
    fn each<T: Send + 'static>(
        all: Vec<Endpoint>,
        work: impl Fn(&mut Endpoint) -> T + Send + Sync + Clone + 'static,
    ) -> Vec<(T, Endpoint)> {
        let start = |mut endpoint: Endpoint| {
            let work = work.clone();
            std::thread::spawn(move || (work(&mut endpoint), endpoint))
        };
        let threads: Vec<_> = all.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn overlapping_groups_meet_and_agree_in_the_order_of_their_common_members() {
        const GROUPS: [&[usize]; 5] = [&[0, 1], &[1, 2, 3], &[0, 2], &[0, 1, 2, 3], &[3]];
        let ended = each(world(4, &Config::default()), |endpoint| {
            for round in 0..30 {
                for (number, group) in GROUPS.iter().enumerate() {
                    if !group.contains(&endpoint.rank()) {
                        continue;
                    }
                    let flags = 1 << endpoint.rank() | 1 << (10 + number) | (round << 20);
                    let mut group_of = endpoint.among(group).unwrap();
                    group_of.barrier().unwrap();
                    let agreed = group_of.agree(flags).unwrap();
                    let own = if group.len() == 1 { 1 << group[0] } else { 0 };
                    assert_eq!(agreed.flags, own | 1 << (10 + number) | (round << 20), "{group:?}");
                    assert!(agreed.gone.is_empty());
                    let ranking = group_of.shrink().unwrap();
                    assert_eq!(ranking.world(), *group);
                    assert_eq!(ranking.to_world(ranking.rank()), Some(endpoint.rank()));
                }
                // Agreements of all ranks keep their own count.
                assert_eq!(endpoint.agree(round << 8).unwrap().flags, round << 8);
                endpoint.barrier().unwrap();
            }
            endpoint.engine.unexpected_messages()
        });
        assert!(ended.iter().all(|(left, _)| *left == 0), "messages are left");
    }

    #[test]
    fn a_group_shrinks_without_the_other_ranks() {
        let mut all = world(4, &Config::default());
        drop(all.remove(2));
        let two = all.remove(2);
        assert_eq!(two.rank(), 3);
        // Rank 3 takes no part, and ranks 0 and 1 do not wait for it.
        let ended = each(all, |endpoint| {
            let mut group = endpoint.among(&[0, 1, 2]).unwrap();
            let broken = group.barrier().unwrap_err();
            let is_about_2 =
                matches!(broken, Error::PeerFailed { rank: 2, .. } | Error::BarrierBroken { rank: 2, .. });
            assert!(is_about_2, "{broken}");
            let ranking = group.shrink().unwrap();
            assert_eq!((ranking.world(), ranking.from_world(1)), (&[0, 1][..], Some(1)));
            endpoint.among(ranking.world()).unwrap().barrier().unwrap();
        });
        let all: Vec<Endpoint> = ended.into_iter().map(|(_, endpoint)| endpoint).chain([two]).collect();
        // All ranks that live agree on the same: nothing of the group's agreement disturbs that.
        let ended = each(all, |endpoint| endpoint.shrink().unwrap().world().to_vec());
        assert!(ended.iter().all(|(world, _)| world == &[0, 1, 3]));
    }

    #[test]
    fn lists_that_cannot_be_members_are_refused() {
        let (mut zero, _one) = pair(&Config::default());
        for members in [&[][..], &[1], &[1, 0], &[0, 0], &[0, 1, 1]] {
            assert!(matches!(zero.among(members), Err(Error::Members)), "{members:?}");
        }
        assert!(matches!(zero.among(&[0, 2]), Err(Error::Rank { rank: 2, last: 1 })));
        zero.among(&[0]).unwrap().barrier().unwrap();
        assert_eq!(zero.among(&[0]).unwrap().agree(9).unwrap().flags, 9);
        zero.send(0, 1, b"x").unwrap();
        zero.recv(Source::Rank(0), Tag::Any, &mut [0]).unwrap();
    }

    #[test]
    fn ranks_that_name_different_members_disconnect_instead_of_waiting() {
        let ended = each(world(3, &Config::default()), |endpoint| match endpoint.rank() {
            0 => endpoint.among(&[0, 1]).unwrap().agree(1).map(|agreed| agreed.gone),
            1 => endpoint.among(&[0, 1, 2]).unwrap().agree(1).map(|agreed| agreed.gone),
            _ => endpoint.among(&[1, 2]).unwrap().agree(1).map(|agreed| agreed.gone),
        });
        // Whoever notices it first gives the other up; nobody hangs.
        assert!(ended.iter().any(|(gone, _)| !matches!(gone, Ok(gone) if gone.is_empty())), "{ended:?}");
    }
}
