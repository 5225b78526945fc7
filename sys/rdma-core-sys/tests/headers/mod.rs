//! The headers and libraries of rdma-core: installed, or downloaded and unpacked without being installed.

mod packages;

use std::path::{Path, PathBuf};

use packages::{download, find_libclang};

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
