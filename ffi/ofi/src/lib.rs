//! Nemesia as a provider of libfabric. An unmodified MPI loads the library `libnemesia-fi.so` and runs over it: set
//! `FI_PROVIDER_PATH` to its directory. The chapter `ffi/ofi/README.md` has the command lines.
//!
//! | file | contents |
//! |---|---|
//! | `info.rs` | what the provider offers: `fi_getinfo` |
//! | `domain.rs` | fabrics and domains |
//! | `state.rs`, `table.rs` | all objects of a domain, and the lock that protects them |
//! | `address.rs`, `vector.rs` | address vectors |
//! | `service.rs` | endpoints that are found by a host and a port |
//! | `queue.rs` and its directory, `entries.rs` | completion queues, and the calls that read them |
//! | `counter.rs`, `counts.rs`; `event.rs` | counters; event queues |
//! | `endpoint.rs` | endpoints: opened, bound, enabled, named |
//! | `port.rs` and its directory | the endpoint of Nemesia behind one of libfabric: operations, and their completions |
//! | `message.rs`, `tagged.rs` | the calls for messages without and with a tag |
//! | `one_sided.rs`, `atomic.rs`; `region.rs`, `memory.rs` | one-sided operations; memory that peers may use |
//! | `failure.rs`, `note.rs` | why operations fail: texts for the application, lines for the user |
//! | `object.rs` | what all objects have; the boundary to C |
//! | `descriptor.rs` | the numbers of new descriptors |
//! | `bindings.rs` | the headers of libfabric, made by bindgen |
//!
//! The manual pages of libfabric apply. Nothing of libfabric is linked: its structures grow at their ends only, so the
//! provider writes the fields that it knows, and allocates what it returns with room for later fields.

mod address;
mod atomic;
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, missing_debug_implementations)]
#[allow(dead_code, unreachable_pub, unused_qualifications, clippy::all, clippy::undocumented_unsafe_blocks)]
#[allow(unsafe_op_in_unsafe_fn)]
mod bindings;
mod counter;
mod counts;
mod descriptor;
mod domain;
mod endpoint;
mod entries;
mod event;
mod failure;
mod info;
mod memory;
mod message;
mod note;
mod object;
mod one_sided;
mod port;
mod queue;
mod region;
mod service;
mod state;
mod table;
mod tagged;
mod vector;

use std::cell::UnsafeCell;
use std::ffi::CStr;

use bindings::{fi_context, fi_provider};

/// The name of the provider, of its fabric and of its domain.
pub(crate) const NAME: &CStr = c"nemesia";
/// Returns a version as libfabric encodes it.
const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The provider, which libfabric writes to: `context` is its scratch.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this library passes a pointer to it to libfabric, which calls `fi_prov_ini` once, and uses it no more.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: version(0, 1),
    // At least what any application asks for: what it gets is found in `fi_getinfo`.
    fi_version: version(2, 99),
    context: fi_context { internal: [std::ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(domain::open_fabric),
    cleanup: Some(cleanup),
}));

/// Returns the provider. libfabric calls this once, when it has loaded the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// Every object was closed by then, or is left to the end of the process.
unsafe extern "C" fn cleanup() {}
