//! Parses the command line of `cargo sim`.

use crate::bug::{Bug, Subject};

/// The text that `--help` prints.
pub(crate) const HELP: &str = "\
Usage: cargo sim [--seed S] [--seeds N] [--operations N] [--ranks N] [--bug NAME] [--jobs N] [--shared] [--channels]
           [--direct] [--peers] [--cells] [--keys] [--vipl] [--joins] [--links] [--verbose]
       cargo sim --long | --bugs | --list

Runs worlds of engines over a simulated message port, in one process and in virtual time, against an oracle of MPI's
matching; and worlds of engines over the port for shared memory; and worlds of channels over a simulated RDMA fabric,
or over the placement that ships and simulated byte streams, after every interleaving of the credits of two small
ends; and processes that meet by address, call each other, part, die and return; and processes that disconnect while
messages lie in their shared memory; and processes that prove to each other that they know the key of their job, on a
network that an adversary owns; and ports that join queue pairs by datagrams, which the network loses, repeats and
reorders; and processes whose links are driven by the machine of links.
Every world is drawn from its seed. Fails when a promise is broken, with the command that shows it again.

  --seed S         the first seed (default 1)
  --seeds N        as many seeds, one after the other (default 100; 1 if a seed is given;
                   500 for --bugs)
  --operations N   random operations of each seed (default 20000; with --bugs 5000)
  --ranks N        processes in each world (default: a few, by the seed)
  --shared         only engines over shared memory
  --channels       only channels; --ranks does not go with it
  --direct         only one-sided operations by remote memory access; --ranks does not go with it
  --peers          only processes that call each other; --ranks does not go with it
  --cells          only ends of connections over shared memory; --ranks does not go with it
  --keys           only proofs of the key; --ranks does not go with it
  --vipl           only virtual interfaces; --ranks does not go with it
  --joins          only ports that join queue pairs by datagrams; --ranks does not go with it
  --links          only links, with a quarter of the operations; --ranks does not go with it
  --long           100 seeds of 100000 operations
  --bug NAME       makes this mistake now and then; see --list
  --bugs           makes each mistake in turn, and fails unless every one is found
  --list           the mistakes
  --jobs N         seeds that run at the same time (default 2)
  --verbose        prints every event
  --help           this text
";

/// The largest number of ranks; a larger world shows nothing more.
const MOST_RANKS: u32 = 64;

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    List,
    Simulate(Options),
}

/// What to simulate, and how thoroughly.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) seeds: u64,
    pub(crate) operations: usize,
    pub(crate) ranks: Option<u32>,
    pub(crate) bug: Option<Bug>,
    pub(crate) bugs: bool,
    pub(crate) jobs: usize,
    pub(crate) verbose: bool,
    /// Whether to run engines over shared memory only.
    pub(crate) shared: bool,
    /// Whether to run channels only.
    pub(crate) channels: bool,
    /// Whether to run one-sided operations by remote memory access only.
    pub(crate) direct: bool,
    /// Whether to run processes that call each other only.
    pub(crate) peers: bool,
    /// Whether to run ends of connections over shared memory only.
    pub(crate) cells: bool,
    /// Whether to run proofs of the key only.
    pub(crate) keys: bool,
    /// Whether to run virtual interfaces only.
    pub(crate) vipl: bool,
    /// Whether to run ports that join queue pairs by datagrams only.
    pub(crate) joins: bool,
    /// Whether to run links only.
    pub(crate) links: bool,
    /// Whether nothing was chosen: then every event must happen.
    pub(crate) is_whole: bool,
}

impl Options {
    /// Returns the options of a command without arguments.
    const fn usual() -> Self {
        Self {
            seed: 1,
            seeds: 100,
            operations: 20_000,
            ranks: None,
            bug: None,
            bugs: false,
            jobs: 2,
            verbose: false,
            shared: false,
            channels: false,
            direct: false,
            peers: false,
            cells: false,
            keys: false,
            vipl: false,
            joins: false,
            links: false,
            is_whole: false,
        }
    }

    /// Returns whether one kind of worlds was chosen.
    const fn is_part(&self) -> bool {
        let is_below = self.shared || self.channels || self.direct || self.cells || self.vipl || self.joins;
        is_below || self.peers || self.keys || self.links
    }

