//! Other code of this process that uses the connection to the launcher, such as the MPI library of a program that
//! opens an endpoint as well. A launcher has one connection with each process, and its answers carry no names, so two
//! users of it read each other's answers.
//!
//! The kernel does not report whether a socket was used. But MPI and PMI libraries have a function that reports whether
//! they are initialised. Code that is linked statically, or that speaks PMI itself, is not found here: `nemesia run`
//! refuses to initialise a connection twice, while Hydra does not notice.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// A function that reports whether its library is initialised.
#[derive(Clone, Copy)]
struct RuntimeReport {
    name: &'static CStr,
    /// Whether the answer is the result, and not written to the argument.
    returns_answer: bool,
}

const REPORTS: [RuntimeReport; 3] = [
    // MPI 4.1, section 11.4.1: callable at any time, in any thread.
    RuntimeReport { name: c"MPI_Initialized", returns_answer: false },
    // PMI-1, `int PMI_Initialized(int *initialized)`.
    RuntimeReport { name: c"PMI_Initialized", returns_answer: false },
    // PMI-2, `int PMI2_Initialized(void)`.
    RuntimeReport { name: c"PMI2_Initialized", returns_answer: true },
];

/// Beginnings of the file names of the libraries in which the functions are.
const LIBRARIES: [&[u8]; 2] = [b"libmpi", b"libpmi"];

impl RuntimeReport {
    /// Returns whether the library behind `handle` is initialised. Without this function, it is not.
    fn ask(self, handle: *mut c_void) -> bool {
        // SAFETY: the name is terminated, and the handle is RTLD_DEFAULT or open.
        let found = unsafe { libc::dlsym(handle, self.name.as_ptr()) };
        if found.is_null() {
            return false;
        }
        if self.returns_answer {
            // SAFETY: PMI-2 reserves the name for a function of this form, which may be called at any time.
            let ask: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(found) };
            // SAFETY: the same.
            return unsafe { ask() } != 0;
        }
        let mut answer: c_int = 0;
        // SAFETY: MPI and PMI-1 reserve the names for functions of this form, which may be called at any time.
        let ask: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(found) };
        // SAFETY: the same; `answer` outlives the call.
        (unsafe { ask(&raw mut answer) }) == 0 && answer != 0
    }
}

/// Returns the function by which a library of this process reports that it is initialised, if one does.
pub(super) fn initialized_runtime() -> Option<String> {
    let ask = |handle: *mut c_void| REPORTS.into_iter().find(|report| report.ask(handle));
    let found = ask(libc::RTLD_DEFAULT).or_else(|| {
        // Interpreters load the libraries of their extensions without adding them to the search of RTLD_DEFAULT.
        loaded().into_iter().find_map(|path| {
            // SAFETY: the name is terminated. RTLD_NOLOAD runs no initialiser: the library is loaded already.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            if handle.is_null() {
                return None;
            }
            let found = ask(handle);
            // SAFETY: `dlopen` has just returned the handle. The library stays loaded by its first user.
            unsafe { libc::dlclose(handle) };
            found
        })
    });
    found.map(|report| report.name.to_string_lossy().into_owned())
}

/// Returns the paths of the loaded libraries in which the functions may be.
fn loaded() -> Vec<CString> {
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `note` takes its third argument for the vector, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut paths).cast()) };
    paths
}

/// Notes the path of one loaded library.
unsafe extern "C" fn note(library: *mut libc::dl_phdr_info, _size: usize, paths: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during this call.
    let name: *const c_char = unsafe { (*library).dlpi_name };
    if !name.is_null() {
        // SAFETY: the loader's name is terminated.
        let name = unsafe { CStr::from_ptr(name) };
        let file = name.to_bytes().rsplit(|letter| *letter == b'/').next().unwrap_or_default();
        if LIBRARIES.iter().any(|start| file.starts_with(start)) {
            // SAFETY: the vector of `loaded`, which no other code uses during this call.
            unsafe { (*paths.cast::<Vec<CString>>()).push(name.to_owned()) };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_such_a_library_has_no_runtime() {
        assert_eq!(initialized_runtime(), None);
        assert!(loaded().is_empty());
    }
}
