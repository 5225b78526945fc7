//! Parses the command line.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::output;
use crate::shapes::ListShapes;
use crate::sizes::Sizes;

/// The variables that the launcher itself sets for each process.
const LAUNCHERS_OWN: [&str; 4] = ["PMI_FD", "PMI_RANK", "PMI_SIZE", "NEMESIA_INCARNATION"];

#[derive(Debug, Parser)]
#[command(
    name = "nemesia",
    version,
    about = "Measures, explains and starts Nemesia; without arguments: nemesia perf",
    after_help = "Exit status: 0; 1 when something failed; 2 when something can't be used as asked. \
                  `run` ends with the status of the first process that failed, or with 128 + the signal that it has \
passed on.",
    disable_help_subcommand = true,
    override_usage = "nemesia [perf | info | run | mpi-env] [OPTIONS]"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// A command of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measures latency, bandwidth and message rate between two processes, beside the limits of the machine
    Perf(Box<PerfArgs>),
    /// Prints the usable transports, why others are refused, the memory bill, and the configuration
    Info(InfoArgs),
    /// Starts N processes of a program on this machine, as one world
    #[command(
        override_usage = "nemesia run -n N [OPTIONS] -- PROGRAM [ARGS]...",
        after_help = "Ctrl-C (SIGINT), SIGTERM and SIGHUP are passed on to all processes, also to those that a process \
                      has started. Those that have not ended 5 s later are killed, and at the second signal at once. \
                      The exit status is then 128 + the signal. SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP (Ctrl-Z) and \
                      SIGCONT are passed on, and the job goes on. If the launcher is killed, or a process fails, no \
                      process of the job is left. Process 0 reads the standard input, the others an empty one."
    )]
    Run(RunArgs),
    /// Prints the variables by which an MPI runs over Nemesia, for the shell: eval "$(nemesia mpi-env mpich)"
    MpiEnv(MpiEnvArgs),
    /// One of the two processes of `perf`
    #[command(hide = true, name = "perf-worker")]
    Worker(WorkerArgs),
    /// One of the two processes of `perf --unexpected`
    #[command(hide = true, name = "unexpected-worker")]
    Unexpected(WorkerArgs),
    /// One of the two processes of `perf --channel`
    #[command(hide = true, name = "channel-worker")]
    Channel(WorkerArgs),
}

/// A test of `perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Half the round trip of a ping-pong
    Latency,
    /// Bytes a second in windows of 64 messages
    Bandwidth,
    /// Messages a second in windows of 64 messages
    Rate,
}

/// A transport that `perf` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Port {
    /// The engine over shared memory
    Shm,
    /// The engine between machines, over the transport of NEMESIA_NET. The processes share no memory, even on one
    /// machine
    Net,
    /// The memory port over TCP on the loopback interface, without the engine
    Tcp,
    /// The memory port over an RDMA device, without the engine
    Verbs,
}

impl Port {
    /// Returns whether it is a memory port, which is measured without the engine.
    pub(crate) const fn is_memory_port(self) -> bool {
        matches!(self, Self::Tcp | Self::Verbs)
    }

    /// Returns its name on the command line and in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Net => "net",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// The memory from which `perf` sends and into which it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    /// The process's own
    Own,
    /// Allocated for messages: its peers map it and read it
    Allocated,
    /// Allocated and lent for writing: its peers map it, and write into it while they wait
    Lent,
}

/// How `perf` moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// By messages
    Send,
    /// By puts into memory of the other process
    Put,
    /// By gets from memory of the other process
    Get,
}

