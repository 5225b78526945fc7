//! `slow SECONDS`: the last rank leaves each barrier of the launcher so many seconds after the others, which wait for
//! it while they connect.

use std::time::Duration;

use nemesia::bootstrap::{Bootstrap, BootstrapError, Exchange};
use nemesia::{Config, Endpoint, Error};

use super::{Outcome, barrier};

const TAG: u64 = 1;

pub(super) fn run(seconds: u64) -> Outcome {
    let config = Config::from_env().map_err(Error::from)?;
    let launcher = Bootstrap::from_env().map_err(Error::from)?;
    let by = Duration::from_secs(seconds);
    let mut endpoint = Endpoint::open_with(&config, Box::new(SlowLast { launcher, by }))?;
    barrier(&mut endpoint, TAG)?;
    Ok(endpoint.close()?)
}

/// The launcher, for all ranks but the last one.
struct SlowLast {
    launcher: Bootstrap,
    by: Duration,
}

impl Exchange for SlowLast {
    fn rank(&self) -> usize {
        self.launcher.rank()
    }

    fn size(&self) -> usize {
        self.launcher.size()
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.launcher.put(key, value)
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.launcher.get(key)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.launcher.barrier()?;
        if self.rank() + 1 == self.size() {
            std::thread::sleep(self.by);
        }
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.launcher.finalize()
    }
}
