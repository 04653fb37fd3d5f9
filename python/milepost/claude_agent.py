"""The Claude Agent SDK's `SessionStore` in a Milepost store.

A session of the SDK is a Milepost session: each line of its transcript is a message in its log, subagents in channels of
their own, so that it is searched, shown and exported like any other; `load` gives back exactly what was appended.

>>> import asyncio
>>> import milepost
>>> from milepost.claude_agent import MilepostSessionStore
>>> async def main():
...     store = await milepost.open_async("memory:")
...     sessions = MilepostSessionStore(store)          # ClaudeAgentOptions(session_store=sessions)
...     key = {"project_key": "demo", "session_id": "0b8f1c0e-6f0c-4a55-9c80-6f3b8f0a2d11"}
...     said = {"role": "assistant", "content": [{"type": "text", "text": "Three papers on logs"}]}
...     await sessions.append(key, [{"type": "assistant", "uuid": "u-1", "message": said}])
...     await sessions.append(key, [{"type": "assistant", "uuid": "u-1", "message": said}])    # sent again
...     print(len(await sessions.load(key)))
...     found = await store.search("papers")
...     print(found.hits[0].message.role, found.hits[0].message.text)
>>> asyncio.run(main())
1
assistant Three papers on logs

Secrets are redacted before they are stored, as everywhere in Milepost: open the store with `redact=False` to get them back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from types import TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from milepost import _adapt
from milepost._async import AsyncMilepost
from milepost._sync import Milepost
from milepost.errors import Conflict, Error, NotFound
from milepost.types import JSON, Message, SessionInfo

__all__ = ["MilepostSessionStore"]

MAIN = "main"
AGENT = "claude-agent-sdk"
_RECORD = "claude-session"
_REMEMBERED = 64
"""So many sessions' ids, heads and uuids are remembered."""
_PAGE = 1000
_CHANNEL_BYTES = 128


# Lines of a transcript as messages, and back. Values are moved, never changed: `claude` has the rest of the line.


def _encode(entry: JSON, channel: str, exact: bool = True) -> dict[str, JSON]:
    """A line as a message. What has no exact form in the store is kept as a text of JSON."""
    if not exact and not _adapt.fits(entry):
        block = {"type": "json", "json": json.dumps(entry)}
        return {"role": "other", "content": [block], "channel": channel, "claude": {"moved": "json"}}
    if not isinstance(entry, dict):
        return {"role": "other", "content": [entry], "channel": channel, "claude": {"moved": "entry"}}
    said = entry.get("message")
    if isinstance(said, dict) and isinstance(said.get("role"), str) and isinstance(said.get("content"), (str, list)):
        rest = {**entry, "message": {key: value for key, value in said.items() if key not in ("role", "content")}}
        content = said["content"]
        blocks = content if isinstance(content, str) else [_encode_block(block) for block in content]
        kept = {"moved": "message", "entry": rest}
        return {"role": said["role"], "content": blocks, "channel": channel, "claude": kept}
    kind = entry.get("type")
    role = kind if isinstance(kind, str) and kind else "other"
    text = next((entry[key] for key in ("content", "summary", "customTitle") if isinstance(entry.get(key), str)), "")
    return {"role": role, "content": text, "channel": channel, "claude": {"entry": entry}}


def _decode(message: Message) -> JSON | None:
    """The line of a message; none when someone else wrote it."""
    kept, content = message.extra.get("claude"), message.content
    if not isinstance(kept, dict):
        return None
    match kept.get("moved"):
        case "message":
            blocks = content if isinstance(content, str) else [_decode_block(block) for block in content]
            return {**kept["entry"], "message": {**kept["entry"]["message"], "role": message.role, "content": blocks}}
        case "entry":
            return content[0]
        case "json":
            return json.loads(cast("list[dict[str, str]]", content)[0]["json"])
        case _:
            return kept.get("entry")


def _encode_block(block: JSON) -> JSON:
    """A block as Milepost names its parts. One that could be mistaken for another is wrapped."""
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "tool_use":
            return {**block, "type": "tool_call"}
        case "tool_result" if isinstance(block.get("tool_use_id"), str) and not {"call_id", "claude"} & block.keys():
            rest = {key: value for key, value in block.items() if key != "tool_use_id"}
            if "is_error" in rest and rest["is_error"] is not True:
                rest["claude"] = {"is_error": rest.pop("is_error")}
            return {**rest, "call_id": block["tool_use_id"]}
        case "thinking" if isinstance(block.get("thinking"), str) and "text" not in block:
            return {**{key: value for key, value in block.items() if key != "thinking"}, "text": block["thinking"]}
        case "tool_result" | "thinking" | "tool_call" | "wrapped":
            return {"type": "wrapped", "block": block}
        case _:
            return block


