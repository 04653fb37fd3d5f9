"""The engine for programs with an event loop. Made from `_sync.py` by `make-async`: change that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

from milepost._milepost import Engine, Held
from milepost.types import (
    JSON,
    Added,
    Checkpoint,
    Diff,
    Entry,
    Found,
    Message,
    Record,
    Resumed,
    SessionInfo,
    SessionPage,
    moment,
    unix_ms,
)

Said = Message | Mapping[str, JSON] | tuple[str, str]
"""A message: a `Message`, a dict with `role` and `content`, or a pair of role and text."""


def _said(messages: Said | Iterable[Said]) -> list[dict[str, JSON]]:
    if isinstance(messages, (Message, Mapping)):
        return [_one(messages)]
    if isinstance(messages, tuple) and len(messages) == 2 and isinstance(messages[0], str):
        return [_one(messages)]
    return [_one(message) for message in messages]


def _one(message: Any) -> dict[str, JSON]:
    if isinstance(message, Message):
        return message.to_dict()
    if isinstance(message, tuple):
        role, text = message
        return {"role": role, "content": text}
    return dict(message)


class AsyncMilepost:
    """An open workspace of a store. Safe to use from many threads; may be forked."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._engine, name)(asyncio.get_running_loop(), *arguments)

    async def __aenter__(self) -> AsyncMilepost:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finishes what is under way. The store cannot be used afterwards."""
        await self._call("close")

    # Sessions.

    async def create(
        self,
        title: str | None = None,
        *,
        id: str | None = None,
        project: str | None = None,
        agent: str | None = None,
        feature: str | None = None,
        task: str | None = None,
        stage: str | None = None,
        tags: Iterable[str] = (),
        state: Mapping[str, JSON] | None = None,
        policy: Mapping[str, JSON] | None = None,
        extra: Mapping[str, JSON] | None = None,
    ) -> AsyncSession:
        """Begins a session and holds it. Its first checkpoint is taken at once."""
        fields = _fields(title, id, project, agent, feature, task, stage, tags, state, policy, extra)
        return AsyncSession(await self._call("create", fields))

    async def create_shared(
        self,
        title: str | None = None,
        *,
        id: str | None = None,
        project: str | None = None,
        agent: str | None = None,
        feature: str | None = None,
        task: str | None = None,
        stage: str | None = None,
        tags: Iterable[str] = (),
        state: Mapping[str, JSON] | None = None,
        policy: Mapping[str, JSON] | None = None,
        extra: Mapping[str, JSON] | None = None,
    ) -> str:
        """Begins a session that nobody holds, and gives its id: see `add`."""
        fields = _fields(title, id, project, agent, feature, task, stage, tags, state, policy, extra)
        created: str = await self._call("create_shared", fields)
        return created

    async def get_or_create(
        self,
        *,
        project: str | None = None,
        agent: str | None = None,
        feature: str | None = None,
        task: str | None = None,
        stage: str | None = None,
    ) -> AsyncSession:
        """The open session of exactly this project, agent, feature, task and stage, or a new one; held.

        Whoever asks at the same time gets the same session. One of which nothing is whole is begun anew with its messages:
        `begun_anew_from` in the new one's `extra` names it.
        """
        return AsyncSession(await self._call("get_or_create", project, agent, feature, task, stage))

    async def hold(self, session: str) -> AsyncSession:
        """Holds a session as it is, without resuming it."""
        return AsyncSession(await self._call("hold", session))

    async def resume(
        self,
        session: str,
        *,
        at: str | None = None,
        set: Mapping[str, JSON] | None = None,
        take_over: bool = False,
        reopen: bool = False,
        begin_anew: bool = False,
    ) -> AsyncSession:
        """Takes a session's lease and goes on with it: from its end, or from a checkpoint (id, label or time).

        Where it goes on from is in `Session.resumed`. Damaged checkpoints are passed over for older ones. Where none is whole,
        it fails with `Corrupt`; with `begin_anew` it goes on as a new session that has the messages that are whole, and
        `resumed.instead_of` says so."""
        values = None if set is None else dict(set)
        held, told = await self._call("resume", session, at, values, take_over, reopen, begin_anew)
        return AsyncSession(held, Resumed._of(told))

    async def branch(
        self,
        session: str,
        *,
        at: str | None = None,
        title: str | None = None,
        id: str | None = None,
        tags: Iterable[str] = (),
        extra: Mapping[str, JSON] | None = None,
    ) -> AsyncSession:
        """Begins a session that shares everything up to a checkpoint of another. Nothing is copied."""
        fields = _fields(title, id, None, None, None, None, None, tags, None, None, extra)
        return AsyncSession(await self._call("branch", session, at, fields))

    async def find(self, given: str) -> str:
        """The session with this id, or the only one whose id begins or ends like this."""
        found: str = await self._call("find", given)
        return found

    async def session(self, session: str) -> SessionInfo:
        """What a list shows of one session."""
        return SessionInfo._of(await self._call("session", session))

    async def sessions(
        self,
        *,
        status: Iterable[str] = (),
        project: str | None = None,
        agent: str | None = None,
        feature: str | None = None,
        task: str | None = None,
        stage: str | None = None,
        tag: str | None = None,
        active_from: datetime | None = None,
        active_to: datetime | None = None,
        trashed: bool = False,
        by_creation: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> SessionPage:
        """A page of sessions, last active first (or newest first)."""
        page = await self._call(
            "sessions",
            {
                "status": list(status),
                "project": project,
                "agent": agent,
                "feature": feature,
                "task": task,
                "stage": stage,
                "tag": tag,
                "active_from": unix_ms(active_from),
                "active_to": unix_ms(active_to),
                "trashed": trashed,
                "by_creation": by_creation,
                "after": after,
                "limit": limit,
            },
        )
        return SessionPage([SessionInfo._of(session) for session in page["sessions"]], page["next"])

    async def patch(self, session: str, **fields: JSON) -> None:
        """Changes what a list shows of a session that nobody holds: `title`, `tags`, `status`, or a field of any name."""
        await self._call("patch", session, fields)

    async def trash(self, session: str) -> None:
        """Puts a session into the trash."""
        await self._call("trash", session, False)

    async def untrash(self, session: str) -> None:
        """Takes a session out of the trash."""
        await self._call("trash", session, True)

    async def delete(self, session: str, *, branches: Literal["refuse", "keep", "delete"] = "refuse") -> None:
        """Deletes a session for good. One with branches is deleted only when it is said what becomes of them."""
        await self._call("delete", session, branches)

    # What is in them.

    async def messages(
        self,
        session: str,
        *,
        at: str | None = None,
        channel: str | None = None,
        first: int | None = None,
        last: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> list[Message]:
        """Messages of a session, oldest first: all, or up to a checkpoint, of one channel, the first or the last so
        many, those whose entries are numbered from `start` to before `stop`."""
        found = await self._call("messages", session, at, channel, first, last, start, stop)
        return [Message._stored(message) for message in found]

    async def entries(self, session: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """Entries of all kinds along a session's head."""
        found = await self._call("entries", session, start, stop)
        return [Entry(entry["seq"], moment(entry["time"]), entry["kind"], entry["body"]) for entry in found]

    async def state(self, session: str, *, at: str | None = None) -> dict[str, JSON]:
        """The state of a session at its end, or at a checkpoint."""
        state: dict[str, JSON] = await self._call("state", session, at)
        return state

    async def checkpoints(
        self,
        session: str,
        *,
        label: str | None = None,
        trigger: str | None = None,
        resumable: bool | None = None,
        oldest_first: bool = False,
        limit: int | None = None,
    ) -> list[Checkpoint]:
        """Checkpoints of a session, newest first."""
        found = await self._call("checkpoints", session, label, trigger, resumable, oldest_first, limit)
        return [Checkpoint._of(mark) for mark in found]

    async def checkpoint(self, session: str, at: str | None = None) -> Checkpoint:
        """One checkpoint: by its id, a label or a time; the newest when none is given."""
        return Checkpoint._of(await self._call("checkpoint", session, at))

    async def search(
        self,
        text: str,
        *,
        substring: bool = False,
        session: str | None = None,
        project: str | None = None,
        agent: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        context: int = 2,
    ) -> Found:
        """Searches all conversations for words, "phrases" and prefixes*; each hit with messages before and after it."""
        told = await self._call(
            "search",
            text,
            {
                "substring": substring,
                "session": session,
                "project": project,
                "agent": agent,
                "role": role,
                "from": unix_ms(since),
                "to": unix_ms(until),
                "limit": limit,
                "context": context,
            },
        )
        found = Found._of(told)
        # The engine looks for one at least.
        return Found([], more=bool(found.hits)) if limit == 0 else found

    async def diff(self, a: str, b: str) -> Diff:
        """What differs between two checkpoints, also of different sessions."""
        return Diff._of(await self._call("diff", a, b))

    # Without holding a session.

    async def add(
        self,
        session: str,
        messages: Said | Iterable[Said] = (),
        *,
        event: tuple[str, Mapping[str, JSON]] | None = None,
        set: Mapping[str, JSON] | None = None,
        patch: Mapping[str, JSON] | None = None,
        checkpoint: str | None = None,
    ) -> Added:
        """Adds to a session without holding it, all or nothing: messages, an event, values of the state, a change of
        what a list shows, and a checkpoint with a label. Several processes may do so at once; nothing interleaves."""
        what = None if event is None else (event[0], dict(event[1]))
        values, fields = (None if given is None else dict(given) for given in (set, patch))
        added = await self._call("add", session, _said(messages), what, values, fields, checkpoint)
        return Added(added["seq"], added["checkpoint"])

    # Records.

    async def record(self, kind: str, key: str) -> Record | None:
        """A small versioned value beside the log."""
        found = await self._call("record", kind, key)
        return None if found is None else Record._of(found)

    async def records(self, kind: str, *, after: str | None = None, limit: int = 1000) -> list[Record]:
        """Records of a kind by key, those after `after`."""
        return [Record._of(found) for found in await self._call("records", kind, after, limit)]

    async def put_record(
        self, kind: str, key: str, value: bytes, *, expected: int | None = None, due: datetime | None = None
    ) -> int:
        """Writes a record if its version is still `expected` (none: if there is none), else raises `Conflict`.
        Gives its new version."""
        version: int = await self._call("put_record", kind, key, value, expected, unix_ms(due))
        return version

    async def delete_record(self, kind: str, key: str, *, expected: int) -> None:
        """Removes a record if its version is still `expected`."""
        await self._call("delete_record", kind, key, expected)


