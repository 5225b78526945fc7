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
    fn pump(&mut self, limit: usize) {
        let mut piece = [0; 8192];
        let mut passed = 0;
        while let (Some(pipe), true) = (&mut self.pipe, passed < limit) {
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    passed += count;
                    let mut text = Vec::new();
                    self.lines.push(piece.get(..count).unwrap_or_default(), &mut text);
                    write_all(self.target, &text);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let mut text = Vec::new();
        self.lines.finish(&mut text);
        write_all(self.target, &text);
    }
}

/// Writes whole lines. If the launcher's output is closed, the ranks' output is dropped, so that the ranks do
/// not block.
fn write_all(target: Target, text: &[u8]) {
    if text.is_empty() {
        return;
    }
    let _ = match target {
        Target::Output => {
            let mut out = io::stdout().lock();
            out.write_all(text).and_then(|()| out.flush())
        }
        Target::Error => io::stderr().lock().write_all(text),
    };
}

/// Forwards until all pipes are at their end, or until the other side of `stop` is closed: a process that a
/// rank has left behind may keep its pipes open for ever.
pub(super) fn run(mut sources: Vec<ForwardSource>, stop: &UnixStream) {
    loop {
        let mut entries = vec![poll::entry(stop.as_fd(), libc::POLLIN)];
        let pipes = sources.iter().filter_map(|source| source.pipe.as_ref());
        entries.extend(pipes.map(|pipe| poll::entry(pipe.as_fd(), libc::POLLIN)));
        if entries.len() == 1 {
            return;
        }
        let failed = poll::wait(&mut entries, None).is_err();
        let stopped = failed || entries.first().is_some_and(|entry| entry.revents != 0);
        let limit = if stopped { MAX_DRAIN } else { MAX_PARTIAL };
        for source in &mut sources {
            source.pump(limit);
        }
        if stopped {
            sources.iter_mut().for_each(ForwardSource::finish);
            return;
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
