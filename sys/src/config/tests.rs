//! Sources, their precedence, and their refusals.

use super::*;
use nemesia_core::shared::fastbox::max_payload;
use std::os::unix::ffi::OsStringExt;

fn from(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    // Without this the files of the user who runs the tests would count.
    let none = [("NEMESIA_CONFIG", "")];
    let vars = none.iter().chain(pairs).map(|(name, value)| (name.into(), value.into()));
    Config::from_vars(vars.collect::<Vec<_>>())
}

fn message(pairs: &[(&str, &str)]) -> String {
    from(pairs).unwrap_err().to_string()
}

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nemesia-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn directory(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nemesia-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a value other than the default.
fn other(variable: &Variable) -> &'static str {
    match variable.name {
        "NEMESIA_CELLS" => "128",
        "NEMESIA_CELL_BYTES" => "512",
        "NEMESIA_FASTBOX_SLOTS" => "8",
        "NEMESIA_FASTBOX_LIMIT" => "100",
        "NEMESIA_UNEXPECTED_BYTES" => "65536",
        "NEMESIA_CREDIT_BYTES" => "8192",
        "NEMESIA_SINGLE_COPY" => "off",
        "NEMESIA_CELL_STORES" => "cached",
        "NEMESIA_ASSIST_BYTES" => "never",
        "NEMESIA_ASSIST_LEAST" | "NEMESIA_ASSIST_MOST" | "NEMESIA_PULL_BYTES" => "65536",
        "NEMESIA_HUGE_PAGES" => "try",
        "NEMESIA_BACKING" => "devshm",
        "NEMESIA_ANY_SOURCE" => "outlive",
        "NEMESIA_LOCAL" => "off",
        "NEMESIA_NET" => "tcp",
        "NEMESIA_NET_RENDEZVOUS" => "read",
        "NEMESIA_NET_SETUP" => "datagrams",
        "NEMESIA_NET_FAST_PATH" => "on",
        "NEMESIA_NET_FAST_PEERS" => "3",
        "NEMESIA_NET_STREAMS" => "4",
        "NEMESIA_NET_DIRECT_BYTES" => "4096",
        "NEMESIA_REGISTRATIONS" => "off",
        "NEMESIA_NET_ADDRESS" => "127.0.0.1",
        "NEMESIA_NET_FAMILY" => "ipv6",
        "NEMESIA_NET_DEVICE" => "mlx5_0",
        "NEMESIA_NET_PARTITION_KEY" => "0x8001",
        "NEMESIA_NET_PATH_MTU" => "1024",
        "NEMESIA_JOB_KEY_FILE" => "/dev/null",
        "NEMESIA_STRANGERS" => "refuse",
        "NEMESIA_CONNECT" => "start",
        "NEMESIA_NET_PACKET_BYTES" => "4096",
        "NEMESIA_NET_EAGER_BYTES" => "4096",
        "NEMESIA_CHANNEL_DESIGN" => "basic",
        "NEMESIA_CHANNEL_FILL" => "bottom",
        "NEMESIA_CHANNEL_RING_BYTES" => "65536",
        "NEMESIA_CHANNEL_CHUNK_BYTES" => "256",
        "NEMESIA_CHANNEL_REGISTRATIONS" => "drop",
        _ if variable.values == "0 or 1" => "1",
        _ => "77",
    }
}

#[test]
fn every_variable_changes_something_and_says_what_is_in_force() {
    for variable in VARIABLES {
        let Variable { name, .. } = *variable;
        let value = other(variable);
        let config = from(&[(name, value)]).unwrap();
        assert_ne!(config, Config::default(), "{name}");
        assert_eq!(config.get(name).as_deref(), Ok(value), "{name}");
        assert_eq!(
            (config.origin(name), Config::default().origin(name)),
            (Origin::Environment, Origin::Default)
        );
        assert_ne!(variable.default_value(), value, "{name}");
        // The printed value is accepted as input.
        let mut again = Config::default();
        again.set(name, &config.get(name).unwrap()).unwrap();
        assert_eq!(again, config, "{name}");
    }
}

