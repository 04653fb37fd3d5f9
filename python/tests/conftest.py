"""Stores to test with: one of each kind that there is a server for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost

POSTGRES = os.environ.get("MILEPOST_TEST_POSTGRES", "")
S3 = os.environ.get("MILEPOST_TEST_S3", "")


def _available(kind: str) -> bool:
    """A server that was not started is a mistake, unless it was left out on purpose."""
    given = {"postgres": POSTGRES, "s3": S3}.get(kind, "there")
    if not given:
        pytest.fail(f"no server for {kind}: run scripts/test-python, or set MILEPOST_TEST_{kind.upper()} to none")
    return given != "none"


def store_url(kind: str, directory: Path) -> str:
    """The URL of a new store. PostgreSQL's stores are workspaces of one database: see `workspace`."""
    if not _available(kind):
        pytest.skip(f"without {kind}")
    match kind:
        case "sqlite":
            return f"sqlite:{directory}/store.db"
        case "postgres":
            return POSTGRES
        case "s3":
            return f"{S3}/{uuid.uuid4()}"
        case _:
            return "memory:"


def new_workspace() -> str:
    return f"w{uuid.uuid4().hex}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return store_url("sqlite", tmp_path)


@pytest.fixture(params=["memory", "sqlite", "postgres", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[milepost.Milepost]:
    opened = milepost.open(store_url(request.param, tmp_path), workspace=new_workspace())
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["milepost"] = milepost
