//! Models of the byte ring and the record ring.

use loom::cell::UnsafeCell;
use nemesia_core::shared::ring::{ByteReader, ByteRing, ByteWriter, RecordReader, RecordWriter};
use nemesia_core::sync::{Edge, PayloadMut, Word64};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, bytes, payload};

/// A pipe of bytes.
pub(super) const BYTES: Model = Model {
    name: "ring/bytes",
    structure: "byte ring (8 bytes)",
    property: "every byte once, in order; none overwritten before it is read; wraps",
    edges: &[Edge::RingPublish, Edge::RingRelease],
    injected_faults: &[InjectedFault::PublishBeforeWrite],
    run: byte_pipe,
};

/// A pipe of records.
pub(super) const RECORDS: Model = Model {
    name: "ring/records",
    structure: "record ring (8 bytes)",
    property: "every record once, whole, in order; wraps",
    edges: &[Edge::RingPublish, Edge::RingRelease],
    injected_faults: &[],
    run: record_pipe,
};

/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;

/// The shared memory of a ring.
pub(super) struct RingMemory {
    bytes: Vec<UnsafeCell<u8>>,
    written: Word64,
    read: Word64,
}

impl RingMemory {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: payload(bytes), written: Word64::new(0), read: Word64::new(0) }
    }

    pub(super) fn ring(&self) -> ByteRing<'_> {
        let ring = ByteRing::new(PayloadMut::from_cells(&self.bytes), &self.written, &self.read);
        ring.expect("a power of two")
    }
}

fn byte_pipe(run: &Run) {
    let early = run.injected_faults(InjectedFault::PublishBeforeWrite);
    let whole = bytes(1, run.size(14, 20));
    run.explore(3, move || {
        let memory = RingMemory::new(8);
        let mut writer = ByteWriter::new(memory.ring());
        let mut reader = ByteReader::new(memory.ring());
        let (mut sent, mut came) = (0, Vec::new());
        both(
            || {
                for _ in 0..ATTEMPTS {
                    if early {
                        // The position behind the bytes that are about to be written; the writer stores it once
                        // more.
                        memory.written.store_release(whole.len().min(sent + 5) as u64, Edge::RingPublish);
                    }
                    sent += write(&mut writer, &whole, sent);
                }
            },
            || (0..ATTEMPTS).for_each(|_| _ = read(&mut reader, &mut came)),
        );
        while came.len() < whole.len() {
            let written = write(&mut writer, &whole, sent);
            sent += written;
            assert!(read(&mut reader, &mut came) + written > 0, "neither can go on");
        }
        assert_eq!(came, whole);
        assert_eq!(read(&mut reader, &mut came), 0, "bytes came twice");
    });
}

/// Writes up to five more bytes. Returns the number of bytes written so far.
fn write(writer: &mut ByteWriter<'_>, whole: &[u8], sent: usize) -> usize {
    let part = &whole[sent..whole.len().min(sent + 5)];
    writer.write(part).expect("the reader is honest")
}

/// Reads up to three more bytes.
fn read(reader: &mut ByteReader<'_>, came: &mut Vec<u8>) -> usize {
    let mut part = [0; 3];
    let count = reader.read(&mut part).expect("the writer is honest");
    came.extend(&part[..count]);
    count
}

fn record_pipe(run: &Run) {
    let count = run.size(4, 5);
    run.explore(3, move || {
        let memory = RingMemory::new(8);
        let mut writer = RecordWriter::new(memory.ring());
        let mut reader = RecordReader::new(memory.ring());
        let (mut next, mut due) = (1, 1);
        both(
            || {
                for _ in 0..ATTEMPTS {
                    let _ = next <= count && push(&mut writer, &mut next);
                }
            },
            || (0..ATTEMPTS).for_each(|_| _ = pop(&mut reader, &mut due)),
        );
        while due <= count {
            let pushed = next <= count && push(&mut writer, &mut next);
            assert!(pop(&mut reader, &mut due) || pushed, "record {due} is lost");
        }
        assert!(!pop(&mut reader, &mut due), "a record came twice");
    });
}

/// Returns record `number`, one to three bytes long.
fn record(number: u8) -> Vec<u8> {
    bytes(number, 1 + usize::from(number % 3))
}

/// Writes the next record if there is room.
pub(super) fn push(writer: &mut RecordWriter<'_>, next: &mut u8) -> bool {
    let pushed = writer.push(&record(*next)).expect("the reader is honest");
    *next += u8::from(pushed);
    pushed
}

/// Reads the next record if it is present, and checks it.
pub(super) fn pop(reader: &mut RecordReader<'_>, due: &mut u8) -> bool {
    let mut bytes = [0; 4];
    let Some(len) = reader.pop(&mut bytes).expect("the writer is honest") else { return false };
    assert_eq!(bytes[..len], record(*due), "record {due}");
    *due += 1;
    true
}
