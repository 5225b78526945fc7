//! The estimate of whether the processes of a world compete for processors, or each can have its own. It uses
//! the processors on which each may run, and the processor time that control groups grant (`cpu.max`, or
//! `cpu.cfs_quota_us` of version 1).
//!
//! It also determines whether a yield lets the peers run. The kernel gives the time of a yielding process to
//! others of the same scheduling group. Each control group with a CPU share of its own is one; outside of
//! those, each session is one (`autogroup`).
//!
//! This is the state at start, and only the initial value of the adaptive waiting.

use std::fs;
use std::path::{Component, Path, PathBuf};

use nemesia_core::spin::Oversubscription;

use super::peer::Cpus;
use crate::os::numa;

/// Returns the processors on which this process may run.
pub(super) fn allowed() -> Cpus {
    mask(&numa::allowed_cpus().unwrap_or_default())
}

fn mask(list: &[usize]) -> Cpus {
    let mut cpus = Cpus::default();
    for cpu in list {
        cpus[cpu / 64 % cpus.len()] |= 1 << (cpu % 64);
    }
    cpus
}

/// Returns how we share the processors on which we may run now with these processes, by their process ids (0 if
/// unknown). The processors of a process whose own are unknown count as ours.
pub(crate) fn load_beside(peers: impl Iterator<Item = i32>) -> Oversubscription {
    let ours = allowed();
    let of = |pid: i32| {
        let known = (pid > 0).then(|| numa::allowed_cpus_of(pid).ok());
        (known.flatten().map_or(ours, |list| mask(&list)), pid.max(0))
    };
    load(ours, &peers.map(of).collect::<Vec<_>>())
}

/// Returns how we share our processors with the peers, given their processors and their process ids (0 if
/// unknown).
pub(crate) fn load(ours: Cpus, peers: &[(Cpus, i32)]) -> Oversubscription {
    if !is_oversubscribed(ours, peers) {
        return Oversubscription::Room;
    }
    let group = turns_of("self");
    let with_us = |pid: i32| pid != 0 && group.is_some() && turns_of(&pid.to_string()) == group;
    if peers.iter().all(|(_, pid)| with_us(*pid)) {
        Oversubscription::Together
    } else {
        Oversubscription::Apart
    }
}

/// Returns whether there are more processes of the world than processors, or than granted processor time.
fn is_oversubscribed(ours: Cpus, peers: &[(Cpus, i32)]) -> bool {
    let quota = || {
        let group_of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let (lines, peers) = (group_of_self(), peers.iter().map(|(_, pid)| group_of(*pid)));
        let peers: Vec<String> = peers.collect();
        lines.lines().any(|line| tightest_quota(line).is_some_and(|quota| quota.is_exceeded(&peers)))
    };
    lacks_processors(ours, peers.iter().map(|(cpus, _)| *cpus)) || !peers.is_empty() && quota()
}

/// Returns the scheduling group of a process, `self` or a number, by a name that is only good for comparison.
/// `None` if it cannot be determined.
fn turns_of(process: &str) -> Option<String> {
    let of = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}"));
    let group = share_of(&of("cgroup").ok()?, |path| Path::new(path).exists());
    let sessions = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let by_session = group.is_empty() && sessions.is_ok_and(|enabled| enabled.trim() != "0");
    if by_session { of("autogroup").ok() } else { Some(group) }
}

/// Returns the innermost control group with a CPU share of its own, by the lines of `/proc/PID/cgroup`; empty
/// if that is the root.
fn share_of(lines: &str, exists: impl Fn(&str) -> bool) -> String {
    let hierarchies = lines.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let mut share = String::new();
    for (controllers, path) in hierarchies {
        if controllers.split(',').any(|name| name == "cpu") {
            return path.trim_end_matches('/').to_owned();
        }
        if controllers.is_empty() {
            let shares = |path: &&Path| exists(&format!("/sys/fs/cgroup{}/cpu.weight", path.display()));
            let innermost = Path::new(path).ancestors().filter(|path| path.parent().is_some()).find(shares);
            share = innermost.map(|path| path.display().to_string()).unwrap_or_default();
        }
    }
    share
}

