"""Threads of LangGraph's own checkpointers, brought over: read through Milepost they are what they are there."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import graphs
import pytest
from conftest import POSTGRES, store_url
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from milepost.errors import Invalid, NotFound
from milepost.langgraph import Imported, MilepostSaver


class Peer:
    """One of LangGraph's checkpointers, and where it keeps its threads."""

    def __init__(self, saver: BaseCheckpointSaver[Any], url: str) -> None:
        self.saver, self.url = saver, url


@pytest.fixture(params=["sqlite", "postgres"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "old.db"
            yield Peer(stack.enter_context(SqliteSaver.from_conn_string(str(path))), f"sqlite:{path}")
            return
        store_url("postgres", tmp_path)
        from urllib.parse import urlsplit

        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver

        name = f"old_{uuid.uuid4().hex}"
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = urlsplit(POSTGRES)._replace(path=f"/{name}").geturl()
        saver = stack.enter_context(PostgresSaver.from_conn_string(url))
        saver.setup()
        yield Peer(saver, url)


def talk(saver: BaseCheckpointSaver[Any]) -> None:
    """Threads of every kind: long ones, forks, one that waits for an answer, subgraphs, parallel branches, odd names and values."""
    agent = graphs.chatting().compile(checkpointer=saver)
    for thread in ("long", "ünï/code ☃"):
        config: Any = {"configurable": {"thread_id": thread}}
        for number in range(5):
            agent.invoke({"messages": [HumanMessage(content=f"Hello {number}", id=f"h-{number}")]}, config)
    history = list(agent.get_state_history({"configurable": {"thread_id": "long"}}))
    forked = agent.update_state(history[len(history) // 2].config, {"messages": [HumanMessage(content="or else", id="fork")]})
    agent.invoke(None, forked)
    asking = graphs.asking().compile(checkpointer=saver)
    for thread in ("waits", "answered"):
        asking.invoke({"messages": [HumanMessage(content="Do it", id="do")]}, {"configurable": {"thread_id": thread}})
    asking.invoke(Command(resume="yes"), {"configurable": {"thread_id": "answered"}})
    # What no graph makes, but a checkpointer keeps.
    config = {"configurable": {"thread_id": "odd", "checkpoint_ns": "sub:1|deep:2"}}
    checkpoint = empty_checkpoint()
    checkpoint["id"] = str(uuid6())
    checkpoint["channel_values"] = {"big": 2**70, "half": 0.5, "none": None, "bytes": b"\x00\xff", "empty": [], "list": [1, "a", None], "text": "x" * 5000, "nested": {"a": [{"b": (1, 2)}]}}
    checkpoint["channel_versions"] = {channel: "1.5" for channel in checkpoint["channel_values"]}
    if not isinstance(saver, SqliteSaver):
        del checkpoint["channel_values"]["big"]
    else:
        checkpoint["channel_values"]["big"] = 2**63
    saved = saver.put(config, checkpoint, {"source": "input", "step": -1, "odd": ["ü", 1]}, checkpoint["channel_versions"])  # type: ignore[typeddict-unknown-key]
    saver.put_writes(saved, [("a", {"x": 1}), ("b", b"raw")], "task-2", "~path, 1")
    saver.put_writes(saved, [("__error__", "boom")], "task-1", "~path, 0")


def everything(saver: BaseCheckpointSaver[Any]) -> dict[Any, Any]:
    """Every checkpoint of every thread, as the checkpointer tells it."""
    found = {}
    for tuple in list(saver.list(None)):
        place = tuple.config["configurable"]
        key = (place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"])
        found[key] = (tuple.checkpoint, tuple.metadata, tuple.parent_config, tuple.pending_writes)
        again = saver.get_tuple(tuple.config)
        assert again is not None
        assert (again.checkpoint, again.pending_writes) == (tuple.checkpoint, tuple.pending_writes)
    return found


def test_every_thread_comes_over_as_it_is(peer: Peer, sqlite_url: str) -> None:
    talk(peer.saver)
    there = everything(peer.saver)
    with MilepostSaver(sqlite_url) as saver:
        looked = saver.import_threads(peer.url, dry_run=True)
        assert looked.checkpoints == len(there) and everything(saver) == {}
        done = saver.import_threads(peer.url)
        assert done == looked
        assert done.threads == 5 and done.known == 0
        assert everything(saver) == there
        # The newest of each thread is what a graph would go on from.
        for thread, namespace in {(thread, namespace) for thread, namespace, _ in there}:
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
            ours, theirs = saver.get_tuple(config), peer.saver.get_tuple(config)
            assert ours is not None and theirs is not None
            assert ours.checkpoint == theirs.checkpoint
        # Its messages are the session's, each once.
        found = saver.store.search("Hello")
        assert {hit.session for hit in found.hits} >= {saver.session("long"), saver.session("ünï/code ☃")}


def test_it_goes_on_where_it_was_left(peer: Peer, sqlite_url: str) -> None:
    talk(peer.saver)
    with MilepostSaver(sqlite_url) as saver:
        saver.import_threads(peer.url, ["waits"])
        config: Any = {"configurable": {"thread_id": "waits"}}
        ended = graphs.asking().compile(checkpointer=saver).invoke(Command(resume="of course"), config)
        expected = graphs.asking().compile(checkpointer=peer.saver).invoke(Command(resume="of course"), config)
        assert ended == expected


def test_done_again_only_what_is_new_comes_over(peer: Peer, sqlite_url: str) -> None:
    talk(peer.saver)
    with MilepostSaver(sqlite_url) as saver:
        first = saver.import_threads(peer.url)
        assert saver.import_threads(peer.url) == Imported(5, 0, first.checkpoints, 0)
        newest = peer.saver.get_tuple({"configurable": {"thread_id": "waits"}})
        assert newest is not None
        peer.saver.put_writes(newest.config, [("log", ["late"])], "late-task")
        agent = graphs.chatting().compile(checkpointer=peer.saver)
        agent.invoke({"messages": [HumanMessage(content="One more", id="more")]}, {"configurable": {"thread_id": "long"}})
        grown = saver.import_threads(peer.url)
        assert grown.checkpoints > 0 and grown.writes > 0 and grown.known == first.checkpoints
        assert everything(saver) == everything(peer.saver)


def test_what_cannot_be_looked_into_comes_over_whole(tmp_path: Path, sqlite_url: str) -> None:
    class Hidden(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            word, data = super().dumps_typed(obj)
            return f"{word}+hidden", data[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return super().loads_typed((data[0].removesuffix("+hidden"), data[1][::-1]))

    with SqliteSaver.from_conn_string(str(tmp_path / "old.db")) as old:
        old.serde = Hidden()
        talk(old)
        with MilepostSaver(sqlite_url, serde=Hidden()) as saver:
            saver.import_threads(f"sqlite:{tmp_path}/old.db")
            assert everything(saver) == everything(old)


def test_metadata_that_only_python_takes_for_json_comes_over(tmp_path: Path, sqlite_url: str) -> None:
    path = tmp_path / "old.db"
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SqliteSaver.from_conn_string(str(path)) as peer:
        peer.put(config, empty_checkpoint(), {"score": float("inf"), "run_id": "r"}, {})  # type: ignore[typeddict-unknown-key]
    with MilepostSaver(sqlite_url) as saver:
        assert saver.import_threads(f"sqlite:{path}") == Imported(1, 1, 0, 0)
        found = saver.get_tuple(config)
        assert found is not None and found.metadata["score"] == float("inf")  # type: ignore[typeddict-item]
        saver.delete_for_runs(["r"])
        assert saver.get_tuple(config) is None


def test_what_is_no_such_store_is_refused_in_words(tmp_path: Path, sqlite_url: str) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    (tmp_path / "garbage.db").write_bytes(os.urandom(5000))
    with MilepostSaver(sqlite_url) as saver:
        with pytest.raises(Invalid, match="no tables checkpoints and writes"):
            saver.import_threads(f"sqlite:{other}")
        with pytest.raises(Exception, match="no such file"):
            saver.import_threads(f"sqlite:{tmp_path}/missing.db")
        assert not (tmp_path / "missing.db").exists()
        with pytest.raises(Exception, match="not a database"):
            saver.import_threads(f"sqlite:{tmp_path}/garbage.db")
        with pytest.raises(Invalid, match="neither sqlite:PATH nor postgres"):
            saver.import_threads("mysql://x")
        with SqliteSaver.from_conn_string(str(tmp_path / "old.db")) as old:
            talk(old)
        with pytest.raises(NotFound, match="nobody"):
            saver.import_threads(f"sqlite:{tmp_path}/old.db", ["nobody"])


def test_the_command_brings_threads_over(peer: Peer, sqlite_url: str) -> None:
    command = os.environ.get("MILEPOST_COMMAND")
    if not command:
        pytest.skip("without the command: scripts/test-python names it")
    talk(peer.saver)
    call = [command, "--store", sqlite_url, "--json", "import", "langgraph", "--from", peer.url]
    told = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    with MilepostSaver(sqlite_url) as saver:
        there = everything(peer.saver)
        assert everything(saver) == there
        assert told == {"threads": 5, "checkpoints": len(there), "known": 0, "writes": told["writes"], "dryRun": False, "leftOut": []}
        session = saver.session("ünï/code ☃")
    shown = subprocess.run([command, "--store", sqlite_url, "sessions", "show", session], check=True, capture_output=True, text=True)
    assert "ünï/code" in shown.stdout
    found = subprocess.run([command, "--store", sqlite_url, "sessions", "search", "Hello"], check=True, capture_output=True, text=True)
    assert "Hello" in found.stdout
    exported = subprocess.run([command, "--store", sqlite_url, "sessions", "export", session, "-f", "markdown"], check=True, capture_output=True, text=True)
    assert "Hello 4" in exported.stdout