def _decode_block(block: JSON) -> JSON:
    match block.get("type") if isinstance(block, dict) else None:
        case "tool_call":
            return {**block, "type": "tool_use"}
        case "tool_result":
            rest = {key: value for key, value in block.items() if key not in ("call_id", "claude")}
            return {**rest, **block.get("claude", {}), "tool_use_id": block["call_id"]}
        case "thinking":
            return {**{key: value for key, value in block.items() if key != "text"}, "thinking": block["text"]}
        case "wrapped":
            return block["block"]
        case _:
            return block


def _channel(subpath: str | None) -> str:
    """The channel of a transcript. What is no name for one is known by its hash."""
    if subpath is None:
        return MAIN
    if subpath and subpath != MAIN and subpath.isprintable() and not subpath.startswith("sha256:"):
        if len(subpath.encode()) <= _CHANNEL_BYTES:
            return subpath
    return "sha256:" + hashlib.sha256(subpath.encode("utf-8", "surrogatepass")).hexdigest()


def _uuid(entry: JSON) -> str | None:
    found = entry.get("uuid") if isinstance(entry, dict) else None
    return found if isinstance(found, str) and found else None


class _Known:
    """What is remembered of a session: only what is new has to be read and written."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.head: _adapt.Head | None = None
        self.about: dict[str, JSON] = {}
        """What the session's row says of it: `session_id`, `mtime`, `data`, `paths`, `deleted`."""
        self.uuids: dict[str, set[str]] = {}

    def learn(self, about: dict[str, JSON]) -> None:
        """Takes over what the session's row says now. The lines of a transcript that was deleted meanwhile are there no more."""
        for channel in list(self.uuids):
            if _hidden(about, channel) != _hidden(self.about, channel):
                del self.uuids[channel]
        self.about = about


