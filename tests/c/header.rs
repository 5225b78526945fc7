//! The committed header equals the output of cbindgen for the sources.

use crate::toolchain::{lines, source};

/// The modules with functions, in the order of the header.
const MODULES: &[&str] = &[
    "status",
    "config",
    "exchange",
    "endpoint",
    "peers",
    "event",
    "transfer",
    "many",
    "inject",
    "room",
    "list",
    "probe",
    "active",
    "region",
    "rma",
    "put_get",
    "fetch",
    "operation",
    "multi",
    "start",
    "completion",
    "agree",
    "among",
    "group",
    "observe",
    "restart",
    "memory",
];
const HEADER: &str = "ffi/include/nemesia.h";

fn generated() -> Result<String, String> {
    let config = cbindgen::Config::from_file(source("ffi/cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in MODULES {
        builder = builder.with_src(source(&format!("ffi/src/{module}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().map_err(|error| error.to_string())?.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

fn committed() -> Result<String, String> {
    std::fs::read_to_string(source(HEADER)).map_err(|error| format!("{HEADER}: {error}"))
}

/// Returns the functions that the header declares, sorted.
pub(crate) fn functions() -> Result<Vec<String>, String> {
    let mut names = lines(&committed()?, declared);
    names.sort();
    Ok(names)
}

/// Returns the function whose declaration begins in a line.
fn declared(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(').filter(|_| line.starts_with(char::is_alphabetic))?;
    before.rsplit([' ', '*']).next().filter(|name| name.starts_with("nemesia_"))
}

#[test]
fn header_equals_the_output_of_cbindgen() -> Result<(), String> {
    let generated = generated()?;
    if std::env::var_os("NEMESIA_BLESS").is_some() {
        std::fs::write(source(HEADER), &generated).map_err(|error| error.to_string())?;
    }
    let committed = committed()?;
    let differs = generated.lines().zip(committed.lines()).position(|(new, old)| new != old);
    let line = differs.unwrap_or_else(|| generated.lines().count().min(committed.lines().count())) + 1;
    let cure = "NEMESIA_BLESS=1 cargo test -p nemesia-tests --test c header";
    assert!(generated == committed, "{HEADER}:{line}: differs from the sources; run {cure}");
    Ok(())
}

#[test]
fn header_covers_every_module_with_functions() -> Result<(), String> {
    let directory = std::fs::read_dir(source("ffi/src")).map_err(|error| error.to_string())?;
    for path in directory.flatten().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let exports = text.contains("#[unsafe(no_mangle)]");
        assert!(!exports || MODULES.contains(&module.as_str()), "the module {module} is missing in MODULES");
    }
    Ok(())
}
