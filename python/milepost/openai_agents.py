"""The OpenAI Agents SDK's `Session` in a Milepost store.

A conversation of the SDK is a Milepost session: each item is a message in its log, so that it is searched, shown, exported,
compared and branched like any other, and comes back to the SDK exactly as it was given. Several processes may use it at
once. Taking an item back, or clearing, sets the session back: what was there before stays, on the old timeline.

>>> import asyncio
>>> import milepost
>>> from milepost.openai_agents import MilepostSession
>>> async def main():
...     store = await milepost.open_async("memory:")
...     session = MilepostSession("weather", store)            # Runner.run(agent, "Hi", session=session)
...     await session.add_items([{"role": "user", "content": "Is it raining in Bergen?"}])
...     await session.add_items([{"role": "assistant", "content": "It always is."}])
...     branch = await session.create_branch_from_turn(1)
...     await session.add_items([{"role": "user", "content": "Is it raining in Oslo?"}])
...     print([item["content"] for item in await session.get_items()])
...     await session.switch_to_branch("main")
...     print([item["content"] for item in await session.get_items()])
...     found = await store.search("always")
...     print(found.hits[0].message.role)
>>> asyncio.run(main())
['Is it raining in Oslo?']
['Is it raining in Bergen?', 'It always is.']
assistant

Secrets are redacted before they are stored, as everywhere in Milepost: open the store with `redact=False` to get them back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agents.memory import SessionSettings

from milepost import _adapt
from milepost._async import AsyncMilepost
from milepost._openai_items import decode as _decode
from milepost._openai_items import encode as _encode
from milepost._openai_items import is_call as _is_call
from milepost._openai_items import is_turn as _is_turn
from milepost._openai_items import kind as _kind
from milepost._openai_items import preview as _preview
from milepost._openai_items import texts as _texts
from milepost._openai_items import tool as _tool
from milepost._sync import Milepost
from milepost.errors import Conflict, Error, NotFound
from milepost.types import JSON, Message

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.result import RunResultBase
    from agents.usage import Usage

__all__ = ["MilepostSession"]

T = TypeVar("T")

MAIN = "main"
_RECORD = "openai-session"
# How often it is looked, every 50 ms, whether another process has begun a session.
_PATIENCE = 100
_USAGE = ("metrics", "openai_agents")
_log = logging.getLogger(__name__)


class MilepostSession:
    """A conversation of the OpenAI Agents SDK in a Milepost store: `Runner.run(agent, "Hi", session=session)`.

    `store` is an open store or the URL of one, which is then opened when it is first needed, with `options` as
    `milepost.open` has them, and closed by `close` or `aclose`. Objects with the same `session_id` are the same conversation, in any
    process. Which branch is current is each object's own affair.

    >>> import asyncio
    >>> async def main():
    ...     async with MilepostSession("a", "memory:", session_settings={"limit": 2}, redact=False) as session:
    ...         await session.add_items([{"role": "user", "content": str(number)} for number in range(3)])
    ...         print(await session.pop_item())
    ...         print(await session.get_items())
    ...         await session.clear_session()
    ...         print(await session.get_items())
    >>> asyncio.run(main())
    {'role': 'user', 'content': '2'}
    [{'role': 'user', 'content': '0'}, {'role': 'user', 'content': '1'}]
    []
    """

    session_id: str
    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Milepost | AsyncMilepost | str,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        project: str | None = None,
        title: str | None = None,
        agent: str = "openai-agents",
        tags: Iterable[str] = (),
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings = SessionSettings().resolve(session_settings)
        self._place = _adapt.Place(store, options)
        self._key = _adapt.record_key(session_id)
        self._new = {"project": project, "agent": agent, "title": title, "tags": list(tags) or None}
        self._main: str | None = None
        self._branch, self._generation = MAIN, 0

    def __repr__(self) -> str:
        return f"MilepostSession({self.session_id!r}, branch={self._branch!r})"

    async def __aenter__(self) -> MilepostSession:
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

    @property
    def current_branch(self) -> str:
        """The branch that is read and written."""
        return self._branch

    # The protocol.

    async def get_items(self, limit: int | None = None, branch_id: str | None = None) -> list[TResponseInputItem]:
        """Items, oldest first: all, or the last `limit` (else as many as the settings say), of the current branch or
        another."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit == 0:
            return []
        last = limit if limit is not None and limit > 0 else None
        return cast("list[TResponseInputItem]", [item for _, item in await self._items(branch_id, last=last)])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items, all or none, and takes a checkpoint; returns when they are durable."""
        store = await self._place.store()
        if items:
            await _adapt.settled(self._add(store, cast("list[JSON]", items)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Takes the last item back and gives it. The log keeps it, on the timeline that is left."""
        return cast("TResponseInputItem | None", await _adapt.settled(_adapt.retried(self._pop)))

    async def clear_session(self) -> None:
        """Takes every item of every branch back, and the branches with them. The log keeps them, on the timelines that
        are left."""
        await _adapt.settled(self._clear())

    # Branches.

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Begins a branch with everything before a user's turn (the first is 1) and goes over to it. Gives its name."""

        def before(items: list[tuple[Message, JSON]]) -> int:
            turns = [index for index, (_, item) in enumerate(items) if _is_turn(item)]
            if not 1 <= turn_number <= len(turns):
                raise ValueError(f"Turn {turn_number} does not contain a user message in branch '{self._branch}'")
            return turns[turn_number - 1]

        base = f"branch_from_turn_{turn_number}_{int(time.time())}"
        return await _adapt.settled(self._create_branch(before, base, branch_name))

    async def create_branch_from_item(self, count: int, branch_name: str | None = None) -> str:
        """Begins a branch with the first `count` items and goes over to it. Gives its name."""

        def before(items: list[tuple[Message, JSON]]) -> int:
            if not 0 <= count <= len(items):
                raise ValueError(f"Branch '{self._branch}' has {len(items)} items, not {count}")
            return count

        base = f"branch_from_item_{count}_{int(time.time())}"
        return await _adapt.settled(self._create_branch(before, base, branch_name))

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Begins a branch before the first user's turn that has a text in it. Gives its name."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"No user turns found containing '{search_term}'")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Goes over to a branch."""
        index = await self._index()
        if branch_id not in index["branches"]:
            raise ValueError(f"Branch '{branch_id}' does not exist")
        self._branch, self._generation = branch_id, index["generation"]

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Puts a branch into the trash. Its name is not given again. The current one only with `force`, which goes over
        to the main branch."""
        if not branch_id or not branch_id.strip():
            raise ValueError("Branch ID cannot be empty")
        if branch_id == MAIN:
            raise ValueError("Cannot delete the 'main' branch")
        if branch_id == self._branch and not force:
            raise ValueError(f"Cannot delete current branch '{branch_id}'. Use force=True or switch branches first")
        await _adapt.settled(self._delete_branch(branch_id))

    async def list_branches(self) -> list[dict[str, Any]]:
        """Every branch: `branch_id`, `message_count`, `user_turns`, `is_current`, `created_at`, and `session`, the
        Milepost session that it is."""
        index, branches = await self._index(), []
        current = await self._current(index)
        for name, branch in index["branches"].items():
            try:
                items = await self._items(name)
            except NotFound:
                # Deleted for good by someone else.
                continue
            branches.append(
                {
                    "branch_id": name,
                    "message_count": len(items),
                    "user_turns": sum(_is_turn(item) for _, item in items),
                    "is_current": name == current,
                    "created_at": branch["created"],
                    "session": branch["session"],
                }
            )
        return sorted(branches, key=lambda branch: branch["created_at"])

    # Turns.

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The user's turns: `turn`, `content` (its beginning), `full_content`, `timestamp`, `can_branch`."""
        turns = [(message, item) for message, item in await self._items(branch_id) if _is_turn(item)]
        return [self._turn(number, message, item, 100) for number, (message, item) in enumerate(turns, 1)]

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The user's turns that have a text in them; the case of ASCII letters does not matter."""
        wanted = re.compile(re.escape(search_term), re.IGNORECASE | re.ASCII)
        turns = [(message, item) for message, item in await self._items(branch_id) if _is_turn(item)]
        return [
            self._turn(number, message, item, None)
            for number, (message, item) in enumerate(turns, 1)
            if any(wanted.search(text) for text in _texts(item.get("content")))
        ]

    @staticmethod
    def _turn(number: int, message: Message, item: JSON, longest: int | None) -> dict[str, Any]:
        content = item.get("content", "")
        said = message.time.isoformat() if message.time is not None else None
        preview = _preview(content, longest)
        return {"turn": number, "content": preview, "full_content": content, "timestamp": said, "can_branch": True}

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """What each turn consists of: `type` and `tool_name` of its items. Turn 0 is what came before the first."""
        turns: dict[int, list[dict[str, str | None]]] = {}
        for number, item in self._numbered(await self._items(branch_id)):
            turns.setdefault(number, []).append({"type": _kind(item), "tool_name": _tool(item)})
        return turns

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """Which tool was called how often in which turn."""
        items = self._numbered(await self._items(branch_id))
        calls = [(number, _tool(item)) for number, item in items if _is_call(item)]
        # A search that the model ran by itself shows only in what it found.
        calls += [
            (number, "tool_search")
            for number, item in items
            if isinstance(item, dict) and item.get("type") == "tool_search_output" and (number, "tool_search") not in calls
        ]
        counts: dict[tuple[int, str], int] = {}
        for number, tool in calls:
            if tool is not None:
                counts[number, tool] = counts.get((number, tool), 0) + 1
        return [(tool, count, number) for (number, tool), count in sorted(counts.items())]

    @staticmethod
    def _numbered(items: list[tuple[Message, JSON]]) -> list[tuple[int, JSON]]:
        numbered, number = [], 0
        for _, item in items:
            number += _is_turn(item)
            numbered.append((number, item))
        return numbered

    # Usage.

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Keeps what a run used, with the current turn: call it after `Runner.run`. What cannot be kept is logged and
        stops nobody."""
        try:
            await _adapt.settled(self._store_usage(result.context_wrapper.usage))
        except (Error, ValueError):
            _log.exception("usage of session %r was not stored", self.session_id)

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """What was used in all: of a branch, or of every one. None when nothing is known."""
        names = [branch_id] if branch_id is not None else list((await self._index())["branches"])
        turns = [turn for name in names for turn in await self._usage(name)]
        if not turns:
            return None
        fields = ("requests", "input_tokens", "output_tokens", "total_tokens")
        return {**{field: sum(turn[field] for turn in turns) for field in fields}, "total_turns": len(turns)}

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """What each turn used, or one of them (nothing when it is not known)."""
        turns = await self._usage(branch_id)
        if user_turn_number is None:
            return turns
        for turn in turns:
            if turn.pop("user_turn_number") == user_turn_number:
                return turn
        return {}

    # How it is done.

    async def _index(self) -> dict[str, Any]:
        """The record that says which Milepost sessions the branches are."""
        store = await self._place.store()
        found = await store.record(_RECORD, self._key)
        index: dict[str, Any] = {} if found is None else json.loads(found.value)
        return {"generation": 0, "branches": {}, "used": [MAIN], **index}

    async def _current(self, index: dict[str, Any]) -> str:
        """The current branch. When another process cleared the session, that is the main one."""
        if index["generation"] != self._generation and self._branch != MAIN:
            self._branch = MAIN
        self._generation = index["generation"]
        return self._branch

    async def _session(self, branch_id: str | None, create: bool = False) -> str | None:
        """The Milepost session of a branch. The main one is remembered: see `_in`."""
        if self._main is not None and (branch_id or self._branch) == MAIN:
            return self._main
        index = await self._index()
        name = branch_id or await self._current(index)
        branch = index["branches"].get(name)
        # What is named but was not begun holds nothing yet.
        if name == MAIN and (branch is None or branch.get("new")):
            return await self._create() if create else None
        if branch is None:
            raise ValueError(f"Branch '{name}' does not exist")
        if name == MAIN:
            self._main = branch["session"]
        session: str = branch["session"]
        return session

    async def _in(self, branch_id: str | None, work: Callable[[str], Awaitable[T]], create: bool = False) -> T | None:
        """Does something in the Milepost session of a branch; nothing when there is none. Someone else may have deleted
        the main one for good, and begun another."""
        session = await self._session(branch_id, create)
        for _ in range(_adapt.TRIES):
            if session is None:
                return None
            # Asked now: another task may find out meanwhile that it is gone.
            is_main = session == self._main
            try:
                return await work(session)
            except NotFound:
                if not is_main:
                    raise
            self._forget(session)
            again = await self._create(gone=session) if create else await self._session(branch_id)
            session = again if again != session else None
        raise Conflict(f"session {self.session_id!r} was deleted again and again: find out by whom")

    async def _create(self, gone: str | None = None) -> str:
        """Begins the main branch, unless another process was first. `gone` is the one that was deleted.

        The record names the session before it is there: whoever is killed in between leaves nothing that nobody finds. One
        that was deleted gets another id, since others may remember what it was.
        """
        store = await self._place.store()
        fresh = await _adapt.new_session_id(store)

        def name(index: dict[str, JSON]) -> dict[str, JSON]:
            index = {"generation": 0, "branches": {}, "used": [MAIN], **index}
            known = index["branches"].get(MAIN)
            if known is None or known["session"] == gone:
                index["branches"][MAIN] = {"session": fresh, "created": _now(), "new": True}
            return index

        index = await _adapt.change_record(store, _RECORD, self._key, name)
        session: str = index["branches"][MAIN]["session"]
        if index["branches"][MAIN].get("new") and not await self._begin(store, session):
            return await self._create(gone=session)
        self._main = session
        return session

    async def _begin(self, store: AsyncMilepost, session: str) -> bool:
        """Begins the session that the record names, unless another process was first, and says so there. False when another
        began to and never came to an end: it can be begun no more."""
        try:
            await store.create_shared(
                cast(str, self._new["title"] or _adapt.name(self.session_id)),
                id=session,
                task=_adapt.name(self.session_id),
                project=cast("str | None", self._new["project"]),
                agent=cast("str | None", self._new["agent"]),
                tags=cast("list[str]", self._new["tags"] or ()),
                extra={"openai": {"session_id": _adapt.name(self.session_id), "branch": MAIN}},
            )
        except Conflict as conflict:
            if conflict.what != "exists" and not await self._appears(store, session):
                return False

        def begun(index: dict[str, JSON]) -> dict[str, JSON]:
            known = index.get("branches", {}).get(MAIN, {})
            if known.get("session") == session:
                known.pop("new", None)
            return index

        index = await _adapt.change_record(store, _RECORD, self._key, begun)
        # Whoever took too long finds that another has been named.
        return bool(index["branches"].get(MAIN, {}).get("session") == session)

    @staticmethod
    async def _appears(store: AsyncMilepost, session: str) -> bool:
        """Waits a while for a session that another process is about to begin."""
        for _ in range(_PATIENCE):
            try:
                await store.session(session)
            except NotFound:
                await asyncio.sleep(0.05)
            else:
                return True
        return False

    async def _items(self, branch_id: str | None, last: int | None = None) -> list[tuple[Message, JSON]]:
        store = await self._place.store()
        try:
            found = await self._in(branch_id, lambda session: store.messages(session, channel="main", last=last))
        except Error:
            raise
        except ValueError:
            # The SDK's own sessions find nothing in a branch that is not there.
            if branch_id is None:
                raise
            return []
        return [(message, _decode(message)) for message in found or ()]

    async def _add(self, store: AsyncMilepost, items: list[JSON]) -> None:
        await self._in(None, lambda session: self._write(store, session, items), create=True)

    def _forget(self, gone: str) -> None:
        """Another task may know a newer one by now."""
        if self._main == gone:
            self._main = None

    @staticmethod
    async def _write(store: AsyncMilepost, session: str, items: list[JSON]) -> None:
        try:
            await _adapt.add(store, session, [_encode(item) for item in items], trigger="step")
        except Error:
            raise
        except ValueError:
            # Something has no exact form in the store.
            await _adapt.add(store, session, [_encode(item, exact=False) for item in items], trigger="step")

    async def _pop(self) -> JSON:
        store = await self._place.store()
        try:
            return await self._in(None, lambda session: self._pop_from(store, session))
        except NotFound:
            return None

    async def _pop_from(self, store: AsyncMilepost, session: str) -> JSON:
        head = await _adapt.head(store, session)
        found = await store.messages(session, channel="main", last=1, stop=head.length)
        if not found:
            return None
        (message,) = found
        assert message.seq is not None
        item = _decode(message)
        # What the turn used is kept as long as something of the turn is.
        usage = None if _is_turn(item) else await self._usage_of_last_turn(store, session, head)
        await _adapt.add(store, session, [], at=head, back_to=message.seq - 1, set=usage)
        return item

    async def _usage_of_last_turn(
        self, store: AsyncMilepost, session: str, head: _adapt.Head
    ) -> dict[str, JSON] | None:
        turns = _at(await store.state(session), *_USAGE)
        if not turns:
            return None
        items = await store.messages(session, channel="main", stop=head.length)
        name = f"turn-{sum(_is_turn(_decode(message)) for message in items)}"
        return {".".join((*_USAGE, name)): turns[name]} if name in turns else None

    async def _clear(self) -> None:
        store = await self._place.store()
        sessions: list[str] = []

        def change(index: dict[str, JSON]) -> dict[str, JSON]:
            branches = index.get("branches", {})
            sessions[:] = [branch["session"] for branch in branches.values()]
            if not branches:
                return index
            main = {name: branch for name, branch in branches.items() if name == MAIN}
            return {**index, "branches": main, "generation": index["generation"] + 1}

        if await store.record(_RECORD, self._key) is None:
            return
        index = await _adapt.change_record(store, _RECORD, self._key, change)
        for session in sessions:
            await _adapt.retried(lambda: self._empty(store, session))
        self._branch, self._generation = MAIN, index.get("generation", 0)

    @staticmethod
    async def _empty(store: AsyncMilepost, session: str) -> None:
        try:
            head = await _adapt.head(store, session)
            if await store.messages(session, channel="main", first=1, stop=head.length):
                await _adapt.add(store, session, [], at=head, back_to=0)
        except NotFound:
            pass

    async def _create_branch(self, before: Any, base: str, branch_name: str | None) -> str:
        if branch_name is not None and not branch_name.strip():
            raise ValueError("Branch name cannot be empty")
        store, index = await self._place.store(), await self._index()
        source = await self._current(index)
        self._refuse_used(index, branch_name)
        session, seq = await _adapt.retried(lambda: self._cut(store, source, before))
        extra = {"session_id": _adapt.name(self.session_id), "branch": _adapt.name(branch_name or base)}
        title = _adapt.name(f"{self._new['title'] or self.session_id} / {branch_name or base}")
        made = await _adapt.branch_at(store, session, seq, {"title": title, "openai": extra})
        chosen = base

        def change(index: dict[str, JSON]) -> dict[str, JSON]:
            nonlocal chosen
            self._refuse_used(index, branch_name)
            if index["generation"] != self._generation:
                raise ValueError("the session was cleared meanwhile: nothing is left to branch from")
            chosen, number = branch_name or base, 1
            while chosen in index["used"]:
                number += 1
                chosen = f"{base}_{number}"
            index["branches"][chosen] = {"session": made, "created": _now()}
            index["used"].append(chosen)
            return index

        try:
            index = await _adapt.change_record(store, _RECORD, self._key, change)
        except BaseException:
            await store.delete(made)
            raise
        self._branch, self._generation = chosen, index["generation"]
        return chosen

    @staticmethod
    def _refuse_used(index: dict[str, JSON], branch_name: str | None) -> None:
        if branch_name is not None and branch_name in index.get("used", [MAIN]):
            raise ValueError(f"Branch ID '{branch_name}' has already been used. Choose a new branch ID.")

    async def _cut(self, store: AsyncMilepost, source: str, before: Any) -> tuple[str, int]:
        """The session of a branch, and its last entry that a new branch is to share."""

        async def cut(session: str) -> tuple[str, int]:
            head = await _adapt.head(store, session)
            found = await store.messages(session, channel="main", stop=head.length)
            if (await _adapt.head(store, session)).timeline != head.timeline:
                raise Conflict("the session was set back while it was read")
            count = before([(message, _decode(message)) for message in found])
            # What belongs to the items before, such as their usage, lies between them and the next.
            next = found[count].seq if count < len(found) else head.length
            assert next is not None
            return session, next - 1

        made = await self._in(source, cut)
        if made is None:
            before([])
            made = await self._in(source, cut, create=True)
        assert made is not None
        return made

    async def _delete_branch(self, branch_id: str) -> None:
        store = await self._place.store()
        session = ""

        def change(index: dict[str, JSON]) -> dict[str, JSON]:
            nonlocal session
            if branch_id not in index.get("branches", {}):
                raise ValueError(f"Branch '{branch_id}' does not exist")
            session = index["branches"].pop(branch_id)["session"]
            return index

        await _adapt.change_record(store, _RECORD, self._key, change)
        if branch_id == self._branch:
            self._branch = MAIN
        try:
            await store.trash(session)
        except NotFound:
            pass

    async def _store_usage(self, usage: Usage) -> None:
        store, branch = await self._place.store(), await self._current(await self._index())
        session = await self._session(branch)
        if session is None:
            return
        anchor: tuple[int, int | None] | None = None

        async def once() -> None:
            nonlocal anchor
            head = await _adapt.head(store, session)
            items = await store.messages(session, channel="main", stop=head.length)
            turns = [message.seq for message in items if _is_turn(_decode(message))]
            if anchor is None:
                if not items:
                    return
                anchor = (len(turns), turns[-1] if turns else items[0].seq)
            number, seq = anchor
            # The turn may have been taken back since.
            if seq not in {message.seq for message in items}:
                return
            told = {**_told(usage), "branch": branch}
            await _adapt.add(store, session, [], at=head, set={".".join((*_USAGE, f"turn-{number}")): told})

        await _adapt.retried(once)

    async def _usage(self, branch_id: str | None) -> list[dict[str, Any]]:
        """What the turns of a branch used; those that it shares with another are the other's."""
        index = await self._index()
        name = branch_id or await self._current(index)
        branch = index["branches"].get(name)
        if branch is None or branch.get("new"):
            return []
        store = await self._place.store()
        try:
            turns = _at(await store.state(branch["session"]), *_USAGE)
        except NotFound:
            # Deleted for good by someone else.
            return []
        own = [
            {"user_turn_number": int(key.removeprefix("turn-")), **{k: v for k, v in turn.items() if k != "branch"}}
            for key, turn in turns.items()
            if turn.get("branch") == name
        ]
        return sorted(own, key=lambda turn: cast(int, turn["user_turn_number"]))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _at(state: JSON, *path: str) -> dict[str, JSON]:
    for key in path:
        state = state.get(key) if isinstance(state, dict) else None
    return state if isinstance(state, dict) else {}


def _told(usage: Usage) -> dict[str, JSON]:
    def details(value: Any) -> JSON:
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else None

    return {
        "requests": usage.requests or 0,
        "input_tokens": usage.input_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "total_tokens": usage.total_tokens or 0,
        "input_tokens_details": details(usage.input_tokens_details),
        "output_tokens_details": details(usage.output_tokens_details),
    }
