//! One of the two processes of `perf --channel`.

use std::sync::{Arc, Mutex};

use nemesia::rdma_channel::{ChannelGroup, Design};
use nemesia::{ChannelDesign, Config, Endpoint, Error, NetChoice, Segment, Source, Tag};

use super::beside::{OverEndpoint, SharedEnd, on};
use super::rendezvous::Rendezvous;
use super::{ChannelPlan, ChannelRow, ChannelRun, RENDEZVOUS};
use crate::cli::Port;
use crate::perf::stats::median;
use crate::perf::timer::Timer;
use crate::perf::worker::Report;

/// The approximate time of one round of one size.
const ROUND_NS: f64 = 15e6;
/// The messages of a window, as in the paper's bandwidth test.
const WINDOW: usize = 16;
/// The trips by which the number of trips in a round is found.
const TRIAL: u64 = 8;
const MOST_TRIPS: u64 = 20_000;
/// The tags of the engine's messages.
const TAG: u64 = 5;
const READY: u64 = 6;

/// The group with the buffers of this process.
struct ChannelPair {
    group: ChannelGroup,
    other: usize,
    /// The buffers to put from and to get into: leaked, and used only by address.
    out: *mut u8,
    into: *mut u8,
    end: Option<SharedEnd>,
    timer: Timer,
    /// The messages of at least so many bytes go past the pipe, by rendezvous.
    past_from: Option<usize>,
}

/// Takes part as the rank that the launcher assigned.
pub(super) fn take_part(plan: &ChannelPlan) -> Report<Option<ChannelRun>> {
    let config = config(plan)?;
    let most = plan.sizes.iter().copied().max().unwrap_or(0).max(8);
    let mut pair = ChannelPair::open(&config, plan.port, most).map_err(text)?;
    if plan.design == RENDEZVOUS {
        pair.past_from = Some(number(&config, "NEMESIA_CHANNEL_ZERO_COPY_BYTES")? as usize);
    }
    let mut rows = Vec::new();
    for &bytes in &plan.sizes {
        rows.push(pair.row(plan, bytes).map_err(text)?);
    }
    let (rank, other) = (pair.group.rank(), pair.other);
    let explained = pair.group.explain();
    let about = explained.lines().nth(other).unwrap_or_default().to_owned();
    let counts = pair.group.registrations();
    // Neither process disconnects before the other has all bytes.
    pair.agree(0).map_err(text)?;
    pair.exchange(8).map_err(text)?;
    pair.group.finalize().map_err(text)?;
    if let Some(end) = pair.end.and_then(Arc::into_inner).and_then(|end| end.into_inner().ok()) {
        end.close().map_err(text)?;
    }
    let run = ChannelRun {
        design: plan.design.clone(),
        about,
        chunk: plan.chunk,
        keep: plan.keep,
        rows,
        hits: counts.hits,
        misses: counts.misses,
    };
    Ok((rank == 0).then_some(run))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: Error) -> String {
    error.to_string()
}

fn config(plan: &ChannelPlan) -> Result<Config, String> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    // The packets of a rendezvous, and messages that are too short for one, go through the pipe of that design.
    let pipe = if plan.design == RENDEZVOUS { Design::ZeroCopy.name() } else { &plan.design };
    let design = ChannelDesign::named(pipe).ok_or("an unknown design")?;
    let mut config = config.channel_design(design);
    if !plan.keep {
        config = config.channel_keeps_registrations(false);
    }
    if let Some(chunk) = plan.chunk {
        let ring = number(&config, "NEMESIA_CHANNEL_RING_BYTES")?;
        config = config.channel_sizes(ring, chunk);
    }
    Ok(match plan.port {
        Port::Shm => config.local(true),
        Port::Net => return Err("the pipes have no such port".to_owned()),
        Port::Tcp => {
            let named = config.get("NEMESIA_NET_ADDRESS").is_ok_and(|address| address != "auto");
            let config = if named { config } else { config.net_address(Some("127.0.0.1")) };
            config.local(false).net(NetChoice::Tcp)
        }
        Port::Verbs => config.local(false).net(NetChoice::Verbs),
    })
}

/// Returns the value of a setting that is a number of bytes.
fn number(config: &Config, name: &str) -> Result<u32, String> {
    let value = config.get(name).map_err(|error| error.to_string())?;
    value.parse().map_err(|_| format!("{name}={value} is not a number"))
}

