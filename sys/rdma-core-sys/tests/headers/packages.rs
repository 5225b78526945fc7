//! Packages of Debian that are downloaded and unpacked without being installed, and libclang among them.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lets bindgen find libclang: by `LIBCLANG_PATH`, in the system, or downloaded. Without that variable this function
/// executes the program again and does not return: the dynamic linker reads its own variable only then, and so finds
/// what the downloaded libraries need.
pub(crate) fn find_libclang(root: &Path, scratch: &Path) -> Result<(), String> {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return Ok(());
    }
    let below = |root: &Path| {
        let versions = std::fs::read_dir(root.join("usr/lib")).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = versions
            .map(|entry| entry.path().join("lib"))
            .filter(|path| path.join("libclang.so.1").exists() && path.join("clang").is_dir())
            .collect();
        found.sort();
        found.pop()
    };
    let mut found = below(Path::new("/")).or_else(|| below(root));
    if found.is_none() {
        let library = dependency("libclang1", "libclang1-")?;
        let headers = format!("libclang-common-{}-dev", library.trim_start_matches("libclang1-"));
        download(&missing(&[&library, &headers])?, root, scratch)?;
        found = below(root);
    }
    let found = found.ok_or("libclang is not installed and could not be downloaded")?;
    let versions = std::fs::read_dir(found.join("clang")).map_err(|error| error.to_string())?;
    let resources =
        versions.flatten().map(|entry| entry.path()).find(|path| path.join("include/stddef.h").exists());
    let resources = resources.ok_or("libclang lacks its own headers; install libclang-common-dev")?;
    let here =
        ["usr/lib", "lib"].map(|place| root.join(format!("{place}/{}-linux-gnu", std::env::consts::ARCH)));
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let libraries = std::env::join_paths(here.into_iter().chain(std::env::split_paths(&given)));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let error = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .env("LIBCLANG_PATH", found)
        .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-resource-dir {}", resources.display()))
        .env("LD_LIBRARY_PATH", libraries.map_err(|error| error.to_string())?)
        .exec();
    Err(format!("{}: {error}", program.display()))
}

/// Returns those of the packages, and of the packages on which they depend, that are not installed.
fn missing(packages: &[&str]) -> Result<Vec<String>, String> {
    let install = ["--simulate", "--no-install-recommends", "install"];
    let text = output(Command::new("apt-get").args(install).args(packages))?;
    // A line is `Inst NAME (VERSION ...)`, or `Inst NAME [VERSION] (...)` if an older version is installed.
    let lines = text.lines().filter_map(|line| line.strip_prefix("Inst ")?.split_once(' '));
    Ok(lines.filter(|(_, version)| version.starts_with('(')).map(|(name, _)| name.into()).collect())
}

/// Returns the package on which `package` depends and whose name begins with `prefix`.
fn dependency(package: &str, prefix: &str) -> Result<String, String> {
    let text = output(Command::new("apt-cache").args(["depends", package]))?;
    let mut names = text.split_whitespace().filter(|word| word.starts_with(prefix));
    names.next().map(Into::into).ok_or_else(|| format!("apt knows no {prefix}*; try apt-get update"))
}

/// Downloads packages and unpacks them below `root`. Nothing is installed.
pub(crate) fn download(packages: &[impl AsRef<OsStr>], root: &Path, scratch: &Path) -> Result<(), String> {
    let archives = scratch.join("archives");
    std::fs::create_dir_all(&archives).map_err(|error| error.to_string())?;
    output(Command::new("apt-get").arg("download").args(packages).current_dir(&archives))?;
    for entry in std::fs::read_dir(&archives).map_err(|error| error.to_string())?.flatten() {
        output(Command::new("dpkg").arg("-x").arg(entry.path()).arg(root))?;
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}
