"""What the engine gives back: plain, frozen values."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

JSON = Any
"""None, bool, int, float, str, or a list or dict (with str keys) of these."""

__all__ = [
    "JSON",
    "Added",
    "Checkpoint",
    "Diff",
    "Entry",
    "Found",
    "Hit",
    "Message",
    "PathDiff",
    "Record",
    "Resumed",
    "SessionInfo",
    "SessionPage",
]


def moment(unix_ms: int) -> datetime:
    """A moment of the log, in UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, timezone.utc)


def unix_ms(moment: datetime | None) -> int | None:
    """A moment as the log has it."""
    return None if moment is None else round(moment.timestamp() * 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Something said."""

    role: str
    content: str | list[JSON]
    channel: str = "main"
    extra: dict[str, JSON] = dataclasses.field(default_factory=dict)
    seq: int | None = None
    """The number of its entry."""
    time: datetime | None = None

    @property
    def text(self) -> str:
        """Its text, without anything else that it has."""
        if isinstance(self.content, str):
            return self.content
        texts = (block.get("text") if isinstance(block, dict) else block for block in self.content)
        return "\n".join(text for text in texts if isinstance(text, str) and text)

    def to_dict(self) -> dict[str, JSON]:
        """As it is stored: `role`, `content`, and whatever else it has."""
        said: dict[str, JSON] = {"role": self.role, "content": self.content, **self.extra}
        if self.channel != "main":
            said["channel"] = self.channel
        return said

    @classmethod
    def _of(cls, message: dict[str, JSON], seq: int | None = None, time: int | None = None) -> Message:
        extra = dict(message)
        role, content, channel = extra.pop("role"), extra.pop("content"), extra.pop("channel", "main")
        return cls(role, content, channel, extra, seq, None if time is None else moment(time))

    @classmethod
    def _stored(cls, stored: dict[str, JSON]) -> Message:
        return cls._of(stored["message"], stored["seq"], stored["time"])


@dataclasses.dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a list shows of a session."""

    id: str
    status: str
    created: datetime
    active: datetime
    messages: int
    checkpoints: int
    title: str | None = None
    project: str | None = None
    agent: str | None = None
    feature: str | None = None
    task: str | None = None
    stage: str | None = None
    error: str | None = None
    preview: str | None = None
    tags: tuple[str, ...] = ()
    checkpoint: str | None = None
    """The newest checkpoint."""
    parent: str | None = None
    """The session that it was branched from."""
    trashed: datetime | None = None
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Messages by channel."""
    extra: dict[str, JSON] = dataclasses.field(default_factory=dict)
    """Whatever else was set."""

    @classmethod
    def _of(cls, info: dict[str, JSON]) -> SessionInfo:
        rest = dict(info)
        branch, trashed = rest.pop("branch", None), rest.pop("trashed", None)
        for name in ("head", "hidden"):
            rest.pop(name, None)
        counts = rest.pop("counts")
        texts = ("title", "project", "agent", "feature", "task", "stage", "error", "preview", "checkpoint")
        return cls(
            id=rest.pop("id"),
            status=rest.pop("status"),
            created=moment(rest.pop("created")),
            active=moment(rest.pop("active")),
            messages=sum(counts.values()),
            counts=counts,
            checkpoints=rest.pop("checkpoints"),
            tags=tuple(rest.pop("tags", ())),
            parent=branch["session"] if branch else None,
            trashed=None if trashed is None else moment(trashed),
            **{name: rest.pop(name, None) for name in texts},
            extra=rest,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of sessions."""

    sessions: list[SessionInfo]
    next: str | None
    """Give it as `after` for the next page; none when this was the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A mark in a session's log."""

    id: str
    session: str
    number: int
    trigger: str
    time: datetime
    messages: int
    """Messages up to it."""
    seq: int
    label: str | None = None
    description: str | None = None
    clean: bool = True
    resumable: bool = True
    extra: dict[str, JSON] = dataclasses.field(default_factory=dict)

    @classmethod
    def _of(cls, mark: dict[str, JSON]) -> Checkpoint:
        rest = dict(mark["checkpoint"])
        for name in ("counts", "state"):
            rest.pop(name, None)
        resumable = rest.pop("resumable", "yes")
        return cls(
            id=rest.pop("id"),
            session=mark["session"],
            number=rest.pop("number"),
            trigger=rest.pop("trigger"),
            time=moment(mark["time"]),
            messages=mark["messages"],
            seq=mark["seq"],
            label=rest.pop("label", None),
            description=rest.pop("description", None),
            clean=rest.pop("clean", True),
            resumable=resumable == "yes" or resumable is True,
            extra=rest,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One durable record of a session's log."""

    seq: int
    time: datetime
    kind: str
    """`message`, `state`, `mark` or `event`."""
    body: dict[str, JSON] | None
    """What it says; none for a change of the state, and when it was erased."""


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """What was added: it is durable."""

    seq: int
    """The number of the first entry."""
    checkpoint: str | None
    """The checkpoint that was taken with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resumed:
    """From where a session goes on."""

    checkpoint: Checkpoint | None
    state: dict[str, JSON]
    messages: int
    status: str
    """Its status before."""
    last_active: datetime
    moved: bool
    """What came after the checkpoint is on the old timeline."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Newer checkpoints that are damaged and were passed over, each with why."""
    damaged: tuple[str, ...] = ()
    instead_of: str | None = None
    """Nothing of this session could be gone on from: the one that was resumed was begun anew with its messages."""

    @classmethod
    def _of(cls, told: dict[str, JSON]) -> Resumed:
        return cls(
            checkpoint=Checkpoint._of(told["from"]) if told["from"] else None,
            state=told["state"],
            messages=told["messages"],
            status=told["status"],
            last_active=moment(told["last_active"]),
            moved=told["moved"],
            skipped=tuple((skipped["id"], skipped["why"]) for skipped in told["skipped"]),
            damaged=tuple(told["damaged"]),
            instead_of=told["instead_of"],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A message that a search found."""

    session: str
    title: str | None
    message: Message
    before: list[Message]
    after: list[Message]
    current: bool
    """It is on the session's head, not on a timeline that was left by a restore."""
    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a search found, the best first."""

    hits: list[Hit]
    more: bool

    @classmethod
    def _of(cls, found: dict[str, JSON]) -> Found:
        hits = [
            Hit(
                session=hit["session"],
                title=hit["title"],
                message=Message._stored(hit),
                before=[Message._of(message) for message in hit["before"]],
                after=[Message._of(message) for message in hit["after"]],
                current=hit["current"],
                score=hit["score"],
            )
            for hit in found["hits"]
        ]
        return cls(hits, found["more"])


@dataclasses.dataclass(frozen=True, slots=True)
class PathDiff:
    """A value of the state that differs."""

    path: str
    before: JSON
    after: JSON


@dataclasses.dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two checkpoints."""

    a: Checkpoint
    b: Checkpoint
    only_a: list[Message]
    only_b: list[Message]
    state: list[PathDiff]

    @classmethod
    def _of(cls, diff: dict[str, JSON]) -> Diff:
        return cls(
            a=Checkpoint._of(diff["a"]),
            b=Checkpoint._of(diff["b"]),
            only_a=[Message._stored(message) for message in diff["only_a"]],
            only_b=[Message._stored(message) for message in diff["only_b"]],
            state=[PathDiff(d["path"], d.get("before"), d.get("after")) for d in diff["state"]],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A small versioned value beside the log."""

    key: str
    version: int
    value: bytes
    due: datetime | None = None

    @classmethod
    def _of(cls, found: tuple[str, int, int | None, bytes]) -> Record:
        key, version, due, value = found
        return cls(key, version, value, None if due is None else moment(due))
