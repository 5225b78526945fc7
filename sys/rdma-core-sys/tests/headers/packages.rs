//! Packages of Debian that are downloaded and unpacked without being installed, and libclang among them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where packages for AMD64 put their libraries.
pub(crate) const LIBRARIES_OF_AMD64: &str = "usr/lib/x86_64-linux-gnu";

/// Lets bindgen find libclang: by `LIBCLANG_PATH`, in the system, or downloaded.
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
        let number = library.trim_start_matches("libclang1-");
        download(
            &[&library, &format!("libllvm{number}"), &format!("libclang-common-{number}-dev")],
            root,
            scratch,
        )?;
        found = below(root);
    }
    let found = found.ok_or("libclang is not installed and could not be downloaded")?;
    preload(root);
    let versions = std::fs::read_dir(found.join("clang")).map_err(|error| error.to_string())?;
    let resources =
        versions.flatten().map(|entry| entry.path()).find(|path| path.join("include/stddef.h").exists());
    let resources = resources.ok_or("libclang lacks its own headers; install libclang-common-dev")?;
    // SAFETY: no other thread runs yet.
    unsafe {
        std::env::set_var("LIBCLANG_PATH", found);
        std::env::set_var("BINDGEN_EXTRA_CLANG_ARGS", format!("-resource-dir {}", resources.display()));
    }
    Ok(())
}

/// Opens a downloaded libLLVM, so that it is already loaded for libclang, which depends on it.
fn preload(root: &Path) {
    for entry in std::fs::read_dir(root.join(LIBRARIES_OF_AMD64)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libLLVM") {
            let path = std::ffi::CString::new(entry.path().into_os_string().into_encoded_bytes());
            let Ok(path) = path else { continue };
            // SAFETY: the path is a C string, and libLLVM may be loaded at any time. If loading fails, libclang
            // reports it.
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        }
    }
}

/// Returns the package on which `package` depends and whose name begins with `prefix`.
fn dependency(package: &str, prefix: &str) -> Result<String, String> {
    let text = output(Command::new("apt-cache").args(["depends", package]))?;
    let mut names = text.split_whitespace().filter(|word| word.starts_with(prefix));
    names.next().map(Into::into).ok_or_else(|| format!("apt knows no {prefix}*; try apt-get update"))
}

/// Downloads packages and unpacks them below `root`. Nothing is installed.
pub(crate) fn download(packages: &[&str], root: &Path, scratch: &Path) -> Result<(), String> {
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
