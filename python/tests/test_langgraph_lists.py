"""Listing: what is found, and in which order, is what LangGraph's own checkpointer finds."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import new_workspace, store_url
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from milepost.langgraph import MilepostSaver

Pair = tuple[MilepostSaver, BaseCheckpointSaver[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Pair]:
    with MilepostSaver(store_url(request.param, tmp_path), workspace=new_workspace()) as saver:
        yield saver, SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))


def config(thread: str, namespace: str | None = None, id: str | None = None) -> Any:
    given = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}
    return {"configurable": {key: value for key, value in given.items() if value is not None}}


def fill(pair: Pair, chance: random.Random) -> list[Any]:
    """The same checkpoints in both: threads, namespaces, forks, metadata of all kinds."""
    ids: dict[tuple[str, str], list[str]] = {}
    for number in range(80):
        thread, namespace = chance.choice("ab"), chance.choice(["", "", "child:1"])
        known = ids.setdefault((thread, namespace), [])
        parent = chance.choice([*known[-1:], *known]) if known else None
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6())
        checkpoint["channel_values"] = {"messages": [HumanMessage(content=str(number), id=str(number))]}
        checkpoint["channel_versions"] = {"messages": str(number)}
        metadata: Any = {"source": chance.choice(["input", "loop"]), "step": number % 7}
        for key, some in [("tag", ["x", "", None]), ("score", [1, 1.0, 2.5]), ("flag", [True, False]), ("deep", [{"a": [1]}, {}])]:
            if chance.random() < 0.6:
                metadata[key] = chance.choice(some)
        for saver in pair:
            at = saver.put(config(thread, namespace, parent), checkpoint, metadata, {"messages": str(number)})
            if number % 3 == 0:
                saver.put_writes(at, [("x", number), ("y", [number])], f"task {number}", f"path {number % 2}")
        known.append(checkpoint["id"])
    return [id for some in ids.values() for id in some]


def seen(saver: BaseCheckpointSaver[Any], given: Any, **query: Any) -> list[Any]:
    return [(t.config, t.checkpoint, t.metadata, t.parent_config, t.pending_writes) for t in saver.list(given, **query)]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_checkpoints_are_listed_in_the_same_order(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    ids = fill(pair, chance)
    filters: list[Any] = [
        None,
        {},
        {"source": "loop"},
        {"step": 3},
        {"step": 3.0},
        {"tag": "x"},
        {"tag": ""},
        {"tag": None},
        {"score": 1},
        {"score": 2.5},
        {"flag": True},
        {"deep": {"a": [1]}},
        {"source": "input", "step": 2},
        {"nothing": None},
        {"nothing": 1},
    ]
    configs = [None, config("a"), config("b"), config("a", ""), config("b", "child:1"), config("none"), config("a", "none")]
    for _ in range(150):
        given = chance.choice(configs)
        if given is not None and chance.random() < 0.2:
            given = config(given["configurable"]["thread_id"], given["configurable"].get("checkpoint_ns"), chance.choice(ids))
        query = {
            "filter": chance.choice(filters),
            "before": config("a", id=chance.choice([*ids, "0", "z"])) if chance.random() < 0.4 else None,
            "limit": chance.choice([None, None, 0, 1, 2, 5, 1000]),
        }
        assert seen(pair[0], given, **query) == seen(pair[1], given, **query), (given, query)


def test_a_limit_below_zero_is_none(sqlite_url: str) -> None:
    with MilepostSaver(sqlite_url) as saver:
        checkpoint = empty_checkpoint()
        saver.put(config("a", ""), checkpoint, {"source": "input", "step": -1}, {})
        assert len(list(saver.list(config("a"), limit=-1))) == 1
