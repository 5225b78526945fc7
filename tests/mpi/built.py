"""Builds the provider."""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def provider():
    """Builds the provider. Returns its directory, and the one for all that these tests make."""
    cargo = os.environ.get("CARGO", "cargo")
    described = subprocess.run([cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True,
                               stdout=subprocess.PIPE)
    target = pathlib.Path(json.loads(described.stdout)["target_directory"])
    subprocess.run([cargo, "build", "--release", "--package", "nemesia-ofi"], cwd=ROOT, check=True)
    place = target / "mpi"
    to = place / "provider"
    to.mkdir(parents=True, exist_ok=True)
    # In one step: another run may use the file.
    shutil.copy2(target / "release/libnemesia_fi.so", to / f"{os.getpid()}.new")
    os.replace(to / f"{os.getpid()}.new", to / "libnemesia-fi.so")
    return to, place
