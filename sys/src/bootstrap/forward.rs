//! Forwards the output of all ranks line by line, each line with its rank in front.

use super::poll;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A line longer than this, in bytes, is forwarded in pieces, each as a line of its own.
const MAX_PARTIAL: usize = 64 * 1024;
/// The most bytes read from one pipe after its rank has ended: as much as a pipe can hold.
const MAX_DRAIN: usize = 1024 * 1024;

/// One of the launcher's own streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Output,
    Error,
}

/// One pipe from a rank.
#[derive(Debug)]
pub(super) struct ForwardSource {
    pipe: Option<File>,
    target: Target,
    lines: Prefixer,
}

impl ForwardSource {
    /// Reads from `pipe`, which is the launcher's end only: making it non-blocking does not affect the rank.
    pub(super) fn new(rank: usize, pipe: OwnedFd, target: Target) -> io::Result<Self> {
        // SAFETY: F_GETFL and F_SETFL take integers and touch no memory; `pipe` is open and borrowed.
        let flags = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETFL) };
        // SAFETY: as above.
        let code = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
        if flags < 0 || code < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pipe: Some(File::from(pipe)), target, lines: Prefixer::new(rank) })
    }

    /// Forwards available output, at most `limit` bytes.
    ///
    /// # Errors
    /// The launcher's own stream cannot be written.
    fn pump(&mut self, limit: usize) -> io::Result<()> {
        let mut piece = [0; 8192];
        let mut passed = 0;
        while let (Some(pipe), true) = (&mut self.pipe, passed < limit) {
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    passed += count;
                    let mut text = Vec::new();
                    self.lines.push(piece.get(..count).unwrap_or_default(), &mut text);
                    self.target.write_all(&text)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        self.lines.finish(&mut text);
        self.target.write_all(&text)
    }
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Output => "standard output",
            Self::Error => "standard error output",
        }
    }

    /// Writes whole lines. If another program has made the stream non-blocking, this function waits for it.
    fn write_all(self, text: &[u8]) -> io::Result<()> {
        let stream = match self {
            Self::Output => io::stdout().as_fd().try_clone_to_owned()?,
            Self::Error => io::stderr().as_fd().try_clone_to_owned()?,
        };
        let mut stream = File::from(stream);
        let mut rest = text;
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll::wait(&mut [poll::entry(stream.as_fd(), libc::POLLOUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Forwards until all pipes are at their end, or until the other side of `stop` is closed: a process that a
/// rank has left behind may keep its pipes open for ever. Returns why output was lost, if any was.
///
/// If a stream of the launcher cannot be written, the ranks' pipes to it are closed. So their writes fail, as
/// they would if the ranks wrote to the stream themselves.
pub(super) fn run(mut sources: Vec<ForwardSource>, stop: &UnixStream) -> Option<String> {
    let mut lost = None;
    loop {
        let mut entries = vec![poll::entry(stop.as_fd(), libc::POLLIN)];
        let pipes = sources.iter().filter_map(|source| source.pipe.as_ref());
        entries.extend(pipes.map(|pipe| poll::entry(pipe.as_fd(), libc::POLLIN)));
        if entries.len() == 1 {
            return lost;
        }
        let failed = poll::wait(&mut entries, None).is_err();
        let stopped = failed || entries.first().is_some_and(|entry| entry.revents != 0);
        let limit = if stopped { MAX_DRAIN } else { MAX_PARTIAL };
        let mut broken = None;
        for source in &mut sources {
            let mut forwarded = source.pump(limit);
            if stopped {
                forwarded = forwarded.and_then(|()| source.finish());
            }
            if let Err(error) = forwarded {
                broken = Some(source.target);
                let target = source.target.name();
                lost.get_or_insert_with(|| format!("the {target} cannot be written: {error}"));
            }
        }
        if let Some(target) = broken {
            sources.retain(|source| source.target != target);
        }
        if stopped {
            return lost;
        }
    }
}

/// Puts `[rank] ` in front of each line, whatever the pieces in which the line arrives.
#[derive(Debug)]
struct Prefixer {
    prefix: String,
    partial: Vec<u8>,
}

impl Prefixer {
    fn new(rank: usize) -> Self {
        Self { prefix: format!("[{rank}] "), partial: Vec::new() }
    }

    /// Takes a piece, and appends the lines that it completes to `out`.
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") || self.partial.len() >= MAX_PARTIAL {
                self.finish(out);
            }
        }
    }

    /// Appends the remaining text as a line.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            out.extend_from_slice(self.prefix.as_bytes());
            out.append(&mut self.partial);
            if !out.ends_with(b"\n") {
                out.push(b'\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_carries_its_rank_whatever_the_pieces() {
        let text = b"one\n\ntwo two\nthree";
        for size in 1..=text.len() {
            let mut lines = Prefixer::new(7);
            let mut out = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece, &mut out);
            }
            lines.finish(&mut out);
            assert_eq!(out, b"[7] one\n[7] \n[7] two two\n[7] three\n");
        }
    }

    #[test]
    fn a_line_without_end_does_not_grow_without_bound() {
        let mut lines = Prefixer::new(0);
        let mut out = Vec::new();
        for _ in 0..3 {
            lines.push(&vec![b'x'; MAX_PARTIAL], &mut out);
            assert!(lines.partial.len() < MAX_PARTIAL);
        }
        assert!(out.iter().filter(|byte| **byte == b'\n').count() == 3);
    }
}
