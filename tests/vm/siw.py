"""Soft iWARP from Debian's kernel source: changed so that it can be as strict as hardware, and built beside the kernel.

Debian's kernel has no siw (`CONFIG_RDMA_SIW is not set`). The compile-time switches of siw become parameters of the
module. There is a new parameter, `strict_active_first`: in MPA (RFC 5044, 7.1) the side that accepted a connection must
not send before the first message of the active side has arrived. Plain siw does not check that.
0: no check; 1: violations are written to the kernel's log; 2: they also fail the queue pair, as hardware may.

The module corrects one mistake in accepting. `siw_accept()` sends the MPA reply and then attaches the socket to the
queue pair. A message that arrives in between wakes no thread and waits in the socket until more data arrives: for ever,
if the peer waits for an answer. With `accept_looks`, which is on by default, siw checks the socket once more.
`accept_pause` makes the time in between longer, in milliseconds.

The module corrects two mistakes in the data that siw sends. With `data_mends=0` the module has them again, as plain siw
has them:
- `siw_activate_tx()` takes a read request of length 0 from the queue of requests and leaves the length of an earlier
  work request in the first part. The answer then carries bytes that the peer did not ask for, and the peer ends the
  connection with status 21.
- `siw_try_1seg()` copies a payload of at most 32 bytes in two steps if a page ends within the payload. The first step
  takes the number of bytes that belongs to the second step, so the payload is wrong unless both steps have equally
  many bytes.

The module corrects one mistake in taking a device down. `siw_netdev_down()` goes through the list of queue pairs
without a lock and without references, while a process that has noticed the end destroys its queue pairs: the kernel
follows the link of one that was freed, and dies.
"""

import os
import re
import shutil
import tarfile

import packages

DIRECTORY = "/drivers/infiniband/sw/siw/"
SWITCHES = ("zcopy_tx", "loopback_enabled", "mpa_crc_required", "mpa_crc_strict", "peer_to_peer")
PARAMETER = "strict_active_first"
DATA_MENDS = "data_mends"
ACCEPTED = "\t} else {\n\t\tsiw_qp_socket_assoc(cep, qp);\n"
# Each change: the file, a text that it has once, and the replacement.
CHANGES = (
    ("siw.h", "extern u_char mpa_version;", f"extern u_char mpa_version;\nextern int {PARAMETER};"),
    ("siw.h", "\tint tx_cpu;\n", "\tint tx_cpu;\n\tbool must_listen; /* accepted, and nothing has arrived yet */\n"
                                 "\tbool has_spoken_first;\n"),
    ("siw_main.c", "struct task_struct *siw_tx_thread[NR_CPUS];",
     f"int {PARAMETER};\nmodule_param({PARAMETER}, int, 0644);\n\nstruct task_struct *siw_tx_thread[NR_CPUS];"),
    # siw_accept(): in peer-to-peer mode the active side has spoken before the queue pair may send.
    ("siw_cm.c", '\tsiw_dbg_cep(cep, "[QP%u]: moving to rts\\n", qp_id(qp));',
     '\tqp->must_listen = !wait_for_peer_rts;\n\tsiw_dbg_cep(cep, "[QP%u]: moving to rts\\n", qp_id(qp));'),
    ("siw_main.c", "MODULE_AUTHOR(",
     "uint accept_pause;\nmodule_param(accept_pause, uint, 0644);\nbool accept_looks = true;\n"
     "module_param(accept_looks, bool, 0644);\n\nMODULE_AUTHOR("),
    ("siw.h", "extern const bool siw_tcp_nagle;",
     "extern const bool siw_tcp_nagle;\nextern uint accept_pause;\nextern bool accept_looks;"),
    ("siw_cm.c", ACCEPTED, ACCEPTED.replace("{\n", "{\n\t\tif (accept_pause)\n\t\t\tmsleep(accept_pause);\n")
     + "\t\tif (accept_looks)\n\t\t\tsiw_look(cep->sock->sk);\n"),
    ("siw_cm.c", "int siw_accept(struct iw_cm_id *id,", """\
static void siw_look(struct sock *sk)
{
	lock_sock(sk);
	local_bh_disable();
	sk->sk_data_ready(sk);
	local_bh_enable();
	release_sock(sk);
}

int siw_accept(struct iw_cm_id *id,"""),
    ("siw.h", "extern bool accept_looks;", f"extern bool accept_looks;\nextern bool {DATA_MENDS};"),
    ("siw_main.c", "MODULE_AUTHOR(",
     f"bool {DATA_MENDS} = true;\nmodule_param({DATA_MENDS}, bool, 0644);\n\nMODULE_AUTHOR("),
    # siw_activate_tx(): the answer to a read of no bytes has no bytes.
    ("siw_qp.c", "\t\twqe->sqe.num_sge = 0;\n",
     f"\t\twqe->sqe.num_sge = 0;\n\t\tif ({DATA_MENDS})\n\t\t\twqe->sqe.sge[0].length = 0;\n"),
    # siw_try_1seg(): the first step ends where the page ends.
    ("siw_qp_tx.c", "unsigned long part = bytes - (PAGE_SIZE - off);",
     f"unsigned long part = {DATA_MENDS} ? PAGE_SIZE - off : bytes - (PAGE_SIZE - off);"),
    # siw_netdev_down(): each queue pair is found by its number, and held while it is changed.
    ("siw_main.c", "\tstruct list_head *pos, *tmp;\n\n\tmemset(&qp_attrs",
     "\tstruct siw_qp *entry;\n\tunsigned long id;\n\n\tmemset(&qp_attrs"),
    ("siw_main.c", "\tlist_for_each_safe(pos, tmp, &sdev->qp_list) {\n"
                   "\t\tstruct siw_qp *qp = list_entry(pos, struct siw_qp, devq);\n",
     "\txa_for_each(&sdev->qp_xa, id, entry) {\n\t\tstruct siw_qp *qp = siw_qp_id2obj(sdev, id);\n\n"
     "\t\tif (!qp)\n\t\t\tcontinue;\n"),
    ("siw_main.c", "\t\tup_write(&qp->state_lock);\n\t}\n\tib_device_put(&sdev->base_dev);\n}",
     "\t\tup_write(&qp->state_lock);\n\t\tsiw_qp_put(qp);\n\t}\n\tib_device_put(&sdev->base_dev);\n}"),
    # siw_get_hdr(): a header has arrived.
    ("siw_qp_rx.c", "\tint bytes;\n\n\tif (srx->fpdu_part_rcvd < MIN_DDP_HDR) {",
     "\tint bytes;\n\n\tqp->must_listen = false;\n\tif (srx->fpdu_part_rcvd < MIN_DDP_HDR) {"),
    ("siw_qp_tx.c", "\tif (tx_type <= SIW_OP_READ_RESPONSE)\n\t\trv = siw_qp_sq_proc_tx(qp, wqe);\n",
     "\trv = siw_may_speak(qp, tx_type);\n\tif (rv)\n"
     "\t\t; /* the work request fails below, and the queue pair with it */\n"
     "\telse if (tx_type <= SIW_OP_READ_RESPONSE)\n\t\trv = siw_qp_sq_proc_tx(qp, wqe);\n"),
    ("siw_qp_tx.c", "int siw_qp_sq_process(struct siw_qp *qp)\n{", f"""\
static int siw_may_speak(struct siw_qp *qp, enum siw_opcode what)
{{
	if (likely(!{PARAMETER} || !qp->must_listen || what >= SIW_OP_READ_RESPONSE))
		return 0;
	if (!qp->has_spoken_first)
		pr_warn("siw: {PARAMETER}: QP %u accepted, and sends (operation %d) before it was sent to\\n",
			qp_id(qp), what);
	qp->has_spoken_first = true;
	return {PARAMETER} > 1 ? -EPROTO : 0;
}}

int siw_qp_sq_process(struct siw_qp *qp)
{{"""),
)


