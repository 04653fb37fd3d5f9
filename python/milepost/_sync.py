"""The engine for programs without an event loop. `_async.py` is made from this file by `make-async`."""

from __future__ import annotations

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


class Milepost:
    """An open workspace of a store. Safe to use from many threads; may be forked.

    >>> import milepost
    >>> store = milepost.open("memory:")
    >>> with store.create(title="Three papers") as session:
    ...     _ = session.append(("user", "Find three papers on write-ahead logs"))
    ...     before = session.checkpoint("asked")
    ...     _ = session.append(("assistant", "Here is one"))
    ...     _ = session.set({"memory.found": 1})
    ...     after = session.pause()
    >>> [message.text for message in store.messages(session.id)]
    ['Find three papers on write-ahead logs', 'Here is one']
    >>> store.diff(before, after).state
    [PathDiff(path='/memory', before=None, after={'found': 1})]
    >>> store.search("papers").hits[0].message.role
    'user'
    >>> store.close()
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._engine, name)(None, *arguments)

    def __enter__(self) -> Milepost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finishes what is under way. The store cannot be used afterwards."""
        self._call("close")

    # Sessions.

    def create(
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
    ) -> Session:
        """Begins a session and holds it. Its first checkpoint is taken at once.

        >>> store = milepost.open("memory:")
        >>> session = store.create("Weather", project="demo", tags=["weather"], extra={"ticket": 7})
        >>> session.info().extra
        {'ticket': 7}
        """
        fields = _fields(title, id, project, agent, feature, task, stage, tags, state, policy, extra)
        return Session(self._call("create", fields))

    def create_shared(
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
        created: str = self._call("create_shared", fields)
        return created

    def get_or_create(
        self,
        *,
        project: str | None = None,
        agent: str | None = None,
        feature: str | None = None,
        task: str | None = None,
        stage: str | None = None,
    ) -> Session:
        """The open session of exactly this project, agent, feature, task and stage, or a new one; held.

        Whoever asks at the same time gets the same session. One of which nothing is whole is begun anew with its messages:
        `begun_anew_from` in the new one's `extra` names it.
        """
        return Session(self._call("get_or_create", project, agent, feature, task, stage))

    def hold(self, session: str) -> Session:
        """Holds a session as it is, without resuming it."""
        return Session(self._call("hold", session))

    def resume(
        self,
        session: str,
        *,
        at: str | None = None,
        set: Mapping[str, JSON] | None = None,
        take_over: bool = False,
        reopen: bool = False,
        begin_anew: bool = False,
    ) -> Session:
        """Takes a session's lease and goes on with it: from its end, or from a checkpoint (id, label or time).

        Where it goes on from is in `Session.resumed`. Damaged checkpoints are passed over for older ones. Where none is whole,
        it fails with `Corrupt`; with `begin_anew` it goes on as a new session that has the messages that are whole, and
        `resumed.instead_of` says so.

        >>> store = milepost.open("memory:")
        >>> with store.create(state={"memory": {"step": 1}}) as session:
        ...     _ = session.checkpoint("one")
        ...     _ = session.set({"memory.step": 2})
        >>> resumed = store.resume(session.id, at="one")
        >>> resumed.resumed.state
        {'memory': {'step': 1}}
        """
        values = None if set is None else dict(set)
        held, told = self._call("resume", session, at, values, take_over, reopen, begin_anew)
        return Session(held, Resumed._of(told))

    def branch(
        self,
        session: str,
        *,
        at: str | None = None,
        title: str | None = None,
        id: str | None = None,
        tags: Iterable[str] = (),
        extra: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Begins a session that shares everything up to a checkpoint of another. Nothing is copied."""
        fields = _fields(title, id, None, None, None, None, None, tags, None, None, extra)
        return Session(self._call("branch", session, at, fields))

    def find(self, given: str) -> str:
        """The session with this id, or the only one whose id begins or ends like this."""
        found: str = self._call("find", given)
        return found

    def session(self, session: str) -> SessionInfo:
        """What a list shows of one session."""
        return SessionInfo._of(self._call("session", session))

    def sessions(
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
        """A page of sessions, last active first (or newest first).

        >>> store = milepost.open("memory:")
        >>> for title in ("a", "b", "c"):
        ...     store.create(title).release()
        >>> page = store.sessions(limit=2, by_creation=True)
        >>> [session.title for session in page.sessions]
        ['c', 'b']
        >>> [session.title for session in store.sessions(limit=2, by_creation=True, after=page.next).sessions]
        ['a']
        """
        page = self._call(
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

    def patch(self, session: str, **fields: JSON) -> None:
        """Changes what a list shows of a session that nobody holds: `title`, `tags`, `status`, or a field of any name."""
        self._call("patch", session, fields)

    def trash(self, session: str) -> None:
        """Puts a session into the trash."""
        self._call("trash", session, False)

    def untrash(self, session: str) -> None:
        """Takes a session out of the trash."""
        self._call("trash", session, True)

    def delete(self, session: str, *, branches: Literal["refuse", "keep", "delete"] = "refuse") -> None:
        """Deletes a session for good. One with branches is deleted only when it is said what becomes of them."""
        self._call("delete", session, branches)

    # What is in them.

    def messages(
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
        found = self._call("messages", session, at, channel, first, last, start, stop)
        return [Message._stored(message) for message in found]

    def entries(self, session: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """Entries of all kinds along a session's head."""
        found = self._call("entries", session, start, stop)
        return [Entry(entry["seq"], moment(entry["time"]), entry["kind"], entry["body"]) for entry in found]

    def state(self, session: str, *, at: str | None = None) -> dict[str, JSON]:
        """The state of a session at its end, or at a checkpoint."""
        state: dict[str, JSON] = self._call("state", session, at)
        return state

    def checkpoints(
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
        found = self._call("checkpoints", session, label, trigger, resumable, oldest_first, limit)
        return [Checkpoint._of(mark) for mark in found]

    def checkpoint(self, session: str, at: str | None = None) -> Checkpoint:
        """One checkpoint: by its id, a label or a time; the newest when none is given."""
        return Checkpoint._of(self._call("checkpoint", session, at))

    def search(
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
        told = self._call(
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

    def diff(self, a: str, b: str) -> Diff:
        """What differs between two checkpoints, also of different sessions."""
        return Diff._of(self._call("diff", a, b))

    # Without holding a session.

    def add(
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
        what a list shows, and a checkpoint with a label. Several processes may do so at once; nothing interleaves.

        >>> store = milepost.open("memory:")
        >>> session = store.create_shared("A chat")
        >>> added = store.add(session, [("user", "Hi"), {"role": "assistant", "content": "Hello", "usage": {"tokens": 3}}])
        >>> store.messages(session)[1].extra
        {'usage': {'tokens': 3}}
        """
        what = None if event is None else (event[0], dict(event[1]))
        values, fields = (None if given is None else dict(given) for given in (set, patch))
        added = self._call("add", session, _said(messages), what, values, fields, checkpoint)
        return Added(added["seq"], added["checkpoint"])

    # Records.

    def record(self, kind: str, key: str) -> Record | None:
        """A small versioned value beside the log.

        >>> store = milepost.open("memory:")
        >>> version = store.put_record("setting", "theme", b"dark")
        >>> store.record("setting", "theme").value
        b'dark'
        """
        found = self._call("record", kind, key)
        return None if found is None else Record._of(found)

    def records(self, kind: str, *, after: str | None = None, limit: int = 1000) -> list[Record]:
        """Records of a kind by key, those after `after`."""
        return [Record._of(found) for found in self._call("records", kind, after, limit)]

    def put_record(
        self, kind: str, key: str, value: bytes, *, expected: int | None = None, due: datetime | None = None
    ) -> int:
        """Writes a record if its version is still `expected` (none: if there is none), else raises `Conflict`.
        Gives its new version."""
        version: int = self._call("put_record", kind, key, value, expected, unix_ms(due))
        return version

    def delete_record(self, kind: str, key: str, *, expected: int) -> None:
        """Removes a record if its version is still `expected`."""
        self._call("delete_record", kind, key, expected)


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


class Session:
    """A session that this process holds: nobody else holds it meanwhile. Used with `with`, it is released at the end."""

    __slots__ = ("_held", "resumed")

    def __init__(self, held: Held, resumed: Resumed | None = None) -> None:
        self._held = held
        self.resumed = resumed
        """From where it goes on, when it was resumed."""

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._held, name)(None, *arguments)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def id(self) -> str:
        """Its id."""
        return self._held.id

    def info(self) -> SessionInfo:
        """What a list shows of it now."""
        return SessionInfo._of(self._call("info"))

    def state(self) -> dict[str, JSON]:
        """The state at its end."""
        state: dict[str, JSON] = self._call("state")
        return state

    def append(self, messages: Said | Iterable[Said]) -> Added:
        """Adds a message or several, all or none; returns when they are durable. When the policy says so, a checkpoint is
        taken with them."""
        return self._added(self._call("append", _said(messages)))

    def set(self, values: Mapping[str, JSON]) -> Added:
        """Sets values of the state by their paths: `{"memory.step": 3}` or `{"/memory/step": 3}`."""
        return self._added(self._call("set", dict(values)))

    def set_state(self, state: Mapping[str, JSON]) -> Added:
        """Puts a new state in place of the old one. Only what changed is stored."""
        return self._added(self._call("set_state", dict(state)))

    def event(self, kind: str, data: Mapping[str, JSON] | None = None) -> Added:
        """Records something that happened."""
        return self._added(self._call("event", kind, dict(data or {})))

    def checkpoint(
        self,
        label: str | None = None,
        *,
        trigger: str | None = None,
        description: str | None = None,
        extra: Mapping[str, JSON] | None = None,
    ) -> str:
        """Takes a checkpoint and gives its id; returns when it is durable."""
        taken: str = self._call("checkpoint", label, trigger, description, None if extra is None else dict(extra))
        return taken

    def patch(self, **fields: JSON) -> None:
        """Changes what a list shows of it: `title`, `tags`, `status`, or a field of any name."""
        self._call("patch", fields)

    def restore(self, to: str) -> Checkpoint:
        """Sets the session back to a checkpoint, in place. What came after stays, on the old timeline."""
        return Checkpoint._of(self._call("restore", to))

    def pause(self, why: str | None = None) -> str:
        """Pauses: a checkpoint, and the status `paused`."""
        return self._end("pause", why)

    def wait(self, what: str) -> str:
        """Waits for someone or something: a checkpoint, and the status `waiting`."""
        return self._end("wait", what)

    def complete(self) -> str:
        """Completes: the last checkpoint, and the status `completed`."""
        return self._end("complete", None)

    def fail(self, error: str) -> str:
        """Fails: a checkpoint, the status `failed`, and why."""
        return self._end("fail", error)

    def cancel(self, why: str | None = None) -> str:
        """Cancels: a checkpoint, and the status `cancelled`."""
        return self._end("cancel", why)

    def release(self) -> None:
        """Gives the session back, so that others may hold it."""
        self._call("release")

    def _end(self, how: str, why: str | None) -> str:
        taken: str = self._call("end", how, why)
        return taken

    def _added(self, added: dict[str, JSON]) -> Added:
        return Added(added["seq"], added["checkpoint"])
