//! Gives the shared library its name at run time: `libnemesia.so.0`, whatever cargo calls the file.

/// Changes with every incompatible change of `include/nemesia.h`; `install.sh` reads it from here.
const SONAME: &str = "libnemesia.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}
