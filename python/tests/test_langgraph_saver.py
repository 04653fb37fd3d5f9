"""The checkpointer by itself: what changed is noticed, what others do is seen, and a crash takes nothing back."""

from __future__ import annotations

import copy
import enum
import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conftest import new_workspace, store_url
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import milepost
from milepost._milepost import look_into_dicts
from milepost.langgraph import MilepostSaver


def config(thread: str = "t", id: str | None = None, namespace: str = "") -> Any:
    configurable = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": {**configurable, **({"checkpoint_id": id} if id else {})}}


def put(saver: MilepostSaver, values: dict[str, Any], after: Any = None, thread: str = "t", **metadata: Any) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["id"] = str(uuid6())
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {channel: str(random.random()) for channel in values}
    return saver.put(after or config(thread), checkpoint, {"source": "loop", "step": 0, **metadata}, checkpoint["channel_versions"])  # type: ignore[typeddict-item]


def values(saver: MilepostSaver, at: Any) -> Any:
    found = saver.get_tuple(at)
    assert found is not None
    return found.checkpoint["channel_values"]


@pytest.fixture(params=["quick", "looking", "strict"])
def saver(request: pytest.FixtureRequest, sqlite_url: str) -> Any:
    """Notices changes by the versions of dictionaries, by looking into them, or by serialising everything."""
    look_into_dicts(request.param == "looking")
    with MilepostSaver(sqlite_url, strict=request.param == "strict") as made:
        yield made
    look_into_dicts(False)


def mutate_content(message: Any) -> None:
    message.content = message.content + "!"


def mutate_extra(message: Any) -> None:
    message.additional_kwargs["deep"]["list"][0]["x"] = 2


def mutate_call(message: Any) -> None:
    message.tool_calls[0]["args"]["q"] = "other"


def mutate_metadata(message: Any) -> None:
    message.response_metadata = {"new": True}


@pytest.mark.parametrize("mutate", [mutate_content, mutate_extra, mutate_call, mutate_metadata])
def test_a_message_changed_in_place_is_stored_anew(saver: MilepostSaver, mutate: Any) -> None:
    call = {"name": "f", "args": {"q": "one"}, "id": "c"}
    make = lambda n: AIMessage(content=f"text {n}", id=str(n), tool_calls=[call], additional_kwargs={"deep": {"list": [{"x": 1}]}})
    messages = [copy.deepcopy(make(number)) for number in range(5)]
    first = put(saver, {"messages": messages})
    before = copy.deepcopy(messages)
    mutate(messages[2])
    second = put(saver, {"messages": messages}, first)
    assert messages != before
    assert values(saver, second)["messages"] == messages
    assert values(saver, first)["messages"] == before


@pytest.mark.parametrize("mutate", [mutate_content, mutate_extra, mutate_call, mutate_metadata])
def test_a_message_changed_after_it_was_written_is_stored_as_it_is_now(saver: MilepostSaver, mutate: Any) -> None:
    call = {"name": "f", "args": {"q": "one"}, "id": "c"}
    make = lambda n: AIMessage(content=f"text {n}", id=str(n), tool_calls=[call], additional_kwargs={"deep": {"list": [{"x": 1}]}})
    messages = [copy.deepcopy(make(number)) for number in range(3)]
    first = put(saver, {"messages": messages[:1]})
    saver.put_writes(first, [("messages", messages[1:2])], "one")
    saver.put_writes(first, [("messages", messages[2:])], "two")
    written = copy.deepcopy(messages)
    mutate(messages[2])
    second = put(saver, {"messages": messages}, first)
    assert messages != written
    assert values(saver, second)["messages"] == messages
    found = saver.get_tuple(first)
    assert found is not None and found.pending_writes == [("one", "messages", written[1:2]), ("two", "messages", written[2:])]


