//! The configuration, as a structure of C.

use crate::boundary::{Versioned, check_buffer, check_size, guard, read_versioned};
use crate::status::{Fault, NEMESIA_ERR_CONFIG, NEMESIA_OK};

/// A field of `nemesia_config` that is left to the environment, and then to the default.
pub const NEMESIA_UNSET: u64 = 0xffff_ffff_ffff_ffff;

/// `nemesia_config.huge_pages`: ordinary pages.
pub const NEMESIA_HUGE_PAGES_NEVER: u64 = 0;
/// `nemesia_config.huge_pages`: huge pages if there are enough, else ordinary ones and a note.
pub const NEMESIA_HUGE_PAGES_TRY: u64 = 1;
/// `nemesia_config.huge_pages`: huge pages, or an error.
pub const NEMESIA_HUGE_PAGES_REQUIRE: u64 = 2;

/// `nemesia_config.single_copy`: where the kernel permits it, tried for each peer.
pub const NEMESIA_SINGLE_COPY_AUTO: u64 = 0;
/// `nemesia_config.single_copy`: never, and our memory is not offered to the peers either.
pub const NEMESIA_SINGLE_COPY_OFF: u64 = 1;
/// `nemesia_config.single_copy`: a peer whose memory can't be read is an error at start.
pub const NEMESIA_SINGLE_COPY_REQUIRE: u64 = 2;

/// `nemesia_config.backing`: anonymous memory files, which are sealed.
pub const NEMESIA_BACKING_MEMFD: u64 = 0;
/// `nemesia_config.backing`: unnamed files in /dev/shm, where memfd is refused.
pub const NEMESIA_BACKING_DEVSHM: u64 = 1;

/// How an endpoint is to be set up. Fill it with `nemesia_config_init`, then set what should not be left to the
/// environment: a field that is set counts, else the variable named with it, else the default.
///
/// All processes of a world must agree on `cells`, `cell_bytes` and `fastbox_slots`; a difference is refused at start.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// sizeof(nemesia_config); later versions have more fields at the end.
    pub struct_size: u64,
    /// 0: the variables of the environment count. 1: they do not.
    pub ignore_environment: u64,
    /// Cells in each process's pool: power of two, 4 to 4096. NEMESIA_CELLS.
    pub cells: u64,
    /// Payload bytes of a cell: multiple of 64, 256 to 16777216. NEMESIA_CELL_BYTES.
    pub cell_bytes: u64,
    /// Cache lines in each fastbox: power of two, 4 to 4096. NEMESIA_FASTBOX_SLOTS.
    pub fastbox_slots: u64,
    /// Largest message that goes through a fastbox, in bytes. NEMESIA_FASTBOX_LIMIT.
    pub fastbox_limit: u64,
    /// Ceiling for messages that nobody has asked for yet, in bytes, 64 and more each. NEMESIA_UNEXPECTED_BYTES.
    pub unexpected_bytes: u64,
    /// Largest message that is sent before it is asked for, in bytes. NEMESIA_EAGER_BYTES.
    pub eager_bytes: u64,
    /// Room that each peer is promised ahead of what it has sent, in bytes. NEMESIA_CREDIT_BYTES.
    pub credit_bytes: u64,
    /// NEMESIA_SINGLE_COPY_AUTO, _OFF or _REQUIRE. NEMESIA_SINGLE_COPY.
    pub single_copy: u64,
    /// 1: let every process of this user read this one's memory, where Yama reserves that. NEMESIA_PTRACER.
    pub ptracer: u64,
    /// Most requests under way at once: 64 to 16777216. NEMESIA_REQUESTS.
    pub requests: u64,
    /// NEMESIA_HUGE_PAGES_NEVER, _TRY or _REQUIRE. NEMESIA_HUGE_PAGES.
    pub huge_pages: u64,
    /// NEMESIA_BACKING_MEMFD or _DEVSHM. NEMESIA_BACKING.
    pub backing: u64,
    /// 1: lock the segments into memory. 0: do not. NEMESIA_LOCK_MEMORY.
    pub lock_memory: u64,
    /// Polls without a message before a waiting process sleeps. NEMESIA_SPIN.
    pub spin: u64,
    /// How long connecting to the peers may take, and flushing at the end, in seconds: 1 to 86400. NEMESIA_TIMEOUT.
    pub timeout_seconds: u64,
}