#[test]
fn every_variable_refuses_nonsense_and_says_what_it_takes() {
    for Variable { name, values, .. } in VARIABLES {
        // A device may have any name.
        let nonsense = if *name == "NEMESIA_NET_DEVICE" { "non sense" } else { "nonsense" };
        let error = message(&[(name, nonsense)]);
        if *name == "NEMESIA_NET_ADDRESS" {
            assert!(
                error.starts_with("NEMESIA_NET_ADDRESS=nonsense names no interface of this machine"),
                "{error}"
            );
            assert!(error.contains("there are lo (127.0.0.1)"), "{error}");
            continue;
        }
        assert_eq!(error, format!("{name}={nonsense}: must be {values}"));
    }
    let bytes = OsString::from_vec(vec![b'1', 0xff]);
    let vars = [("NEMESIA_CONFIG".into(), OsString::new()), ("NEMESIA_CELLS".into(), bytes)];
    assert!(matches!(Config::from_vars(vars), Err(ConfigError::Variable { name: "NEMESIA_CELLS", .. })));
}

#[test]
fn names_are_listed_once_each_with_its_help() {
    for (at, variable) in VARIABLES.iter().enumerate() {
        assert!(variable.name.starts_with(PREFIX) && !variable.help.is_empty());
        assert!(VARIABLES[..at].iter().all(|before| before.name != variable.name), "{}", variable.name);
    }
}

#[test]
fn sizes_out_of_range_name_the_range() {
    for (name, value) in
        [("NEMESIA_CELLS", "5"), ("NEMESIA_CELL_BYTES", "300"), ("NEMESIA_FASTBOX_SLOTS", "8192")]
    {
        let values = Variable::find(name).unwrap().values;
        assert_eq!(message(&[(name, value)]), format!("{name}={value}: must be {values}"));
    }
    // A value of the program's own is checked when a world is opened.
    let error = Config::default().cells(5).geometry().unwrap_err().to_string();
    assert!(error.contains("cells is 5") && error.contains("power of two"), "{error}");
}

#[test]
fn pieces_are_bounded_and_the_most_is_never_less_than_the_least() {
    for (least, most, in_force) in [("4096", "4096", "4096"), ("65536", "4096", "65536")] {
        let config = from(&[("NEMESIA_ASSIST_LEAST", least), ("NEMESIA_ASSIST_MOST", most)]).unwrap();
        assert_eq!(config.get("NEMESIA_ASSIST_MOST").as_deref(), Ok(in_force));
        assert_eq!(
            config.warnings().iter().any(|warning| warning.contains("NEMESIA_ASSIST_MOST")),
            most != in_force
        );
    }
    for name in ["NEMESIA_ASSIST_LEAST", "NEMESIA_ASSIST_MOST", "NEMESIA_PULL_BYTES"] {
        for value in ["0", "4095", "1073741825", "-1"] {
            assert!(message(&[(name, value)]).contains("4096 to 1073741824"), "{name}={value}");
        }
    }
    let config = Config::default().assist_pieces(0, u64::MAX).pull_bytes(0);
    assert_eq!((config.assist_pieces, config.pull_bytes), ([4096, 1 << 30], 4096));
}

#[test]
fn non_temporal_copies_can_be_had_at_any_size_and_never() {
    for (value, from) in [("0", 0), ("never", u64::MAX), ("77", 77)] {
        let mut config = Config::default();
        config.set("NEMESIA_NON_TEMPORAL_BYTES", value).unwrap();
        assert_eq!(config.non_temporal_from(), from);
        assert_eq!(config.get("NEMESIA_NON_TEMPORAL_BYTES").as_deref(), Ok(value));
    }
}

#[test]
fn program_counts_more_than_environment_and_that_more_than_the_file() {
    let text = "NEMESIA_CELLS = 8\nNEMESIA_SPIN = 8 # polls\n\nNEMESIA_TIMEOUT=8\nNEMESIA_TIMEOUT=9\n";
    let file = Scratch::new("precedence", text);
    let vars = [("NEMESIA_CONFIG", file.name()), ("NEMESIA_CELLS", "16"), ("NEMESIA_SPIN", " 16 ")];
    let config = from(&vars).unwrap().cells(32);
    assert_eq!((config.cells, config.spin, config.timeout_seconds), (32, Some(16), 9));
    let origins = ["NEMESIA_CELLS", "NEMESIA_SPIN", "NEMESIA_TIMEOUT", "NEMESIA_REQUESTS"]
        .map(|name| config.origin(name).to_string());
    assert_eq!(origins, ["program", "environment", &format!("{}:5", file.name()), "default"]);
    assert_eq!(config.files(), std::slice::from_ref(&file.0));
}

