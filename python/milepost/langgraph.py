"""LangGraph's checkpoints in Milepost.

>>> from langgraph.graph import END, START, MessagesState, StateGraph
>>> from milepost.langgraph import MilepostSaver
>>> graph = StateGraph(MessagesState)
>>> _ = graph.add_node("reply", lambda state: {"messages": [("ai", "Hello!")]})
>>> _ = graph.add_edge(START, "reply")
>>> with MilepostSaver("memory:") as saver:
...     agent = graph.compile(checkpointer=saver)
...     config = {"configurable": {"thread_id": "1"}}
...     _ = agent.invoke({"messages": [("user", "Hi")]}, config)
...     [message.content for message in agent.get_state(config).values["messages"]]
...     [(message.role, message.text) for message in saver.store.messages(saver.session("1"))]
['Hi', 'Hello!']
[('user', 'Hi'), ('assistant', 'Hello!')]

A thread is a Milepost session (and so is each namespace of a subgraph): it is listed, shown, searched and exported like any other. A
checkpoint costs what changed: unchanged channels, list items and entries of dictionaries are neither serialised nor stored again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import milepost
from milepost import _adapt, _milepost
from milepost.errors import NotFound

__all__ = ["Imported", "MilepostSaver"]


class Imported(NamedTuple):
    """What was brought over from another checkpointer."""

    threads: int
    """Threads looked at."""
    checkpoints: int
    """Checkpoints that are new here."""
    known: int
    """Checkpoints that were here already."""
    writes: int
    """Pending writes that are new here."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Threads of which something cannot be brought over, and why; everything else was."""


