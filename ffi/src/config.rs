//! The configuration: names and values, as in the environment.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use crate::boundary::{Out, guard, text, write_text};
use crate::handle::{self, Kind, Object, pin};
use crate::status::{Fault, NEMESIA_OK};

/// How an endpoint is to be set up: variables with values, the same as in the environment and in configuration files.
/// `nemesia info` lists them all. Later sources count more than earlier ones: default, configuration file, environment,
/// `nemesia_config_set`.
///
/// All processes of a world must agree on NEMESIA_CELLS, NEMESIA_CELL_BYTES and NEMESIA_FASTBOX_SLOTS; a difference is
/// refused at start.
#[derive(Debug)]
pub struct Config(Mutex<Settings>);

/// What a configuration says. Callers use it one thread at a time; the lock makes more than that safe.
#[derive(Debug)]
struct Settings {
    inner: nemesia::Config,
    multiple: bool,
}

/// How threads use an endpoint: one at a time. The caller sees to that; the endpoint may move between threads. The
/// default, and the fastest.
pub const NEMESIA_THREADS_SINGLE: u32 = 0;
/// How threads use an endpoint: any number of them at once (as MPI_THREAD_MULTIPLE). A call that does not block takes a
/// lock. Of the threads that wait one makes progress for all.
pub const NEMESIA_THREADS_MULTIPLE: u32 = 1;

/// Makes a configuration of the defaults, the configuration files and the environment: what an endpoint has that is
/// opened without one.
///
/// - `out_config`: the configuration, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_CONFIG for a file or a value that can't be used.
/// Ownership: the configuration is the caller's, to be given back with `nemesia_config_destroy`.
/// Threads: any. A configuration is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_from_environment(out_config: *mut *mut Config) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_config, "out_config") }?;
        let config = nemesia::Config::from_env().map_err(nemesia::Error::from)?;
        out.write(Config::publish(config)?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Makes a configuration of the defaults alone.
///
/// - `out_config`: the configuration, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT.
/// Ownership: the configuration is the caller's, to be given back with `nemesia_config_destroy`.
/// Threads: any. A configuration is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_default(out_config: *mut *mut Config) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or good.
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

/// Says how threads will use the endpoints that are opened with this configuration.
///
/// With NEMESIA_THREADS_MULTIPLE any threads may call any functions on the endpoint at once, but for
/// `nemesia_endpoint_close`, during and after which nobody else uses it. A request is waited for, or tested to
/// completion, by one thread; any thread may. Which of several receives gets a message is decided by the order in which
/// they were posted. `nemesia_endpoint_agree` and `nemesia_endpoint_shrink` keep the other threads out until they
/// return, and `nemesia_endpoint_arm` is for a process in which no other thread waits on this endpoint.
/// A process may also open several endpoints, each for one thread of its own (`nemesia_endpoint_open_with`): that is
/// faster.
///
/// - `config`: a configuration.
/// - `threads`: NEMESIA_THREADS_SINGLE or NEMESIA_THREADS_MULTIPLE.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT for NULL or any other number.
/// Threads: one at a time for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_set_threads(config: *mut Config, threads: u32) -> i32 {
    let work = || {
        let multiple = match threads {
            NEMESIA_THREADS_SINGLE => false,
            NEMESIA_THREADS_MULTIPLE => true,
            other => {
                return Err(Fault::argument(format!("threads is {other}: there is no such way to use them")));
            }
        };
        pin(config, "config")?.with(|settings| settings.multiple = multiple);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Sets what the lines of a file say: `NAME = value`, and comments after #.
///
/// - `config`: a configuration. What the file sets counts more than what was set before.
/// - `path`: the file; terminated.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_CONFIG, with file and line in the text; what stands before
/// that line is then set.
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
/// - `value`: its value in words, as in the environment; terminated.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_CONFIG if there is no such variable, or it does not take this
/// value; nothing is changed then.
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

/// The value of a variable that is in force.
///
/// - `config`: a configuration.
/// - `name`: the variable; terminated.
/// - `bytes`: room in `out_value`. 64 is enough for every number and word.
/// - `out_value`: the value, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: bytes of the whole value, without its end; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if there is too little room: what fits is written, terminated, and
/// `out_len` is; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_CONFIG if there is no such variable.
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

/// Ends a configuration. Endpoints that were opened with it have their own copy.
///
/// - `config`: a configuration. For NULL nothing happens. For what is no configuration, or was destroyed before, or is
///   used by another thread in this moment, nothing happens but that `nemesia_last_error_message` says so.
///
/// Ownership: takes the configuration.
/// Threads: any; no other thread may be using it.
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

/// Runs what uses a configuration.
fn on(config: *mut Config, work: impl FnOnce(&mut nemesia::Config) -> Result<i32, Fault>) -> i32 {
    guard(|| pin(config, "config")?.with(|settings| work(&mut settings.inner)), || ())
}

/// The caller's configuration and whether several threads are to use the endpoint; without one, what files, environment
/// and defaults say.
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
        // SAFETY: a place of our own.
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
    fn too_little_room_says_how_much_is_needed() {
        let (config, mut value, mut len) = (default(), [b'.' as c_char; 4], 77);
        let mut get = |bytes, out: *mut c_char| {
            // SAFETY: a configuration, a text, and no more room than there is.
            unsafe { nemesia_config_get(config, c"NEMESIA_CELL_BYTES".as_ptr(), bytes, out, &raw mut len) }
        };
        assert_eq!(get(3, value.as_mut_ptr()), NEMESIA_ERR_TRUNCATED);
        assert_eq!(value.map(|byte| byte.to_ne_bytes()[0]), *b"32\0.");
        assert_eq!(get(0, ptr::null_mut()), NEMESIA_ERR_TRUNCATED);
        assert_eq!(get(1, ptr::null_mut()), NEMESIA_ERR_ARGUMENT);
        assert_eq!(len, 5);
        // SAFETY: not used after this.
        unsafe { nemesia_config_destroy(config) };
    }
}
