//! The names that are allowed at the top of the repository.

use crate::source::Finding;

const DIRECTORIES: [&str; 5] = ["core", "sys", "ffi", "verification", "tests"];
const FILES: [&str; 9] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    // Configuration of tools that expect it here.
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// Checks that every name at the top is a known directory, a known file, or begins with a dot; one finding for
/// each name.
pub(crate) fn check(names: &[String]) -> Vec<Finding> {
    let mut tops: Vec<&str> = names.iter().filter(|name| !may_stand(name)).map(|name| top(name)).collect();
    tops.dedup();
    tops.into_iter().map(|name| Finding::new(name, 1, "may not stand at the top level")).collect()
}

fn may_stand(name: &str) -> bool {
    name.starts_with('.')
        || if name.contains('/') { DIRECTORIES.contains(&top(name)) } else { FILES.contains(&name) }
}

fn top(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        check(&names).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_unknown_name_is_reported_once() {
        let expected =
            ["docs:1: may not stand at the top level", "notes.txt:1: may not stand at the top level"];
        assert_eq!(refused(&["Cargo.toml", "docs/a.md", "docs/b.md", "notes.txt"]), expected);
    }

    #[test]
    fn a_file_may_not_have_the_name_of_a_directory() {
        assert_eq!(refused(&["core"]).len(), 1);
        assert_eq!(refused(&["README.md/a"]).len(), 1);
    }

    #[test]
    fn known_names_and_dotfiles_pass() {
        assert_eq!(refused(&["Cargo.toml", "core/src/lib.rs", ".ci/run", ".gitignore", "LICENSE"]), [""; 0]);
    }
}
