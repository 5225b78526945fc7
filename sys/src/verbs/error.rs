//! What can go wrong with a device, each with its remedy.

use std::io;

use rdma_core_sys::OpenError;

/// An error of the RDMA layer. Codes are error numbers, positive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A library can't be used.
    #[error("{0}")]
    Library(#[from] OpenError),
    /// A device refused something.
    #[error("RDMA device {device}: {what}: {}", errno(*code))]
    Device {
        /// Which.
        device: String,
        /// What was being done.
        what: &'static str,
        /// Why.
        code: i32,
    },
    /// Memory could not be pinned.
    #[error(
        "RDMA device {device}: {bytes} bytes can't be pinned: raise the limit of locked memory, `ulimit -l`, or register less"
    )]
    Pinned {
        /// Which.
        device: String,
        /// How many were to be.
        bytes: usize,
    },
    /// The connection manager refused something.
    #[error("RDMA connection manager: {what}: {}", errno(*code))]
    Manager {
        /// What was being done.
        what: &'static str,
        /// Why.
        code: i32,
    },
    /// The installed library is too old.
    #[error("libibverbs or librdmacm is too old: it has no {what}; install rdma-core 22 or later")]
    Old {
        /// The function.
        what: &'static str,
    },
    /// No device fits.
    #[error("no RDMA device can be used: {why}")]
    NoDevice {
        /// What each one lacks.
        why: String,
    },
    /// The operating system refused something else.
    #[error("{what}: {}", errno(*code))]
    System {
        /// What was being done.
        what: &'static str,
        /// Why.
        code: i32,
    },
}

impl VerbsError {
    /// The manager's error, which is in `errno`.
    pub(crate) fn manager(what: &'static str) -> Self {
        Self::Manager { what, code: last_errno() }
    }

    /// The system's error, which is in `errno`.
    pub(crate) fn system(what: &'static str) -> Self {
        Self::System { what, code: last_errno() }
    }

    /// The error number behind it; 0 if there is none.
    pub fn code(&self) -> i32 {
        match self {
            Self::Device { code, .. } | Self::Manager { code, .. } | Self::System { code, .. } => *code,
            Self::Pinned { .. } => libc::ENOMEM,
            Self::Library(_) | Self::Old { .. } | Self::NoDevice { .. } => 0,
        }
    }
}

/// What the C library left in `errno`.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_device_and_reason() {
        let error = VerbsError::Device { device: "rxe0".into(), what: "a queue pair", code: libc::ENOMEM };
        assert!(
            error.to_string().starts_with("RDMA device rxe0: a queue pair: Cannot allocate memory"),
            "{error}"
        );
        assert_eq!(error.code(), libc::ENOMEM);
    }
}