def _fields(
    title: str | None,
    id: str | None,
    project: str | None,
    agent: str | None,
    feature: str | None,
    task: str | None,
    stage: str | None,
    tags: Iterable[str],
    state: Mapping[str, JSON] | None,
    policy: Mapping[str, JSON] | None,
    extra: Mapping[str, JSON] | None,
) -> dict[str, JSON]:
    fields: dict[str, JSON] = dict(extra or {})
    fields.update(title=title, id=id, project=project, agent=agent, feature=feature, task=task, stage=stage)
    fields.update(
        tags=list(tags) or None,
        state=None if state is None else dict(state),
        policy=None if policy is None else dict(policy),
    )
    return fields


class AsyncSession:
    """A session that this process holds: nobody else holds it meanwhile. Used with `async with`, it is released at the end."""

    __slots__ = ("_held", "resumed")

    def __init__(self, held: Held, resumed: Resumed | None = None) -> None:
        self._held = held
        self.resumed = resumed
        """From where it goes on, when it was resumed."""

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._held, name)(asyncio.get_running_loop(), *arguments)

    def __repr__(self) -> str:
        return f"AsyncSession({self.id!r})"

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    @property
    def id(self) -> str:
        """Its id."""
        return self._held.id

    async def info(self) -> SessionInfo:
        """What a list shows of it now."""
        return SessionInfo._of(await self._call("info"))

    async def state(self) -> dict[str, JSON]:
        """The state at its end."""
        state: dict[str, JSON] = await self._call("state")
        return state

    async def append(self, messages: Said | Iterable[Said]) -> Added:
        """Adds a message or several, all or none; returns when they are durable. When the policy says so, a checkpoint is
        taken with them."""
        return self._added(await self._call("append", _said(messages)))

    async def set(self, values: Mapping[str, JSON]) -> Added:
        """Sets values of the state by their paths: `{"memory.step": 3}` or `{"/memory/step": 3}`."""
        return self._added(await self._call("set", dict(values)))

    async def set_state(self, state: Mapping[str, JSON]) -> Added:
        """Puts a new state in place of the old one. Only what changed is stored."""
        return self._added(await self._call("set_state", dict(state)))

    async def event(self, kind: str, data: Mapping[str, JSON] | None = None) -> Added:
        """Records something that happened."""
        return self._added(await self._call("event", kind, dict(data or {})))

    async def checkpoint(
        self,
        label: str | None = None,
        *,
        trigger: str | None = None,
        description: str | None = None,
        extra: Mapping[str, JSON] | None = None,
    ) -> str:
        """Takes a checkpoint and gives its id; returns when it is durable."""
        taken: str = await self._call("checkpoint", label, trigger, description, None if extra is None else dict(extra))
        return taken

    async def patch(self, **fields: JSON) -> None:
        """Changes what a list shows of it: `title`, `tags`, `status`, or a field of any name."""
        await self._call("patch", fields)

    async def restore(self, to: str) -> Checkpoint:
        """Sets the session back to a checkpoint, in place. What came after stays, on the old timeline."""
        return Checkpoint._of(await self._call("restore", to))

    async def pause(self, why: str | None = None) -> str:
        """Pauses: a checkpoint, and the status `paused`."""
        return await self._end("pause", why)

    async def wait(self, what: str) -> str:
        """Waits for someone or something: a checkpoint, and the status `waiting`."""
        return await self._end("wait", what)

    async def complete(self) -> str:
        """Completes: the last checkpoint, and the status `completed`."""
        return await self._end("complete", None)

    async def fail(self, error: str) -> str:
        """Fails: a checkpoint, the status `failed`, and why."""
        return await self._end("fail", error)

    async def cancel(self, why: str | None = None) -> str:
        """Cancels: a checkpoint, and the status `cancelled`."""
        return await self._end("cancel", why)

    async def release(self) -> None:
        """Gives the session back, so that others may hold it."""
        await self._call("release")

    async def _end(self, how: str, why: str | None) -> str:
        taken: str = await self._call("end", how, why)
        return taken

    def _added(self, added: dict[str, JSON]) -> Added:
        return Added(added["seq"], added["checkpoint"])
