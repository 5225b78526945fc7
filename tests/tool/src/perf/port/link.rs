//! One of the two processes over a memory port.

use std::collections::VecDeque;
use std::time::Instant;

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia_core::port::memory::{
    Armed, Completion, CompletionSource, Connection, Event, LostError, MemoryKey, MemoryPort, PortRegion,
    PostError, ReceiveQueue, RegionAccess, Slice, Work, WorkOutcome,
};

use super::meet::{self, failed, text};
use super::memory::PortMemory;
use super::{Arrival, describe, window};
use crate::perf::command::{COMMAND_BYTES, LinkCommand};
use crate::perf::link::{WINDOW, intact, pattern, seed};
use crate::perf::timer::Timer;
use crate::perf::traffic::{Seen, Traffic};

/// The posted receives: more than messages are ever under way.
const RECEIVES: usize = 8;
/// The bytes of each receive, and of the send buffer, which lies behind them.
const SLOT: usize = 64;
/// The failed polls before a check whether the peer is alive, which also yields the core.
const PATIENCE: u32 = 1024;
/// The checks of a byte that a peer will write for each poll, which takes as long as many such checks.
const LOOKS: u32 = 512;
/// The longest sleep before a check whether the peer is alive.
const LONGEST_SLEEP_MS: i32 = 100;
/// The completions taken at once.
const BATCH: usize = 16;

/// One of the two processes with its port.
pub(crate) struct PortLink<P> {
    // Order matters: the port may use the memory until it is dropped.
    port: P,
    /// The memory to which the peer writes.
    into: PortMemory,
    /// The source of our writes to the peer.
    out: PortMemory,
    slots: PortMemory,
    /// The regions of `out` and `slots`.
    regions: [PortRegion; 2],
    connection: Connection,
    peer: MemoryKey,
    bootstrap: Bootstrap,
    start: Instant,
    about: String,
    /// Buffers for copies within this process.
    copies: [Vec<u8>; 2],
    most: usize,
    last_byte: bool,
    /// The work requests posted to the send queue, and how many of them are known to have completed.
    posted: u64,
    done: u64,
    /// The last work request that was a message.
    last_message: u64,
    /// Completed receives with their bytes.
    come: VecDeque<(usize, usize)>,
    /// The reason for the end of the connection. Completions from before it may still be taken.
    end: Option<LostError>,
    idle: u32,
}

impl<P: MemoryPort> PortLink<P> {
    /// Connects the two processes; messages have at most `most` bytes.
    pub(super) fn new(
        mut bootstrap: Bootstrap,
        port: P,
        most: usize,
        last_byte: bool,
        place: &str,
    ) -> Result<Self, String> {
        let limit = port.facts().transfer_bytes as usize;
        if bootstrap.size() != 2 {
            return Err(format!("perf is for two processes, not for {}", bootstrap.size()));
        }
        if most > limit {
            return Err(format!("this port moves at most {limit} bytes at once: ask for smaller --sizes"));
        }
        let (into, out) = (PortMemory::new(most)?, PortMemory::new(most)?);
        let slots = PortMemory::new((RECEIVES + 1) * SLOT)?;
        // Declared after the memory, so that the port is dropped first whatever fails.
        let (mut port, start) = (port, Instant::now());
        let writable = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        // SAFETY: the port is dropped before the memory is, here and in the value that this returns.
        let [entry, source, messages] = unsafe { [into.lend(), out.lend(), slots.lend()] };
        let entry = port.register(entry, writable).map_err(text)?;
        let source = port.register(source, RegionAccess::NONE).map_err(text)?;
        let messages = port.register(messages, RegionAccess::LOCAL).map_err(text)?;
        let own = port.key(entry).ok_or("the port gives no key")?;
        let address = port.address().ok_or("the port can't be connected to")?;
        let to = meet::exchange(&mut bootstrap, &address)?;
        let (connection, peer) = meet::join(&mut port, to.as_ref(), own, start, |port, connection| {
            (0..RECEIVES).try_for_each(|slot| receive(port, connection, messages, slot))
        })?;
        if peer.len < most as u64 {
            return Err(format!("the peer lends {} bytes, not {most}", peer.len));
        }
        let about = describe(place, port.facts(), last_byte);
        Ok(Self {
            port,
            into,
            out,
            slots,
            regions: [source, messages],
            connection,
            peer,
            bootstrap,
            start,
            about,
            copies: [vec![1; most], vec![1; most]],
            most,
            last_byte,
            posted: 0,
            done: 0,
            last_message: 0,
            come: VecDeque::with_capacity(RECEIVES),
            end: None,
            idle: 0,
        })
    }

