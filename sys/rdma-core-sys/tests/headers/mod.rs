//! The headers and libraries of rdma-core: installed, or downloaded and unpacked without being installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages with the headers, and with the libraries whose symbols have versions.
const PACKAGES: [&str; 4] = ["libibverbs-dev", "librdmacm-dev", "libibverbs1", "librdmacm1"];
/// The directories below a root that may hold libraries.
const LIBRARIES: [&str; 4] =
    ["usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

/// A tree that contains the headers, like `/`.
pub(crate) struct Roots {
    root: PathBuf,
    scratch: PathBuf,
}

#[allow(dead_code, reason = "each program that includes this module uses a part of it")]
impl Roots {
    /// Finds the system itself, or packages downloaded to `scratch`; with `libclang`, that as well.
    pub(crate) fn find(scratch: &Path, libclang: bool) -> Result<Self, String> {
        std::fs::create_dir_all(scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
        let system = Self { root: "/".into(), scratch: scratch.into() };
        let here = Self { root: scratch.join("root"), scratch: scratch.into() };
        let is_complete = |roots: &Self| {
            ["infiniband/verbs.h", "rdma/rdma_verbs.h", "rdma/rsocket.h"]
                .iter()
                .all(|header| roots.root.join("usr/include").join(header).is_file())
        };
        if libclang {
            find_libclang(&here.root, scratch)?;
        }
        if is_complete(&system) {
            return Ok(system);
        }
        if !is_complete(&here) {
            download(&PACKAGES, &here.root, scratch)?;
        }
        if is_complete(&here) { Ok(here) } else { Err("the packages lack headers".into()) }
    }

    /// Returns the include arguments for a C compiler.
    pub(crate) fn include_arguments(&self) -> Vec<String> {
        if self.root == Path::new("/") {
            return Vec::new();
        }
        vec!["-I".into(), self.root.join("usr/include").display().to_string()]
    }

    /// Returns the path of a header.
    pub(crate) fn header(&self, name: &str) -> PathBuf {
        self.root.join("usr/include").join(name)
    }

    /// Returns the directory for intermediate files.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.scratch.clone()
    }

    /// Returns the path of a library.
    pub(crate) fn library(&self, file: &str) -> Result<PathBuf, String> {
        let mut places = LIBRARIES.iter().map(|place| self.root.join(place).join(file));
        places
            .find(|path| path.exists())
            .ok_or_else(|| format!("{file} is nowhere below {}", self.root.display()))
    }

    /// Returns the version of rdma-core from libibverbs's pkg-config file: `44.0` of `1.14.44.0`.
    pub(crate) fn version(&self) -> Result<String, String> {
        let file = self.library("pkgconfig/libibverbs.pc")?;
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        let version = version.and_then(|version| version.splitn(3, '.').nth(2));
        version.map(Into::into).ok_or_else(|| format!("{} names no version", file.display()))
    }
}

/// Returns the version from which the committed bindings are made.
#[allow(dead_code, reason = "each program that includes this module uses a part of it")]
pub(crate) fn committed_version() -> &'static str {
    rdma_core_sys::RDMA_CORE_VERSION
}

/// Lets bindgen find libclang: by `LIBCLANG_PATH`, in the system, or downloaded.
fn find_libclang(root: &Path, scratch: &Path) -> Result<(), String> {
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
    for entry in std::fs::read_dir(root.join(LIBRARIES[2])).into_iter().flatten().flatten() {
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
fn download(packages: &[&str], root: &Path, scratch: &Path) -> Result<(), String> {
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