def test_a_message_that_was_written_is_not_serialised_again(sqlite_url: str) -> None:
    counted: list[Any] = []

    class Counting(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            counted.extend(item for item in obj if isinstance(item, AIMessage)) if isinstance(obj, list) else None
            return super().dumps_typed(obj)

    messages = [AIMessage(content=f"text {number}", id=str(number)) for number in range(4)]
    with MilepostSaver(sqlite_url, serde=Counting()) as saver:
        first = put(saver, {"messages": messages[:1]})
        saver.put_writes(first, [("messages", messages[1:2])], "one")
        saver.put_writes(first, [("messages", messages[2:3])], "two")
        second = put(saver, {"messages": messages}, first)
        assert [message.id for message in counted] == ["0", "1", "2", "3"]
        assert values(saver, second)["messages"] == messages


def test_values_changed_in_place_are_stored_anew(saver: MilepostSaver) -> None:
    state = {"a": [1, {"b": 2}], "text": "x" * 5000}
    items = [{"role": "user", "content": "hi", "n": [1]}, {"k": [1, 2]}]
    first = put(saver, {"state": state, "items": items})
    before = copy.deepcopy((state, items))
    state["a"][1]["b"] = 3  # type: ignore[index]
    items[0]["n"].append(2)  # type: ignore[attr-defined]
    second = put(saver, {"state": state, "items": items}, first)
    assert values(saver, second) == {"state": state, "items": items}
    assert values(saver, first) == {"state": before[0], "items": before[1]}


class Fields:
    def __init__(self) -> None:
        self.text = "x"
        self.deep = {"list": [1]}

    def say(self, text: str) -> None:
        self.text = text


CHANGES: list[Any] = [
    lambda some: some.__setitem__("text", "other"),
    lambda some: some.__setitem__("new", 1),
    lambda some: some.__delitem__("text"),
    lambda some: some.pop("text"),
    lambda some: some.popitem(),
    lambda some: some.clear(),
    lambda some: some.update(text="other"),
    lambda some: some.update({"deep": {}}),
    lambda some: some.setdefault("new", None),
    lambda some: some.__ior__({"text": None}),
    lambda some: some["deep"].update(more=1),
    lambda some: some["deep"]["list"].append(2),
    lambda some: some["deep"]["list"].clear(),
    lambda some: some["deep"].clear(),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
@pytest.mark.parametrize("kind", ["dict", "fields"])
def test_every_change_of_a_dictionary_is_seen(saver: MilepostSaver, kind: str, number: int) -> None:
    saver.serde = JsonPlusSerializer(pickle_fallback=True)
    some = Fields()
    # What an interpreter does often it does in another way.
    for count in range(100):
        some.say(str(count))
    item: Any = vars(some) if kind == "dict" else some
    look = (lambda found: found) if kind == "dict" else vars
    first = put(saver, {"xs": [0, item, 1]})
    before = copy.deepcopy(look(item))
    CHANGES[number](vars(some))
    second = put(saver, {"xs": [0, item, 1]}, first)
    assert before != look(item)
    assert look(values(saver, second)["xs"][1]) == look(item)
    some.say("last")
    third = put(saver, {"xs": [0, item, 1]}, second)
    assert look(values(saver, third)["xs"][1]) == look(item)
    assert look(values(saver, first)["xs"][1]) == before


@pytest.mark.parametrize("seed", range(6))
def test_lists_come_back_whatever_was_done_to_them(saver: MilepostSaver, seed: int) -> None:
    """Random edits, forks and readings, against what was put in."""
    chance = random.Random(seed)
    kept: list[tuple[Any, Any]] = []
    at, messages = None, []
    for number in range(60):
        if kept and chance.random() < 0.15:
            at, old = chance.choice(kept)
            messages = values(saver, at)["messages"] if chance.random() < 0.5 else copy.deepcopy(old["messages"])
        edit = chance.random()
        if edit < 0.6 or not messages:
            kind = chance.choice([HumanMessage, AIMessage])
            messages = [*messages, kind(content=f"message {number} " * chance.randint(0, 30), id=str(number))]
        elif edit < 0.7:
            messages = messages[chance.randint(0, len(messages)) :]
        elif edit < 0.8:
            messages = [*messages]
            messages[chance.randrange(len(messages))] = HumanMessage(content=f"replaced {number}", id=str(number))
        elif edit < 0.9:
            messages = chance.sample(messages, len(messages))
        else:
            messages = [*messages, *messages[:2]]
        put_in = {"messages": messages, "state": {"n": number, "t": "x" * chance.randint(0, 3000)}, "odd": [number, None, b"\xff"]}
        at = put(saver, put_in, at)
        kept.append((at, copy.deepcopy(put_in)))
    for at, old in kept:
        assert values(saver, at) == old
    for found in saver.list(config()):
        old = next(old for at, old in kept if at["configurable"]["checkpoint_id"] == found.checkpoint["id"])
        assert found.checkpoint["channel_values"] == old


def edit(chance: random.Random, state: dict[Any, Any], number: int) -> dict[Any, Any]:
    """Something that a node may do to a dictionary: in place, or with another one of the same entries."""
    key = chance.choice(list(state)) if state else "first"
    change = chance.randrange(12)
    if change < 4:
        state[key] = {"n": number, "text": "x" * chance.randint(0, 300)}
    elif change == 4:
        state[f"new {number}"] = [number, {"deep": [number]}]
    elif change == 5:
        state.pop(key, None)
    elif change == 6:
        state = {**state, f"merged {number}": None}
    elif change == 7:
        state = dict(chance.sample(list(state.items()), len(state)))
    elif change == 8:
        # An equal key that is another object, at another place.
        state[str(key)[:1] + str(key)[1:]] = state.pop(key, None)
    elif change == 9:
        state[key] = chance.choice([b"\xff", 2.5, "é\u2028", HumanMessage(content=str(number), id="m"), {1, 2}, 2**70])
    elif change == 10:
        state[chance.choice([number, None, "\ud800"])] = number
    else:
        for value in state.values():
            if isinstance(value, dict):
                value["changed"] = number
                break
    return state


@pytest.mark.parametrize("seed", range(8))
def test_dictionaries_come_back_whatever_was_done_to_them(saver: MilepostSaver, seed: int) -> None:
    """The same values in the same order as when the serializer is given all of them."""
    chance = random.Random(seed)
    saver.serde = JsonPlusSerializer(pickle_fallback=True)
    kept: list[tuple[Any, Any]] = []
    at: Any = None
    # Maps begin in another way from 16 entries on.
    state: dict[Any, Any] = {f"key {number}": {"n": number} for number in range(chance.choice([0, 1, 13, 40]))}
    for number in range(80):
        if kept and chance.random() < 0.1:
            at, _ = chance.choice(kept)
            state = values(saver, at)["state"]
        for _ in range(chance.choice([0, 1, 1, 2])):
            state = edit(chance, state, number)
        expected = saver.serde.loads_typed(saver.serde.dumps_typed(state))
        at = put(saver, {"state": state}, at)
        kept.append((at, expected))
    for at, expected in kept:
        found = values(saver, at)["state"]
        assert found == expected
        assert list(found) == list(expected)


def test_a_dictionary_changed_in_place_without_a_new_version_is_stored_anew(saver: MilepostSaver) -> None:
    state = {"a": {"n": [1]}, "b": {"n": [1]}}
    first = put(saver, {"state": state})
    state["a"] = {"n": [2]}
    second = put(saver, {"state": state}, first)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"state": state}
    found = saver.get_tuple(second)
    assert found is not None
    checkpoint["channel_versions"] = found.checkpoint["channel_versions"]
    state["b"]["n"].append(3)
    third = saver.put(second, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {})
    assert values(saver, third)["state"] == {"a": {"n": [2]}, "b": {"n": [1, 3]}}
    assert values(saver, second)["state"] == {"a": {"n": [2]}, "b": {"n": [1]}}


def test_entries_that_did_not_change_are_not_serialised_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    serialise = JsonPlusSerializer.dumps_typed

    def counting(serde: JsonPlusSerializer, obj: Any) -> tuple[str, bytes]:
        counted.extend(key for key in obj if key.startswith("key")) if isinstance(obj, dict) else None
        return serialise(serde, obj)

    monkeypatch.setattr(JsonPlusSerializer, "dumps_typed", counting)
    state = {f"key {number}": {"n": number} for number in range(20)}
    with MilepostSaver(sqlite_url) as saver:
        at = put(saver, {"state": state})
        assert len(counted) == 20
        counted.clear()
        state["key 7"] = {"n": 70}
        at = put(saver, {"state": state}, at)
        # As a reducer gives it: another dictionary, with the same objects in it.
        state = {**state, "key 8": {"n": 80}, "key 20": {"n": 20}}
        at = put(saver, {"state": state}, at)
        state["key 9"]["n"] = 90
        at = put(saver, {"state": state}, at)
        assert counted == ["key 7", "key 8", "key 20", "key 9"]
        assert values(saver, at)["state"] == state


def test_a_serializer_that_looks_at_all_entries_is_given_all_of_them(sqlite_url: str) -> None:
    class Hiding(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            if isinstance(obj, dict) and obj.get("kind") == "credential":
                obj = {**obj, "secret": "hidden"}
            return super().dumps_typed(obj)

    state = {"kind": "credential", "secret": "one"}
    with MilepostSaver(sqlite_url, serde=Hiding()) as saver:
        at = put(saver, {"state": state})
        state["secret"] = "two"
        at = put(saver, {"state": state}, at)
        assert values(saver, at)["state"] == {"kind": "credential", "secret": "hidden"}


def test_what_is_written_is_not_stored_twice(tmp_path: Path) -> None:
    url = store_url("sqlite", tmp_path)
    chance = random.Random(1)
    words = [chance.randbytes(6).hex() for _ in range(1000)]
    with MilepostSaver(url) as saver:
        messages: list[Any] = []
        at = put(saver, {"messages": messages})
        for number in range(100):
            new = AIMessage(content=" ".join(chance.sample(words, 100)), id=str(number))
            saver.put_writes(at, [("messages", [new])], f"task {number}")
            messages = [*messages, new]
            at = put(saver, {"messages": messages}, at)
        assert len(saver.store.messages(saver.session("t"))) == 100
        writes = saver.get_tuple(config("t", list(saver.list(config(), limit=2))[1].checkpoint["id"])).pending_writes  # type: ignore[union-attr]
        assert writes == [("task 99", "messages", [messages[-1]])]


def test_writes_may_come_early_and_late(saver: MilepostSaver) -> None:
    """LangGraph keeps writes and checkpoints at the same time: either may be first."""
    first = put(saver, {"a": 1})
    coming = empty_checkpoint()
    coming["id"] = str(uuid6())
    saver.put_writes(config(id=coming["id"]), [("a", "early")], "early")
    second = saver.put(first, coming, {"source": "loop", "step": 1}, {})
    third = put(saver, {"a": 3}, second)
    saver.put_writes(first, [("messages", [HumanMessage(content="late", id="l")])], "late")
    saver.put_writes(second, [("a", "later")], "later", "path")
    put(saver, {"a": 4}, first)
    pending = lambda at: [(w[0], w[2]) for w in saver.get_tuple(at).pending_writes]  # type: ignore[union-attr]
    for _ in range(2):
        assert pending(first) == [("late", [HumanMessage(content="late", id="l")])]
        assert pending(second) == [("early", "early"), ("later", "later")]
        assert pending(third) == []
        saver = MilepostSaver(saver.store)


def test_others_may_mark_and_set_back_a_thread(saver: MilepostSaver) -> None:
    """A person at the command line takes a checkpoint, and later sets the session back."""
    first = put(saver, {"messages": [HumanMessage(content="one", id="1")]})
    second = put(saver, {"messages": [HumanMessage(content="one", id="1"), HumanMessage(content="two", id="2")]}, first)
    session = saver.session("t")
    with saver.store.hold(session) as held:
        held.checkpoint("by hand")
    saver.put_writes(second, [("messages", [HumanMessage(content="three", id="3")])], "task")
    assert [w[0] for w in saver.get_tuple(config()).pending_writes] == ["task"]  # type: ignore[union-attr]
    with saver.store.hold(session) as held:
        held.restore(first["configurable"]["checkpoint_id"])
    saver.put_writes(first, [("x", 1)], "after")
    assert [w[0] for w in saver.get_tuple(first).pending_writes] == ["after"]  # type: ignore[union-attr]
    third = put(saver, {"messages": [HumanMessage(content="other", id="4")]}, first)
    assert [m.id for m in values(saver, third)["messages"]] == ["4"]
    assert [m.id for m in values(saver, second)["messages"]] == ["1", "2"]
    assert saver.get_tuple(config()).checkpoint["id"] == third["configurable"]["checkpoint_id"]  # type: ignore[union-attr]


def test_delta_channels_are_rebuilt_and_survive_pruning(saver: MilepostSaver) -> None:
    snapshot = put(saver, {"messages": _DeltaSnapshot(["a"]), "x": 1})
    saver.put_writes(snapshot, [("messages", ["b"]), ("x", 2)], "one", "p")
    at = put(saver, {"x": 2}, snapshot, counters_since_delta_snapshot={"messages": [1, 1]})
    saver.put_writes(at, [("messages", ["c"])], "two", "q")
    saver.put_writes(at, [("messages", ["d"])], "three", "p")
    at = put(saver, {"x": 3}, at, counters_since_delta_snapshot={"messages": [2, 2]})
    put(saver, {"x": 9}, snapshot)
    last = put(saver, {"x": 4}, at, counters_since_delta_snapshot={"messages": [2, 3]})
    saver.put_writes(last, [("messages", ["not yet"])], "four")
    for _ in range(2):
        history = saver.get_delta_channel_history(config=config(), channels=["messages", "none"])
        assert [write[2] for write in history["messages"]["writes"]] == [["b"], ["d"], ["c"]]
        assert history["messages"]["seed"] == _DeltaSnapshot(["a"])
        assert history["none"] == {"writes": []}
        saver.prune(["t"])
    assert [w[2] for w in saver.get_tuple(config()).pending_writes] == [["not yet"]]  # type: ignore[union-attr]


def test_the_same_id_again_takes_the_old_ones_place(saver: MilepostSaver) -> None:
    first = put(saver, {"a": 1})
    second = put(saver, {"a": 2}, first)
    again = empty_checkpoint()
    again.update(id=first["configurable"]["checkpoint_id"], channel_values={"a": "anew"}, channel_versions={"a": "9"})
    saver.put(config(), again, {"source": "update", "step": 0}, {"a": "9"})
    assert values(saver, first) == {"a": "anew"} and values(saver, second) == {"a": 2}
    assert len(list(saver.list(config()))) == 2


def test_housekeeping_without_an_event_loop(saver: MilepostSaver) -> None:
    first = put(saver, {"messages": [HumanMessage(content="hi", id="1")]}, run_id="r1")
    saver.put_writes(first, [("x", 1)], "task")
    second = put(saver, {"messages": [HumanMessage(content="hi", id="1")]}, first, run_id="r2")
    put(saver, {"k": 1}, config("t", namespace="child"), run_id="r2")
    saver.copy_thread("t", "copy")
    assert [found.checkpoint["id"] for found in saver.list(config("copy"))] == [
        at["configurable"]["checkpoint_id"] for at in (second, first)
    ]
    assert saver.get_tuple(config("copy", first["configurable"]["checkpoint_id"])).pending_writes == [("task", "x", 1)]  # type: ignore[union-attr]
    saver.delete_for_runs(["r1"])
    assert [found.metadata["run_id"] for found in saver.list({"configurable": {"thread_id": "t"}})] == ["r2", "r2"]
    assert [found.metadata["run_id"] for found in saver.list(None, filter={"run_id": "r2"})] == ["r2"] * 4
    saver.prune(["copy"], strategy="delete")
    saver.delete_thread("t")
    assert list(saver.list(None)) == [] and saver.get_tuple(config()) is None
    assert saver.store.sessions().sessions == []
    with pytest.raises(ValueError, match="keep_latest"):
        saver.prune(["t"], strategy="other")


def test_an_open_store_is_not_opened_anew() -> None:
    with milepost.open("memory:") as store:
        with pytest.raises(TypeError, match="^key, workspace: give these when the store is opened, not with an open store$"):
            MilepostSaver(store, workspace="w", key="0f" * 32)
        MilepostSaver(store, workspace=None, key=None)


def test_a_copied_saver_shares_everything(saver: MilepostSaver) -> None:
    first = put(saver, {"a": 1})
    other = copy.copy(saver)
    second = put(other, {"a": 2}, first)
    assert values(saver, config()) == {"a": 2} == values(other, second)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_sixteen_threads_and_two_processes_on_one_store(kind: str, tmp_path: Path) -> None:
    """Each its own thread of the graph, and all of them one that they share."""
    url, workspace = store_url(kind, tmp_path), new_workspace()
    steps = 3 if kind == "s3" else 12
    child = """
import sys, test_langgraph_saver as t
with t.MilepostSaver(sys.argv[1], workspace=sys.argv[2]) as saver: t.work(saver, int(sys.argv[3]), 8, int(sys.argv[4]))
"""
    here = Path(__file__).resolve().parent
    children = [
        subprocess.Popen([sys.executable, "-c", child, url, workspace, str(number), str(steps)], cwd=here) for number in range(2)
    ]
    assert [process.wait(120) for process in children] == [0, 0]
    with MilepostSaver(url, workspace=workspace) as saver:
        for number in range(16):
            found = list(saver.list(config(f"own {number}")))
            assert len(found) == steps
            assert [m.content for m in found[0].checkpoint["channel_values"]["messages"]] == [f"{number}/{n}" for n in range(steps)]
        shared = list(saver.list(config("shared")))
        assert len(shared) == 16 * steps
        writes = [write[0] for found in shared for write in found.pending_writes or []]
        assert len(set(writes)) == len(writes) == 16 * steps


def work(saver: MilepostSaver, process: int, threads: int, steps: int) -> None:
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            at, messages = config(f"own {number}"), []
            for step in range(steps):
                messages = [*messages, HumanMessage(content=f"{number}/{step}", id=f"{number}/{step}")]
                at = put(saver, {"messages": messages}, at)
                shared = put(saver, {"messages": [HumanMessage(content="s", id="s")], "n": step}, None, "shared")
                saver.put_writes(shared, [("n", number)], f"{number}/{step}")
        except BaseException as error:
            failed.append(error)
            raise

    running = [threading.Thread(target=one, args=(process * threads + number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed


CRASH = """
import sys, test_langgraph_saver as t
saver = t.MilepostSaver(sys.argv[1], workspace=sys.argv[2])
found = saver.get_tuple(t.config())
at, messages = (found.config, found.checkpoint["channel_values"]["messages"]) if found else (None, [])
print("ready", flush=True)
while True:
    number = len(messages)
    new = t.HumanMessage(content=f"message {number} " * 20, id=str(number))
    if at: saver.put_writes(at, [("messages", [new])], f"task {number}")
    messages = [*messages, new]
    at = t.put(saver, {"messages": messages, "state": {"n": number}}, at)
    print(number, flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_kill_in_the_middle_of_put_takes_nothing_back(kind: str, tmp_path: Path) -> None:
    """Whatever was acknowledged is there; another process goes on from it."""
    url, workspace, here = store_url(kind, tmp_path), new_workspace(), Path(__file__).resolve().parent
    chance = random.Random(7)
    acknowledged = -1
    for _ in range(6):
        command = [sys.executable, "-c", CRASH, url, workspace]
        child = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        # Some way into the work, and then anywhere within a step.
        lines = [child.stdout.readline() for _ in range(chance.randint(1, 8))]
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.read().split("\n")
        child.wait()
        acknowledged = max([acknowledged, *(int(line) for line in lines if line.strip())])
        with MilepostSaver(url, workspace=workspace) as saver:
            found = saver.get_tuple(config())
            assert found is not None
            stored = found.checkpoint["channel_values"]
            assert [m.id for m in stored["messages"]] == [str(n) for n in range(len(stored["messages"]))]
            assert stored["state"]["n"] == len(stored["messages"]) - 1 >= acknowledged
            assert len(list(saver.list(config()))) == len(stored["messages"])
    assert acknowledged >= 6


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_what_is_put_while_others_prune_stays(kind: str, tmp_path: Path) -> None:
    """A job prunes threads that are being written to: whatever was acknowledged since is there."""
    url, workspace = store_url(kind, tmp_path), new_workspace()
    with MilepostSaver(url, workspace=workspace) as writing, MilepostSaver(url, workspace=workspace) as pruning:
        failed: list[BaseException] = []
        done = threading.Event()

        def prune() -> None:
            try:
                while not done.is_set():
                    pruning.prune(["t"])
            except BaseException as error:
                failed.append(error)
                raise

        at, messages = None, []
        pruner = threading.Thread(target=prune)
        pruner.start()
        try:
            for number in range(12 if kind == "s3" else 60):
                messages = [*messages, HumanMessage(content=str(number), id=str(number))]
                at = put(writing, {"messages": messages}, at)
                writing.put_writes(at, [("x", number)], f"task {number}")
                for saver in (writing, pruning):
                    found = saver.get_tuple(config())
                    assert found is not None and found.config == at, number
                    assert found.pending_writes == [(f"task {number}", "x", number)], number
                    assert [m.id for m in found.checkpoint["channel_values"]["messages"]] == [m.id for m in messages]
        finally:
            done.set()
            pruner.join()
        assert not failed
        pruning.prune(["t"])
        assert [found.config for found in writing.list(None)] == [at]
        assert [s.id for s in writing.store.sessions().sessions] == [writing.session("t")]


def test_a_thread_that_is_pruned_keeps_what_people_set(saver: MilepostSaver) -> None:
    first = put(saver, {"a": 1})
    put(saver, {"a": 2}, first)
    saver.store.patch(saver.session("t"), title="Ours", tags=["x"], project="p", own=[1])
    saver.prune(["t"])
    info = saver.store.session(saver.session("t"))
    assert (info.title, info.tags, info.project, info.extra["own"]) == ("Ours", ("x",), "p", [1])
    assert not [key for key in info.extra if key.startswith("langgraph_")]
    assert len(list(saver.list(config()))) == 1
    # Nothing is left to prune: the session stays.
    saver.prune(["t"])
    assert saver.session("t") == info.id


KILLED = """
import os, sys, threading, time, test_langgraph_saver as t
saver = t.MilepostSaver(sys.argv[1], workspace=sys.argv[2])
def end():
    time.sleep(float(sys.argv[3]))
    os.kill(os.getpid(), 9)
threading.Thread(target=end).start()
number = 0
while True:
    number += 1
    t.put(saver, {"a": number}, None, f"{os.getpid()} {number}")
    t.put(saver, {"a": number}, t.config("t"))
    saver.prune(["t"])
"""


def test_a_process_that_is_killed_leaves_no_session_that_nobody_finds(tmp_path: Path) -> None:
    """Neither while it begins threads nor while it prunes: every session is its thread's, or flagged to go with it."""
    url, workspace, here = store_url("sqlite", tmp_path), new_workspace(), Path(__file__).resolve().parent
    chance = random.Random(3)
    with MilepostSaver(url, workspace=workspace) as saver:
        for _ in range(8):
            command = [sys.executable, "-c", KILLED, url, workspace, str(chance.uniform(0.02, 0.2))]
            assert subprocess.run(command, cwd=here).returncode == -9
            for info in saver.store.sessions(limit=1000).sessions:
                assert saver.session(str(info.task)) == info.id or "langgraph_building" in info.extra
            ids = [found.checkpoint["id"] for found in saver.list(config("t"))]
            assert len(ids) == len(set(ids))
            # The thread can be gone on with.
            at = put(saver, {"a": "more"}, config("t"))
            assert values(saver, at) == {"a": "more"} == values(saver, config("t"))


FORK = """
import os, sys, threading, test_langgraph_saver as t
saver = t.MilepostSaver(sys.argv[1], workspace=sys.argv[2])
stop, done = threading.Event(), []
def work(number):
    at, messages = t.config(f"own {number}"), []
    while not stop.is_set():
        messages = [*messages, t.HumanMessage(content=str(len(messages)), id=str(len(messages)))]
        at = t.put(saver, {"messages": messages}, at)
    done.append((number, len(messages)))
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
first = t.put(saver, {"messages": [t.HumanMessage(content="first", id="first")]}, t.config("shared"))
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = saver.get_tuple(first)
            messages = found.checkpoint["channel_values"]["messages"]
            for step in range(5):
                new = t.HumanMessage(content=f"{number}/{step}", id=f"{number}/{step}")
                saver.put_writes(found.config if step == 0 else at, [("messages", [new])], f"{number}/{step}")
                messages = [*messages, new]
                at = t.put(saver, {"messages": messages}, found.config if step == 0 else at)
            code = 0 if [m.id for m in t.values(saver, at)["messages"]][1:] == [f"{number}/{n}" for n in range(5)] else 2
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
for thread in threads: thread.join()
assert codes == [0] * 4, codes
for number, count in done: assert len(t.values(saver, t.config(f"own {number}"))["messages"]) == count
assert len(list(saver.list(t.config("shared")))) == 1 + 4 * 5
print("fine")
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_a_fork_while_threads_put_loses_and_blocks_nothing(kind: str, tmp_path: Path) -> None:
    url, here = store_url(kind, tmp_path), Path(__file__).resolve().parent
    command = [sys.executable, "-c", FORK, url, new_workspace()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=here)
    assert done.returncode == 0 and done.stdout == "fine\n", done.stdout + done.stderr


class Masking(JsonPlusSerializer):
    """A serializer that does not write everything as it is."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        word, written = super().dumps_typed(obj)
        return word, written.replace(b"secret", b"******")


class Color(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "content",
    ["a\ud800b", datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), Color.RED, "a secret", b"bytes", 1.5, None, True],
)
@pytest.mark.parametrize("serde", [JsonPlusSerializer(), Masking()])
def test_who_put_something_is_given_what_others_are(sqlite_url: str, serde: Any, content: Any) -> None:
    with MilepostSaver(sqlite_url, serde=serde) as saver, MilepostSaver(sqlite_url, serde=serde) as other:
        at = put(saver, {"messages": [{"role": "user", "content": content}]})
        found = [repr(values(reader, at)) for reader in (saver, other, saver)]
        listed = next(iter(saver.list(config())))
        assert found == [repr(listed.checkpoint["channel_values"])] * 3


def test_writes_for_a_checkpoint_to_come_outlast_pruning(saver: MilepostSaver) -> None:
    first = put(saver, {"a": 1})
    second = put(saver, {"a": 2}, first)
    id = str(uuid6())
    saver.put_writes(config(id=id), [("messages", ["x"])], "task")
    saver.prune(["t"])
    checkpoint = {**empty_checkpoint(), "id": id}
    saver.put(second, checkpoint, {}, {})  # type: ignore[arg-type]
    found = saver.get_tuple(config(id=id))
    assert found is not None and found.pending_writes == [("task", "messages", ["x"])]
