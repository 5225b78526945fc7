//! Dependencies run one way: `core` <- `sys` <- `ffi`. Only `tests` depends on `verification`, and nothing on `tests`.

use std::process::Command;

use serde_json::Value;

use crate::source::{Finding, root};

/// Each layer with the layers on which it may depend. A layer is the directory of a package.
const MAY: [(&str, &[&str]); 6] = [
    ("core", &[]),
    ("sys/rdma-core-sys", &[]),
    ("sys", &["core", "sys/rdma-core-sys"]),
    ("ffi", &["core", "sys", "ffi"]),
    ("verification", &["core", "sys"]),
    ("tests", &["core", "sys", "sys/rdma-core-sys", "ffi", "verification", "tests"]),
];

/// Returns cargo's description of the workspace.
pub(crate) fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|e| e.to_string());
    let value = output.and_then(|output| {
        serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
    });
    value.unwrap_or_else(Value::String)
}

/// Checks that every dependency of one member on another, of whatever kind, is listed in [`MAY`].
pub(crate) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    if packages.is_empty() {
        return vec![Finding::new("Cargo.toml", 1, format!("`cargo metadata` names no package: {metadata}"))];
    }
    let mut findings = Vec::new();
    for package in packages {
        let manifest = relative(root, package["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.trim_end_matches("Cargo.toml").trim_end_matches('/');
        let Some((layer, may)) = layer(directory) else {
            findings.push(Finding::new(manifest, 1, "lies in no known layer"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(path) = dependency["path"].as_str() else { continue };
            let on = self::layer(relative(root, path));
            if !on.is_some_and(|(on, _)| may.contains(&on)) {
                let name = dependency["name"].as_str().unwrap_or_default();
                findings.push(Finding::new(manifest, 1, format!("`{layer}` may not depend on `{name}`")));
            }
        }
    }
    findings
}

/// Returns the most specific layer that contains a directory.
fn layer(directory: &str) -> Option<(&'static str, &'static [&'static str])> {
    let lies_in = |name: &str| {
        directory.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    MAY.into_iter().find(|(name, _)| lies_in(name))
}

fn relative<'a>(root: &str, path: &'a str) -> &'a str {
    path.strip_prefix(root).unwrap_or(path).trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns a workspace at `/r` in which the package in `from` depends on the package in `on`.
    fn workspace(from: &str, on: &str, kind: &Value) -> Value {
        json!({ "workspace_root": "/r", "packages": [{
            "manifest_path": format!("/r/{from}/Cargo.toml"),
            "dependencies": [
                { "name": "libc", "path": null, "kind": null },
                { "name": "it", "path": format!("/r/{on}"), "kind": kind },
            ],
        }]})
    }

    fn is_refused(from: &str, on: &str) -> bool {
        !check(&workspace(from, on, &Value::Null)).is_empty()
    }

    #[test]
    fn a_dependency_against_the_direction_is_reported() {
        for (from, on) in [
            ("core", "sys"),
            ("sys", "ffi"),
            ("sys/rdma-core-sys", "core"),
            ("ffi", "verification"),
            ("verification", "ffi"),
            ("sys", "tests"),
            ("verification", "tests"),
        ] {
            assert!(is_refused(from, on), "{from} on {on}");
        }
        let expected = Finding::new("core/Cargo.toml", 1, "`core` may not depend on `it`");
        assert_eq!(check(&workspace("core", "sys", &Value::Null)), [expected]);
    }

    #[test]
    fn a_development_dependency_is_a_dependency() {
        assert_eq!(check(&workspace("core", "tests", &json!("dev"))).len(), 1);
    }

    #[test]
    fn dependencies_along_the_direction_pass() {
        for (from, on) in [
            ("sys", "core"),
            ("sys", "sys/rdma-core-sys"),
            ("ffi", "sys"),
            ("ffi/ofi", "ffi"),
            ("verification", "core"),
            ("tests/tool", "ffi"),
            ("tests/tool", "verification"),
        ] {
            assert!(!is_refused(from, on), "{from} on {on}");
        }
    }

    #[test]
    fn an_unknown_directory_and_a_silent_cargo_are_reported() {
        assert!(is_refused("extras", "core"));
        assert_eq!(check(&Value::String("no cargo".into())).len(), 1);
    }
}