    /// Polls once.
    #[inline]
    fn poll(&mut self) -> Result<(), String> {
        let mut batch = [Completion::EMPTY; BATCH];
        let count = self.port.poll(&mut batch);
        if count == 0 {
            self.idle += 1;
            return if self.idle < PATIENCE { Ok(()) } else { self.look_around() };
        }
        self.idle = 0;
        for completion in &batch[..count] {
            match completion.outcome {
                WorkOutcome::Done => self.done = self.done.max(completion.id),
                WorkOutcome::Received { len, written, .. } => {
                    let len = if written { 0 } else { len as usize };
                    self.come.push_back((completion.id as usize, len));
                }
                WorkOutcome::Failed(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Takes an event. The end of the connection is an error when this is called again: the port reports the event
    /// before completions that have arrived with it.
    #[cold]
    fn look_around(&mut self) -> Result<(), String> {
        self.idle = 0;
        std::thread::yield_now();
        if let Some(error) = self.end {
            return Err(error.to_string());
        }
        match self.port.poll_event(self.start.elapsed()) {
            Some(Event::Lost { error, .. }) => {
                self.end = Some(error);
                Ok(())
            }
            Some(Event::PortFailed { code }) => Err(failed(code)),
            _ => Ok(()),
        }
    }

    /// Sleeps until something may have arrived: a poll would take processor time from the kernel, which may
    /// move the bytes.
    #[cold]
    fn sleep(&mut self) -> Result<(), String> {
        let armed = self.port.arm();
        // An event before this point wakes nothing.
        self.poll()?;
        if let (true, Armed::Sleep, Some(fd)) = (self.come.is_empty(), armed, self.port.descriptor()) {
            let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which may be written; the port keeps its descriptor open. Whatever it returns, one
            // looks.
            unsafe { libc::poll(&raw mut wait, 1, LONGEST_SLEEP_MS) };
        }
        self.look_around()
    }

    /// Posts to the send queue as soon as fewer than `most` requests are under way there.
    #[inline]
    fn post(
        &mut self,
        most: u64,
        quiet: bool,
        post: impl Fn(&mut Self, Work) -> Result<(), PostError>,
    ) -> Result<(), String> {
        while self.posted - self.done >= most {
            self.poll()?;
        }
        let work = Work { quiet, ..Work::new(self.connection, self.posted + 1) };
        loop {
            match post(self, work) {
                Ok(()) => break,
                Err(PostError::QueueFull) => self.poll()?,
                Err(error) => return Err(error.to_string()),
            }
        }
        self.posted += 1;
        Ok(())
    }

    /// Waits until the last message has completed: every message is reported.
    fn drain(&mut self) -> Result<(), String> {
        while self.done < self.last_message {
            self.poll()?;
        }
        Ok(())
    }

    /// Writes the first bytes of `out` to the peer. Every so often the write is not quiet, so that places in
    /// the queue get free.
    #[inline]
    fn write(&mut self, bytes: usize, immediate: Option<u32>) -> Result<(), String> {
        let window = window(self.port.facts());
        let quiet = !(self.posted + 1).is_multiple_of((window / 4).max(1));
        let (to, region) = (self.peer.at(0), self.regions[0]);
        self.post(window, quiet, |link, work| {
            if bytes <= link.port.facts().inline_bytes as usize {
                let (port, out) = (&mut link.port, &link.out);
                // SAFETY: the region's rights let nobody write, and posting does not.
                unsafe {
                    out.with(bytes, |out| port.write(work, CompletionSource::Inline(out), to, immediate))
                }
            } else {
                let part = [Slice { region, offset: 0, len: bytes as u32 }];
                link.port.write(work, CompletionSource::Gather(&part), to, immediate)
            }
        })
    }

    /// Sends a message.
    fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let most = window(self.port.facts()) + 1;
        if message.len() <= self.port.facts().inline_bytes as usize {
            self.post(most, false, |link, work| {
                link.port.send(work, CompletionSource::Inline(message), None)
            })?;
        } else {
            // The place is in use until then.
            self.drain()?;
            let at = RECEIVES * SLOT;
            self.slots.put(at, message);
            let part = [Slice { region: self.regions[1], offset: at as u64, len: message.len() as u32 }];
            self.post(most, false, |link, work| link.port.send(work, CompletionSource::Gather(&part), None))?;
        }
        self.last_message = self.posted;
        Ok(())
    }

    /// Waits for a message or a write with immediate. Returns how many bytes of `into` it fills.
    #[inline]
    fn hear(&mut self, into: &mut [u8]) -> Result<usize, String> {
        let (slot, len) = self.take_message()?;
        let wanted = into.get_mut(..len).ok_or("the peer sent more than it should")?;
        self.slots.get(slot * SLOT, wanted);
        receive(&mut self.port, self.connection, self.regions[1], slot)?;
        Ok(len)
    }

    /// Waits for a message or a write with immediate. Returns its slot and its length. The slot is not posted again.
    #[inline]
    fn take_message(&mut self) -> Result<(usize, usize), String> {
        let (mut polls, mut outcome) = (0, Ok(()));
        loop {
            // A message from before an error comes first: the peer may have closed the connection after its last one.
            if let Some(come) = self.come.pop_front() {
                return Ok(come);
            }
            outcome?;
            polls += 1;
            outcome = if polls < PATIENCE { self.poll() } else { self.sleep() };
        }
    }

    /// Waits for an empty message.
    #[inline]
    fn hear_nothing(&mut self) -> Result<(), String> {
        self.hear(&mut []).map(|_| ())
    }

    /// Makes one write of a ping-pong.
    #[inline]
    fn throw(&mut self, arrival: Arrival, bytes: usize, trip: usize) -> Result<(), String> {
        match arrival {
            Arrival::LastByte => {
                // The peer's answer has proved that the previous write was placed: nothing reads the byte.
                self.out.put(bytes - 1, &[mark(trip)]);
                self.write(bytes, None)
            }
            Arrival::Immediate => self.write(bytes, Some(0)),
            Arrival::Message => {
                self.write(bytes, None)?;
                self.send(&[])
            }
        }
    }

    /// Waits for the peer's write.
    #[inline]
    fn catch(&mut self, arrival: Arrival, bytes: usize, trip: usize) -> Result<(), String> {
        if arrival != Arrival::LastByte {
            return self.hear_nothing();
        }
        // Completions can wait: the byte is checked far more often.
        while !self.into.becomes(bytes - 1, mark(trip), LOOKS) {
            self.poll()?;
        }
        // An arrived write shows that the peer is alive, as a completion does; few quiet writes are reported.
        self.idle = 0;
        Ok(())
    }

    /// Clears the last byte before the peer may write it. Returns how a write is found.
    fn prepare(&mut self, bytes: usize) -> Arrival {
        let arrival = Arrival::of(self.port.facts(), self.last_byte, bytes);
        if arrival == Arrival::LastByte {
            self.into.put(bytes - 1, &[0]);
        }
        arrival
    }
}

impl<P: MemoryPort> Traffic for PortLink<P> {
    fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    fn about(&self) -> Option<String> {
        Some(self.about.clone())
    }

    /// A port counts nothing.
    fn seen(&self, _counters: bool) -> Seen {
        Seen::default()
    }

    fn buffers(&mut self, bytes: usize) -> (&[u8], &mut [u8]) {
        let [from, into] = &mut self.copies;
        (&from[..bytes], &mut into[..bytes])
    }

    /// An error is reported again by the next post.
    fn progress(&mut self) {
        let _ = self.poll();
    }

    fn command(&mut self, command: LinkCommand) -> Result<(), String> {
        self.send(&command.encode())
    }

    fn await_command(&mut self) -> Result<LinkCommand, String> {
        let mut packet = [0; COMMAND_BYTES];
        let len = self.hear(&mut packet)?;
        LinkCommand::decode(&packet)
            .filter(|command| len == packet.len() && command.most() <= self.most)
            .ok_or_else(|| "rank 0 asked for something unknown".to_owned())
    }

    /// Writes a pattern and reports it.
    fn send_pattern(&mut self, bytes: usize) -> Result<(), String> {
        let seed = seed(bytes, self.rank());
        let pattern: Vec<u8> = (0..bytes).map(|at| pattern(seed, at)).collect();
        self.out.put(0, &pattern);
        self.write(bytes, None)?;
        self.send(&[])
    }

    fn recv_pattern(&mut self, bytes: usize) -> Result<(), String> {
        self.hear_nothing()?;
        let seed = seed(bytes, 1 - self.rank());
        let mut come = vec![0; bytes];
        self.into.get(0, &mut come);
        intact("write", seed, &come)
    }

    fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String> {
        let arrival = self.prepare(bytes);
        // Rank 1 is prepared as well.
        self.hear_nothing()?;
        let mut last = timer.now();
        for (trip, sample) in samples.iter_mut().enumerate() {
            self.throw(arrival, bytes, trip)?;
            self.catch(arrival, bytes, trip)?;
            let now = timer.now();
            *sample = now.saturating_sub(last);
            last = now;
        }
        Ok(())
    }

    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let arrival = self.prepare(bytes);
        self.send(&[])?;
        for trip in 0..count {
            self.catch(arrival, bytes, trip)?;
            self.throw(arrival, bytes, trip)?;
        }
        Ok(())
    }

    fn send_windows(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        for _ in 0..WINDOW * count {
            self.write(bytes, None)?;
        }
        self.send(&[])?;
        self.hear_nothing()
    }

    fn recv_windows(&mut self, _bytes: usize, _count: usize) -> Result<(), String> {
        self.hear_nothing()?;
        self.send(&[])
    }

    /// Rank 1 sends a last message and waits until it has left or rank 0 is gone. Rank 0 ends when it has
    /// received it.
    fn close(mut self) -> Result<(), String> {
        if self.rank() == 0 {
            self.take_message()?;
        } else {
            self.send(&[])?;
            // An error is the expected end; rank 0 reports its own result.
            let _ = self.drain();
        }
        self.bootstrap.finalize().map_err(text)
    }
}

/// Posts a slot for a message.
fn receive<P: MemoryPort>(
    port: &mut P,
    connection: Connection,
    region: PortRegion,
    slot: usize,
) -> Result<(), String> {
    let part = [Slice { region, offset: (slot * SLOT) as u64, len: SLOT as u32 }];
    port.receive(ReceiveQueue::Of(connection), slot as u64, &part).map_err(text)
}

/// Returns the last byte of a write: never 0, and different from that of the previous write.
const fn mark(trip: usize) -> u8 {
    (trip % 255 + 1) as u8
}
