//! Client against server in one process, and whole launches of real processes.
//!
//! No test here depends on speed: waits end with an event. Deadlines that must not pass are long; deadlines
//! that must pass are waited for.

use super::server::Server;
use super::*;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

mod descriptor;
mod failure;

const LONG: Duration = Duration::from_secs(300);
/// The role of this test program when a launcher has started it.
const ROLE: &str = "NEMESIA_TEST_ROLE";

fn environment(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<OsString> {
    move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
}

fn message_of(pairs: &'static [(&'static str, &'static str)]) -> String {
    let message = Bootstrap::from_lookup(environment(pairs), LONG, false).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message:?}");
    message
}

#[test]
fn without_a_launcher_there_is_a_world_of_one() {
    for pairs in [&[][..], &[("SLURM_NTASKS", "1"), ("PMIX_RANK", "0")][..]] {
        let mut world = Bootstrap::from_lookup(environment(pairs), LONG, false).unwrap();
        assert!(world.is_singleton() && world.describe().contains("world of one"));
        assert_eq!((world.rank(), world.size()), (0, 1));
        world.put("a", "1").unwrap();
        assert!(matches!(world.put("a", "2"), Err(BootstrapError::KeyTaken { .. })));
        assert!(matches!(world.put("b c", "2"), Err(BootstrapError::Unencodable { what: "key", .. })));
        assert!(matches!(world.put("b", "2\n"), Err(BootstrapError::Unencodable { what: "value", .. })));
        world.barrier().unwrap();
        assert_eq!(world.get("a").unwrap(), "1");
        assert!(matches!(world.get("z"), Err(BootstrapError::KeyNotFound { .. })));
        world.finalize().unwrap();
        world.finalize().unwrap();
        assert!(matches!(world.barrier(), Err(BootstrapError::Finalized { .. })));
    }
}

