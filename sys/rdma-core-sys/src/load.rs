//! Opening the libraries at run time.

use core::ffi::{CStr, c_char, c_void};
use core::fmt;

/// The start of the name of the connection manager's library.
const MANAGER: &[u8] = b"librdmacm";

/// The reason why a library cannot be used, and the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The dynamic linker could not open the library.
    Absent {
        /// The library.
        library: &'static CStr,
        /// The dynamic linker's message.
        reason: Reason,
    },
    /// The library exists, but it is too old or a different one.
    Lacks {
        /// The library.
        library: &'static CStr,
        /// The function that it lacks.
        function: &'static CStr,
        /// The version of the function.
        version: &'static CStr,
    },
}

impl OpenError {
    fn library(&self) -> &'static CStr {
        match self {
            Self::Absent { library, .. } | Self::Lacks { library, .. } => library,
        }
    }

    /// Returns the Debian and Ubuntu packages with the library, for a command line.
    pub fn packages(&self) -> &'static str {
        if self.library().to_bytes().starts_with(MANAGER) {
            "librdmacm1 ibverbs-providers"
        } else {
            "libibverbs1 ibverbs-providers"
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { reason, .. } => write!(f, "no RDMA library: {reason}")?,
            Self::Lacks { library, function, version } => write!(
                f,
                "{} lacks {}@{}: it is too old",
                Utf8(library.to_bytes()),
                Utf8(function.to_bytes()),
                Utf8(version.to_bytes())
            )?,
        }
        write!(f, "; install rdma-core (Debian, Ubuntu: apt install {})", self.packages())
    }
}

impl core::error::Error for OpenError {}

/// The dynamic linker's message, cut at 96 bytes: the linker keeps its own text only until the next call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    bytes: [u8; Self::CAPACITY],
    len: u8,
}

impl Reason {
    const CAPACITY: usize = 96;

    fn new(text: &[u8]) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let len = text.len().min(Self::CAPACITY);
        bytes[..len].copy_from_slice(&text[..len]);
        Self { bytes, len: len as u8 }
    }

    /// Returns the `dlerror` text of this thread's last failure.
    fn last() -> Self {
        // SAFETY: no requirements; the text belongs to this thread until its next call into the dynamic linker.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Self::new(b"no reason given");
        }
        // SAFETY: it is not null, so it is a C string.
        Self::new(unsafe { CStr::from_ptr(text) }.to_bytes())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Utf8(&self.bytes[..usize::from(self.len)]).fmt(f)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Bytes that are printed as text, without those that are not valid UTF-8.
struct Utf8<'a>(&'a [u8]);

impl fmt::Display for Utf8<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
        }
        Ok(())
    }
}

/// An open library. It stays open until the process ends, because the providers that it has loaded keep
/// pointers into it, as do the function tables.
pub(crate) struct Library {
    name: &'static CStr,
    handle: *mut c_void,
}

impl Library {
    pub(crate) fn open(name: &'static CStr) -> Result<Self, OpenError> {
        // SAFETY: the name is a C string. Initialisers of the library run, as they would if it were linked.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(OpenError::Absent { library: name, reason: Reason::last() });
        }
        Ok(Self { name, handle })
    }

    /// Returns a function that every release has.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the library's headers declare.
    pub(crate) unsafe fn required<F: Copy>(
        &self,
        function: &'static CStr,
        version: &'static CStr,
    ) -> Result<F, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { self.optional(function, version) }.ok_or(OpenError::Lacks {
            library: self.name,
            function,
            version,
        })
    }

    /// Returns a function that came with a later version, if the library has it.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the library's headers declare.
    pub(crate) unsafe fn optional<F: Copy>(&self, function: &CStr, version: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "not a function pointer") };
        // SAFETY: the handle is open, and both are C strings.
        let address = unsafe { symbol(self.handle, function.as_ptr(), version.as_ptr()) };
        if address.is_null() {
            return None;
        }
        // SAFETY: the address is that of the function, whose type is the caller's promise; the sizes are equal.
        Some(unsafe { core::mem::transmute_copy(&address) })
    }
}

/// Returns the symbol of that version. A plain `dlsym` would return the newest, whose signature may differ.
///
/// # Safety
/// The handle is open; the others are C strings.
#[cfg(target_env = "gnu")]
unsafe fn symbol(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { libc::dlvsym(handle, name, version) }
}

/// Returns the symbol. This C library has no versions, and a build of rdma-core for it has one of each symbol.
///
/// # Safety
/// The handle is open; the name is a C string.
#[cfg(not(target_env = "gnu"))]
unsafe fn symbol(handle: *mut c_void, name: *const c_char, _: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { libc::dlsym(handle, name) }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString as _;

    use super::*;
    use crate::{Cm, Verbs};

    #[test]
    fn an_absent_library_is_an_error_that_says_what_to_install() {
        let error = match Library::open(c"libno-such-library.so.1") {
            Err(error) => error,
            Ok(_) => panic!("opened"),
        };
        let text = error.to_string();
        assert!(text.contains("libno-such-library.so.1"), "{text}");
        assert!(text.ends_with("(Debian, Ubuntu: apt install libibverbs1 ibverbs-providers)"), "{text}");
        let absent = OpenError::Absent { library: Cm::LIBRARY, reason: Reason::new(b"gone") };
        assert!(absent.to_string().ends_with("apt install librdmacm1 ibverbs-providers)"), "{absent}");
    }

    #[test]
    fn a_library_that_is_another_one_is_refused_with_the_function_that_it_lacks() {
        let Ok(libc) = Library::open(c"libc.so.6") else { return };
        // SAFETY: no symbol is found, so no value of a wrong type is made.
        let error = unsafe { Verbs::look_up(&libc) }.map(|_| ());
        let text = error.expect_err("the C library has no verbs").to_string();
        assert!(text.contains("lacks ibv_") && text.contains("@IBVERBS_1."), "{text}");
    }

    #[test]
    fn a_symbol_is_looked_up_under_its_version_only() {
        let Ok(libc) = Library::open(c"libc.so.6") else { return };
        if cfg!(target_env = "gnu") {
            // SAFETY: `getpid` has this type; the other lookup finds no symbol.
            let wrong = unsafe { libc.optional::<extern "C" fn() -> i32>(c"getpid", c"GLIBC_9.9") };
            assert!(wrong.is_none());
        }
    }

    #[test]
    fn a_long_reason_is_cut() {
        assert_eq!(Reason::new(&[b'x'; 999]).to_string(), "x".repeat(Reason::CAPACITY));
    }
}