// SAFETY: numbers of one size, the size first.
unsafe impl Versioned for Config {
    const NAME: &'static str = "nemesia_config";
    const FIRST: usize = size_of::<[u64; 17]>();
    const UNSET: u8 = 0xff;
}

impl Config {
    /// Nothing is set.
    pub(crate) const UNSET: Self = Self {
        struct_size: size_of::<Self>() as u64,
        ignore_environment: 0,
        cells: NEMESIA_UNSET,
        cell_bytes: NEMESIA_UNSET,
        fastbox_slots: NEMESIA_UNSET,
        fastbox_limit: NEMESIA_UNSET,
        unexpected_bytes: NEMESIA_UNSET,
        eager_bytes: NEMESIA_UNSET,
        credit_bytes: NEMESIA_UNSET,
        single_copy: NEMESIA_UNSET,
        ptracer: NEMESIA_UNSET,
        requests: NEMESIA_UNSET,
        huge_pages: NEMESIA_UNSET,
        backing: NEMESIA_UNSET,
        lock_memory: NEMESIA_UNSET,
        spin: NEMESIA_UNSET,
        timeout_seconds: NEMESIA_UNSET,
    };

    /// The fields and the environment together, validated.
    pub(crate) fn resolve(&self) -> Result<nemesia::Config, Fault> {
        self.resolve_with(|name| std::env::var(name).ok())
    }

    fn resolve_with(&self, environment: impl Fn(&str) -> Option<String>) -> Result<nemesia::Config, Fault> {
        let ignored = match self.ignore_environment {
            0 | NEMESIA_UNSET => false,
            1 => true,
            other => {
                return Err(Fault::new(
                    NEMESIA_ERR_CONFIG,
                    format!("ignore_environment={other}: must be 0 or 1"),
                ));
            }
        };
        let lookup = |name: &str| self.field(name).or_else(|| environment(name).filter(|_| !ignored));
        Ok(nemesia::Config::from_lookup(lookup).map_err(nemesia::Error::from)?)
    }

    /// The value of the field that stands for a variable, in the words of the variable.
    fn field(&self, variable: &str) -> Option<String> {
        let (value, words): (u64, &[&str]) = match variable {
            "NEMESIA_CELLS" => (self.cells, &[]),
            "NEMESIA_CELL_BYTES" => (self.cell_bytes, &[]),
            "NEMESIA_FASTBOX_SLOTS" => (self.fastbox_slots, &[]),
            "NEMESIA_FASTBOX_LIMIT" => (self.fastbox_limit, &[]),
            "NEMESIA_UNEXPECTED_BYTES" => (self.unexpected_bytes, &[]),
            "NEMESIA_EAGER_BYTES" => (self.eager_bytes, &[]),
            "NEMESIA_CREDIT_BYTES" => (self.credit_bytes, &[]),
            "NEMESIA_SINGLE_COPY" => (self.single_copy, &["auto", "off", "require"]),
            "NEMESIA_PTRACER" => (self.ptracer, &[]),
            "NEMESIA_REQUESTS" => (self.requests, &[]),
            "NEMESIA_HUGE_PAGES" => (self.huge_pages, &["never", "try", "require"]),
            "NEMESIA_BACKING" => (self.backing, &["memfd", "devshm"]),
            "NEMESIA_LOCK_MEMORY" => (self.lock_memory, &[]),
            "NEMESIA_SPIN" => (self.spin, &[]),
            "NEMESIA_TIMEOUT" => (self.timeout_seconds, &[]),
            _ => return None,
        };
        let word = usize::try_from(value).ok().and_then(|at| words.get(at));
        (value != NEMESIA_UNSET).then(|| word.map_or_else(|| value.to_string(), |word| (*word).to_owned()))
    }
}

