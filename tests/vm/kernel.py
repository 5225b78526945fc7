"""What QEMU boots: the kernel out of its package, and an initial file system with modules and `guest/init`."""

import gzip
import lzma
import pathlib
import re
import shutil
import struct
import subprocess

import packages

# Modules in the order in which they are wanted; what they depend on goes before them. First what it takes to have a
# root and a way to talk, then network and RDMA. The checksums are asked for by name inside the kernel and so are no
# dependencies.
TO_START = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
FOR_RDMA = ("virtio_net", "dummy", "veth", "sch_netem", "ib_uverbs", "rdma_ucm", "ib_umad", "crc32_generic", "crc32_pclmul",
            "crc32c_generic", "crc32c_intel", "libcrc32c", "rdma_rxe", "iw_cm")
SIGNATURE = b"~Module signature appended~\n"
PAYLOAD = 0x248  # in the header of a bzImage: offset and length of the compressed kernel


def extract(image):
    """The ELF file in a bzImage, as bytes: booted directly it saves seconds of decompression in an emulated processor."""
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
        """The module without its signature: checking it costs an emulated processor more than anything else."""
        path = self.paths[name]
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if content.endswith(SIGNATURE):
            end = len(content) - len(SIGNATURE)
            length = int.from_bytes(content[end - 4:end], "big")
            content = content[:end - 12 - length]
        return content

    def load_order(self, names, extra=()):
        """Pairs of name and content, dependencies first. `extra` are modules of our own, as paths."""
        own = {path.stem: path.read_bytes() for path in extra}
        order = {}

        def visit(name):
            if name in order or name in self.builtin:
                return
            if name not in own and name not in self.paths:
                raise packages.Unavailable(f"this kernel has no module {name}")
            content = own[name] if name in own else self.read(name)
            order[name] = None  # its place is taken below; a circle would end here
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
    """Writes the archive that the kernel unpacks: busybox, modules, two lists of them, and the first program."""
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
