//! The configuration: names and values, as in the environment.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use crate::boundary::{Out, guard, text, write_text};
use crate::handle::{self, Kind, Object, pin};
use crate::status::{Fault, NEMESIA_OK};

/// The settings of an endpoint: variables with values, with the names of the environment and of configuration
/// files. `nemesia info` lists them.
///
/// Precedence, highest first: `nemesia_config_set`, environment, configuration file, default.
///
/// All processes of a world must agree on NEMESIA_CELLS, NEMESIA_CELL_BYTES and NEMESIA_FASTBOX_SLOTS.
/// Opening an endpoint fails if they differ.
#[derive(Debug)]
pub struct Config(Mutex<Settings>);

/// The content of a configuration. Callers use it from one thread at a time; the lock makes other uses safe.
#[derive(Debug)]
struct Settings {
    inner: nemesia::Config,
    multiple: bool,
}

/// One thread at a time uses the endpoint, and the caller ensures that. The endpoint may move between
/// threads. This is the default, and the fastest.
pub const NEMESIA_THREADS_SINGLE: u32 = 0;
/// Any number of threads use the endpoint at the same time (as MPI_THREAD_MULTIPLE). A call that does not
/// block takes a lock. Among the threads that wait, one makes progress for all.
pub const NEMESIA_THREADS_MULTIPLE: u32 = 1;

