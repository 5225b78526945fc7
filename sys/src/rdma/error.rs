//! Errors of the RDMA layer, each with its remedy.

use std::io;

use rdma_core_sys::OpenError;

/// An error of the RDMA layer. Codes are positive error numbers.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A library cannot be used.
    #[error("{0}")]
    Library(#[from] OpenError),
    /// A device refused an operation.
    #[error("RDMA device {device}: {what}: {}", errno(*code))]
    Device {
        /// The device.
        device: String,
        /// The operation.
        what: &'static str,
        /// The error number.
        code: i32,
    },
    /// Memory could not be pinned.
    #[error(
        "RDMA device {device}: {bytes} bytes can't be pinned: raise the limit of locked memory, `ulimit -l`, or \
        register less"
    )]
    Pinned {
        /// The device.
        device: String,
        /// The number of bytes that were to be pinned.
        bytes: usize,
    },
    /// The connection manager refused an operation.
    #[error("RDMA connection manager: {what}: {}", errno(*code))]
    Manager {
        /// The operation.
        what: &'static str,
        /// The error number.
        code: i32,
    },
    /// The installed library is too old.
    #[error("libibverbs or librdmacm is too old: it has no {what}; install rdma-core 22 or later")]
    Old {
        /// The missing function.
        what: &'static str,
    },
    /// No device can be used.
    #[error("no RDMA device can be used: {why}")]
    NoDevice {
        /// The reason for each device.
        why: String,
    },
    /// Devices can be used, but none as preferred.
    #[error("no RDMA device that can be used has {wished}: {why}")]
    Preference {
        /// The preferences.
        wished: String,
        /// The devices, each with what it has, or the reason why it cannot be used.
        why: String,
    },
    /// The operating system refused another operation.
    #[error("{what}: {}", errno(*code))]
    System {
        /// The operation.
        what: &'static str,
        /// The error number.
        code: i32,
    },
}

impl VerbsError {
    /// Makes an error of the connection manager from `errno`.
    pub(crate) fn manager(what: &'static str) -> Self {
        Self::Manager { what, code: last_errno() }
    }

    /// Makes an error of the system from `errno`.
    pub(crate) fn system(what: &'static str) -> Self {
        Self::System { what, code: last_errno() }
    }

    /// Returns the error number behind it; 0 if there is none.
    pub fn code(&self) -> i32 {
        match self {
            Self::Device { code, .. } | Self::Manager { code, .. } | Self::System { code, .. } => *code,
            Self::Pinned { .. } => libc::ENOMEM,
            Self::Library(_) | Self::Old { .. } | Self::NoDevice { .. } | Self::Preference { .. } => 0,
        }
    }
}

/// Returns `errno`.
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
