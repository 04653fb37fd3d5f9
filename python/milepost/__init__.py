"""Durable sessions for AI agents.

A session's messages, state and checkpoints are kept in a durable log: when a call returns, a power cut cannot take it
back. From any checkpoint a session is resumed, rewound, compared or branched, by any process that can reach the store.

>>> import milepost
>>> with milepost.open("memory:") as store:
...     with store.create("Three papers") as session:
...         added = session.append([("user", "Find three papers"), ("assistant", "Here is one")])
...         id = session.checkpoint("one found")
...     branch = store.branch(session.id, at="one found", title="Another way")
...     [message.role for message in store.messages(branch.id)]
['user', 'assistant']

The same with an event loop, which is never blocked:

>>> import asyncio
>>> async def main():
...     async with await milepost.open_async("memory:") as store:
...         async with await store.create("Three papers") as session:
...             await session.append(("user", "Find three papers"))
...         return len(await store.messages(session.id))
>>> asyncio.run(main())
1
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Mapping

from milepost import _milepost
from milepost._async import AsyncMilepost, AsyncSession
from milepost._sync import Milepost, Said, Session
from milepost.errors import Error, Invalid
from milepost.types import (
    JSON,
    Added,
    Checkpoint,
    Diff,
    Entry,
    Found,
    Hit,
    Message,
    PathDiff,
    Record,
    Resumed,
    SessionInfo,
    SessionPage,
)

__all__ = [
    "JSON",
    "Added",
    "AsyncMilepost",
    "AsyncSession",
    "Checkpoint",
    "Diff",
    "Entry",
    "Error",
    "Found",
    "Hit",
    "Message",
    "Milepost",
    "PathDiff",
    "Record",
    "Resumed",
    "Said",
    "Session",
    "SessionInfo",
    "SessionPage",
    "open",
    "open_async",
]

_YEAR_SECONDS = 365 * 24 * 3600

# Nothing is left open over a fork: see the module `process` of the inner part.
os.register_at_fork(
    before=_milepost.before_fork,
    after_in_parent=_milepost.after_fork_in_parent,
    after_in_child=_milepost.after_fork_in_child,
)
atexit.register(_milepost.before_exit)


def open(
    url: str,
    *,
    workspace: str | None = None,
    key: str | None = None,
    holder: str | None = None,
    redact: bool = True,
    text_index: bool = True,
    blobs: str | None = None,
    lease_seconds: float = 30.0,
    policy: Mapping[str, JSON] | None = None,
) -> Milepost:
    """Opens the store at a URL, or makes it: `sqlite:PATH`, `postgres://…`, `s3://BUCKET/PREFIX`, `file:///DIR`, `memory:`.

    `workspace` is the tenant; `key` its master key (32 bytes in hex or base64), which encrypts everything; `holder` is who
    holds sessions, in words a person understands; without `redact`, secrets that are found are stored in clear;
    `policy` says when checkpoints are taken and how many are kept, as in a configuration file.

    >>> store = milepost.open("memory:", holder="the example", policy={"every_messages": 2})
    >>> session = store.create()
    >>> session.append([("user", "a"), ("assistant", "b")]).checkpoint is not None
    True
    >>> milepost.open("nowhere")
    Traceback (most recent call last):
    milepost.errors.Invalid: nowhere is not valid: it is not a store: use sqlite:PATH, postgres://…, s3://BUCKET/PREFIX, file:///DIR or memory:
    """
    settings = _settings(holder, redact, text_index, blobs, lease_seconds, policy)
    return Milepost(_milepost.Engine.open(None, url, workspace, key, settings))


async def open_async(
    url: str,
    *,
    workspace: str | None = None,
    key: str | None = None,
    holder: str | None = None,
    redact: bool = True,
    text_index: bool = True,
    blobs: str | None = None,
    lease_seconds: float = 30.0,
    policy: Mapping[str, JSON] | None = None,
) -> AsyncMilepost:
    """The same as `open`, for programs with an event loop."""
    settings = _settings(holder, redact, text_index, blobs, lease_seconds, policy)
    loop = asyncio.get_running_loop()
    return AsyncMilepost(await _milepost.Engine.open(loop, url, workspace, key, settings))


def _settings(
    holder: str | None,
    redact: bool,
    text_index: bool,
    blobs: str | None,
    lease_seconds: float,
    policy: Mapping[str, JSON] | None,
) -> dict[str, JSON]:
    if not 0.001 <= lease_seconds <= _YEAR_SECONDS:
        what, why = f"lease_seconds={lease_seconds}", f"it must be from 0.001 to {_YEAR_SECONDS}, which is a year"
        refused = Invalid(f"{what} is not valid: {why}")
        refused.what, refused.why = what, why
        raise refused
    settings: dict[str, JSON] = {"redact": redact, "text_index": text_index, "lease_seconds": lease_seconds}
    if holder is not None:
        settings["holder"] = holder
    if blobs is not None:
        settings["blobs"] = blobs
    if policy is not None:
        settings["policy"] = dict(policy)
    return settings
