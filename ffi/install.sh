#!/usr/bin/env bash
# Builds the C interface and installs it under a prefix; see `ffi/install.sh --help`.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ffi/install.sh [--debug] [--built] PREFIX

Builds the C interface and the program `nemesia` with cargo, also in a fresh clone, and installs under PREFIX:

  bin/nemesia                    starts jobs (`nemesia run`), reports settings (`info`), measures (`perf`)
  include/nemesia.h
  include/nemesia_rdma_channel.h     the five functions of the RDMA Channel
  include/vipl.h, include/vipl_nemesia.h    the VI Provider Library
  lib/libnemesia.so -> libnemesia.so.0 -> libnemesia.so.VERSION
  lib/libnemesia.a
  lib/libvipl.so -> libvipl.so.1 -> libvipl.so.1.VERSION
  lib/vipl.so -> libvipl.so.1    the name that some old programs open at run time
  lib/libvipl.a                  the VI Provider Library: see ffi/vipl.md
  lib/libfabric/libnemesia-fi.so    a provider of libfabric: for FI_PROVIDER_PATH, see ffi/ofi/README.md
  lib/libnemesia_interpose.so    for LD_PRELOAD, only if the user requests it (glibc on x86-64 and AArch64)
  lib/pkgconfig/nemesia.pc       -lnemesia; with --static also the system libraries, for `cc -static`
  lib/pkgconfig/nemesia-static.pc    libnemesia.a, for a program that links all else dynamically
  lib/pkgconfig/vipl.pc          -lvipl
  lib/cmake/Nemesia/             find_package(Nemesia): Nemesia::Nemesia, Nemesia::shared, Nemesia::static

  --debug   the unoptimised build, with every assertion
  --built   do not build: install what cargo has built before
  --help    print this

Programs that are linked with the flags of nemesia.pc, or by CMake in its build directory, find the library under PREFIX
at run time (-rpath).

DESTDIR, if set, is prepended to PREFIX where the script writes files. This serves packagers; nemesia.pc then has
no -rpath. The script uses the variables CARGO and CARGO_TARGET_DIR.

To uninstall, remove these files:

  rm -f PREFIX/bin/nemesia PREFIX/include/nemesia.h PREFIX/include/nemesia_rdma_channel.h PREFIX/include/vipl*.h \
      PREFIX/lib/libnemesia.* PREFIX/lib/libnemesia_interpose.so PREFIX/lib/libfabric/libnemesia-fi.so \
      PREFIX/lib/libvipl.* PREFIX/lib/vipl.so PREFIX/lib/pkgconfig/vipl.pc \
      PREFIX/lib/pkgconfig/nemesia.pc PREFIX/lib/pkgconfig/nemesia-static.pc PREFIX/lib/cmake/Nemesia/*
TEXT
}

profile=release
must_build=yes
prefix=
for argument in "$@"; do
    case $argument in
        --debug) profile=dev ;;
        --built) must_build=no ;;
        --help | -h) usage && exit 0 ;;
        -*) printf 'ffi/install.sh: unknown argument `%s`; see ffi/install.sh --help\n' "$argument" >&2 && exit 2 ;;
        *) prefix=$argument ;;
    esac
done
if [[ $prefix != /* ]]; then
    echo "ffi/install.sh: PREFIX must be an absolute path; see ffi/install.sh --help" >&2
    exit 2
fi

cd "$(dirname "${BASH_SOURCE[0]}")"
cargo=${CARGO:-cargo}
if [[ $must_build == yes ]]; then
    "$cargo" build --package nemesia-ffi --package nemesia-interpose --package nemesia-ofi --package nemesia-vipl \
        --package nemesia-tool --profile "$profile"
fi
target=$("$cargo" metadata --no-deps --format-version 1 | sed -nE 's/.*"target_directory":"([^"]*)".*/\1/p')
built=$target/${profile/dev/debug}
version=$("$cargo" pkgid --package nemesia-ffi | sed -E 's/.*[#@]//')
soname=$(sed -nE 's/^const SONAME: &str = "(.*)";/\1/p' build.rs)

to=${DESTDIR:-}$prefix
install -d "$to/bin" "$to/include" "$to/lib/pkgconfig" "$to/lib/cmake/Nemesia" "$to/lib/libfabric"
install -m 755 "$built/nemesia" "$to/bin/nemesia"
install -m 644 include/nemesia.h "$to/include/nemesia.h"
install -m 644 include/nemesia_rdma_channel.h "$to/include/nemesia_rdma_channel.h"
install -m 644 include/vipl.h include/vipl_nemesia.h "$to/include/"
install -m 644 "$built/libnemesia_ffi.a" "$to/lib/libnemesia.a"
install -m 755 "$built/libnemesia_ffi.so" "$to/lib/libnemesia.so.$version"
ln -sf "libnemesia.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/libnemesia.so"
# This file name has no version: a copy of Nemesia finds the library by a symbol whose name has the version.
if [[ -f $built/libnemesia_interpose.so ]]; then
    install -m 755 "$built/libnemesia_interpose.so" "$to/lib/libnemesia_interpose.so"
fi
# libfabric opens the files whose names end so.
install -m 755 "$built/libnemesia_fi.so" "$to/lib/libfabric/libnemesia-fi.so"
vipl_soname=$(sed -nE 's/^const SONAME: &str = "(.*)";/\1/p' vipl/build.rs)
install -m 644 "$built/libvipl.a" "$to/lib/libvipl.a"
install -m 755 "$built/libvipl.so" "$to/lib/$vipl_soname.$version"
ln -sf "$vipl_soname.$version" "$to/lib/$vipl_soname"
ln -sf "$vipl_soname" "$to/lib/libvipl.so"
ln -sf "$vipl_soname" "$to/lib/vipl.so"
# A package installs into a directory that the loader searches by default, so it needs no -rpath.
rpath=
[[ -n ${DESTDIR:-} ]] || rpath=' -Wl,-rpath,${libdir}'
# From `rustc --print native-static-libs`, without -lgcc_s and -lc: the compiler adds them, and in `cc -static` it
# replaces the former, of which there is no archive.
system='-lutil -lrt -lpthread -lm -ldl'
# Writes a file of pkg-config: its name, its libraries, and those for --static.
pkg_config() {
    cat >"$to/lib/pkgconfig/$1.pc" <<TEXT
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: $1
Description: Transport engine for message-passing runtimes
Version: $version
Cflags: -I\${includedir}
Libs: $2
Libs.private: $3
TEXT
}
pkg_config nemesia "-L\${libdir} -lnemesia$rpath" "$system"
pkg_config vipl "-L\${libdir} -lvipl$rpath" "$system"
pkg_config nemesia-static "\${libdir}/libnemesia.a $system" ''
for file in NemesiaConfig NemesiaConfigVersion; do
    sed -e "s/@VERSION@/$version/g; s/@SONAME@/$soname/g; s/@SYSTEM_LIBRARIES@/${system// /;}/g" \
        "cmake/$file.cmake" >"$to/lib/cmake/Nemesia/$file.cmake"
done
printf 'installed nemesia %s under %s\n' "$version" "$to"