/// Arguments of `nemesia perf`.
#[derive(Debug, Args)]
pub(crate) struct PerfArgs {
    /// Message sizes in bytes: numbers with K, M (powers of 1000), Ki, Mi (powers of 1024), and ranges A..B, which
    /// are the powers of two from A to B (and 0, if A is 0), separated by commas; at most 1024Mi
    #[arg(long, value_name = "LIST", default_value = "0..4Mi", value_parser = Sizes::parse)]
    pub(crate) sizes: Sizes,
    /// What to measure, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "latency,bandwidth,rate"
    )]
    pub(crate) tests: Vec<Test>,
    /// What to measure: the engine (shm, net), or RDMA writes without it (tcp, verbs)
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) port: Port,
    /// The memory of the messages, for --port shm. For allocated memory the same copies are measured without the
    /// library, beside each size
    #[arg(long, value_enum, default_value = "own", conflicts_with_all = ["matching", "unexpected"])]
    pub(crate) memory: Memory,
    /// With --port shm: measures the latency of messages in lists too, and shows it as a multiple of the latency of
    /// contiguous messages, measured between two measurements of lists. FROM is how a message lies at its sender, TO
    /// how it lies at its receiver: `whole`, `64+` (a header of 64 bytes, and the rest), `/8` (8 equal runs)
    #[arg(long, value_name = "FROM:TO", conflicts_with_all = ["matching", "unexpected", "memory"])]
    pub(crate) list: Option<ListShapes>,
    /// With --port shm and net: how the bytes move
    #[arg(long, value_enum, default_value = "send",
          conflicts_with_all = ["matching", "unexpected", "memory", "list", "channel"])]
    pub(crate) operation: Operation,
    /// The RDMA devices of --port verbs: one for both processes, or one for each, separated by a comma;
    /// default: the first usable one
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1)]
    pub(crate) device: Vec<String>,
    /// Round trips, and messages (in whole windows of 64), for each size in each round; 1 to 10000000.
    /// Default: as many as fit into about 15 ms
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) iterations: Option<u32>,
    /// The number of rounds, 1 to 100; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// With --port verbs: find a write by polling on its last byte even if the port does not promise to place
    /// the bytes of a write in order, as perftest does. By default an immediate or a message reports the
    /// write
    #[arg(long)]
    pub(crate) last_byte: bool,
    /// With --port verbs: the most bytes that are copied into a work request, up to the device's limit
    /// [default: the limit]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) inline: Option<u32>,
    /// With --port net and verbs: words before the command of the second process, which start it elsewhere on this
    /// machine (for example in another network namespace: \"ip netns exec NAME\") and keep its descriptors
    /// and environment
    #[arg(long, value_name = "WORDS", value_delimiter = ' ', num_args = 1, allow_hyphen_values = true)]
    pub(crate) second_through: Vec<String>,
    /// The file for the picture, as SVG [default: nemesia-perf.svg]
    #[arg(long, value_name = "FILE", conflicts_with = "no_plot")]
    pub(crate) plot: Option<PathBuf>,
    /// Write no picture
    #[arg(long)]
    pub(crate) no_plot: bool,
    /// The file for the results, as JSON; - is the standard output, and the table then goes to the standard
    /// error output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print at the end the counters of both processes: packets, matches, credits, sleeps (`--json` has them
    /// too)
    #[arg(long)]
    pub(crate) counters: bool,
    /// Print at the end the functions that rank 0 entered last, with times, as a tree, from N entries and
    /// exits; needs a build with `--features trace`. It slows down what is measured
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "256",
        value_parser = clap::value_parser!(u32).range(2..=1 << 20)
    )]
    pub(crate) trace: Option<u32>,
    /// Do not bind the two processes; default: each is bound to a core of its own
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Measure instead the cost of matching with 1, 1000 and 100000 receives or messages queued, in one process
    #[arg(long, conflicts_with_all = ["sizes", "tests", "iterations", "plot", "no_plot", "no_pin"])]
    pub(crate) matching: bool,
    /// Send instead N messages before the receiver posts any receive, receive them in reverse order, and show
    /// the memory that the receiver needed; 1 to 100000000. NEMESIA_UNEXPECTED_BYTES sets the ceiling
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000),
          conflicts_with_all = ["sizes", "tests", "iterations", "plot", "no_plot", "matching"])]
    pub(crate) unexpected: Option<u64>,
    /// The size of each of these messages in bytes, 1 to 65536
    #[arg(long, value_name = "BYTES", default_value_t = 1, requires = "unexpected",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) unexpected_size: u32,
    /// Measure instead the pipes of the RDMA Channel: latency, bandwidth in windows of 16 messages, and both ways at
    /// once. DESIGN is direct (shm only; the engine is measured beside it), basic, piggyback, pipelined, zero-copy,
    /// zero-copy-push, learned, write-rendezvous (messages of at least NEMESIA_CHANNEL_ZERO_COPY_BYTES are written past
    /// a zero-copy pipe), or all. Settings: NEMESIA_CHANNEL_*
    #[arg(long, value_name = "DESIGN", conflicts_with_all = ["tests", "matching", "unexpected", "memory", "list",
          "device", "last_byte", "inline", "second_through", "no_plot", "counters", "trace"])]
    pub(crate) channel: Option<String>,
    /// With --channel: the bandwidth of the pipelined design by chunk size, too
    #[arg(long, requires = "channel")]
    pub(crate) chunks: bool,
    /// With --channel: keep no registrations with an RDMA device
    #[arg(long, requires = "channel")]
    pub(crate) drop_registrations: bool,
}