/// Makes a configuration from the defaults, the configuration files and the environment. An endpoint that is
/// opened without a configuration has these settings.
///
/// - `out_config`: the configuration, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_CONFIG if a file or a value is invalid;
/// NEMESIA_ERR_HANDLE if no more handles can be made.
/// Ownership: the caller owns the configuration and ends it with `nemesia_config_destroy`.
/// Threads: any. A configuration is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_from_environment(out_config: *mut *mut Config) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_config, "out_config") }?;
        let config = nemesia::Config::from_env().map_err(nemesia::Error::from)?;
        out.write(Config::publish(config)?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Makes a configuration from the defaults alone.
///
/// - `out_config`: the configuration, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_HANDLE if no more handles can be made.
/// Ownership: the caller owns the configuration and ends it with `nemesia_config_destroy`.
/// Threads: any. A configuration is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_default(out_config: *mut *mut Config) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_config, "out_config") }?;
        out.write(Config::publish(nemesia::Config::default())?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

impl Object for Config {
    const KIND: Kind = Kind::Config;
}

impl Config {
    /// Makes the handle of a configuration.
    fn publish(inner: nemesia::Config) -> Result<*mut Self, Fault> {
        handle::insert(Self(Mutex::new(Settings { inner, multiple: false })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Settings) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sets how threads use the endpoints that are opened with this configuration.
///
/// With NEMESIA_THREADS_MULTIPLE, any thread may call any function on the endpoint at any time. The exception
/// is `nemesia_endpoint_close`: no other thread may use the endpoint during or after it.
/// - Any thread may wait for a request or test it to completion, but only one thread does so.
/// - The order in which receives were posted decides which of them gets a message.
/// - `nemesia_endpoint_agree` and `nemesia_endpoint_shrink` block the other threads until they return.
/// - `nemesia_endpoint_arm` requires that no other thread waits on this endpoint.
///
/// A process may instead open several endpoints, one for each thread (`nemesia_endpoint_open_with`): that is
/// faster.
///
/// - `config`: a configuration.
/// - `threads`: NEMESIA_THREADS_SINGLE or NEMESIA_THREADS_MULTIPLE.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT for NULL or any other number; NEMESIA_ERR_HANDLE.
/// Threads: one at a time for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_set_threads(config: *mut Config, threads: u32) -> i32 {
    let work = || {
        let multiple = match threads {
            NEMESIA_THREADS_SINGLE => false,
            NEMESIA_THREADS_MULTIPLE => true,
            other => {
                return Err(Fault::argument(format!(
                    "threads is {other}: it must be NEMESIA_THREADS_SINGLE or _MULTIPLE"
                )));
            }
        };
        pin(config, "config")?.with(|settings| settings.multiple = multiple);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Applies the lines of a file: `NAME = value`, and comments after #.
///
/// - `config`: a configuration. The file overrides values that were set before.
/// - `path`: the file; terminated.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_HANDLE; NEMESIA_ERR_CONFIG, with file and line in
/// the text. In that case the lines before that line have been applied.
/// Threads: one at a time for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_read_file(config: *mut Config, path: *const c_char) -> i32 {
    let work = |config: &mut nemesia::Config| {
        // SAFETY: the caller's text, or null.
        let path = unsafe { text(path, "path") }?;
        config.read_file(path).map_err(nemesia::Error::from)?;
        Ok(NEMESIA_OK)
    };
    on(config, work)
}

/// Sets a variable.
///
/// - `config`: a configuration.
/// - `name`: the variable, as "NEMESIA_CELLS"; terminated.
/// - `value`: its value as text, as in the environment; terminated.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_HANDLE; NEMESIA_ERR_CONFIG if the variable does not
/// exist or does not take this value. After an error nothing has changed.
/// Threads: one at a time for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_set(
    config: *mut Config,
    name: *const c_char,
    value: *const c_char,
) -> i32 {
    let work = |config: &mut nemesia::Config| {
        // SAFETY: the caller's texts, or null.
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        config.set(name, value).map_err(nemesia::Error::from)?;
        Ok(NEMESIA_OK)
    };
    on(config, work)
}

/// Writes the value of a variable that is in force.
///
/// - `config`: a configuration.
/// - `name`: the variable; terminated.
/// - `bytes`: the size of `out_value`. 64 is enough for every number and word.
/// - `out_value`: the value, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: the length of the whole value without its terminator; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if `out_value` is too small: the part that fits is written,
/// terminated, and `out_len` is written; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_HANDLE; NEMESIA_ERR_CONFIG if the
/// variable does not exist.
/// Threads: one at a time for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_get(
    config: *mut Config,
    name: *const c_char,
    bytes: usize,
    out_value: *mut c_char,
    out_len: *mut usize,
) -> i32 {
    let work = |config: &mut nemesia::Config| {
        // SAFETY: the caller's text, or null.
        let name = unsafe { text(name, "name") }?;
        let value = config.get(name).map_err(nemesia::Error::from)?;
        // SAFETY: the caller's buffer of this size.
        unsafe { write_text(&value, bytes, out_value, out_len, "out_value") }
    };
    on(config, work)
}

/// Destroys a configuration. Endpoints that were opened with it have their own copy.
///
/// - `config`: a configuration, or NULL, for which the call does nothing. If the handle is invalid, was
///   destroyed before or is in use by another thread, the call only sets `nemesia_last_error_message`.
///
/// Ownership: takes the configuration.
/// Threads: any; no other thread may use the configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_destroy(config: *mut Config) {
    if config.is_null() {
        return;
    }
    let work = || {
        drop(pin(config, "config")?.take("config")?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ());
}

/// Runs a function on a configuration.
fn on(config: *mut Config, work: impl FnOnce(&mut nemesia::Config) -> Result<i32, Fault>) -> i32 {
    guard(|| pin(config, "config")?.with(|settings| work(&mut settings.inner)), || ())
}

/// Returns a copy of the caller's configuration, and whether several threads use the endpoint. Without a
/// configuration it takes files, environment and defaults, for one thread at a time.
pub(crate) fn resolve(config: *const Config) -> Result<(nemesia::Config, bool), Fault> {
    if config.is_null() {
        return Ok((nemesia::Config::from_env().map_err(nemesia::Error::from)?, false));
    }
    Ok(pin(config, "config")?.with(|settings| (settings.inner.clone(), settings.multiple)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{NEMESIA_ERR_ARGUMENT, NEMESIA_ERR_CONFIG, NEMESIA_ERR_TRUNCATED};
    use std::ffi::{CStr, CString};
    use std::ptr;

    fn default() -> *mut Config {
        let mut config = ptr::null_mut();
        // SAFETY: a local variable.
        assert_eq!(unsafe { nemesia_config_default(&raw mut config) }, NEMESIA_OK);
        config
    }

    fn get(config: *mut Config, name: &str) -> Result<String, i32> {
        let (name, mut value) = (CString::new(name).unwrap(), [0; 64]);
        // SAFETY: a configuration, a text, and a buffer of this size.
        match unsafe { nemesia_config_get(config, name.as_ptr(), 64, value.as_mut_ptr(), ptr::null_mut()) } {
            // SAFETY: terminated on success.
            NEMESIA_OK => Ok(unsafe { CStr::from_ptr(value.as_ptr()) }.to_string_lossy().into_owned()),
            code => Err(code),
        }
    }

    #[test]
    fn every_variable_can_be_got_and_set_by_name() {
        let config = default();
        for variable in nemesia::VARIABLES {
            let value = get(config, variable.name).unwrap();
            assert_eq!(value, variable.default_value());
            let texts = [variable.name, &value].map(|text| CString::new(text).unwrap());
            // SAFETY: a configuration, and texts.
            let code = unsafe { nemesia_config_set(config, texts[0].as_ptr(), texts[1].as_ptr()) };
            assert_eq!(code, NEMESIA_OK, "{}", variable.name);
        }
        assert_eq!(get(config, "NEMESIA_CELS"), Err(NEMESIA_ERR_CONFIG));
        // SAFETY: not used after this.
        unsafe { nemesia_config_destroy(config) };
    }

    #[test]
    fn a_buffer_that_is_too_small_returns_the_length_needed() {
        let (config, mut value, mut len) = (default(), [b'.' as c_char; 4], 77);
        let mut get = |bytes, out: *mut c_char| {
            // SAFETY: a configuration, a text, and a buffer of at least this size.
            unsafe { nemesia_config_get(config, c"NEMESIA_CELL_BYTES".as_ptr(), bytes, out, &raw mut len) }
        };
        assert_eq!(get(3, value.as_mut_ptr()), NEMESIA_ERR_TRUNCATED);
        assert_eq!(value.map(|byte| byte.to_ne_bytes()[0]), *b"33\0.");
        assert_eq!(get(0, ptr::null_mut()), NEMESIA_ERR_TRUNCATED);
        assert_eq!(get(1, ptr::null_mut()), NEMESIA_ERR_ARGUMENT);
        assert_eq!(len, 5);
        // SAFETY: not used after this.
        unsafe { nemesia_config_destroy(config) };
    }
}
