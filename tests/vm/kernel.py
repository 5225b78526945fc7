"""The files that QEMU boots: the kernel from its package, and an initial file system with modules and `guest/init`."""

import gzip
import lzma
import pathlib
import re
import shutil
import struct
import subprocess

import packages

# Modules in the order of loading; their dependencies are loaded before them. The first list has the modules for a root
# file system and for the console, the second those for network and RDMA. The kernel requests the checksums by name, so
# they are not listed as dependencies.
TO_START = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
FOR_RDMA = ("virtio_net", "dummy", "veth", "sch_netem", "ib_uverbs", "rdma_ucm", "ib_umad", "crc32_generic",
            "crc32_pclmul", "crc32c_generic", "crc32c_intel", "libcrc32c", "rdma_rxe", "iw_cm")
SIGNATURE = b"~Module signature appended~\n"
PAYLOAD = 0x248  # in the header of a bzImage: offset and length of the compressed kernel


def extract(image):
    """Returns the ELF file of a bzImage. To boot it directly saves seconds of decompression when emulated."""
    start = image.read_bytes()
    setup = (start[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", start, PAYLOAD)
    payload = start[setup * 512 + offset:][:length]
    if payload.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        kernel = gzip.decompress(payload[:-4])
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        kernel = subprocess.run(["zstd", "-dc"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    else:
        raise packages.Unavailable(f"{image.name} is compressed in a way unknown here ({payload[:6].hex()})")
    if not kernel.startswith(b"\x7fELF"):
        raise packages.Unavailable(f"there is no ELF file in {image.name}")
    return kernel


class Modules:
    """The modules of a kernel package, found by name."""

    def __init__(self, root, release):
        tree = root / "usr/lib/modules" / release
        self.paths = {name_of(path): path for path in tree.rglob("*.ko*")}
        builtin = tree / "modules.builtin"
        self.builtin = {name_of(pathlib.Path(line)) for line in builtin.read_text().splitlines()}

    def read(self, name):
        """Returns the module without its signature. The check of signatures takes long in an emulated processor."""
        path = self.paths[name]
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if content.endswith(SIGNATURE):
            end = len(content) - len(SIGNATURE)
            length = int.from_bytes(content[end - 4:end], "big")
            content = content[:end - 12 - length]
        return content

    def load_order(self, names, extra=()):
        """Returns pairs of name and content, dependencies first. `extra` are paths of modules of our own."""
        own = {path.stem: path.read_bytes() for path in extra}
        order = {}

        def visit(name):
            if name in order or name in self.builtin:
                return
            if name not in own and name not in self.paths:
                raise packages.Unavailable(f"this kernel has no module {name}")
            content = own[name] if name in own else self.read(name)
            order[name] = None  # replaced below; a cycle of dependencies ends here
            for needed in dependencies(content):
                visit(needed)
            del order[name]
            order[name] = content

        for name in (*names, *own):
            visit(name)
        return list(order.items())


def name_of(path):
    return path.name.split(".", maxsplit=1)[0].replace("-", "_")


def dependencies(content):
    found = re.search(rb"\0depends=([^\0]*)\0", content)
    return [name.decode().replace("-", "_") for name in found[1].split(b",") if name] if found else []


def initial_file_system(target, busybox, init, modules, extra):
    """Writes the archive that the kernel unpacks: busybox, modules, two lists of modules, and the first program."""
    scratch = target.with_suffix(".tree")
    for name in ("bin", "dev", "proc", "sys", "mnt", "modules", "new"):
        (scratch / name).mkdir(parents=True)
    shutil.copy(busybox, scratch / "bin/busybox")
    shutil.copy(init, scratch / "init")
    (scratch / "init").chmod(0o755)
    done = set()
    for stage, names, own in (("start", TO_START, ()), ("rdma", FOR_RDMA, extra)):
        order = [(name, content) for name, content in modules.load_order(names, own) if name not in done]
        done |= {name for name, _ in order}
        for name, content in order:
            (scratch / "modules" / f"{name}.ko").write_bytes(content)
        (scratch / "modules" / stage).write_text("".join(f"{name}\n" for name, _ in order))
    names = [str(path.relative_to(scratch)) for path in sorted(scratch.rglob("*"))]
    with target.open("wb") as archive:
        subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=scratch, input="\n".join([".", *names]).encode(),
                       stdout=archive, stderr=subprocess.DEVNULL, check=True)
    packages.remove(scratch)