/// Arguments of `nemesia info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// The number of processes in the world whose memory is counted
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) processes: u32,
    /// The number of hosts on which these processes run, as evenly as possible; with several, the costs between them
    /// are printed, too
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) hosts: u32,
    /// The transport that decides the exit status: 2 if it cannot be used
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp", "verbs"])]
    pub(crate) port: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `nemesia run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Processes to start, 1 to 65536
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) processes: u32,
    /// Put `[rank] ` in front of each line of output
    #[arg(long)]
    pub(crate) prefix: bool,
    /// When a process fails, let the others go on; default: they get SIGTERM after 0.2 s, and SIGKILL 2 s later
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Start a process again if a signal ended it or if it exits with a code other than 0, at most N times in
    /// all. The others go on meanwhile
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Bind each process to one of the allowed cores, round robin
    #[arg(long)]
    pub(crate) bind: bool,
    /// Set an environment variable for all processes; can be repeated
    #[arg(long, value_name = "K=V", value_parser = OsStringValueParser::new().try_map(|text| assignment(&text)))]
    pub(crate) env: Vec<Assignment>,
    /// The program, searched in PATH if it has no slash, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

/// Arguments of `nemesia mpi-env`.
#[derive(Debug, Args)]
pub(crate) struct MpiEnvArgs {
    /// The MPI
    #[arg(value_enum)]
    pub(crate) mpi: Mpi,
}

/// An MPI that runs over the provider of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mpi {
    /// MPICH 4 and 5
    Mpich,
    /// Open MPI 4 and 5
    Openmpi,
    /// Intel MPI 2021
    Intel,
}

/// Arguments of one of the two processes of `perf`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The test and the descriptors that `perf` has left open, as JSON
    pub(crate) plan: String,
}

/// An environment variable and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) name: OsString,
    pub(crate) value: OsString,
}

fn assignment(text: &OsString) -> Result<Assignment, String> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').ok_or("must be NAME=VALUE")?;
    let (name, value) = (&bytes[..at], &bytes[at + 1..]);
    if name.is_empty() {
        return Err("the name before = is missing".to_owned());
    }
    if let Some(own) = LAUNCHERS_OWN.iter().find(|own| own.as_bytes() == name) {
        return Err(format!("{own} is set by the launcher"));
    }
    Ok(Assignment { name: OsString::from_vec(name.to_vec()), value: OsString::from_vec(value.to_vec()) })
}

/// Parses the command line. Returns `None` after `--help` and `--version`, which leave nothing to do.
///
/// # Errors
/// An error of the command line.
pub(crate) fn parse(mut args: Vec<OsString>) -> Result<Option<Command>, Failure> {
    if args.len() < 2 {
        args.resize_with(1, || "nemesia".into());
        args.push("perf".into());
    }
    let whose = match args.get(1).and_then(|word| word.to_str()) {
        Some(word @ ("perf" | "info" | "run" | "mpi-env")) => format!("nemesia {word}"),
        _ => "nemesia".to_owned(),
    };
    match Cli::try_parse_from(args) {
        Ok(cli) => Ok(Some(cli.command)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            output::print(&error.render().to_string()).map(|()| None)
        }
        Err(error) => Err(Failure::unusable(format!("{}; see {whose} --help", wrong(&error)))),
    }
}

/// Returns the parts of an error of `clap` that name the mistake and the probable intention, without the usage.
fn wrong(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a subcommand is missing: perf, info, run or mpi-env".to_owned();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The words of Rust's parser.
    let text = text.replace("invalid digit found in string", "it is not a whole number");
    let mut parts = text.split("\n\n");
    let first = parts.next().unwrap_or(&text);
    match parts.find_map(|part| part.trim().strip_prefix("tip: ")) {
        // An option is never meant as a value.
        Some(tip) if tip.contains("similar") => format!("{first}; {tip}"),
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Command>, Failure> {
        parse(std::iter::once("nemesia").chain(line.split_whitespace()).map(Into::into).collect())
    }

    #[test]
    fn no_arguments_mean_perf() {
        assert!(matches!(parsed(""), Ok(Some(Command::Perf(_)))));
        assert!(matches!(parse(Vec::new()), Ok(Some(Command::Perf(_)))));
    }

    #[test]
    fn a_wrong_word_is_answered_with_what_was_probably_meant_and_where_to_look() {
        for (line, meant, help) in [
            ("perv", "'perf'", "see nemesia --help"),
            ("perf --size 8", "'--sizes'", "see nemesia perf --help"),
            ("info --port pigeon", "pigeon", "see nemesia info --help"),
            ("mpi-env mpick", "'mpich'", "see nemesia mpi-env --help"),
            (
                "run -n two -- true",
                "'two' for '--processes <N>': it is not a whole number",
                "see nemesia run --help",
            ),
            ("help", "help", "see nemesia --help"),
        ] {
            let failure = parsed(line).unwrap_err();
            assert!(
                failure.message.contains(meant) && failure.message.ends_with(help),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn a_wrong_argument_is_one_line_that_names_it() {
        for (line, names) in [
            ("perf --sizes foo", "foo"),
            ("perf --sizes 0..", "0.."),
            ("perf --tests speed", "speed"),
            ("perf --port pigeon", "pigeon"),
            ("info --port pigeon", "pigeon"),
            ("perf --iterations 0", "0"),
            ("perf --plot a.svg --no-plot", "--no-plot"),
            ("perf --trace 1", "1"),
            ("perf --matching --sizes 8", "--sizes"),
            ("perf --matching --unexpected 8", "--unexpected"),
            ("perf --unexpected 0", "0"),
            ("perf --unexpected-size 8", "--unexpected"),
            ("perf surplus", "surplus"),
            ("info --processes 0", "0"),
            ("mpi-env", "<MPI>"),
            ("run", "PROGRAM"),
            ("run -n 2", "PROGRAM"),
            ("run -n 0 -- true", "0"),
            ("run -- true", "--processes"),
            ("run -n 1 --restart -1 -- true", "-1"),
            ("run -n 1 --env NEMESIA_INCARNATION=3 -- true", "NEMESIA_INCARNATION"),
            ("run -n 1 --env A -- true", "NAME=VALUE"),
            ("run -n 1 --env =b -- true", "name before ="),
            ("run -n 1 --env PMI_FD=3 -- true", "PMI_FD"),
            ("frobnicate", "frobnicate"),
            ("--port", "--port"),
        ] {
            let failure = parsed(line).unwrap_err();
            assert_eq!(failure.status, 2, "{line}");
            assert!(failure.message.contains(names), "{line}: {}", failure.message);
            assert!(!failure.message.contains('\n'), "{line}: {}", failure.message);
        }
    }

    #[test]
    fn a_program_keeps_its_own_arguments() {
        let Ok(Some(Command::Run(args))) = parsed("run -n 3 --env A=b=c -- prog -n --prefix -- x") else {
            panic!("not a run")
        };
        assert_eq!((args.processes, args.prefix), (3, false));
        assert_eq!(args.program, ["prog", "-n", "--prefix", "--", "x"]);
        assert_eq!(args.env, [Assignment { name: "A".into(), value: "b=c".into() }]);
    }
}
