//! Sets the name of the shared library at run time: `libnemesia.so.0`, independent of cargo's file name.

/// The name, which changes with every incompatible change of `include/nemesia.h`; `install.sh` reads it from here.
const SONAME: &str = "libnemesia.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}