fn group_of_self() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The processor time that the members of a control group get together.
#[derive(Debug, PartialEq)]
struct Quota {
    /// In units of one processor.
    cpus: f64,
    /// The group, as the lines of `/proc/PID/cgroup` of its members begin: hierarchy, controllers and path.
    group: String,
}

impl Quota {
    /// Returns whether we and the peers in this group, by their `/proc/PID/cgroup`, are more processes than the
    /// quota has processors. A peer whose file cannot be read is in another container, which has limits of its
    /// own.
    fn is_exceeded(&self, peers: &[String]) -> bool {
        let inside = |peer: &&String| peer.lines().any(|line| is_within(line, &self.group));
        let processes = 1 + peers.iter().filter(inside).count();
        processes as f64 > self.cpus
    }
}

fn is_within(line: &str, group: &str) -> bool {
    let rest = line.strip_prefix(group);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || group.ends_with('/'))
}

/// Returns the tightest quota along one line of `/proc/self/cgroup`, such as `0::/user.slice` or
/// `4:cpu,cpuacct:/job/7`.
fn tightest_quota(line: &str) -> Option<Quota> {
    let (head, path) = line.split_at(line.match_indices(':').nth(1)?.0 + 1);
    let controllers = head.trim_end_matches(':').split_once(':')?.1;
    let (roots, read): (&[&str], Reader) = match controllers {
        "" => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], quota_of_version_2),
        _ if controllers.split(',').any(|name| name == "cpu") => {
            (&["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"], quota_of_version_1)
        }
        _ => return None,
    };
    let below: Vec<_> = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let groups = (0..=below.len()).flat_map(|depth| roots.iter().map(move |root| (depth, root)));
    let quotas = groups.filter_map(|(depth, root)| {
        let inner: PathBuf = below[..depth].iter().collect();
        let cpus = read(&Path::new(root).join(&inner))?;
        Some(Quota { cpus, group: format!("{head}/{}", inner.display()) })
    });
    quotas.min_by(|one, other| one.cpus.total_cmp(&other.cpus))
}

/// A function that reads the quota of the group in this directory, in processors.
type Reader = fn(&Path) -> Option<f64>;

fn quota_of_version_2(group: &Path) -> Option<f64> {
    let max = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = max.trim().split_once(' ')?;
    processors(quota, period)
}