class MilepostSaver(BaseCheckpointSaver[str]):
    """A checkpointer that keeps threads in a Milepost store, for graphs with and without an event loop.

    Give it a URL (`sqlite:PATH`, `postgres://…`, `s3://BUCKET/PREFIX`, `file:///DIR`, `memory:`) or an open store. A
    list's item that is the same object with the same content as in the checkpoint before is not serialised again, nor is a
    value that was neither written nor, as far as it can be looked into, changed in place; with `strict`, every value is
    serialised and compared byte by byte instead.
    """

    def __init__(
        self,
        store: str | milepost.Milepost,
        *,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        workspace: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(serde=serde)
        options = {"workspace": workspace, "key": key}
        _adapt.refuse_options(store, {name: value for name, value in options.items() if value is not None})
        self._owned = isinstance(store, str)
        if isinstance(store, str):
            store = milepost.open(store, workspace=workspace, key=key)
        self.store = store
        self.strict = strict
        self._inner = _milepost.LangGraph(store._engine, WRITES_IDX_MAP)

    def __enter__(self) -> MilepostSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> MilepostSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Closes the store, unless it was given open, and lets go of what was seen."""
        self._inner.forget()
        if self._owned:
            self.store.close()

    def session(self, thread_id: str, checkpoint_ns: str = "") -> str:
        """The Milepost session of a thread's namespace."""
        session: str | None = self._inner.session(None, str(thread_id), checkpoint_ns)
        if session is not None:
            return session
        raise NotFound(f"no thread {thread_id!r} with namespace {checkpoint_ns!r}: run the graph first")

    # Reading.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """One checkpoint of a thread, or the newest."""
        found = self._inner.get(None, *self._reading(), *_place(config), get_checkpoint_id(config))
        return self._tuple(config, found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The same with an event loop."""
        loop = asyncio.get_running_loop()
        found = await self._inner.get(loop, *self._reading(), *_place(config), get_checkpoint_id(config))
        return self._tuple(config, found)

    def _reading(self) -> tuple[Any, bool]:
        """What makes objects of bytes, and whether it is LangGraph's own serializer, whose messages are known."""
        serde = self.serde
        is_own = type(serde) is JsonPlusSerializer and getattr(serde, "_custom_unpack_ext_hook", True) is False
        return serde.loads_typed, is_own

    def _tuple(self, config: RunnableConfig, found: Any) -> CheckpointTuple | None:
        if found is None:
            return None
        thread, namespace, id, _, skeleton, _, values, _, lies = found
        loads = self.serde.loads_typed
        checkpoint = cast(Checkpoint, loads(skeleton))
        known = {channel: value if word is None else loads((word, value)) for channel, word, value in values}
        _give(checkpoint, known)
        self._inner.given(thread, namespace, id, lies, values, checkpoint)
        return self._complete(found, checkpoint, config if get_checkpoint_id(config) else None)

    def _complete(
        self, found: Any, checkpoint: Checkpoint, config: RunnableConfig | None = None
    ) -> CheckpointTuple:
        thread, namespace, id, parent, _, metadata, _, writes, _ = found
        loads = self.serde.loads_typed
        return CheckpointTuple(
            config=config or _config(thread, namespace, id),
            checkpoint=checkpoint,
            metadata=cast(CheckpointMetadata, json.loads(metadata)),
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=[(task, channel, loads((word, value))) for task, channel, word, value in writes],
        )

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, those with the greatest ids first. Items of lists that several of them have are shared.

        Dots in the names of a filter lead into objects; a limit below zero is none.
        """
        yield from self._tuples(
            self._inner.list(None, *self._reading(), *_listing(config, before, limit), filter or {})
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The same with an event loop."""
        loop = asyncio.get_running_loop()
        listed = await self._inner.list(loop, *self._reading(), *_listing(config, before, limit), filter or {})
        for found in self._tuples(listed):
            yield found

    def _tuples(self, listed: Any) -> Iterator[CheckpointTuple]:
        loads = self.serde.loads_typed
        for found in listed:
            checkpoint = cast(Checkpoint, loads(found[4]))
            known = {channel: value if word is None else loads((word, value)) for channel, word, value in found[6]}
            _give(checkpoint, known)
            yield self._complete(found, checkpoint)

    # Writing.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keeps a checkpoint; returns when it is durable."""
        given = self._putting(config, checkpoint, metadata, new_versions)
        # None when someone changed the parent since it was seen: nothing of it can be referred to.
        return cast(RunnableConfig, self._inner.put(None, *given, self.strict) or self._inner.put(None, *given, True))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """The same with an event loop."""
        loop, given = asyncio.get_running_loop(), self._putting(config, checkpoint, metadata, new_versions)
        put = self._inner.put
        return cast(RunnableConfig, await put(loop, *given, self.strict) or await put(loop, *given, True))

    def _putting(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Any, ...]:
        told = get_checkpoint_metadata(config, metadata)
        serde = self.serde
        return serde.dumps_typed, type(serde) is JsonPlusSerializer, config, checkpoint, told, new_versions or None

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keeps what a task wrote for the step after a checkpoint; returns when it is durable."""
        self._inner.put_writes(None, self.serde.dumps_typed, config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """The same with an event loop."""
        loop = asyncio.get_running_loop()
        await self._inner.put_writes(loop, self.serde.dumps_typed, config, writes, task_id, task_path)

    # Keeping house.

    def delete_thread(self, thread_id: str) -> None:
        """Deletes every checkpoint and write of a thread, in all namespaces."""
        self._inner.delete_thread(None, str(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """The same with an event loop."""
        await self._inner.delete_thread(asyncio.get_running_loop(), str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs, with their writes."""
        self._inner.delete_for_runs(None, [str(run) for run in run_ids])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """The same with an event loop."""
        await self._inner.delete_for_runs(asyncio.get_running_loop(), [str(run) for run in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies every checkpoint and write of a thread to another."""
        self._inner.copy_thread(None, str(source_thread_id), str(target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """The same with an event loop."""
        await self._inner.copy_thread(asyncio.get_running_loop(), str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keeps only the newest checkpoint of each namespace (and what its delta channels are rebuilt from), or none."""
        call = self._pruning(strategy)
        for thread in thread_ids:
            call(None, str(thread))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """The same with an event loop."""
        call = self._pruning(strategy)
        for thread in thread_ids:
            await call(asyncio.get_running_loop(), str(thread))

    def _pruning(self, strategy: str) -> Any:
        match strategy:
            case "keep_latest":
                return self._inner.keep_latest
            case "delete":
                return self._inner.delete_thread
            case _:
                raise ValueError(f"there is no pruning strategy {strategy!r}: use keep_latest or delete")

    # Moving in.

    def import_threads(self, source: str, threads: Sequence[str] = (), *, dry_run: bool = False) -> Imported:
        """Brings threads over that LangGraph's own checkpointer keeps, with every checkpoint and write as it is there.

        `source` is `sqlite:PATH` (SqliteSaver) or `postgres://…` (PostgresSaver); `threads` are those to take, all when left out.
        It can be done again: only what is new comes over. The old store is only read. What cannot be brought over stops nothing else.
        """
        return Imported(*self._inner.import_threads(None, source, [str(thread) for thread in threads], dry_run))

    async def aimport_threads(self, source: str, threads: Sequence[str] = (), *, dry_run: bool = False) -> Imported:
        """The same with an event loop."""
        loop = asyncio.get_running_loop()
        return Imported(*await self._inner.import_threads(loop, source, [str(thread) for thread in threads], dry_run))

    # Delta channels.

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What channels were given on the way to a checkpoint, in one pass over the log."""
        if not channels:
            return {}
        return self._histories(self._inner.history(None, *_place(config), get_checkpoint_id(config), [*channels]))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The same with an event loop."""
        if not channels:
            return {}
        loop = asyncio.get_running_loop()
        return self._histories(await self._inner.history(loop, *_place(config), get_checkpoint_id(config), [*channels]))

    def _histories(self, told: Any) -> Mapping[str, DeltaChannelHistory]:
        loads = self.serde.loads_typed
        histories: dict[str, DeltaChannelHistory] = {}
        for name, seed, writes in told:
            history: DeltaChannelHistory = {
                "writes": [(task, channel, loads((word, value))) for task, channel, word, value in writes]
            }
            if seed is not None:
                history["seed"] = loads(seed)
            histories[name] = history
        return histories

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Versions of channels: a number that goes up, and something that tells forks apart."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        return f"{number + 1:032}.{random.random():016}"


_to_json = json.JSONEncoder(ensure_ascii=False).encode


def _give(checkpoint: Checkpoint, values: dict[str, Any]) -> None:
    """Values that could not be taken apart when they were brought over lie in the checkpoint itself."""
    within = checkpoint.get("channel_values")
    checkpoint["channel_values"] = {**within, **values} if within else values


def _place(config: RunnableConfig) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(thread: str, namespace: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _listing(
    config: RunnableConfig | None, before: RunnableConfig | None, limit: int | None
) -> tuple[str | None, str | None, str | None, str | None, int | None]:
    thread = namespace = id = None
    if config is not None:
        configurable = config["configurable"]
        thread, namespace = str(configurable["thread_id"]), configurable.get("checkpoint_ns")
        id = get_checkpoint_id(config)
    # As in SQL, a limit below zero is none.
    most = None if limit is None or limit < 0 else limit
    return thread, namespace, id, None if before is None else get_checkpoint_id(before), most
