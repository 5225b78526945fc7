//! No text file names a path of one machine or the host of a registry.

use crate::source::Finding;

/// Directories of one machine, written in two parts so that this file passes its own rule.
const DIRECTORIES: [&str; 4] =
    [concat!("/wor", "k/"), concat!("/roo", "t/"), concat!("/hom", "e/"), concat!("/User", "s/")];
/// Hosts of registries and package archives.
const HOSTS: [&str; 8] = [
    concat!("crates.io", "-index"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("archive.", "ubuntu.com"),
    concat!("pypi.", "org"),
    concat!("registry.", "npmjs.org"),
];
/// The line that cargo writes into every lock file.
const LOCKED: &str = concat!("source = \"registry+https://github.com/rust-lang/crates.io", "-index\"");

/// Reports every line that names one of them.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    // Most files name none: one search through the whole text is much faster than one through each line.
    if !DIRECTORIES.iter().chain(&HOSTS).any(|name| text.contains(name)) {
        return Vec::new();
    }
    let locked = path == "Cargo.lock" || path.ends_with("/Cargo.lock");
    let lines = text.lines().enumerate().filter(|(_, line)| !(locked && *line == LOCKED));
    lines
        .filter_map(|(at, line)| {
            named(line).map(|name| Finding::new(path, at + 1, format!("names `{name}`")))
        })
        .collect()
}

fn named(line: &str) -> Option<&'static str> {
    let directory =
        DIRECTORIES.into_iter().find(|name| line.match_indices(name).any(|(at, _)| is_absolute(line, at)));
    directory.or_else(|| HOSTS.into_iter().find(|name| line.contains(name)))
}

/// Returns whether the path that continues at `at` also begins there, and not inside a relative path.
fn is_absolute(line: &str, at: usize) -> bool {
    let before = line[..at].chars().next_back();
    !before.is_some_and(|c| c.is_alphanumeric() || "_-.~*}/".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_a_machine_are_reported_with_their_line() {
        for name in DIRECTORIES {
            let text = format!("fine\nsee `{name}file`\n");
            assert_eq!(check("a.md", &text), [Finding::new("a.md", 2, format!("names `{name}`"))]);
        }
    }

    #[test]
    fn registry_hosts_are_reported() {
        for name in HOSTS {
            assert_eq!(check(".ci/run", &format!("get https://{name}/x\n")).len(), 1, "{name}");
        }
    }

    #[test]
    fn a_relative_path_that_only_looks_alike_passes() {
        for name in DIRECTORIES {
            assert_eq!(check("a.rs", &format!("mod at src{name}queue.rs and ..{name}b\n")), [], "{name}");
        }
    }

    #[test]
    fn the_source_lines_of_a_lock_file_pass_and_only_there() {
        assert_eq!(check("Cargo.lock", &format!("{LOCKED}\n")), []);
        assert_eq!(check("verification/bare/Cargo.lock", &format!("{LOCKED}\n")), []);
        assert_eq!(check("Cargo.toml", &format!("{LOCKED}\n")).len(), 1);
        assert_eq!(check("Cargo.lock", &LOCKED.replace("https", "sparse+https")).len(), 1);
    }
}