fn quota_of_version_1(group: &Path) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    processors(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

/// Parses a quota of processor time per period, both in microseconds. `None` if there is no bound: `max`, or
/// -1.
fn processors(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Returns whether the processes that share processors with us, directly or through others, outnumber those
/// processors. A process that is bound to a core of its own is not oversubscribed, however many processes there
/// are.
fn lacks_processors(ours: Cpus, peers: impl Iterator<Item = Cpus>) -> bool {
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

    fn oversubscribed(ours: &[usize], peers: &[&[usize]]) -> bool {
        lacks_processors(cpus(ours), peers.iter().map(|list| cpus(list)))
    }

    #[test]
    fn processes_with_a_core_each_are_not_oversubscribed() {
        assert!(!oversubscribed(&[0], &[&[1], &[2]]));
        assert!(!oversubscribed(&[0, 1], &[&[0, 1]]));
        assert!(!oversubscribed(&[3], &[&[64, 65]]));
    }

    #[test]
    fn more_processes_than_cores_are_oversubscribed() {
        assert!(oversubscribed(&[0], &[&[0]]));
        assert!(oversubscribed(&[0, 1], &[&[0, 1], &[0, 1]]));
        // Through a third process: processors 0 and 1 are shared by three.
        assert!(oversubscribed(&[0], &[&[0, 1], &[1]]));
        assert!(!oversubscribed(&[5], &[&[0], &[0]]));
    }

    #[test]
    fn a_quota_counts_the_processes_that_share_it() {
        let peers =
            ["0::/job/1\n".to_owned(), "0::/job/2\n".to_owned(), "0::/jobs\n".to_owned(), String::new()];
        let exceeded = |cpus, group: &str| Quota { cpus, group: group.into() }.is_exceeded(&peers);
        assert!(exceeded(2.5, "0::/job") && !exceeded(3.0, "0::/job"));
        assert!(exceeded(1.0, "0::/job/1") && !exceeded(1.0, "0::/job/9"));
        assert!(exceeded(3.0, "0::/") && !exceeded(4.0, "0::/"));
        assert!(!exceeded(1.0, "4:cpu:/job"));
    }

    #[test]
    fn quotas_are_read_as_the_kernel_writes_them() {
        assert_eq!(processors("150000", "100000"), Some(1.5));
        assert_eq!(processors("max", "100000"), None);
        assert_eq!(processors("-1", "100000"), None);
        assert_eq!(processors("1", "0"), None);
    }

    #[test]
    fn every_line_of_the_list_of_groups_can_be_coped_with() {
        for line in
            ["0::/", "0::/../x", "4:cpu,cpuacct:/a/b", "4:cpu:", "9:pids:/", "nonsense", "", "::", ":"]
        {
            // The result depends on the machine.
            let _ = tightest_quota(line);
        }
        assert_eq!(tightest_quota("9:pids:/"), None);
    }

    /// A group tree in a file system, in both versions.
    #[test]
    fn quotas_are_found_in_a_group() {
        let group = std::env::temp_dir().join(format!("nemesia-oversubscription-{}", std::process::id()));
        fs::create_dir_all(&group).unwrap();
        let write = |file: &str, text: &str| fs::write(group.join(file), text).unwrap();
        write("cpu.max", "250000 100000\n");
        write("cpu.cfs_quota_us", "50000\n");
        write("cpu.cfs_period_us", "100000\n");
        let found = (quota_of_version_2(&group), quota_of_version_1(&group));
        fs::remove_dir_all(&group).unwrap();
        assert_eq!(found, (Some(2.5), Some(0.5)));
        assert_eq!(quota_of_version_2(&group), None);
    }

    #[test]
    fn a_control_group_with_a_share_is_a_scheduling_group() {
        let with = |shares: &'static [&str]| move |path: &str| shares.contains(&path);
        assert_eq!(share_of("0::/\n", with(&["/sys/fs/cgroup/cpu.weight"])), "");
        assert_eq!(share_of("0::/job/1\n", with(&[])), "");
        assert_eq!(share_of("0::/job/1\n", with(&["/sys/fs/cgroup/job/cpu.weight"])), "/job");
        let both = ["/sys/fs/cgroup/job/cpu.weight", "/sys/fs/cgroup/job/1/cpu.weight"];
        assert_eq!(share_of("0::/job/1\n", |path| both.contains(&path)), "/job/1");
        // If version 1 controls the processors, version 2 does not.
        assert_eq!(share_of("4:cpu,cpuacct:/a\n1:pids:/b\n0::/c\n", |_| true), "/a");
        for lines in ["", "nonsense", "0::", ":", "0::../x", "cpu:cpu"] {
            share_of(lines, |_| true);
        }
    }

    #[test]
    fn processes_of_our_session_are_in_our_scheduling_group() {
        let ours = allowed();
        let world = |pid| vec![(ours, pid); 64 * ours.len()];
        let own = std::process::id() as i32;
        // The peer is in no group of ours; in ours, a quota of less than two processors would mean
        // oversubscription.
        assert_eq!(load(cpus(&[0]), &[(cpus(&[1]), 0)]), Oversubscription::Room);
        assert_eq!(load(ours, &world(own)), Oversubscription::Together);
        assert_eq!(load_beside(world(own).iter().map(|(_, pid)| *pid)), Oversubscription::Together);
        assert_eq!(load_beside(world(0).iter().map(|(_, pid)| *pid)), Oversubscription::Apart);
        // The first number belongs to no process, and 0 stands for an unknown one.
        for foreign in [i32::MAX, 0] {
            let mut peers = world(own);
            peers.push((ours, foreign));
            assert_eq!(load(ours, &peers), Oversubscription::Apart);
        }
    }

    #[test]
    fn own_processors_are_known() {
        assert!(allowed().iter().any(|word| *word != 0));
    }
}
