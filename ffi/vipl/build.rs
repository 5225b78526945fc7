//! Sets the name of the shared library at run time: `libvipl.so.1`, independent of cargo's file name.

/// The name, which changes with every incompatible change of `include/vipl.h`; `install.sh` reads it from here.
const SONAME: &str = "libvipl.so.1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}