#[test]
fn contradictions_in_the_environment_name_the_variable() {
    let missing = message_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert!(missing.contains("PMI_FD is not set"), "{missing}");
    assert!(missing.contains("or unset PMI_RANK and PMI_SIZE to run one process alone"), "{missing}");
    // An empty variable is as one that is not set.
    let empty = message_of(&[("PMI_FD", ""), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert_eq!(empty, missing);
    let nothing = &[("PMI_FD", ""), ("PMI_RANK", ""), ("PMI_SIZE", "")];
    assert!(Bootstrap::from_lookup(environment(nothing), LONG, false).unwrap().is_singleton());
    for (pairs, name) in [
        (&[("PMI_FD", "x"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")][..], "PMI_FD=\"x\""),
        (&[("PMI_FD", "5"), ("PMI_RANK", "-1"), ("PMI_SIZE", "1")][..], "PMI_RANK=\"-1\""),
        (
            &[("PMI_FD", "5"), ("PMI_RANK", "0"), ("PMI_SIZE", "99999999999")][..],
            "processes from 1 to 4294967295",
        ),
        (&[("PMI_FD", "5"), ("PMI_RANK", "0"), ("PMI_SIZE", "+1")][..], "PMI_SIZE=\"+1\""),
        (&[("PMI_FD", "5"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")][..], "PMI_RANK=2"),
        (
            &[("PMI_FD", "5"), ("PMI_RANK", "0"), ("PMI_SIZE", "0")][..],
            "PMI_SIZE=\"0\" is not a number of processes from 1",
        ),
        (&[("PMI_FD", "1"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")][..], "PMI_FD=1 is a standard stream"),
        (
            &[("PMI_FD", "999999999"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")][..],
            "PMI_FD=999999999 is not open",
        ),
    ] {
        let message = message_of(pairs);
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn another_launcher_never_becomes_silent_worlds_of_one() {
    for (pairs, name) in [
        (&[("SLURM_NTASKS", "4")][..], "SLURM_NTASKS"),
        (&[("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "0")][..], "OMPI_COMM_WORLD_SIZE"),
        (&[("PMIX_RANK", "0")][..], "PMIX_RANK"),
        (&[("PMI_PORT", "host:1")][..], "PMI_PORT"),
        (&[("SLURM_NTASKS", "many")][..], "SLURM_NTASKS"),
    ] {
        let message = message_of(pairs);
        assert!(message.contains(name) && message.contains("mpiexec.hydra"), "{message}");
    }
}

/// A server in a thread, and the sockets of its clients.
struct BootstrapWorld {
    sockets: Vec<OwnedFd>,
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<Server>>,
}

impl BootstrapWorld {
    fn new(size: usize) -> Self {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..size)
            .map(|_| UnixStream::pair().map(|(a, b)| (OwnedFd::from(a), OwnedFd::from(b))).unwrap())
            .unzip();
        let mut server = Server::new(ours, "kvs".to_owned(), Duration::ZERO, false);
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            loop {
                let mut entries = vec![poll::entry(std::os::fd::AsFd::as_fd(&stopped), libc::POLLIN)];
                server.add_entries(&mut entries);
                poll::wait(&mut entries, server.next_chunk(Instant::now())).unwrap();
                server.turn(Instant::now());
                if entries[0].revents != 0 {
                    return server;
                }
            }
        });
        Self { sockets: theirs, stop: Some(stop), thread: Some(thread) }
    }

    fn clients(&mut self) -> Vec<PmiClient> {
        let size = self.sockets.len();
        let sockets = self.sockets.drain(..).enumerate();
        sockets.map(|(rank, socket)| PmiClient::connect(socket, rank, size, LONG).unwrap()).collect()
    }

    fn finish(mut self) -> Server {
        self.stop = None;
        self.thread.take().unwrap().join().unwrap()
    }
}

fn exchange_cards(exchange: &mut dyn Exchange) {
    let (rank, size) = (exchange.rank(), exchange.size());
    exchange.put(&format!("card-{rank}"), &format!("{:08x}", rank * 3)).unwrap();
    exchange.barrier().unwrap();
    for other in 0..size {
        assert_eq!(exchange.get(&format!("card-{other}")).unwrap(), format!("{:08x}", other * 3));
    }
    exchange.barrier().unwrap();
    exchange.finalize().unwrap();
}

#[test]
fn all_ranks_get_the_values_of_all() {
    let mut world = BootstrapWorld::new(4);
    let threads: Vec<_> = world
        .clients()
        .into_iter()
        .map(|mut client| thread::spawn(move || exchange_cards(&mut client)))
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(world.finish().take_faults().is_empty());
}

#[test]
fn the_server_refuses_with_a_reason_and_the_connection_stays() {
    let mut world = BootstrapWorld::new(1);
    let mut client = world.clients().remove(0);
    let longest = "v".repeat(client.max_value_len());
    client.put("k", &longest).unwrap();
    let twice = client.put("k", "w").unwrap_err();
    assert!(matches!(&twice, BootstrapError::Refused { reason, .. } if reason.contains("before")), "{twice}");
    assert!(matches!(client.put("l", &(longest + "v")), Err(BootstrapError::Unencodable { .. })));
    assert!(matches!(client.get("nothing"), Err(BootstrapError::KeyNotFound { .. })));
    assert_eq!(client.get("PMI_process_mapping").unwrap(), "(vector,(0,1,1))");
    client.barrier().unwrap();
    client.finalize().unwrap();
    client.finalize().unwrap();
    assert!(matches!(client.get("k"), Err(BootstrapError::Finalized { .. })));
    world.finish();
}

#[test]
fn a_barrier_fails_when_a_rank_is_gone() {
    for finalize in [false, true] {
        let mut world = BootstrapWorld::new(3);
        let mut clients = world.clients();
        let mut gone = clients.remove(1);
        if finalize {
            gone.finalize().unwrap();
        }
        drop(gone);
        let threads: Vec<_> =
            clients.into_iter().map(|mut client| thread::spawn(move || (client.barrier(), client))).collect();
        for thread in threads {
            let (result, mut client) = thread.join().unwrap();
            let message = result.unwrap_err().to_string();
            assert!(message.contains("rank_1_is_gone"), "{message}");
            client.put(&format!("alive-{}", client.rank()), "1").unwrap();
        }
        world.finish();
    }
}

#[test]
fn an_abort_reaches_the_server() {
    let mut world = BootstrapWorld::new(1);
    let mut client = world.clients().remove(0);
    client.abort(7).unwrap();
    drop(client);
    let mut server = world.finish();
    assert_eq!(server.take_aborts(), [server::Abort { rank: 0, code: 7 }]);
}

#[test]
fn whatever_a_rank_sends_only_its_own_connection_suffers() {
    let mut world = BootstrapWorld::new(2);
    let mut bad = UnixStream::from(world.sockets.remove(0));
    let lines = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=barrier_in\ncmd=get_maxes\n";
    bad.write_all(lines).unwrap();
    let mut answers = Vec::new();
    let _ = bad.read_to_end(&mut answers);
    let good = world.sockets.remove(0);
    let mut good = PmiClient::connect(good, 1, 2, LONG).unwrap();
    good.put("k", "v").unwrap();
    assert_eq!(good.get("k").unwrap(), "v");
    let faults = world.finish().take_faults();
    assert!(matches!(&faults[..], [(0, fault)] if fault.contains("out of turn")), "{faults:?}");
}

#[test]
fn a_connection_that_is_initialised_is_refused_or_taken_over_and_stays_usable() {
    let mut world = BootstrapWorld::new(1);
    let socket = world.sockets.remove(0);
    let again = |take_over| {
        PmiClient::connect_as(socket.try_clone().unwrap(), (0, 1), LONG, take_over).map(|client| {
            // Its drop would end the connection.
            std::mem::forget(client);
        })
    };
    let mut first = PmiClient::connect(socket.try_clone().unwrap(), 0, 1, LONG).unwrap();
    let refusal = again(false).unwrap_err();
    assert!(matches!(&refusal, BootstrapError::Owned { .. }), "{refusal}");
    assert!(
        refusal.to_string().contains("open_with") && refusal.to_string().contains("NEMESIA_PMI_TAKE_OVER=1")
    );
    // The first user continues.
    first.put("k", "v").unwrap();
    again(true).unwrap();
    assert_eq!(first.get("k").unwrap(), "v");
    first.finalize().unwrap();
    assert!(world.finish().take_faults().is_empty());
}

#[test]
fn no_bytes_break_the_server() {
    const PIECES: [&[u8]; 9] = [
        b"cmd=init pmi_version=1 pmi_subversion=1\n",
        b"cmd=get_maxes\n",
        b"cmd=put kvsname=kvs key=a value=b\n",
        b"cmd=get kvsname=kvs key=a\n",
        b"cmd=barrier_in\n",
        b"cmd=finalize\n",
        b"cmd=abort exitcode=1\n",
        b"\xff\0 =",
        b"\n",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..2000 {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut server = Server::new(vec![OwnedFd::from(theirs)], "kvs".to_owned(), Duration::ZERO, true);
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(state >> 33).unwrap() % (PIECES.len() + 2);
            // The init more often than the rest, so that many runs get past it.
            let _ = ours.write_all(PIECES.get(at).unwrap_or(&PIECES[0]));
            server.turn(Instant::now());
        }
        server.rank_ended(0, Instant::now());
    }
}

/// Returns the error of a client whose launcher sends `answers` to any request, and then closes.
fn client_of(answers: &'static [u8]) -> BootstrapError {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(answers).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    PmiClient::connect(OwnedFd::from(ours), 0, 1, LONG).unwrap_err()
}

#[test]
fn a_launcher_is_not_trusted() {
    assert!(matches!(client_of(b""), BootstrapError::LauncherGone { during: "init" }));
    assert!(client_of(b"").to_string().contains("or PMI_FD is not its connection"));
    assert!(matches!(client_of(b"cmd=respo"), BootstrapError::LauncherGone { .. }));
    assert!(matches!(client_of(b"cmd=nonsense\n"), BootstrapError::Protocol { .. }));
    assert!(matches!(client_of(b"cmd=finalize_ack\n"), BootstrapError::Unexpected { .. }));
    assert!(matches!(
        client_of(b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n"),
        BootstrapError::Refused { .. }
    ));
    let two = b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=barrier_out\n";
    assert!(matches!(client_of(two), BootstrapError::Unexpected { .. }));
}

#[test]
fn a_silent_launcher_is_an_error_that_names_the_deadline() {
    let mut world = BootstrapWorld::new(2);
    let mut clients = world.clients();
    let client = &mut clients[0];
    client.set_deadline(Duration::from_millis(30));
    let message = client.barrier().unwrap_err().to_string();
    assert!(message.contains("barrier") && message.contains("30ms"), "{message}");
    assert!(matches!(client.get("k"), Err(BootstrapError::Broken { during: "get" })));
    world.finish();
}

fn shell(size: usize, script: &str) -> Launcher {
    Launcher::new(size, "/bin/sh".into(), vec!["-c".into(), script.into()])
}

/// Makes an empty directory for the calling test, which removes it.
fn scratch(test: &str) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("nemesia-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Describes a launch of this test program, which runs only `launched_rank`.
fn ourselves(size: usize, role: &str) -> Launcher {
    let (_, path) = module_path!().split_once("::").unwrap();
    let test = format!("{path}::launched_rank");
    let args = [test.as_str(), "--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
    Launcher::new(size, std::env::current_exe().unwrap().into(), args.to_vec()).env(ROLE, role)
}

/// The part of a process that [`ourselves`] has started. Without a role it is an empty test.
#[test]
fn launched_rank() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let mut world = Bootstrap::from_env().unwrap();
    assert!(matches!(Bootstrap::from_env(), Err(BootstrapError::AlreadyOpened { .. })));
    match role.to_str().unwrap() {
        "cards" => exchange_cards(&mut world),
        "abort" => {
            world.barrier().unwrap();
            if let (1, Bootstrap::Pmi(client)) = (world.rank(), &mut world) {
                client.abort(9).unwrap();
            }
            thread::sleep(LONG);
        }
        "one-waits-for-its-end" => {
            if world.rank() == 1 {
                thread::sleep(LONG);
            }
            // Rank 1 never enters; the barrier must report that instead of waiting.
            let message = world.barrier().unwrap_err().to_string();
            assert!(message.contains("rank_1_is_gone"), "{message}");
        }
        "comes-back" => come_back(&mut world),
        "dies-early" => {
            // The others wait for a rank that never enters, and must receive an error.
            if world.rank() == 1 && world.incarnation() == 0 {
                std::process::abort();
            }
            assert!(world.barrier().is_err());
        }
        other => panic!("unknown role {other}"),
    }
}

#[test]
fn launched_processes_find_each_other() {
    let outcome = ourselves(3, "cards").bind(true).prefix_output(true).run().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
    assert!(outcome.faults.is_empty(), "{outcome}");
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    let outcome = ourselves(3, "abort").keep_going(true).prefix_output(true).run().unwrap();
    assert_eq!(outcome.first_failure, Some((1, ExitKind::Aborted(9))), "{outcome}");
    assert_eq!(outcome.exit_code(), 9);
}

#[test]
fn survivors_get_an_error_when_a_rank_is_killed_before_the_barrier() {
    let running = ourselves(3, "one-waits-for-its-end").keep_going(true).prefix_output(true).spawn().unwrap();
    running.kill(1, libc::SIGKILL).unwrap();
    let outcome = running.wait().unwrap();
    assert_eq!(outcome.first_failure, Some((1, ExitKind::Signaled(libc::SIGKILL))), "{outcome}");
    assert_eq!(outcome.exit_code(), 128 + libc::SIGKILL);
    assert!([0, 2].iter().all(|rank| outcome.ranks[*rank].kind.is_success()), "{outcome}");
}

#[test]
fn programs_that_do_not_use_pmi_run_too() {
    let script = "test \"$PMI_SIZE\" = 2 && test \"$COLOUR\" = blue && test -S /proc/$$/fd/$PMI_FD";
    let outcome = shell(2, script).env("COLOUR", "blue").env("PMI_SIZE", "77").run().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
}

#[test]
fn a_rank_inherits_no_socket_but_its_own() {
    // A test runner may leave descriptors of its own open, so only the sockets of this launch are compared:
    // those of one rank must not appear in another.
    let script = "readlink /proc/$$/fd/$PMI_FD > $OUT/own.$PMI_RANK; \
                  for fd in /proc/$$/fd/*; do readlink $fd; done > $OUT/all.$PMI_RANK; exit 0";
    let directory = scratch("sockets");
    let outcome = shell(3, script).env("OUT", &directory).run().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
    let read = |name: String| std::fs::read_to_string(directory.join(name)).unwrap();
    for rank in 0..3 {
        let own = read(format!("own.{rank}"));
        assert!(own.starts_with("socket:["), "{own}");
        for other in 0..3 {
            assert_eq!(read(format!("all.{other}")).contains(&own), other == rank);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_program_that_does_not_exist_is_one_clear_error() {
    let error = Launcher::new(2, "/nonexistent/program".into(), Vec::new()).run().unwrap_err();
    let message = error.to_string();
    assert!(message.contains("/nonexistent/program") && !message.contains('\n'), "{message}");
    assert!(matches!(Launcher::new(0, "x".into(), Vec::new()).run(), Err(LaunchError::NoProcesses)));
}

#[test]
fn a_job_that_is_dropped_leaves_no_process() {
    let running = shell(2, "exec sleep 300").spawn().unwrap();
    let pids = running.pids().to_vec();
    drop(running);
    for pid in pids {
        // The fourth field is the parent; another process may have got the number in the meantime.
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = status.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        assert_ne!(parent, Some(std::process::id().to_string().as_str()), "process {pid} is still there");
    }
}

#[test]
fn an_ended_rank_is_never_signalled() {
    let running = shell(1, "exit 0").spawn().unwrap();
    while !matches!(running.kill(0, 0), Err(LaunchError::NotRunning { rank: 0 })) {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(running.kill(5, 0), Err(LaunchError::NotRunning { rank: 5 })));
    assert_eq!(running.wait().unwrap().exit_code(), 0);
}

#[test]
fn output_left_open_by_a_stray_process_does_not_hold_the_launcher() {
    // The stray process waits for the far end of a pipe that this test holds, and so ends with the test.
    let directory = scratch("stray");
    let fifo = directory.join("fifo");
    let script = "mkfifo $FIFO; { read line < $FIFO; } & exit 0";
    let outcome = shell(1, script).env("FIFO", &fifo).prefix_output(true).run().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
    std::fs::write(&fifo, "go\n").unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Rank 1 of three dies twice, and comes back to a world that knows it.
fn come_back(world: &mut Bootstrap) {
    assert!(world.restarts());
    let (rank, incarnation) = (world.rank(), world.incarnation());
    let address = format!("address-{rank}-{incarnation}");
    if incarnation == 0 {
        world.barrier().unwrap();
    }
    let turn = world.join(&address).unwrap();
    let again = world.join(&address).unwrap_err().to_string();
    assert!(again.contains("joined_before"), "{again}");
    let own = world.member(rank).unwrap().unwrap();
    assert_eq!(own, Member { incarnation, turn, address });
    assert_eq!(world.member(3).unwrap(), None);
    let mut await_turn = |rank: usize, incarnation: u64| loop {
        match world.member(rank).unwrap() {
            Some(member) if member.incarnation == incarnation => return member,
            _ => thread::sleep(Duration::from_millis(1)),
        }
    };
    if rank == 1 && incarnation < 2 {
        (0..3).for_each(|rank| _ = await_turn(rank, if rank == 1 { incarnation } else { 0 }));
        // A signal, and an exit code.
        if incarnation == 0 { std::process::abort() } else { std::process::exit(3) }
    }
    let last = await_turn(1, 2);
    assert_eq!(last.address, "address-1-2");
    assert_eq!(last.turn > turn, rank != 1, "a later rank has a later turn");
    let barrier = world.barrier().unwrap_err().to_string();
    assert!(barrier.contains("_was_started_again") || barrier.contains("_is_gone"), "{barrier}");
    // The others have seen rank 1 before it leaves.
    while rank == 1 && [0, 2].iter().any(|&rank| world.member(rank).unwrap().is_some()) {
        thread::sleep(Duration::from_millis(1));
    }
    world.finalize().unwrap();
}

#[test]
fn a_rank_that_dies_is_restarted_and_rejoins() {
    let outcome = ourselves(3, "comes-back").restart(2).prefix_output(true).run().unwrap();
    assert_eq!((outcome.exit_code(), outcome.first_failure), (0, None), "{outcome}");
    let kinds: Vec<_> = outcome.restarts.iter().map(|it| (it.rank, it.incarnation, it.kind)).collect();
    assert_eq!(kinds, [(1, 1, ExitKind::Signaled(libc::SIGABRT)), (1, 2, ExitKind::Exited(3))]);
    assert!(outcome.to_string().contains("rank 1 exited with code 3 and was started again"), "{outcome}");
}

#[test]
fn no_rank_rejoins_a_world_that_never_started() {
    let outcome = ourselves(2, "dies-early").restart(5).run().unwrap();
    assert_eq!(outcome.first_failure, Some((1, ExitKind::Signaled(libc::SIGABRT))), "{outcome}");
    assert!(outcome.restarts.is_empty() && outcome.ranks[0].kind.is_success(), "{outcome}");
}

#[test]
fn restarts_are_counted_over_all_ranks_and_then_a_failure_counts() {
    let outcome = shell(2, "exit 7").restart(3).keep_going(true).run().unwrap();
    assert_eq!((outcome.restarts.len(), outcome.exit_code()), (3, 7), "{outcome}");
    let mut times = [0, 0];
    for restart in &outcome.restarts {
        times[restart.rank] += 1;
        assert_eq!(restart.incarnation, times[restart.rank]);
    }
    // A successful rank is not started again, and a restarted one learns its incarnation.
    let script = "[ $NEMESIA_INCARNATION = $PMI_RANK ]";
    let outcome = shell(3, script).restart(9).run().unwrap();
    assert_eq!((outcome.restarts.len(), outcome.exit_code()), (3, 0), "{outcome}");
}

#[test]
fn all_processes_of_a_rank_write_to_the_same_output() {
    // Each line is written whole; the pipe outlives the first process.
    let script = "echo life $NEMESIA_INCARNATION; [ $NEMESIA_INCARNATION = 2 ]";
    let outcome = shell(1, script).restart(2).prefix_output(true).run().unwrap();
    assert_eq!((outcome.restarts.len(), outcome.exit_code()), (2, 0), "{outcome}");
}

#[test]
fn without_restarts_a_launcher_is_assumed_to_have_none() {
    assert_eq!(shell(1, "[ -z \"$NEMESIA_INCARNATION\" ]").run().unwrap().exit_code(), 0);
    let mut world = Singleton::new();
    assert!(!world.restarts() && world.incarnation() == 0);
    for error in [world.join("a").unwrap_err(), world.member(0).map(drop).unwrap_err()] {
        assert!(matches!(error, BootstrapError::NoRestart));
        assert!(error.to_string().contains("nemesia run --restart"), "{error}");
    }
    // Not our launcher, even if the environment says so: its table has another name.
    let mut world = BootstrapWorld::new(1);
    let mut client = world.clients().remove(0);
    client.set_incarnation(3);
    assert!(!client.restarts() && client.incarnation() == 0);
    assert!(matches!(client.join("a"), Err(BootstrapError::NoRestart)));
    client.finalize().unwrap();
    drop(client);
    world.finish();
}
