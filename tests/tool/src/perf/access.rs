//! The measured traffic of one-sided operations: puts and gets, which the other process's program takes no part in.

use nemesia::{Access, CompleteAt, Region, RemoteKey, Source, Tag};

use super::command::LinkCommand;
use super::link::{Link, WINDOW, intact, pattern, seed, text};
use super::timer::Timer;
use super::traffic::{Seen, Traffic};

/// The tag of the message with a process's key.
const KEY: u64 = 4;
/// The tag of an empty message: the other process has ended its part.
const ENDED: u64 = 5;

/// One of two processes, with a region that the other one accesses.
#[derive(Debug)]
pub(crate) struct AccessLink {
    link: Link,
    /// Gets, and not puts.
    gets: bool,
    region: Region,
    /// The other process's region.
    key: RemoteKey,
    /// The notifications of this process's region that were waited for.
    notified: u64,
}

impl AccessLink {
    /// Allocates a region for at most `most` bytes, and exchanges the keys.
    pub(crate) fn new(mut link: Link, most: usize, gets: bool) -> Result<Self, String> {
        let region = link.endpoint.allocate(most.max(1), Access::ReadWrite).map_err(text)?;
        // Every page is present before the measurement.
        link.endpoint.write_region(region, 0, &vec![1; most]).map_err(text)?;
        let own = link.endpoint.remote_key(region).map_err(text)?.to_bytes();
        let (from, mut theirs) = (Source::Rank(link.peer), own);
        let (peer, tag) = (link.peer, Tag::Exactly(KEY));
        if link.rank() == 0 {
            link.endpoint.send(peer, KEY, &own).map_err(text)?;
            link.endpoint.recv(from, tag, &mut theirs).map_err(text)?;
        } else {
            link.endpoint.recv(from, tag, &mut theirs).map_err(text)?;
            link.endpoint.send(peer, KEY, &own).map_err(text)?;
        }
        let key = RemoteKey::from_bytes(peer, &theirs).ok_or("the other process sent no key")?;
        Ok(Self { link, gets, region, key, notified: 0 })
    }

    fn put(&mut self, bytes: usize) -> Result<(), String> {
        self.link.endpoint.put_notify(&self.key, 0, &self.link.out[..bytes]).map_err(text)
    }

    fn get(&mut self, bytes: usize) -> Result<(), String> {
        self.link.endpoint.get(&self.key, 0, &mut self.link.into[..bytes]).map_err(text)
    }

    /// Waits for the next put of the other process.
    fn await_put(&mut self) -> Result<(), String> {
        self.notified += 1;
        self.link.endpoint.wait_notified(self.region, self.notified).map_err(text)
    }

    fn tell_end(&mut self) -> Result<(), String> {
        self.link.endpoint.send(self.link.peer, ENDED, &[]).map_err(text)
    }

    /// Makes progress until the other process says that it has ended.
    fn await_end(&mut self) -> Result<(), String> {
        let (from, tag) = (Source::Rank(self.link.peer), Tag::Exactly(ENDED));
        self.link.endpoint.recv(from, tag, &mut []).map(drop).map_err(text)
    }

    /// Executes a window of operations, and waits until all are done at the target.
    fn window(&mut self, bytes: usize) -> Result<(), String> {
        let Link { endpoint, out, into, requests, .. } = &mut self.link;
        let (from, to) = (out[..bytes].as_ptr(), into[..bytes].as_mut_ptr());
        requests.clear();
        for _ in 0..WINDOW {
            // SAFETY: `from` and `to` name initialised bytes of buffers that nothing else uses in this function. All
            // operations are waited for below, or an error ends the use of the link, and the endpoint is dropped
            // before the buffers. All gets may write to the same place, because nothing reads it.
            let request = unsafe {
                if self.gets {
                    endpoint.iget(&self.key, 0, to, bytes)
                } else {
                    endpoint.iput(&self.key, 0, from, bytes, false, CompleteAt::Target)
                }
            };
            requests.push(request.map_err(text)?);
        }
        for request in &*requests {
            endpoint.wait(*request).map_err(text)?;
        }
        Ok(())
    }
}

impl Traffic for AccessLink {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn about(&self) -> Option<String> {
        let what = if self.gets { "gets" } else { "puts" };
        Some(self.link.about().map_or_else(|| what.to_owned(), |about| format!("{what}; {about}")))
    }

    fn seen(&self, counters: bool) -> Seen {
        self.link.seen(counters)
    }

    fn buffers(&mut self, bytes: usize) -> (&[u8], &mut [u8]) {
        self.link.buffers(bytes)
    }

    fn command(&mut self, command: LinkCommand) -> Result<(), String> {
        self.link.command(command)
    }

    fn await_command(&mut self) -> Result<LinkCommand, String> {
        self.link.await_command()
    }

    /// Puts the pattern into the other process's region, or lets it get the pattern from this one's.
    fn send_pattern(&mut self, bytes: usize) -> Result<(), String> {
        let seed = seed(bytes, self.rank());
        let out = &mut self.link.out[..bytes];
        out.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(seed, at));
        if !self.gets {
            return self.put(bytes);
        }
        self.link.endpoint.write_region(self.region, 0, &self.link.out[..bytes]).map_err(text)?;
        self.tell_end()?;
        self.await_end()
    }

    fn recv_pattern(&mut self, bytes: usize) -> Result<(), String> {
        self.link.into[..bytes].fill(0);
        if self.gets {
            self.await_end()?;
            self.get(bytes)?;
            self.tell_end()?;
        } else {
            self.await_put()?;
            self.link.endpoint.read_region(self.region, 0, &mut self.link.into[..bytes]).map_err(text)?;
        }
        intact("transfer", seed(bytes, self.link.peer), &self.link.into[..bytes])
    }

    fn ping(&mut self, bytes: usize, timer: &Timer, samples: &mut [u64]) -> Result<(), String> {
        let mut last = timer.now();
        for sample in samples {
            if self.gets {
                self.get(bytes)?;
            } else {
                self.put(bytes)?;
                self.await_put()?;
            }
            let now = timer.now();
            // Half of a sample is reported, as of a round trip.
            *sample = if self.gets { 2 } else { 1 } * now.saturating_sub(last);
            last = now;
        }
        if self.gets { self.tell_end() } else { Ok(()) }
    }

    fn pong(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        if self.gets {
            return self.await_end();
        }
        for _ in 0..count {
            self.await_put()?;
            self.put(bytes)?;
        }
        Ok(())
    }

    fn send_windows(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        (0..count).try_for_each(|_| self.window(bytes))?;
        self.tell_end()
    }

    fn recv_windows(&mut self, _: usize, _: usize) -> Result<(), String> {
        self.await_end()
    }

    fn close(self) -> Result<(), String> {
        self.link.close()
    }
}
