//! The programs between two machines: network namespaces, each with an address of its own. Their processes share no
//! memory and no socket but TCP. A process that violates the protocol is played by this test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nemesia::tcp::{Options, TcpPort, listen};
use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection, Event, MemoryPort, Offer, Private, Work,
};
use nemesia_core::via::setup::{PORT_TCP, SETUP_BYTES, SetupFrame, SetupKind, SetupNetwork};
use nemesia_core::wire::vipl::{LentRegion, MOST_VIPL_BYTES, ViplMessage};
use nemesia_tests::hosts::{Hosts, namespaces};

use super::toolchain::{output, scratch};
use super::{can_run, compile};

/// The limit of a wait.
const LIMIT: Duration = Duration::from_secs(60);

/// A file with a key of a job.
fn key(name: &str, digit: char) -> Result<PathBuf, String> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = scratch().join(format!("vipl-key-{name}-{}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(&path);
    let text = digit.to_string().repeat(64);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Returns a command whose two processes run on the two hosts.
fn between(hosts: &Hosts, program: &Path) -> Command {
    let words = [0, 1].map(|host| format!("{} {}", hosts.namespace(host).display(), Hosts::address(host)));
    let mut command = Command::new(program);
    command
        .env("VIPL_TEST_HOSTS", words.join(" "))
        .env_remove("VIPL_TRUST")
        .env_remove("NEMESIA_JOB_KEY_FILE");
    command
}

#[test]
fn the_programs_run_between_two_machines_as_inside_of_one() -> Result<(), String> {
    const TEST: &str = "the_programs_run_between_two_machines_as_inside_of_one";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let Some(hosts) = namespaces(TEST, scratch()) else { return Ok(()) };
    let key = key("between", 'a')?;
    let kills = std::env::var("VIPL_KILLS").unwrap_or_else(|_| "10".into());
    for (name, arguments, lines) in [
        ("transfer", vec![], 90),
        ("connect", vec![], 12),
        ("complete", vec![], 12),
        ("kills", vec![kills.as_str()], 2),
        ("storm", vec!["20"], 2),
        ("clients", vec!["last-word"], 0),
        ("clients", vec!["no-tag"], 0),
        ("clients", vec!["past-end"], 0),
    ] {
        let program = compile(name, false, &[])?;
        let mut command = between(&hosts, &program);
        let printed = output(command.args(arguments).env("NEMESIA_JOB_KEY_FILE", &key))?;
        assert_eq!(printed.lines().count(), lines, "{name}: {printed}");
    }
    std::fs::remove_file(key).map_err(|error| error.to_string())
}

#[test]
fn a_process_without_the_key_that_claims_to_be_on_the_same_machine_reaches_no_program() -> Result<(), String>
{
    const TEST: &str = "a_process_without_the_key_that_claims_to_be_on_the_same_machine_reaches_no_program";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let Some(hosts) = namespaces(TEST, scratch()) else { return Ok(()) };
    let (program, key) = (compile("strangers", false, &[])?, key("stranger", '3')?);
    output(between(&hosts, &program).arg("request").env("NEMESIA_JOB_KEY_FILE", &key))?;
    std::fs::remove_file(key).map_err(|error| error.to_string())
}

#[test]
fn machines_are_connected_with_the_same_key_or_if_both_trust_any() -> Result<(), String> {
    const TEST: &str = "machines_are_connected_with_the_same_key_or_if_both_trust_any";
    const NOT_REACHABLE: &str = "15";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let Some(hosts) = namespaces(TEST, scratch()) else { return Ok(()) };
    let program = compile("trust", false, &[])?;
    let (one, two) = (key("one", '1')?, key("two", '2')?);
    let (first, second) = (one.display().to_string(), two.display().to_string());
    for (server, client, trust, code) in [
        (first.as_str(), first.as_str(), "-", "0"),
        (&first, &second, "-", NOT_REACHABLE),
        (&first, "-", "-", NOT_REACHABLE),
        ("-", &first, "-", NOT_REACHABLE),
        ("-", "-", "-", NOT_REACHABLE),
        ("-", "-", "any", "0"),
        // A key that is there is not done without.
        (&first, "-", "any", NOT_REACHABLE),
        ("-", &first, "any", NOT_REACHABLE),
        // Without a readable key, the process draws one that no other process has.
        ("/nonexistent/key", "/nonexistent/key", "any", NOT_REACHABLE),
    ] {
        let run = output(between(&hosts, &program).args([server, client, trust, code]));
        run.map_err(|error| format!("{server} {client} {trust} {code}: {error}"))?;
    }
    [one, two].iter().try_for_each(std::fs::remove_file).map_err(|error| error.to_string())
}

/// What a process that violates the protocol sends after its connection is made: messages, each of which is wrong alone
/// or after the ones before it.
fn violations() -> Vec<Vec<Vec<u8>>> {
    let encoded = |message: &ViplMessage<'_>| {
        let mut bytes = vec![0; MOST_VIPL_BYTES];
        let len = message.encode(&mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes
    };
    let record = |code, word, bytes: &[u8]| encoded(&ViplMessage::Record { code, word, bytes });
    let (write_key, read_key) = ([0xff; 24], [0xff; 24]);
    let lent = LentRegion { handle: 7, rights: 3, base: 0, len: 1 << 40, write_key, read_key };
    let region = |lent| encoded(&ViplMessage::Region(lent));
    vec![
        vec![vec![]],
        vec![vec![0xff; 40]],
        vec![vec![0; MOST_VIPL_BYTES]],
        vec![record(99, 0, &[])],
        // A message for a descriptor that was not mirrored, or longer than it.
        vec![record(1, 65, &[]); 9],
        // An acknowledgement, and an answer, of nothing.
        vec![record(9, 1 << 40, &[])],
        vec![record(8, 3, &[1, 0, 0, 0])],
        vec![encoded(&ViplMessage::Synced); 2],
        // A report of messages that were not sent, and one of fewer than before.
        vec![encoded(&ViplMessage::Taken(1 << 40))],
        // A write to memory that is not there, and reads without end.
        vec![record(2, 1 << 50, &[9; 8])],
        [vec![record(7, 0, &[1; 12]); 60], vec![record(99, 0, &[])]].concat(),
        // Descriptors: too many, and half of one.
        vec![record(3, 33, &[0; 33 * 4])],
        vec![record(3, 1, &[9, 0, 0, 0, 1])],
        vec![record(3, 20, &[0; 20 * 4]), record(3, 20, &[0; 20 * 4])],
        // A region that does not exist at the port, and a descriptor in it; one too far.
        vec![
            region(lent),
            record(3, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 99, 0, 0, 0]),
            record(99, 0, &[]),
        ],
        vec![region(lent), encoded(&ViplMessage::Synced)],
        vec![region(LentRegion { handle: u32::MAX, ..lent })],
        // The end, and something after it.
        vec![record(13, 0, &[]), record(12, 1, &[])],
    ]
}

/// A process that answers requests as another machine would.
struct HostileServer {
    listener: TcpListener,
    port: TcpPort,
    start: Instant,
}

impl HostileServer {
    /// Reads a frame and returns it.
    fn frame(stream: &mut TcpStream) -> Result<SetupFrame, String> {
        let mut bytes = [0; SETUP_BYTES];
        stream.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        SetupFrame::decode(&bytes).ok_or_else(|| "no frame".into())
    }

    /// Answers one request, and returns the connection of the memory port.
    fn serve(&mut self) -> Result<Connection, String> {
        let limit = Instant::now() + LIMIT;
        // The client has given up its requests that were not answered at once.
        while let Err(error) = self.answer() {
            if Instant::now() > limit {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let offer = Offer { private: Private::EMPTY, shared_receive: false, deadline: LIMIT * 10 };
        loop {
            match self.event()? {
                Event::Requested { connection, .. } => {
                    self.port.accept(connection, &offer).map_err(|error| error.to_string())?;
                }
                Event::Established { connection, .. } => return Ok(connection),
                _ => {}
            }
        }
    }

    /// Answers one request until it is accepted.
    fn answer(&mut self) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let (mut stream, _) = self.listener.accept().map_err(text)?;
        stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LIMIT))).map_err(text)?;
        let request = Self::frame(&mut stream)?;
        let machine = request.network.machine.map(|byte| !byte);
        let pending = SetupFrame { kind: SetupKind::Pending, network: SetupNetwork::new(machine), ..request };
        stream.write_all(&pending.encode()).map_err(text)?;
        let confirm = Self::frame(&mut stream)?;
        let network = SetupNetwork { ports: PORT_TCP, port: self.port.address(), ..pending.network };
        let accepted = SetupFrame { kind: SetupKind::Accepted, meeting: [5; 16], network, ..confirm };
        stream.write_all(&accepted.encode()).map_err(text)
    }

    /// Returns the next event of the port. Its completions are of no interest.
    fn event(&mut self) -> Result<Event, String> {
        let limit = Instant::now() + LIMIT;
        loop {
            self.port.poll(&mut [Completion::EMPTY; 16]);
            if let Some(event) = self.port.poll_event(self.start.elapsed()) {
                return Ok(event);
            }
            if Instant::now() > limit {
                return Err("nothing happens at the port".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends messages, and waits until the client has ended the connection.
    fn spoil(&mut self, connection: Connection, messages: &[Vec<u8>]) -> Result<(), String> {
        for message in messages {
            // Longer messages than fit into a work request would need registered memory: they are cut.
            let inline = self.port.facts().inline_bytes as usize;
            let source = CompletionSource::Inline(message.get(..inline).unwrap_or(message));
            while self.port.send(Work::new(connection, 0), source, None).is_err() {
                self.port.poll(&mut [Completion::EMPTY; 16]);
                if !matches!(self.port.state(connection), nemesia_core::port::memory::ConnectionState::Ready)
                {
                    break;
                }
            }
        }
        while !matches!(self.event()?, Event::Lost { connection: lost, .. } if lost == connection) {}
        self.port.close(connection);
        Ok(())
    }
}

/// Ends a client that is left over.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended in most cases.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_machine_that_violates_the_protocol_loses_its_connection_and_nothing_else() -> Result<(), String> {
    const TEST: &str = "a_machine_that_violates_the_protocol_loses_its_connection_and_nothing_else";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    // A client that has ended asks no more.
    listener.set_nonblocking(true).map_err(text)?;
    let first = listener.local_addr().map_err(text)?.port();
    let port = listen(([127, 0, 0, 1], 0).into(), &Options::default()).map_err(text)?;
    let mut server = HostileServer { listener, port, start: Instant::now() };
    let violations = violations();
    let mut client = Command::new(compile("hostile", false, &[])?);
    client.args(["127.0.0.1", &violations.len().to_string()]);
    client
        .env("VIPL_PORTS", format!("{first}:1"))
        .env("VIPL_TRUST", "any")
        .env_remove("NEMESIA_JOB_KEY_FILE");
    let mut client = Client(client.spawn().map_err(text)?);
    for (number, messages) in violations.iter().enumerate() {
        let connection = server.serve().map_err(|error| format!("violation {number}: {error}"))?;
        server.spoil(connection, messages).map_err(|error| format!("violation {number}: {error}"))?;
    }
    let status = client.0.wait().map_err(text)?;
    assert!(status.success(), "{status}");
    Ok(())
}
