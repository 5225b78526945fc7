"""Builds the provider."""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def target():
    """Returns cargo's target directory."""
    cargo = os.environ.get("CARGO", "cargo")
    described = subprocess.run([cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True,
                               stdout=subprocess.PIPE)
    return pathlib.Path(json.loads(described.stdout)["target_directory"])


def provider(profile):
    """Builds the provider in a profile of cargo: `release` as users get it, or `dev`, which has every assertion and is
    what `tests/run` has built.

    Returns its directory, and the one for all that these tests make.
    """
    words = ["--workspace", "--all-features", "--lib", "--bins", "--examples"] if profile == "dev" else \
        ["--profile", profile, "--package", "nemesia-ofi"]
    subprocess.run([os.environ.get("CARGO", "cargo"), "build", *words], cwd=ROOT, check=True)
    place = target() / "mpi"
    to = place / "provider"
    to.mkdir(parents=True, exist_ok=True)
    # In one step: another run may use the file.
    built = target() / {"dev": "debug"}.get(profile, profile)
    shutil.copy2(built / "libnemesia_fi.so", to / f"{os.getpid()}.new")
    os.replace(to / f"{os.getpid()}.new", to / "libnemesia-fi.so")
    return to, place