#[test]
fn files_of_the_user_are_read_where_none_is_named() {
    let directory = std::env::temp_dir().join(format!("nemesia-{}-xdg", std::process::id()));
    std::fs::create_dir_all(directory.join("nemesia")).unwrap();
    std::fs::write(directory.join("nemesia/nemesia.conf"), "NEMESIA_REQUESTS = 99\n").unwrap();
    let read = |named: Option<&str>| {
        let named = named.map(|path| ("NEMESIA_CONFIG".into(), path.into()));
        let home = [("XDG_CONFIG_HOME".into(), directory.clone().into_os_string())];
        Config::from_vars(home.into_iter().chain(named)).unwrap().requests
    };
    let (usual, none) = (read(None), read(Some("")));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!((usual, none), (99, 1 << 20));
}

#[test]
fn mistakes_in_a_file_are_errors_with_its_name_and_line() {
    for (text, line, parts) in [
        (
            "NEMESIA_CELLS=64\nNEMESIA_CELS=64\n",
            2,
            ["there is no variable NEMESIA_CELS", "did you mean NEMESIA_CELLS?"],
        ),
        ("\n\nNEMESIA_SPIN = fast\n", 3, ["NEMESIA_SPIN=fast", "must be polls, at most 4294967295, or auto"]),
        ("NEMESIA_SPIN =\n", 1, ["NEMESIA_SPIN=:", "must be polls"]),
        ("# fine\nNEMESIA_SPIN 5\n", 2, ["NAME = value", "#"]),
        ("NEMESIA_CONFIG = other.conf\n", 1, ["no variable NEMESIA_CONFIG", ""]),
    ] {
        let file = Scratch::new(&format!("mistake-{line}-{}", text.len()), text);
        let error = message(&[("NEMESIA_CONFIG", file.name())]);
        assert!(error.starts_with(&format!("{}:{line}: ", file.name())), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let error = message(&[("NEMESIA_CONFIG", "/nonexistent/nemesia.conf")]);
    assert_eq!(error, "/nonexistent/nemesia.conf: there is no such file");
}

#[test]
fn an_empty_variable_is_as_one_that_is_not_set() {
    for Variable { name, .. } in VARIABLES {
        assert_eq!(from(&[(name, " ")]).unwrap(), Config::default(), "{name}");
    }
}

#[test]
fn a_file_that_no_one_has_named_and_that_cannot_be_read_is_a_warning() {
    let home = Scratch::directory("unreadable");
    let path = home.0.join("nemesia/nemesia.conf");
    // As root, a test can read every file, but no directory.
    std::fs::create_dir_all(&path).unwrap();
    let path = path.to_str().unwrap();
    let warnings = Config::from_vars([("XDG_CONFIG_HOME".into(), home.name().into())]).unwrap().warnings();
    let is_named = |it: &String| it.starts_with(path) && it.ends_with("it is ignored");
    assert!(warnings.iter().any(is_named), "{warnings:?}");
    let error = message(&[("NEMESIA_CONFIG", path)]);
    assert!(error.starts_with(path), "{error}");
}

#[test]
fn a_pipe_as_a_file_is_refused_and_not_waited_for() {
    let home = Scratch::directory("pipe");
    let path = home.0.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = message(&[("NEMESIA_CONFIG", path.to_str().unwrap())]);
    assert!(error.contains("it is a pipe"), "{error}");
}

#[test]
fn variables_that_do_not_exist_give_warnings_with_the_nearest() {
    let of = |name| from(&[(name, "1")]).unwrap().warnings();
    assert_eq!(
        of("NEMESIA_CELL_BYTE"),
        ["there is no variable NEMESIA_CELL_BYTE: did you mean NEMESIA_CELL_BYTES?"]
    );
    assert_eq!(of("NEMESIA_STRICKT"), ["there is no variable NEMESIA_STRICKT: did you mean NEMESIA_STRICT?"]);
    assert_eq!(
        of("NEMESIA_BANANA"),
        ["there is no variable NEMESIA_BANANA: `nemesia info` lists those there are"]
    );
    for used in ["NEMESIA_BIN", "NEMESIA_SKIP_LOG", "NEMESIA_TEST_SEED", "NEMESIA_STRICT", "NEMESIAX", "PATH"]
    {
        assert_eq!(of(used), [""; 0], "{used}");
    }
}

#[test]
fn a_preference_that_cannot_be_met_is_a_warning_or_in_strict_mode_an_error() {
    let greedy = Config::default().fastbox_limit(1 << 20);
    let warnings = greedy.warnings();
    assert!(
        warnings[0].contains("NEMESIA_FASTBOX_LIMIT=1048576") && warnings[0].contains("raise"),
        "{warnings:?}"
    );
    let warnings = Config::default().eager_bytes(1 << 20).warnings();
    assert!(
        warnings[0].contains("NEMESIA_EAGER_BYTES=1048576") && warnings[0].contains("raise"),
        "{warnings:?}"
    );
    assert!(Config::default().cell_bytes(256).warnings().is_empty());
    let mut kept = Vec::new();
    greedy.give_up("wish".into(), &mut kept).unwrap();
    assert_eq!(kept, ["wish"]);
    let error = greedy.strict(true).give_up("wish".into(), &mut kept).unwrap_err();
    assert_eq!(error.to_string(), "wish (an error because NEMESIA_STRICT is 1)");
}

#[test]
fn preferences_for_devices_take_what_devices_have_and_need_them() {
    for (name, value) in [
        ("NEMESIA_NET_PORT", "0"),
        ("NEMESIA_NET_GID_INDEX", "256"),
        ("NEMESIA_NET_PARTITION_KEY", "0"),
        ("NEMESIA_NET_PARTITION_KEY", "0x10000"),
        ("NEMESIA_NET_PATH_MTU", "1500"),
        ("NEMESIA_NET_PATH_MTU", "8192"),
        ("NEMESIA_NET_DEVICE", "a/b"),
    ] {
        assert!(message(&[(name, value)]).starts_with(&format!("{name}={value}: must be ")), "{name}");
    }
    let config = Config::default().net_path_mtu(Some(1500)).net_port(Some(0)).net_partition_key(Some(3));
    let shown =
        ["NEMESIA_NET_PATH_MTU", "NEMESIA_NET_PORT", "NEMESIA_NET_PARTITION_KEY"].map(|it| config.get(it));
    assert_eq!(shown, ["1024", "1", "0x0003"].map(|it| Ok(it.to_owned())));
    assert_eq!(config.warnings(), [""; 0]);
    let warnings = config.net(NetChoice::Tcp).warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("NEMESIA_NET_PORT=1, "), "{warnings:?}");
}

#[test]
fn the_silence_limit_takes_whole_seconds_that_the_kernel_can_keep() {
    for value in ["0", "1", "3601", "-5", "2.5", "10s", "never"] {
        let error = message(&[("NEMESIA_NET_SILENCE", value)]);
        assert_eq!(error, format!("NEMESIA_NET_SILENCE={value}: must be seconds, 2 to 3600"));
    }
    for (wanted, seconds) in [(0, 2), (1_001, 2), (2_001, 3), (10_000, 10), (u64::MAX, 3600)] {
        let config = Config::default().net_silence(Duration::from_millis(wanted));
        assert_eq!(config.get("NEMESIA_NET_SILENCE"), Ok(seconds.to_string()), "{wanted} ms");
        assert_eq!(config.origin("NEMESIA_NET_SILENCE"), Origin::Program);
    }
    let longest = Config::default().net_silence(Duration::MAX);
    assert_eq!(longest.get("NEMESIA_NET_SILENCE").as_deref(), Ok("3600"));
    assert_eq!(Config::default().get("NEMESIA_NET_SILENCE").as_deref(), Ok("10"));
}

#[test]
fn setting_by_name_refuses_what_the_environment_would() {
    let mut config = Config::default();
    config.set("NEMESIA_SPIN", "5").unwrap();
    assert_eq!(config, Config::default().spin(5));
    assert_eq!(config.origin("NEMESIA_SPIN"), Origin::Program);
    assert!(config.set("NEMESIA_SPIN", "x").unwrap_err().to_string().starts_with("NEMESIA_SPIN=x: must be"));
    assert!(config.set("NEMESIA_SPINS", "5").unwrap_err().to_string().contains("did you mean NEMESIA_SPIN?"));
    assert_eq!(config.get("NEMESIA_SPIN").as_deref(), Ok("5"));
    assert!(config.get("NEMESIA_SPINS").unwrap_err().to_string().starts_with("there is no variable"));
    config.set("NEMESIA_SPIN", "auto").unwrap();
    assert_eq!(config, Config::default());
}

#[test]
fn sizes_that_are_refused_later_can_be_asked_about_before() {
    let config = Config::default().fastbox_slots(0);
    let most = max_payload(4).to_string();
    assert_eq!((config.get("NEMESIA_FASTBOX_LIMIT"), config.warnings().len()), (Ok(most), 0));
}
