"""What the tests of the adapters share: stores of each kind, values of all kinds, and other processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import new_workspace, store_url
from hypothesis import strategies as st

import milepost

KINDS = ["memory", "sqlite", "postgres", "s3"]
SHARED_KINDS = ["sqlite", "postgres", "s3"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=[]), max_size=20),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)),
    max_leaves=12,
)
texts = st.text(st.characters(exclude_categories=[]), max_size=30)


def same(a: Any, b: Any) -> bool:
    """Equal, with types: a 1 is no true, and no 1.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b)


async def opened(kind: str, directory: Path, **options: Any) -> AsyncIterator[milepost.AsyncMilepost]:
    async with await milepost.open_async(store_url(kind, directory), workspace=new_workspace(), **options) as store:
        yield store


class Elsewhere:
    """A store that other processes can open."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.url, self.workspace = store_url(kind, directory), new_workspace()

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Runs a program that finds the store as `URL` and `WORKSPACE`."""
        head = f"import asyncio, sys\nURL, WORKSPACE = {self.url!r}, {self.workspace!r}\n"
        command = [sys.executable, "-c", head + program, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=dict(os.environ), **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, program: str, *arguments: str) -> Any:
        """What a program prints, as JSON."""
        return finish(self.start(program, *arguments))


def finish(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=120)
    if process.returncode:
        pytest.fail(f"it ended with {process.returncode}: {errors[-3000:]}")
    return json.loads(out) if out.strip() else None


class Cut(Exception):
    """The process ended here."""


def cut_off(patch: pytest.MonkeyPatch, before: int) -> None:
    """Ends the process (nothing is tidied up after a `Cut`) before one of the calls that begin a session."""
    calls, call = iter(range(100)), milepost.AsyncMilepost._call

    def cut(self: milepost.AsyncMilepost, name: str, *arguments: Any) -> Any:
        if name in ("create_shared", "put_record") and next(calls) == before:
            raise Cut
        return call(self, name, *arguments)

    patch.setattr(milepost.AsyncMilepost, "_call", cut)
