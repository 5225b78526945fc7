//! What counts as left behind by the processes of a test, and what does not.

use std::fs::{remove_file, write};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nemesia_tests::job::{Job, World};
use nemesia_tests::leftovers::Traces;

const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(120);

fn job(program: &str, args: &str) -> Job {
    Job::new(program, SCRATCH, args)
}

#[test]
fn files_of_other_programs_are_not_ours() -> Result<(), String> {
    let places = ["/dev/shm", "/tmp"]
        .map(|place| PathBuf::from(format!("{place}/nemesia-other-{}", std::process::id())));
    // The other thread acts as another program: it keeps the machine's view, which the test's thread gives up.
    let ((go_on, reported), (made, is_made)) = (channel::<()>(), channel());
    let other = std::thread::spawn(move || {
        reported.recv().unwrap();
        made.send(places.iter().all(|path| write(path, "other").is_ok())).unwrap();
        reported.recv().unwrap();
        places.iter().all(|path| remove_file(path).is_ok())
    });
    let traces = Traces::now();
    go_on.send(()).unwrap();
    let is_made = is_made.recv().unwrap();
    let found = job("/bin/true", "").run(1).map(|_| traces.at_once());
    go_on.send(()).unwrap();
    assert!(other.join().unwrap() && is_made);
    assert_eq!(found?, [""; 0]);
    Ok(())
}

#[test]
fn a_name_that_a_process_leaves_is_found() -> Result<(), String> {
    let traces = Traces::now();
    // `$$` is the process id, which would be in the name.
    let script = "name=/dev/shm/nemesia-$$; echo left >$name; echo left >$name-removed; rm $name-removed";
    job("/bin/true", "").before(script).run(1)?;
    let found = traces.at_once();
    for path in &found {
        remove_file(path).map_err(|error| format!("{path}: {error}"))?;
    }
    assert!(found.len() == 1 && found[0].starts_with("/dev/shm/nemesia-"), "{found:?}");
    assert_eq!(traces.at_once(), [""; 0]);
    Ok(())
}

#[test]
fn a_process_that_lives_on_is_found() -> Result<(), String> {
    let traces = Traces::now();
    let other: World = job("/bin/sleep", "1000").spawn(1)?;
    // A process that changes its program has no environment for a moment.
    let deadline = Instant::now() + LIMIT;
    let found = loop {
        let found = traces.at_once();
        if !found.is_empty() || Instant::now() > deadline {
            break found;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    other.signal(0, libc::SIGKILL);
    other.wait(LIMIT)?;
    assert!(found.len() == 1 && found[0].starts_with("process "), "{found:?}");
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

#[test]
fn processes_of_another_test_are_not_ours() -> Result<(), String> {
    let (send, receive) = channel();
    let (stop, stopped) = channel::<()>();
    let other = std::thread::spawn(move || {
        let world = job("/bin/sleep", "1000").spawn(1);
        send.send(world.is_ok()).unwrap();
        stopped.recv().unwrap();
        let world = world?;
        world.signal(0, libc::SIGKILL);
        world.wait(LIMIT)
    });
    let traces = Traces::now();
    let is_running = receive.recv().unwrap();
    job("/bin/true", "").run(1)?;
    let found = traces.at_once();
    stop.send(()).unwrap();
    other.join().unwrap()?;
    assert!(is_running);
    assert_eq!(found, [""; 0]);
    Ok(())
}
