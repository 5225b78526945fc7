//! `fork OWNER`: rank 0 forks with an open endpoint, its own (0) or one that several threads share (1). In the
//! child the endpoint is dead for every call; the child drops or closes it. The parent's world continues.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use nemesia::bootstrap::Singleton;
use nemesia::rdma_channel::ChannelGroup;
use nemesia::{
    Access, Arm, Config, Endpoint, Error, Failure, RemoteKey, SendOp, SharedEndpoint, Source, Tag,
};

use super::{Fault, Outcome, broken, ensure, open};

/// Tags: of a region's key, of a message before the fork, of one after it, and of the end.
const KEY: u64 = 1;
const BEFORE: u64 = 2;
const AFTER: u64 = 3;

/// The children, which run one after the other, by what each finally does with the endpoint.
const CHILDREN: [fn(Endpoint) -> Outcome; 3] = [
    |endpoint| {
        drop(endpoint);
        Ok(())
    },
    |endpoint| dead("close", endpoint.close()),
    |endpoint| {
        std::mem::forget(endpoint);
        Ok(())
    },
];

pub(super) fn run(shared: bool) -> Outcome {
    let mut endpoint = open()?;
    if endpoint.rank() != 0 {
        return stay(endpoint);
    }
    let mut key = [0; nemesia::KEY_BYTES];
    endpoint.recv(Source::Rank(1), Tag::Exactly(KEY), &mut key)?;
    let key = RemoteKey::from_bytes(1, &key).ok_or(Fault::Broken("that is no key".into()))?;
    endpoint.put(&key, 0, &[1; 8])?;
    let own = endpoint.allocate(4096, Access::ReadWrite)?;
    let buffer = endpoint.allocate_buffer(4096)?;
    endpoint.send(1, BEFORE, &[1; 8])?;
    if shared {
        return fork_shared(endpoint.into_shared());
    }
    for end in CHILDREN {
        let pid = fork()?;
        if pid == 0 {
            let mapped = buffer.len();
            drop(buffer);
            let tried = ensure(mapped == 0, || "a buffer is used in a child".into())
                .and_then(|()| try_everything(&mut endpoint, &key, own))
                .and_then(|()| leave(endpoint, end));
            exit(tried);
        }
        reap(pid)?;
    }
    endpoint.put(&key, 8, &[2; 8])?;
    endpoint.flush(1)?;
    let mut bytes = [7; 8];
    endpoint.read_region(own, 0, &mut bytes)?;
    ensure(bytes == [0; 8], || format!("a child wrote into our region: {bytes:?}"))?;
    endpoint.send(1, AFTER, &[3; 8])?;
    endpoint.recv(Source::Rank(1), Tag::Exactly(AFTER), &mut bytes)?;
    // Rank 1 closes its endpoint after its last message, perhaps by now.
    let lost = endpoint.failure(1).filter(|failure| *failure != Failure::Finished);
    ensure(lost.is_none(), || format!("rank 1 is gone: {lost:?}"))?;
    Ok(endpoint.close()?)
}

/// Runs rank 1, which must not notice the fork.
fn stay(mut endpoint: Endpoint) -> Outcome {
    let region = endpoint.allocate(4096, Access::ReadWrite)?;
    let key = endpoint.remote_key(region)?;
    endpoint.send(0, KEY, &key.to_bytes())?;
    let mut bytes = [0; 8];
    endpoint.recv(Source::Rank(0), Tag::Exactly(BEFORE), &mut bytes)?;
    endpoint.recv(Source::Any, Tag::Exactly(AFTER), &mut bytes)?;
    ensure(bytes == [3; 8], || format!("{bytes:?} came"))?;
    endpoint.send(0, AFTER, &[4; 8])?;
    endpoint.read_region(region, 16, &mut bytes)?;
    ensure(bytes == [0; 8], || format!("a child wrote into the region: {bytes:?}"))?;
    Ok(endpoint.close()?)
}

fn fork_shared(endpoint: SharedEndpoint) -> Outcome {
    let waiting = endpoint.clone();
    let thread = std::thread::spawn(move || waiting.recv(Source::Rank(1), Tag::Exactly(AFTER), &mut [0; 8]));
    std::thread::sleep(Duration::from_millis(100));
    // The fork happens at any point of the other thread's work, whether or not that thread holds the lock.
    for _ in 0..50 {
        let pid = fork()?;
        if pid == 0 {
            exit(try_shared(endpoint));
        }
        reap(pid)?;
    }
    endpoint.send(1, AFTER, &[3; 8])?;
    match thread.join() {
        Ok(received) => drop(received?),
        Err(_) => return broken("a thread panicked"),
    }
    Ok(endpoint.close()?)
}

