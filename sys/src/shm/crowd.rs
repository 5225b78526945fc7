//! Whether the processes of a world get in each other's way on their processors, or each can have its own.

use super::greeting::Cpus;
use crate::os::numa;

/// The processors that this process may run on.
pub(super) fn allowed() -> Cpus {
    let mut cpus = Cpus::default();
    for cpu in numa::allowed_cpus().unwrap_or_default() {
        cpus[cpu / 64 % cpus.len()] |= 1 << (cpu % 64);
    }
    cpus
}

/// Whether the processes that share processors with us, directly or through others, are more than those processors.
/// A process bound to a core of its own is not crowded, however many there are.
pub(super) fn is_crowded(ours: Cpus, peers: impl Iterator<Item = Cpus>) -> bool {
    let mut others: Vec<Cpus> = peers.collect();
    let mut shared = ours;
    let mut processes = 1;
    loop {
        let before = others.len();
        others.retain(|cpus| {
            let meets = cpus.iter().zip(&shared).any(|(theirs, shared)| theirs & shared != 0);
            if meets {
                shared.iter_mut().zip(cpus).for_each(|(shared, theirs)| *shared |= theirs);
                processes += 1;
            }
            !meets
        });
        if others.len() == before {
            break;
        }
    }
    processes > shared.iter().map(|word| word.count_ones()).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &[usize]) -> Cpus {
        let mut cpus = Cpus::default();
        list.iter().for_each(|cpu| cpus[cpu / 64] |= 1 << (cpu % 64));
        cpus
    }

    fn crowded(ours: &[usize], peers: &[&[usize]]) -> bool {
        is_crowded(cpus(ours), peers.iter().map(|list| cpus(list)))
    }

    #[test]
    fn processes_with_a_core_each_are_not_crowded() {
        assert!(!crowded(&[0], &[&[1], &[2]]));
        assert!(!crowded(&[0, 1], &[&[0, 1]]));
        assert!(!crowded(&[3], &[&[64, 65]]));
    }

    #[test]
    fn more_processes_than_cores_are_crowded() {
        assert!(crowded(&[0], &[&[0]]));
        assert!(crowded(&[0, 1], &[&[0, 1], &[0, 1]]));
        // Through a third: 0 and 1 are shared by three.
        assert!(crowded(&[0], &[&[0, 1], &[1]]));
        assert!(!crowded(&[5], &[&[0], &[0]]));
    }

    #[test]
    fn own_processors_are_known() {
        assert!(allowed().iter().any(|word| *word != 0));
    }
}
