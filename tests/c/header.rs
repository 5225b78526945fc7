//! The committed headers equal the output of cbindgen for the sources.

use crate::toolchain::{lines, source};

/// A header, and the modules with its functions in their order.
struct GeneratedHeader {
    header: &'static str,
    settings: &'static str,
    modules: &'static [&'static str],
}

const HEADERS: [GeneratedHeader; 2] = [
    GeneratedHeader {
        header: "ffi/include/nemesia.h",
        settings: "ffi/cbindgen.toml",
        modules: &[
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
        ],
    },
    GeneratedHeader {
        header: "ffi/include/nemesia_rdma_channel.h",
        settings: "ffi/cbindgen-rdma-channel.toml",
        modules: &["rdma_channel"],
    },
];

impl GeneratedHeader {
    fn generated(&self) -> Result<String, String> {
        let config = cbindgen::Config::from_file(source(self.settings))?;
        let mut builder = cbindgen::Builder::new().with_config(config);
        for module in self.modules {
            builder = builder.with_src(source(&format!("ffi/src/{module}.rs")));
        }
        let mut text = Vec::new();
        builder.generate().map_err(|error| error.to_string())?.write(&mut text);
        String::from_utf8(text).map_err(|error| error.to_string())
    }

    fn committed(&self) -> Result<String, String> {
        std::fs::read_to_string(source(self.header)).map_err(|error| format!("{}: {error}", self.header))
    }

    fn check(&self) -> Result<(), String> {
        let (header, generated) = (self.header, self.generated()?);
        if std::env::var_os("NEMESIA_BLESS").is_some() {
            std::fs::write(source(header), &generated).map_err(|error| error.to_string())?;
        }
        let committed = self.committed()?;
        let differs = generated.lines().zip(committed.lines()).position(|(new, old)| new != old);
        let line = differs.unwrap_or_else(|| generated.lines().count().min(committed.lines().count())) + 1;
        let cure = "NEMESIA_BLESS=1 cargo test -p nemesia-tests --test c header";
        assert!(generated == committed, "{header}:{line}: differs from the sources; run {cure}");
        Ok(())
    }
}

/// Returns the functions that the headers declare, sorted.
pub(crate) fn functions() -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for header in &HEADERS {
        names.extend(functions_of(header.header)?);
    }
    names.sort();
    Ok(names)
}

/// Returns the functions that a header declares.
pub(crate) fn functions_of(header: &str) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(source(header)).map_err(|error| format!("{header}: {error}"))?;
    Ok(lines(&text, declared))
}

/// Returns the function whose declaration begins in a line.
fn declared(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(').filter(|_| line.starts_with(char::is_alphabetic))?;
    before.rsplit([' ', '*']).next().filter(|name| name.starts_with("nemesia_"))
}

#[test]
fn header_equals_the_output_of_cbindgen() -> Result<(), String> {
    HEADERS.iter().try_for_each(GeneratedHeader::check)
}

#[test]
fn header_covers_every_module_with_functions() -> Result<(), String> {
    let directory = std::fs::read_dir(source("ffi/src")).map_err(|error| error.to_string())?;
    for path in directory.flatten().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let exports = text.contains("#[unsafe(no_mangle)]");
        let is_there = HEADERS.iter().any(|header| header.modules.contains(&module.as_str()));
        assert!(!exports || is_there, "the module {module} is missing in HEADERS");
    }
    Ok(())
}