fn try_shared(endpoint: SharedEndpoint) -> Outcome {
    dead("send", endpoint.send(1, 9, &[9; 8]))?;
    dead("recv", endpoint.recv(Source::Any, Tag::Any, &mut [0; 8]))?;
    dead("with", endpoint.with(|endpoint| endpoint.progress()))?;
    dead("probe", endpoint.probe(0, Source::Any, Tag::Any, None))?;
    dead("barrier", endpoint.barrier())?;
    ensure((endpoint.rank(), endpoint.size()) == (0, 2), || "rank or size is lost".into())?;
    drop(endpoint.clone());
    dead("close", endpoint.close())
}

/// Calls every operation. Each returns that the endpoint is dead, or does nothing.
fn try_everything(endpoint: &mut Endpoint, key: &RemoteKey, own: nemesia::Region) -> Outcome {
    let (mut word, mut large) = ([0; 8], vec![0; 1 << 20]);
    let any = (Source::Any, Tag::Any);
    dead("send of a word", endpoint.send(1, 9, &word))?;
    dead("send", endpoint.send(1, 9, &[9; 100]))?;
    dead("send of much", endpoint.send(1, 9, &large))?;
    dead("send to itself", endpoint.send(0, 9, &word))?;
    dead("a synchronous send", endpoint.send_op(SendOp::new(1, 9, &word).synchronous()))?;
    dead("a send with immediate data", endpoint.send_op(SendOp::new(1, 9, &word).immediate(7)))?;
    dead("recv of a word", endpoint.recv(any.0, any.1, &mut word))?;
    dead("recv from a rank", endpoint.recv(Source::Rank(1), Tag::Exactly(9), &mut word))?;
    dead("recv", endpoint.recv(any.0, any.1, &mut large))?;
    dead("scope", endpoint.scope(|scope| scope.isend(1, 9, b"x").map(drop)))?;
    dead("scope of a receive", endpoint.scope(|scope| scope.irecv(any.0, any.1, &mut word).map(drop)))?;
    ensure(!endpoint.send_now(1, 9, &[9; 8]) && !endpoint.send_short_now(1, 9, &[9; 8]), || {
        "sent now".into()
    })?;
    let now = (endpoint.recv_now(any.0, any.1, &mut [0; 8]), endpoint.recv_soon(any.0, any.1, &mut [0; 8]));
    ensure(now == (None, None), || format!("received {now:?}"))?;
    let next = (endpoint.next_completion(), endpoint.is_quiet());
    ensure(next == (None, false), || format!("completed {next:?}"))?;
    dead("iprobe", endpoint.iprobe(any.0, any.1))?;
    dead("probe", endpoint.probe(any.0, any.1))?;
    dead("mprobe", endpoint.mprobe(any.0, any.1))?;
    dead("send_active", endpoint.send_active(1, 1, b"h", b"p"))?;
    dead("barrier", endpoint.barrier())?;
    dead("agree", endpoint.agree(0))?;
    dead("shrink", endpoint.shrink())?;
    dead("put", endpoint.put(key, 16, &[9; 8]))?;
    dead("get", endpoint.get(key, 0, &mut [0; 8]))?;
    dead("accumulate", endpoint.fetch_add(key, 16, 9_u64))?;
    dead("compare_swap", endpoint.compare_swap(key, 16, 0_u64, 9))?;
    dead("flush", endpoint.flush(1))?;
    dead("flush_all", endpoint.flush_all())?;
    dead("fence", endpoint.fence(1))?;
    dead("wait_notified", endpoint.wait_notified(own, 1))?;
    dead("read_region", endpoint.read_region(own, 0, &mut [0; 8]))?;
    dead("write_region", endpoint.write_region(own, 0, &[9; 8]))?;
    dead("unexpose", endpoint.unexpose(own))?;
    dead("allocate", endpoint.allocate(8, Access::Read))?;
    dead("allocate_buffer", endpoint.allocate_buffer(8))?;
    dead("event_fd", endpoint.event_fd().map(drop))?;
    ensure(endpoint.arm() == Arm::Busy, || "armed".into())?;
    endpoint.disarm();
    dead("restarted", endpoint.restarted())?;
    dead("readmit", endpoint.readmit(1))?;
    ensure(endpoint.progress() == 0, || "progress was made".into())?;
    let known = (endpoint.rank(), endpoint.size(), endpoint.failure(1));
    ensure(known == (0, 2, None), || format!("it knows {known:?}"))?;
    let _ = (endpoint.explain(), endpoint.path(key), endpoint.counters(), endpoint.peer_counters(1));
    Ok(())
}

/// Ends the endpoint after the child has mapped memory of its own, most likely where segments were, and before
/// it opens a world of its own.
fn leave(endpoint: Endpoint, end: fn(Endpoint) -> Outcome) -> Outcome {
    let memory: Vec<Vec<u8>> = (0..64_u8).map(|content| vec![content; 1 << 20]).collect();
    end(endpoint)?;
    let intact = memory.iter().zip(0..).all(|(bytes, content)| *bytes == vec![content; 1 << 20]);
    ensure(intact, || "memory of the child was lost".into())?;
    let mut alone = Endpoint::open_with(&Config::default(), Box::new(Singleton::new()))?;
    alone.send(0, 1, b"alone")?;
    alone.recv(Source::Rank(0), Tag::Any, &mut [0; 8])?;
    Ok(alone.close()?)
}