def take_source(archive, directory):
    """Extracts siw from Debian's archive of the kernel source, which is read only up to siw."""
    with packages.extracted(archive) as outer:
        for member in outer:
            if re.search(r"/linux-source-[^/]*\.tar\.xz$", member.name):
                with tarfile.open(fileobj=outer.extractfile(member), mode="r|xz") as inner:
                    take_directory(inner, directory)
                break
    if not (directory / "siw_main.c").exists():
        raise packages.Unavailable(f"{archive.name} has no{DIRECTORY}")


def take_directory(files, directory):
    directory.mkdir(parents=True)
    seen = False
    for member in files:
        if DIRECTORY in member.name and member.isreg():
            (directory / os.path.basename(member.name)).write_bytes(files.extractfile(member).read())
            seen = True
        elif seen:
            return


def patch(directory):
    """Changes the source. If the source differs from the expected one, this is an error, never half a patch."""
    for name, before, after in (*CHANGES, *switch_changes(directory)):
        path = directory / name
        text = path.read_text()
        if text.count(before) != 1:
            raise packages.Unavailable(f"siw's source has changed: {name} has {text.count(before)} times {before!r}")
        path.write_text(text.replace(before, after))


def switch_changes(directory):
    """Yields the changes that make each `const bool x;` a parameter."""
    main = (directory / "siw_main.c").read_text()
    for name in SWITCHES:
        yield "siw.h", f"extern const bool {name};", f"extern bool {name};"
        definition = re.search(rf"const bool {name}( = true)?;", main)
        if definition:
            changed = definition[0].removeprefix("const ")
            yield "siw_main.c", definition[0], f"{changed}\nmodule_param({name}, bool, 0644);"


def build(release, headers, directory):
    """Builds the module siw.ko with the kernel's headers, which were unpacked in `headers`. Returns its path."""
    for program, package in (("make", "make"), ("gcc", "gcc"), ("strip", "binutils")):
        if not shutil.which(program):
            raise packages.Unavailable(f"{program} is needed to build siw: install the package {package}")
    tree = headers / "usr/src" / f"linux-headers-{release}"
    makefile = tree / "Makefile"
    makefile.write_text(makefile.read_text().replace("include /usr/src/", f"include {headers}/usr/src/"))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(headers / "usr/lib/x86_64-linux-gnu"), "KBUILD_BUILD_USER": "",
                   "KBUILD_BUILD_HOST": ""}
    packages.command(["make", f"-j{os.cpu_count()}", "-C", str(tree), f"M={directory}", "CONFIG_RDMA_SIW=m",
                      "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"], env=environment)
    module = directory / "siw.ko"
    packages.command(["strip", "-g", str(module)])
    return module
