//! Software placement over shared memory.

use std::time::{Duration, Instant};

use nemesia::shm::pipe::{Copying, Options, ShmMemoryPort, listen};
use nemesia_tests::memory_port::{Fabric, run};
use nemesia_tests::quick;

struct Shm {
    copying: Copying,
    options: Options,
    start: Instant,
}

impl Fabric for Shm {
    type Port = ShmMemoryPort;

    fn port(&mut self) -> Result<ShmMemoryPort, String> {
        listen(self.copying, &self.options).map_err(|error| error.to_string())
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn most_bytes(&self) -> u32 {
        if quick() { 1 << 20 } else { 64 << 20 }
    }
}

fn passes(copying: Copying, options: Options) {
    let verdict = run(|| Ok(Shm { copying, options, start: Instant::now() }));
    let why = verdict.err().unwrap_or_default();
    assert!(why.is_empty(), "{why}");
}

#[test]
fn shared_memory_by_the_kernel_passes() {
    passes(Copying::Kernel, Options { connections: 120, regions: 200, ..Options::default() });
}

#[test]
fn shared_memory_through_rings_passes() {
    passes(Copying::Rings, Options { connections: 120, regions: 200, ..Options::default() });
}