#[expect(clippy::needless_pass_by_value, reason = "called with what a call returns")]
fn dead<T: std::fmt::Debug>(what: &str, outcome: Result<T, Error>) -> Outcome {
    ensure(matches!(outcome, Err(Error::Forked)), || format!("{what} in a forked child: {outcome:?}"))
}

fn fork() -> Outcome<libc::pid_t> {
    // SAFETY: the child uses this thread's memory only, and the allocator, which survives a fork.
    match unsafe { libc::fork() } {
        -1 => broken("fork failed"),
        pid => Ok(pid),
    }
}

/// Ends the child without side effects for the parent, such as writing the parent's buffered output.
fn exit(outcome: Outcome) -> ! {
    let code = match outcome {
        Ok(()) => 0,
        Err(fault) => {
            crate::say(&format!("a forked child: {fault}"));
            1
        }
    };
    // SAFETY: takes no pointers.
    unsafe { libc::_exit(code) }
}

fn reap(pid: libc::pid_t) -> Outcome {
    let mut status = 0;
    // SAFETY: the child is ours, and the status has a place.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    let good = reaped == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    ensure(good, || format!("the forked child ended with status {status:#x}"))
}

/// `outlived CHANNEL RAW`: rank 1 forks a child that sleeps, and is killed. Rank 0 notices that while the child lives,
/// by its endpoint (0) or by a pipe (1). No handler of `fork` runs in a raw child (1), which has all descriptors.
pub(super) fn outlived(by_pipe: bool, raw: bool) -> Outcome {
    let mut way = Way::open(by_pipe)?;
    if way.rank() == 0 {
        let child = libc::pid_t::from_ne_bytes(way.take()?);
        let noticed = way.take();
        // SAFETY: takes no pointers. The child sleeps until this signal.
        let lived = unsafe { libc::kill(child, libc::SIGKILL) } == 0;
        let told = noticed.map_err(|fault| fault.to_string());
        let named = told.as_ref().is_err_and(|why| why.contains("rank 1"));
        return ensure(lived && named, || format!("the child lived: {lived}; {told:?}"));
    }
    let child = if raw { raw_fork()? } else { fork()? };
    if child == 0 {
        // SAFETY: takes no pointers. If rank 0 does not end the child, the alarm does.
        unsafe { libc::alarm(300) };
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    way.give(&child.to_ne_bytes())?;
    // SAFETY: takes no pointers.
    unsafe { libc::raise(libc::SIGKILL) };
    broken("it was not killed")
}

/// What carries four bytes from rank 1 to rank 0.
enum Way {
    Endpoint(Box<Endpoint>),
    Pipe(Box<ChannelGroup>),
}

impl Way {
    fn open(by_pipe: bool) -> Outcome<Self> {
        if !by_pipe {
            return Ok(Self::Endpoint(Box::new(open()?)));
        }
        let mut group = ChannelGroup::begin(&Config::from_env().map_err(Error::from)?)?;
        group.connect()?;
        Ok(Self::Pipe(Box::new(group)))
    }

    fn rank(&self) -> usize {
        match self {
            Self::Endpoint(endpoint) => endpoint.rank(),
            Self::Pipe(group) => group.rank(),
        }
    }

    /// Returns when the bytes have left this process.
    fn give(&mut self, bytes: &[u8]) -> Outcome {
        match self {
            Self::Endpoint(endpoint) => {
                endpoint.send(0, KEY, bytes)?;
                Ok(endpoint.recv(Source::Rank(0), Tag::Exactly(KEY), &mut [0; 1]).map(drop)?)
            }
            Self::Pipe(group) => {
                while group.put(0, &[IoSlice::new(bytes)])? == 0 {}
                while group.get(0, &mut [IoSliceMut::new(&mut [0; 1])])? == 0 {}
                Ok(())
            }
        }
    }

    fn take(&mut self) -> Outcome<[u8; 4]> {
        let mut bytes = [0; 4];
        match self {
            Self::Endpoint(endpoint) => {
                endpoint.recv(Source::Rank(1), Tag::Exactly(KEY), &mut bytes)?;
                endpoint.send(1, KEY, &[1])?;
            }
            Self::Pipe(group) => {
                let mut got = 0;
                while got < bytes.len() {
                    got += group.get(1, &mut [IoSliceMut::new(&mut bytes[got..])])?;
                }
                while group.put(1, &[IoSlice::new(&[1])])? == 0 {}
                while !group.is_flushed() {}
            }
        }
        Ok(bytes)
    }
}

/// Makes a child past the C library, as `clone(2)` does.
fn raw_fork() -> Outcome<libc::pid_t> {
    // SAFETY: without a stack of its own the child has a copy of this one, and it makes only system calls.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        -1 => broken("clone failed"),
        pid => Ok(libc::pid_t::try_from(pid).unwrap_or(-1)),
    }
}