/// Fills a configuration: the size as given, 0 for `ignore_environment`, NEMESIA_UNSET for everything else.
///
/// - `struct_size`: sizeof(nemesia_config).
/// - `out_config`: written on success.
///
/// Returns: NEMESIA_OK, or NEMESIA_ERR_ARGUMENT.
/// Ownership: the structure stays the caller's; it holds nothing that has to be freed.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_config_init(struct_size: usize, out_config: *mut Config) -> i32 {
    let work = || {
        check_buffer(out_config, 1, "out_config")?;
        check_size::<Config>(struct_size)?;
        // A caller built with an older header has room for less than `Config`; a newer one for more.
        let mut words = vec![NEMESIA_UNSET; struct_size.div_ceil(size_of::<u64>())];
        words[0] = struct_size as u64;
        words[1] = 0;
        let (from, to) = (words.as_ptr().cast::<u8>(), out_config.cast::<u8>());
        // SAFETY: the caller has room for `struct_size` bytes, and `words` has no fewer.
        unsafe { std::ptr::copy_nonoverlapping(from, to, struct_size) };
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// The caller's configuration, or the environment and the defaults if there is none.
///
/// # Safety
/// See [`read_versioned`].
pub(crate) unsafe fn resolve(config: *const Config) -> Result<nemesia::Config, Fault> {
    if config.is_null() {
        return Config::UNSET.resolve();
    }
    // SAFETY: the caller's promise.
    unsafe { read_versioned(config) }?.resolve()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::NEMESIA_ERR_ARGUMENT;

    /// The first version of the structure as an array of its fields.
    const WORDS: usize = Config::FIRST / size_of::<u64>();

    fn filled(value: u64) -> Config {
        let mut words = [value; WORDS];
        (words[0], words[1]) = (Config::FIRST as u64, 0);
        // SAFETY: as large as the first version.
        unsafe { read_versioned(words.as_ptr().cast()) }.unwrap()
    }

    #[test]
    fn every_variable_has_a_field() {
        for variable in nemesia::VARIABLES {
            assert_eq!(filled(NEMESIA_UNSET).field(variable.name), None, "{}", variable.name);
            assert!(filled(1).field(variable.name).is_some(), "{}", variable.name);
        }
        let fields = WORDS - 2;
        assert_eq!(fields, nemesia::VARIABLES.len());
    }

    #[test]
    fn a_field_counts_more_than_the_environment_and_that_more_than_the_default() {
        let environment = |name: &str| (name == "NEMESIA_CELLS").then(|| "128".to_owned());
        let of = |config: Config| config.resolve_with(environment).unwrap();
        let default = nemesia::Config::default;
        assert_eq!(of(Config { cells: 8, ..Config::UNSET }), default().cells(8));
        assert_eq!(of(Config::UNSET), default().cells(128));
        assert_eq!(of(Config { ignore_environment: 1, ..Config::UNSET }), default());
    }

    #[test]
    fn a_bad_field_is_refused_with_what_it_may_be() {
        let config = Config { huge_pages: 9, ..Config::UNSET };
        let fault = config.resolve_with(|_| None).unwrap_err();
        assert_eq!(fault.code(), NEMESIA_ERR_CONFIG);
        let text = format!("{fault:?}");
        assert!(text.contains("NEMESIA_HUGE_PAGES=9: must be never, try or require"), "{text}");
    }

    #[test]
    fn init_writes_as_much_as_the_caller_has() {
        let mut words = [7; WORDS + 2];
        // SAFETY: there is room for one word more than the first version.
        let code = unsafe { nemesia_config_init(Config::FIRST + 8, words.as_mut_ptr().cast()) };
        assert_eq!(code, NEMESIA_OK);
        assert_eq!(words[0] as usize, Config::FIRST + 8);
        assert_eq!((words[1], words[2], words[WORDS], words[WORDS + 1]), (0, u64::MAX, u64::MAX, 7));
        // SAFETY: refused at sight.
        let code = unsafe { nemesia_config_init(8, words.as_mut_ptr().cast()) };
        assert_eq!((code, words[0] as usize), (NEMESIA_ERR_ARGUMENT, Config::FIRST + 8));
    }
}