impl ChannelPair {
    /// Connects the two processes. Over shared memory they connect by an endpoint, which is measured too.
    fn open(config: &Config, port: Port, most: usize) -> Result<Self, Error> {
        let (mut group, end) = if port == Port::Shm {
            let end = Arc::new(Mutex::new(Endpoint::open(config)?));
            let exchange = OverEndpoint::new(Arc::clone(&end));
            (ChannelGroup::begin_with(config, Box::new(exchange))?, Some(end))
        } else {
            (ChannelGroup::begin(config)?, None)
        };
        group.connect()?;
        let [out, into] = [1, 2].map(|byte| vec![byte; most].leak().as_mut_ptr());
        let (other, timer) = (1 - group.rank(), Timer::new());
        Ok(Self { group, other, out, into, end, timer, past_from: None })
    }

    fn put_some(&mut self, done: usize, bytes: usize) -> Result<usize, Error> {
        let rest = Segment { base: self.out.wrapping_add(done), len: bytes - done };
        // SAFETY: within the buffer, which is leaked and which nothing changes; the segment outlives the call.
        unsafe { self.group.put_raw(self.other, &raw const rest, 1) }
    }

    fn get_some(&mut self, done: usize, bytes: usize) -> Result<usize, Error> {
        let rest = Segment { base: self.into.wrapping_add(done), len: bytes - done };
        // SAFETY: within the buffer, which is leaked and which nothing else uses; the segment outlives the call.
        unsafe { self.group.get_raw(self.other, &raw const rest, 1) }
    }

    /// Sends and receives as many messages by rendezvous, if they are long enough. Returns whether they are.
    #[inline]
    fn pass_by(&mut self, bytes: usize, sends: usize, receives: usize) -> Result<bool, Error> {
        if self.past_from.is_none_or(|least| bytes < least) {
            return Ok(false);
        }
        let buffers = (self.out.cast_const(), self.into);
        Rendezvous::new(self.other, bytes, buffers).run(&mut self.group, (sends, receives))?;
        Ok(true)
    }

