#!/usr/bin/env bash
# Builds the C interface and installs it under a prefix; see `ffi/install.sh --help`.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ffi/install.sh [--debug] PREFIX

Builds nemesia-ffi and nemesia-interpose with cargo and installs under PREFIX:

  include/nemesia.h
  lib/libnemesia.so -> libnemesia.so.0 -> libnemesia.so.VERSION
  lib/libnemesia.a
  lib/libnemesia_interpose.so    to be preloaded, by programs that ask for it only (glibc on x86-64 and AArch64)
  lib/pkgconfig/nemesia.pc

  --debug   the unoptimised build, with every assertion
  --help    print this

DESTDIR, if set, is put before PREFIX where files are written, for those who make packages. CARGO and CARGO_TARGET_DIR
are honoured.
TEXT
}

profile=release
prefix=
for argument in "$@"; do
    case $argument in
        --debug) profile=dev ;;
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
"$cargo" build --package nemesia-ffi --package nemesia-interpose --profile "$profile"
target=$("$cargo" metadata --no-deps --format-version 1 | sed -nE 's/.*"target_directory":"([^"]*)".*/\1/p')
built=$target/${profile/dev/debug}
version=$("$cargo" pkgid --package nemesia-ffi | sed -E 's/.*[#@]//')
soname=$(sed -nE 's/^const SONAME: &str = "(.*)";/\1/p' build.rs)

to=${DESTDIR:-}$prefix
install -d "$to/include" "$to/lib/pkgconfig"
install -m 644 include/nemesia.h "$to/include/nemesia.h"
install -m 644 "$built/libnemesia_ffi.a" "$to/lib/libnemesia.a"
install -m 755 "$built/libnemesia_ffi.so" "$to/lib/libnemesia.so.$version"
ln -sf "libnemesia.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/libnemesia.so"
# It has no other version: a copy of Nemesia finds it by the name of a symbol that has the version.
if [[ -f $built/libnemesia_interpose.so ]]; then
    install -m 755 "$built/libnemesia_interpose.so" "$to/lib/libnemesia_interpose.so"
fi
# Libs.private is what `rustc --print native-static-libs` says.
cat >"$to/lib/pkgconfig/nemesia.pc" <<TEXT
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: nemesia
Description: Transport engine for message-passing runtimes
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lnemesia
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
TEXT
printf 'installed nemesia %s under %s\n' "$version" "$to"