class MilepostSessionStore(SessionStore):
    """Keeps the Claude Agent SDK's transcripts: `ClaudeAgentOptions(session_store=MilepostSessionStore(store))`.

    `store` is an open store or the URL of one, which is then opened when it is first needed, with `options` as
    `milepost.open` has them, and closed by `close` or `aclose`. A session's project in Milepost is its `project_key`, its task its
    `session_id`. For programs that run on asyncio.

    A line with a `uuid` that the transcript already has is not added again. Deleting a session deletes it for good;
    deleting a subagent's transcript alone hides it from `load`, and the log keeps it.
    """

    def __init__(self, store: Milepost | AsyncMilepost | str, **options: Any) -> None:
        self._place = _adapt.Place(store, options)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[asyncio.Lock, list[int]]]]
        self._locks = WeakKeyDictionary()

    async def __aenter__(self) -> MilepostSessionStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes the store, if it was opened here. With an event loop, use `aclose`."""
        self._place.close()

    async def aclose(self) -> None:
        """Closes the store, if it was opened here."""
        await asyncio.to_thread(self._place.close)

    # The protocol.

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Adds lines to a transcript, all or none, in the order of the calls; returns when they are durable."""
        if entries:
            await _adapt.settled(self._in_turn(key, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """A transcript, or none when there is none."""
        store, name, channel = await self._place.store(), _name(key), _channel(key.get("subpath"))
        info = await self._find(store, name)
        if info is None:
            return None
        try:
            found = await store.messages(info.id, channel=channel, start=_hidden(_about(info), channel))
        except NotFound:
            return None
        lines, seen = [], set()
        for message in found:
            line = _decode(message)
            uuid = _uuid(line)
            # Two processes may have added the same line at the same moment: the first counts.
            if line is None or uuid in seen:
                continue
            if uuid is not None:
                seen.add(uuid)
            lines.append(line)
        known = self._known.get(name)
        if known is not None and known.id == info.id:
            known.uuids.setdefault(channel, set()).update(seen)
        return lines or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Sessions of a project, each with when it was last written to."""
        found = await self._about_all(project_key)
        return [{"session_id": about["session_id"], "mtime": about["mtime"]} for about in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The SDK's own summaries of a project's sessions."""
        found = await self._about_all(project_key)
        return [{"session_id": a["session_id"], "mtime": a["mtime"], "data": a["data"]} for a in found]

    async def delete(self, key: SessionKey) -> None:
        """Deletes a session with all its transcripts for good, or hides one of a subagent."""
        await _adapt.settled(self._delete(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The transcripts of subagents that a session has."""
        store, name = await self._place.store(), _name(cast(SessionKey, key))
        info = await self._find(store, name)
        if info is None:
            return []
        about = _about(info)
        gone, paths = about.get("deleted", {}), about.get("paths", {})
        there = [c for c, count in info.counts.items() if c != MAIN and count > gone.get(c, {}).get("count", 0)]
        return [paths.get(channel, channel) for channel in there]

    # How it is done.

    async def _find(self, store: AsyncMilepost, name: str) -> SessionInfo | None:
        """The session of a key, if it is there. Another process may have deleted the one that is remembered, and begun
        another."""
        known = self._known.get(name)
        if known is not None:
            try:
                return await store.session(known.id)
            except NotFound:
                if self._known.get(name) is known:
                    del self._known[name]
        record = await store.record(_RECORD, name)
        try:
            return None if record is None else await store.session(json.loads(record.value)["session"])
        except NotFound:
            return None

    async def _about_all(self, project_key: str) -> list[dict[str, Any]]:
        store, found, after = await self._place.store(), [], None
        while True:
            page = await store.sessions(
                project=_project(project_key), agent=AGENT, by_creation=True, after=after, limit=_PAGE
            )
            for info in page.sessions:
                about = _about(info)
                # A branch that someone made of a session is not the SDK's.
                if info.parent is None and "mtime" in about and about.get("project_key") == project_key:
                    found.append(about)
            after = page.next
            if after is None:
                return found

    async def _in_turn(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Appends of one session one after the other, in the order of the calls."""
        name = _name(key)
        locks = self._locks.setdefault(asyncio.get_running_loop(), {})
        lock, waiting = locks.setdefault(name, (asyncio.Lock(), [0]))
        waiting[0] += 1
        try:
            async with lock:
                await _adapt.retried(lambda: self._append(name, key, entries))
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                locks.pop(name, None)

    async def _append(self, name: str, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        store, channel = await self._place.store(), _channel(key.get("subpath"))
        known = self._known.get(name) or await self._open(store, name, key)
        try:
            if known.head is None:
                known.head = await _adapt.head(store, known.id)
                known.learn(_about(await store.session(known.id)))
            if channel not in known.uuids:
                known.uuids[channel] = await self._read_uuids(store, known, channel)
            await self._write(store, known, key, channel, entries)
        except NotFound as gone:
            # It was deleted by another process: the session begins anew.
            self._known.pop(name, None)
            raise Conflict(str(gone)) from gone
        except BaseException:
            # Nobody here knows where the head is now.
            known.head = None
            raise

    async def _write(
        self, store: AsyncMilepost, known: _Known, key: SessionKey, channel: str, entries: list[SessionStoreEntry]
    ) -> None:
        seen, fresh, new = known.uuids[channel], [], set()
        for entry in entries:
            uuid = _uuid(entry)
            if uuid is None or (uuid not in seen and uuid not in new):
                fresh.append(entry)
                new.update([uuid] if uuid is not None else [])
        if not fresh:
            # They are there unless another process deleted the session since, or the subagent's transcript.
            about = _about(await store.session(known.id))
            if _hidden(about, channel) != _hidden(known.about, channel):
                raise Conflict("the transcript was deleted while it was written to")
            return
        about = dict(known.about)
        patch: dict[str, JSON] = {}
        if channel == MAIN:
            previous = cast("SessionSummaryEntry | None", about if "mtime" in about else None)
            about["data"] = fold_session_summary(previous, key, fresh)["data"]
            about["mtime"] = max(time.time_ns() // 1_000_000, about.get("mtime", 0) + 1)
            titles = [entry.get("customTitle") for entry in cast("list[dict[str, JSON]]", fresh)]
            patch = {"title": _adapt.name(title) for title in titles if isinstance(title, str) and title}
        elif key["subpath"] != channel and channel not in about.get("paths", {}):
            about["paths"] = {**about.get("paths", {}), channel: key["subpath"]}
        if about != known.about:
            patch["claude"] = about
        try:
            head = await self._add(store, known, fresh, channel, patch, exact=True)
        except Error:
            raise
        except ValueError:
            head = await self._add(store, known, fresh, channel, patch, exact=False)
        known.head, known.about = head, about
        seen |= new

    @staticmethod
    async def _add(
        store: AsyncMilepost,
        known: _Known,
        entries: list[SessionStoreEntry],
        channel: str,
        patch: dict[str, JSON],
        exact: bool,
    ) -> _adapt.Head:
        if not exact and not _adapt.fits(patch):
            # A summary of what has no exact form is as good as one with its text escaped.
            patch = json.loads(json.dumps(patch).encode("utf-8", "replace").replace(b"\\ud", b"\\\\ud"))
        messages = [_encode(entry, channel, exact) for entry in entries]
        return await _adapt.add(store, known.id, messages, at=known.head, patch=patch or None)

    async def _open(self, store: AsyncMilepost, name: str, key: SessionKey) -> _Known:
        """The session of a key, or a new one."""
        record = await store.record(_RECORD, name)
        named = {} if record is None else json.loads(record.value)
        version = None if record is None else record.version
        if not named or not (named.get("new") or await self._is_there(store, named["session"])):
            # Named before it is there: whoever is killed in between leaves nothing that nobody finds. One that was deleted
            # gets another id, since others may remember what it was.
            named = {"session": await _adapt.new_session_id(store), "new": True}
            version = await store.put_record(_RECORD, name, json.dumps(named).encode(), expected=version)
        id = str(named["session"])
        if named.get("new"):
            try:
                await store.create_shared(
                    id=id,
                    project=_project(key["project_key"]),
                    agent=AGENT,
                    task=_adapt.name(key["session_id"]),
                    extra={"claude": {"project_key": key["project_key"], "session_id": key["session_id"]}},
                )
            except Conflict:
                # Another process began it.
                pass
            await store.put_record(_RECORD, name, json.dumps({"session": id}).encode(), expected=version)
        known = self._known[name] = _Known(id)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return known

    @staticmethod
    async def _is_there(store: AsyncMilepost, id: str) -> bool:
        try:
            await store.session(id)
        except NotFound:
            return False
        return True

    @staticmethod
    async def _read_uuids(store: AsyncMilepost, known: _Known, channel: str) -> set[str]:
        """The uuids that a transcript has. Nothing is read of one that is new; of another, once in a process."""
        uuids: set[str] = set()
        if not (await store.session(known.id)).counts.get(channel):
            return uuids
        assert known.head is not None
        start = _hidden(known.about, channel)
        for page in range(start, known.head.length, _PAGE):
            stop = min(page + _PAGE, known.head.length)
            for message in await store.messages(known.id, channel=channel, start=page, stop=stop):
                uuid = _uuid(_decode(message))
                if uuid is not None:
                    uuids.add(uuid)
        return uuids

    async def _delete(self, key: SessionKey) -> None:
        store, name, subpath = await self._place.store(), _name(key), key.get("subpath")
        record = await store.record(_RECORD, name)
        self._known.pop(name, None)
        if record is None:
            return
        id = str(json.loads(record.value)["session"])
        if subpath is not None:
            await _adapt.retried(lambda: self._hide(store, id, _channel(subpath)))
            return
        try:
            await store.delete(id, branches="keep")
        except NotFound:
            pass
        try:
            await store.delete_record(_RECORD, name, expected=record.version)
        except (Conflict, NotFound):
            # Another process began it anew meanwhile.
            pass

    @staticmethod
    async def _hide(store: AsyncMilepost, id: str, channel: str) -> None:
        try:
            head = await _adapt.head(store, id)
            info = await store.session(id)
            about, count = _about(info), info.counts.get(channel, 0)
            if count:
                gone = {**about.get("deleted", {}), channel: {"seq": head.length, "count": count}}
                await _adapt.add(store, id, [], at=head, patch={"claude": {**about, "deleted": gone}})
        except NotFound:
            pass


def _name(key: SessionKey) -> str:
    if key.get("subpath") == "":
        raise ValueError("a subpath cannot be empty: leave it out for the main transcript")
    return _adapt.record_key(key["project_key"], key["session_id"])


def _project(project_key: str) -> str:
    """The name of a project for any key: a long one is known by its hash."""
    return project_key if len(project_key.encode("utf-8", "replace")) <= 512 else _adapt.record_key(project_key)


def _about(info: SessionInfo) -> dict[str, Any]:
    about = info.extra.get("claude")
    return dict(about) if isinstance(about, dict) else {}


def _hidden(about: dict[str, JSON], channel: str) -> int:
    seq: int = about.get("deleted", {}).get(channel, {}).get("seq", 0)
    return seq