    #[inline]
    fn put(&mut self, bytes: usize) -> Result<(), Error> {
        if self.pass_by(bytes, 1, 0)? {
            return Ok(());
        }
        let mut done = 0;
        while done < bytes {
            let count = self.put_some(done, bytes)?;
            done += count;
            if count == 0 {
                // A message-passing runtime makes progress in both directions: a get of nothing polls the port.
                self.get_some(0, 0)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn get(&mut self, bytes: usize) -> Result<(), Error> {
        if self.pass_by(bytes, 0, 1)? {
            return Ok(());
        }
        let mut done = 0;
        while done < bytes {
            done += self.get_some(done, bytes)?;
        }
        Ok(())
    }

    /// Puts and gets a message at the same time.
    fn exchange(&mut self, bytes: usize) -> Result<(), Error> {
        if self.pass_by(bytes, 1, 1)? {
            return Ok(());
        }
        let (mut put, mut got) = (0, 0);
        while put < bytes || got < bytes {
            if put < bytes {
                put += self.put_some(put, bytes)?;
            }
            if got < bytes {
                got += self.get_some(got, bytes)?;
            }
        }
        Ok(())
    }

    /// Rank 0 decides a number.
    fn agree(&mut self, count: u64) -> Result<u64, Error> {
        if self.group.rank() == 0 {
            // SAFETY: the buffer has at least eight bytes, is leaked, and no put is in progress.
            unsafe { self.out.cast::<[u8; 8]>().write(count.to_le_bytes()) };
            self.put(8)?;
            return Ok(count);
        }
        self.get(8)?;
        // SAFETY: the buffer has at least eight bytes, is leaked, and no get is in progress.
        Ok(u64::from_le_bytes(unsafe { self.into.cast::<[u8; 8]>().read() }))
    }

    /// Returns the time of `count` round trips, in nanoseconds.
    fn trips(&mut self, bytes: usize, count: u64) -> Result<f64, Error> {
        let begun = self.timer.now();
        for _ in 0..count {
            if self.group.rank() == 0 {
                self.put(bytes)?;
                self.get(bytes)?;
            } else {
                self.get(bytes)?;
                self.put(bytes)?;
            }
        }
        Ok(self.timer.since(begun))
    }

    /// Waits until both processes need no more progress of the channel.
    fn leave_channel(&mut self) -> Result<(), Error> {
        let Self { end: Some(end), group, other, .. } = self else { return Ok(()) };
        let mut said = false;
        loop {
            let flushed = group.is_flushed();
            let other = *other;
            let is_over = on(end, |end| -> Result<bool, Error> {
                if flushed && !said {
                    end.send(other, READY, &[])?;
                    said = true;
                }
                if !said || end.iprobe(Source::Rank(other), Tag::Exactly(READY))?.is_none() {
                    return Ok(false);
                }
                end.recv(Source::Rank(other), Tag::Exactly(READY), &mut [])?;
                Ok(true)
            })?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// The same of the engine.
    fn engine_trips(&mut self, bytes: usize, count: u64) -> Result<Option<f64>, Error> {
        self.leave_channel()?;
        let Some(end) = &self.end else { return Ok(None) };
        let (other, begun) = (self.other, self.timer.now());
        let (out, mut into) = (vec![1; bytes], vec![0; bytes]);
        on(end, |end| -> Result<(), Error> {
            for _ in 0..count {
                if end.rank() == 0 {
                    end.send(other, TAG, &out)?;
                    end.recv(Source::Rank(other), Tag::Exactly(TAG), &mut into)?;
                } else {
                    end.recv(Source::Rank(other), Tag::Exactly(TAG), &mut into)?;
                    end.send(other, TAG, &out)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(self.timer.since(begun)))
    }

    /// Moves windows of messages from rank 0 to rank 1. Returns the time.
    fn windows(&mut self, bytes: usize, count: u64) -> Result<f64, Error> {
        let begun = self.timer.now();
        for _ in 0..count {
            if self.group.rank() == 0 {
                if !self.pass_by(bytes, WINDOW, 0)? {
                    (0..WINDOW).try_for_each(|_| self.put(bytes))?;
                }
                self.get(1)?;
            } else {
                if !self.pass_by(bytes, 0, WINDOW)? {
                    (0..WINDOW).try_for_each(|_| self.get(bytes))?;
                }
                self.put(1)?;
            }
        }
        Ok(self.timer.since(begun))
    }

    fn exchanges(&mut self, bytes: usize, count: u64) -> Result<f64, Error> {
        let begun = self.timer.now();
        (0..count).try_for_each(|_| self.exchange(bytes))?;
        Ok(self.timer.since(begun))
    }

    /// Returns how often to do what took this long for so many times.
    fn repeat(&mut self, plan: &ChannelPlan, ns: f64, times: u64) -> Result<u64, Error> {
        let wanted = plan.iterations.map_or_else(
            || (ROUND_NS / (ns / times as f64).max(1.0)).clamp(2.0, MOST_TRIPS as f64) as u64,
            u64::from,
        );
        self.agree(wanted)
    }

    /// Measures one size.
    fn row(&mut self, plan: &ChannelPlan, bytes: usize) -> Result<ChannelRow, Error> {
        let mut row = ChannelRow { bytes, ..ChannelRow::default() };
        let per_trip = |ns: f64, count: u64| ns / (2 * count) as f64;
        if !plan.only_bandwidth {
            let trial = self.trips(bytes, TRIAL)?;
            let count = self.repeat(plan, trial, TRIAL)?;
            let (mut own, mut engine, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..plan.rounds {
                let before = self.engine_trips(bytes, count)?;
                let ns = per_trip(self.trips(bytes, count)?, count);
                let after = self.engine_trips(bytes, count)?;
                own.push(ns);
                if let (Some(before), Some(after)) = (before, after) {
                    let beside = per_trip(f64::midpoint(before, after), count);
                    engine.push(beside);
                    ratio.push(ns / beside);
                }
            }
            row.latency_ns = median(&own);
            let is_there = !engine.is_empty();
            (row.engine_ns, row.ratio) =
                (is_there.then(|| median(&engine)), is_there.then(|| median(&ratio)));
            let trial = self.exchanges(bytes, TRIAL)?;
            let count = self.repeat(plan, trial, TRIAL)?;
            row.exchange = self.rates(plan, bytes, (2, count), Self::exchanges)?;
        }
        let trial = self.windows(bytes, 1)?;
        let count = self.repeat(plan, trial, 1)?;
        row.bandwidth = self.rates(plan, bytes, (WINDOW, count), Self::windows)?;
        Ok(row)
    }

    /// Returns the median of MB/s over the rounds. Each of `count` repetitions moves `messages`.
    fn rates(
        &mut self,
        plan: &ChannelPlan,
        bytes: usize,
        (messages, count): (usize, u64),
        work: fn(&mut Self, usize, u64) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        let mut rates = Vec::new();
        for _ in 0..plan.rounds {
            let ns = work(self, bytes, count)?;
            rates.push((bytes * messages) as f64 * count as f64 * 1000.0 / ns);
        }
        Ok(median(&rates))
    }
}
