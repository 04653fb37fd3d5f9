"""What the adapters of frameworks share: the store that they write to, exact additions, and records that several change."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import milepost
from milepost import _milepost
from milepost._async import AsyncMilepost
from milepost._sync import Milepost
from milepost.errors import Closed, Conflict
from milepost.types import JSON

T = TypeVar("T")

TRIES = 64
"""So often something is tried again when others write at the same time."""
KEY_BYTES = 512
"""The longest key of a record."""


class Head(NamedTuple):
    """Where a session's head is."""

    timeline: str
    length: int
    """The number that the next entry gets."""


def refuse_options(store: Milepost | AsyncMilepost | str, options: Mapping[str, Any]) -> None:
    """Refuses what only the opening of a store can heed, when it is open already."""
    if options and not isinstance(store, str):
        raise TypeError(f"{', '.join(sorted(options))}: give these when the store is opened, not with an open store")


class Place:
    """The store of an adapter. One that is given stays the giver's; one that is named by its URL is opened when it is
    first needed, off the event loop, and closed with the adapter."""

    def __init__(self, store: Milepost | AsyncMilepost | str, options: Mapping[str, Any]) -> None:
        refuse_options(store, options)
        self._url = store if isinstance(store, str) else None
        self._options = dict(options)
        self._store = None if isinstance(store, str) else AsyncMilepost(store._engine)
        self._lock = threading.Lock()
        self._closed = False

    async def store(self) -> AsyncMilepost:
        """The store, opened."""
        store = self._store
        if store is None or self._closed:
            store = await asyncio.to_thread(self._open)
        return store

    def _open(self) -> AsyncMilepost:
        with self._lock:
            if self._closed:
                raise Closed("the store was closed: make a new object to go on")
            if self._store is None:
                assert self._url is not None
                self._store = AsyncMilepost(milepost.open(self._url, **self._options)._engine)
            return self._store

    def close(self) -> None:
        """Closes what was opened here."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None and self._url is not None:
            Milepost(store._engine).close()


async def head(store: AsyncMilepost, session: str) -> Head:
    """Where a session's head is now."""
    timeline, length = await _milepost.head(asyncio.get_running_loop(), store._engine, session)
    return Head(timeline, length)


async def add(
    store: AsyncMilepost,
    session: str,
    messages: list[dict[str, JSON]],
    *,
    at: Head | None = None,
    back_to: int | None = None,
    event: tuple[str, dict[str, JSON]] | None = None,
    set: dict[str, JSON] | None = None,
    patch: dict[str, JSON] | None = None,
    trigger: str | None = None,
) -> Head:
    """Adds, all or nothing: only if the head is still there, when that is said, and behind the entry `back_to`, when there
    is one. Raises `Conflict` when the head moved. Gives where the head is then."""
    added = await _milepost.add_at(
        asyncio.get_running_loop(), store._engine, session, at, back_to, messages, event, set, patch, trigger
    )
    timeline, length = added["head"]
    return Head(timeline, length)


async def new_session_id(store: AsyncMilepost) -> str:
    """An id for a session that is to be begun."""
    id: str = await _milepost.new_session_id(asyncio.get_running_loop(), store._engine)
    return id


async def branch_at(store: AsyncMilepost, session: str, seq: int, fields: dict[str, JSON]) -> str:
    """Begins a session that shares everything up to and with an entry, and that nobody holds."""
    made: str = await _milepost.branch_at(asyncio.get_running_loop(), store._engine, session, seq, fields)
    return made


async def settled(work: Awaitable[T]) -> T:
    """Waits until something has happened or not, also when whoever waits is cancelled meanwhile: a write that nobody
    waits for could land behind what is done next."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # It was looked at.
        raise cancelled
    return task.result()


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Does something that reads before it writes, anew whenever another wrote in between."""
    for attempt in range(TRIES):
        try:
            return await work()
        except Conflict:
            if attempt + 1 == TRIES:
                raise
            await asyncio.sleep(random.random() * min(0.002 * 1.5**attempt, 0.25))
    raise AssertionError("unreachable")


def record_key(*parts: str) -> str:
    """A record's key for names of any length and content."""
    key = parts[0] if len(parts) == 1 else json.dumps(parts, ensure_ascii=True)
    if key and key.isprintable() and not key.startswith("sha256:"):
        try:
            if len(key.encode()) <= KEY_BYTES:
                return key
        except UnicodeEncodeError:
            pass
    return "sha256:" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()


async def change_record(
    store: AsyncMilepost, kind: str, key: str, change: Callable[[dict[str, JSON]], dict[str, JSON]]
) -> dict[str, JSON]:
    """Changes a record of JSON that others may be changing too. Gives its new value."""

    async def once() -> dict[str, JSON]:
        found = await store.record(kind, key)
        before = {} if found is None else json.loads(found.value)
        after = change(json.loads(json.dumps(before)))
        if found is None or after != before:
            value = json.dumps(after).encode()
            await store.put_record(kind, key, value, expected=None if found is None else found.version)
        return after

    return await retried(once)


def name(text: str, longest: int = 200) -> str:
    """A text of any kind as a short name for a list."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def fits(value: JSON, depth: int = 0) -> bool:
    """Whether a value has an exact form in the store: no lone surrogates, no whole numbers beyond 64 bits, no infinities,
    nothing too deep."""
    if depth > 100:
        return False
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, float):
        return value - value == 0
    if isinstance(value, dict):
        return all(isinstance(key, str) and fits(key) and fits(item, depth + 1) for key, item in value.items())
    if isinstance(value, list):
        return all(fits(item, depth + 1) for item in value)
    return False