    /// Returns the kinds of worlds that each seed runs.
    pub(crate) fn subjects(&self) -> &'static [Subject] {
        match self.bug.map(Bug::subject) {
            _ if self.shared => &[Subject::Shared],
            _ if self.channels => &[Subject::Channels],
            _ if self.direct => &[Subject::Direct],
            _ if self.peers => &[Subject::Peers],
            _ if self.cells => &[Subject::Cells],
            _ if self.keys => &[Subject::Keys],
            _ if self.vipl => &[Subject::Vipl],
            _ if self.joins => &[Subject::Joins],
            _ if self.links => &[Subject::Links],
            None if self.ranks.is_none() => {
                const ALL: &[Subject] = &[
                    Subject::Engines,
                    Subject::Shared,
                    Subject::Channels,
                    Subject::Direct,
                    Subject::Peers,
                    Subject::Cells,
                    Subject::Keys,
                    Subject::Vipl,
                    Subject::Joins,
                    Subject::Links,
                ];
                ALL
            }
            Some(Subject::Channels) => &[Subject::Channels],
            Some(Subject::Direct) => &[Subject::Direct],
            Some(Subject::Peers) => &[Subject::Peers],
            Some(Subject::Cells) => &[Subject::Cells],
            Some(Subject::Keys) => &[Subject::Keys],
            Some(Subject::Vipl) => &[Subject::Vipl],
            Some(Subject::Joins) => &[Subject::Joins],
            Some(Subject::Links) => &[Subject::Links],
            _ => &[Subject::Engines],
        }
    }
}

/// The seeds among which each injected fault must be found.
const SEEDS_OF_BUGS: u64 = 500;

/// Parses the arguments after the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let (mut seed, mut seeds, mut operations) = (None, None, None);
    let mut options = Options::usual();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            // The alias adds one `--`; a second one does no harm.
            "--" => {}
            "--help" | "-h" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            "--long" => (options.seeds, options.operations) = (100, 100_000),
            "--bugs" => options.bugs = true,
            "--shared" => options.shared = true,
            "--channels" => options.channels = true,
            "--direct" => options.direct = true,
            "--peers" => options.peers = true,
            "--cells" => options.cells = true,
            "--keys" => options.keys = true,
            "--vipl" => options.vipl = true,
            "--joins" => options.joins = true,
            "--links" => options.links = true,
            "--verbose" => options.verbose = true,
            "--seed" => seed = Some(number(&argument, &value()?, 0, u64::MAX)?),
            "--seeds" => seeds = Some(number(&argument, &value()?, 1, u64::MAX)?),
            "--operations" => operations = Some(number(&argument, &value()?, 1, 1 << 40)? as usize),
            "--ranks" => options.ranks = Some(number(&argument, &value()?, 1, MOST_RANKS.into())? as u32),
            "--jobs" => options.jobs = number(&argument, &value()?, 1, 1 << 10)? as usize,
            "--bug" => options.bug = Some(bug(&value()?)?),
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    let chosen = seed.is_some() || seeds.is_some() || operations.is_some() || options.ranks.is_some();
    options.is_whole = !chosen && !options.is_part() && options.bug.is_none();
    if options.is_part() && !options.shared && options.ranks.is_some() {
        return Err("the number of processes is the seed's choice there".into());
    }
    if seed.is_some() && !options.bugs {
        options.seeds = 1;
    }
    if options.bugs {
        // The search for a fault ends at the first seed that shows it.
        options.seeds = options.seeds.max(SEEDS_OF_BUGS);
        options.operations = 5000;
    }
    options.seed = seed.unwrap_or(options.seed);
    options.seeds = seeds.unwrap_or(options.seeds);
    options.operations = operations.unwrap_or(options.operations);
    if options.bugs && options.bug.is_some() {
        return Err("--bugs is every one of them, --bug is one".into());
    }
    Ok(Command::Simulate(options))
}

fn number(argument: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    match value.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("{argument} {value} is not a number from {least} to {most}")),
    }
}

fn bug(name: &str) -> Result<Bug, String> {
    Bug::named(name).ok_or_else(|| format!("no bug `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn options(line: &str) -> Options {
        match parsed(line) {
            Ok(Command::Simulate(options)) => options,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn one_seed_is_one_seed_and_the_rest_is_as_asked() {
        assert!(options("").is_whole && options("--long").is_whole && !options("--seed 3").is_whole);
        let one = options("--seed 18446744073709551615 --operations 7 --ranks 3 --bug swap");
        assert_eq!((one.seed, one.seeds, one.operations, one.ranks), (u64::MAX, 1, 7, Some(3)));
        assert_eq!(one.bug.map(|bug| bug.to_string()), Some("swap".into()));
        let long = options("-- --long --seeds 5");
        assert_eq!((long.seeds, long.operations), (5, 100_000));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--seed",
            "--seed x",
            "--seeds 0",
            "--ranks 0",
            "--ranks 65",
            "--bug none",
            "--bugs --bug swap",
            "x",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
