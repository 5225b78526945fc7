//! Inside the core, transports stand apart: the engine imports none of them, and none imports the engine or another.

use crate::modules::roots;
use crate::source::{File, Finding};

/// Directories of modules, each with those of which it may use nothing.
const APART: [(&str, &[&str]); 6] = [
    ("core/src/engine", &["core/src/shared", CHANNEL, PLACEMENT, "core/src/rdma_channel", "core/src/via"]),
    ("core/src/port", &["core/src/engine", "core/src/shared", "core/src/rdma_channel", "core/src/via"]),
    ("core/src/shared", &["core/src/engine", CHANNEL, PLACEMENT, "core/src/rdma_channel", "core/src/via"]),
    (CHANNEL, &[PLACEMENT]),
    ("core/src/rdma_channel", &["core/src/engine", CHANNEL, PLACEMENT, "core/src/via"]),
    ("core/src/via", &["core/src/engine", CHANNEL, PLACEMENT, "core/src/rdma_channel"]),
];
const CHANNEL: &str = "core/src/port/channel";
const PLACEMENT: &str = "core/src/port/placement";

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let lies_in = |directory: &str, parent: &str| {
        directory.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut findings = Vec::new();
    for modules in roots(files) {
        let directory = |module: usize| modules.0[module].directory.as_str();
        for (from, to, file, line) in modules.uses() {
            for (room, others) in APART.iter().filter(|(room, _)| lies_in(directory(from), room)) {
                let others = others.iter().filter(|other| lies_in(directory(to), other));
                findings.extend(
                    others.map(|other| Finding::new(file, line, format!("{room} may not use {other}"))),
                );
            }
        }
    }
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(engine: &str) -> Vec<String> {
        let files = [
            File::new("core/src/lib.rs", "mod engine;\nmod port;\nmod shared;\n"),
            File::new("core/src/engine.rs", engine),
            File::new("core/src/port.rs", "pub mod channel { pub struct Channel; }\npub struct Arrival;\n"),
            File::new("core/src/shared.rs", "pub struct Ring;\n"),
        ];
        check(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_engine_that_uses_a_transport_is_reported() {
        for (engine, other) in [
            ("use crate::shared::Ring;\n", "core/src/shared"),
            ("fn f() -> crate::shared::Ring { loop {} }\n", "core/src/shared"),
            ("use crate::port;\nfn f() -> port::channel::Channel { loop {} }\n", CHANNEL),
        ] {
            let found = texts(engine);
            let what = format!("core/src/engine may not use {other}");
            assert!(found.iter().any(|text| text.contains(&what)), "{engine}: {found:?}");
        }
    }

    #[test]
    fn an_engine_that_uses_the_port_passes() {
        assert_eq!(texts("use crate::port::Arrival;\n"), [""; 0]);
    }

    #[test]
    fn tests_may_use_every_room() {
        assert_eq!(texts("#[cfg(test)]\nmod tests { use crate::shared::Ring; }\n"), [""; 0]);
    }
}
