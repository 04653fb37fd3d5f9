"""What is done to threads seldom: whatever it is, they hold what LangGraph's own checkpointers would hold."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import gc
import json
import operator
import os
import subprocess
import sys
import uuid
import warnings
import weakref
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pydantic
import pytest
from adapters import KINDS
from conftest import new_workspace, store_url
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import milepost
from milepost._milepost import look_into_dicts
from milepost.langgraph import MilepostSaver

THREAD: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def checkpoint(values: dict[str, Any], versions: dict[str, Any]) -> Checkpoint:
    made = empty_checkpoint()
    made.update(id=str(uuid6(clock_seq=5)), channel_values=values, channel_versions=versions)
    return made


def at(made: Checkpoint) -> Any:
    return {"configurable": {**THREAD["configurable"], "checkpoint_id": made["id"]}}


def shown(saver: BaseCheckpointSaver[Any], given: Any = THREAD) -> tuple[Any, Any, Any]:
    found = saver.get_tuple(given)
    assert found is not None
    return found.checkpoint["channel_values"], found.pending_writes, found.metadata


@pytest.fixture(params=KINDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with MilepostSaver(store_url(request.param, tmp_path), workspace=new_workspace()) as made:
        yield made


# The order of writes.


def test_writes_from_before_a_checkpoint_are_replaced_by_those_from_after_it(saver: MilepostSaver) -> None:
    """LangGraph keeps a checkpoint and its tasks' writes side by side: the writes may come first."""
    first = saver.put(THREAD, checkpoint({"k": 0}, {"k": "0"}), {}, {})
    coming = checkpoint({"k": 1}, {"k": "1"})
    for number, question in enumerate(["first", "second", "third"]):
        saver.put_writes(at(coming), [("__interrupt__", question)], "asks")
        saver.put_writes(at(coming), [("k", question)], "writes")
        if number == 0:
            saver.put(first, coming, {}, {})
    expected = [("asks", "__interrupt__", "third"), ("writes", "k", "first")]
    assert shown(saver)[1] == expected == shown(MilepostSaver(saver.store))[1]


def test_writes_on_other_timelines_are_applied_in_the_order_they_were_made(saver: MilepostSaver) -> None:
    first = saver.put(THREAD, checkpoint({"k": 0}, {"k": "0"}), {}, {})
    second = saver.put(first, checkpoint({"k": 1}, {"k": "1"}), {}, {})
    # Begins a timeline of its own, after writes on another.
    coming = checkpoint({"k": 2}, {"k": "2"})
    for name in ("early", "own", "late"):
        saver.put_writes(at(coming), [("__interrupt__", name)], "asks")
        saver.put_writes(at(coming), [("k", name)], "writes")
        if name == "early":
            saver.put(first, coming, {}, {})
        elif name == "own":
            saver.put(second, checkpoint({"k": 3}, {"k": "3"}), {}, {})
    expected = [("asks", "__interrupt__", "late"), ("writes", "k", "early")]
    assert shown(saver, at(coming))[1] == expected == shown(MilepostSaver(saver.store), at(coming))[1]


class Number(TypedDict):
    n: int


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_second_question_takes_the_first_ones_place(saver: MilepostSaver, durability: Any) -> None:
    def ask(state: Number) -> Number:
        interrupt("first")
        interrupt("second")
        return {"n": 1}

    graph = StateGraph(Number)
    graph.add_node("a", lambda state: {"n": 1})
    graph.add_node("ask", ask)
    graph.add_edge(START, "a")
    graph.add_edge("a", "ask")
    agent = graph.compile(checkpointer=saver)
    for number in range(5):
        config: Any = {"configurable": {"thread_id": str(number)}}
        agent.invoke({"n": 0}, config, durability=durability)
        agent.invoke(Command(resume="yes"), config, durability=durability)
        assert [asked.value for asked in agent.get_state(config).interrupts] == ["second"]


# What a parent had is only taken over from the very checkpoint that was seen.


def test_a_parent_that_is_gone_is_not_needed(saver: MilepostSaver) -> None:
    for number, remove in enumerate([lambda: saver.delete_thread("t"), lambda: saver.delete_for_runs(["r"])]):
        first = saver.put(THREAD, checkpoint({"xs": [1, 2], "k": "v"}, {"xs": "1", "k": "1"}), {"run_id": "r"}, {})  # type: ignore[typeddict-unknown-key]
        remove()
        new = checkpoint({"xs": [1, 2, 3], "k": "v"}, {"xs": "2", "k": "1"})
        saver.put(first, new, {"step": number}, {})
        assert shown(saver)[0] == {"xs": [1, 2, 3], "k": "v"}


@pytest.mark.parametrize("there", [["X"], ["X", "Y"], None])
def test_a_parent_that_someone_else_changed_is_not_taken_for_the_one_that_was_seen(saver: MilepostSaver, there: Any) -> None:
    other = MilepostSaver(saver.store)
    first = checkpoint({"xs": ["a", "b"], "k": "v"}, {"xs": "1", "k": "1"})
    saver.put(THREAD, first, {}, {})
    if there is None:
        other.delete_thread("t")
    else:
        changed: Any = {**first, "channel_values": {"xs": there, "k": "other"}, "channel_versions": {"xs": "1x", "k": "1x"}}
        other.put(THREAD, changed, {}, {})
    saver.put(at(first), checkpoint({"xs": ["a", "b", "c"], "k": "v"}, {"xs": "2", "k": "1"}), {}, {})
    assert shown(saver)[0] == {"xs": ["a", "b", "c"], "k": "v"} == shown(other)[0]


async def test_the_same_with_an_event_loop(tmp_path: Path) -> None:
    async with MilepostSaver(store_url("sqlite", tmp_path)) as saver:
        other = MilepostSaver(saver.store)
        first = checkpoint({"xs": ["a", "b"], "k": "v"}, {"xs": "1", "k": "1"})
        await saver.aput(THREAD, first, {}, {})
        changed: Any = {**first, "channel_values": {"xs": ["X", "Y"], "k": "other"}}
        await other.aput(THREAD, changed, {}, {})
        await saver.aput(at(first), checkpoint({"xs": ["a", "b", "c"], "k": "v"}, {"xs": "2", "k": "1"}), {}, {})
        found = await saver.aget_tuple(THREAD)
        assert found is not None and found.checkpoint["channel_values"] == {"xs": ["a", "b", "c"], "k": "v"}


def test_a_checkpoint_that_someone_else_changed_is_read_as_it_is(saver: MilepostSaver) -> None:
    other = MilepostSaver(saver.store)
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    first = checkpoint({"messages": messages}, {"messages": "1"})
    saver.put(THREAD, first, {}, {})
    changed = [{"role": "user", "content": "other"}, {"role": "user", "content": "still other"}]
    other.put(THREAD, {**first, "channel_values": {"messages": changed}}, {}, {})
    assert shown(saver)[0] == {"messages": changed}


# Serializers whose lists are closed.


class Cipher:
    def encrypt(self, plain: bytes) -> tuple[str, bytes]:
        return "x", bytes(byte ^ 0x5A for byte in plain)

    def decrypt(self, name: str, closed: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in closed)


class Opaque:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.x == other.x


class Lists(TypedDict):
    messages: Annotated[list[Any], add_messages]
    xs: list[Any]
    log: Annotated[list[Any], operator.add]


def listing(saver: BaseCheckpointSaver[Any]) -> Any:
    def node(state: Lists) -> Any:
        match state["messages"][-1].content:
            case "drop":
                return {"messages": [RemoveMessage(id=state["messages"][-1].id)]}
            case "trim":
                return {"xs": state["xs"][:-1], "log": ["trimmed"]}
            case "empty":
                return {"xs": []}
        return {"messages": [AIMessage("re", id=f"re-{len(state['messages'])}")], "xs": [*(state.get("xs") or []), 1]}

    graph = StateGraph(Lists)
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    return graph.compile(checkpointer=saver)


def told(state: Any) -> Any:
    return [message.content for message in state["messages"]], state["xs"], state["log"]


@pytest.mark.parametrize("serde", [EncryptedSerializer(Cipher(), JsonPlusSerializer()), JsonPlusSerializer(pickle_fallback=True)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_goes_on_with_lists_that_cannot_be_looked_into(kind: str, serde: Any, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    config: Any = {"configurable": {"thread_id": "t"}}
    words = ["a", "b", "drop", "trim", "drop", "c", "empty", "d", "trim", "empty", "trim"]
    outcomes = []
    workspace = new_workspace()
    with MilepostSaver(store_url(kind, tmp_path), serde=serde, workspace=workspace) as ours, SqliteSaver.from_conn_string(":memory:") as theirs:
        theirs.serde = serde
        for made in (ours, theirs):
            outcome: list[Any] = []
            for number, text in enumerate(words):
                given = {"messages": [HumanMessage(text, id=str(number))], "log": [Opaque(number)] if serde is not None and getattr(serde, "pickle_fallback", False) else []}
                saver = MilepostSaver(ours.store, serde=serde) if made is ours and number % 3 == 0 else made
                outcome.append(told(listing(saver).invoke(given, config)))
                outcome.append(told(listing(made).get_state(config).values))
            outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_a_graph_goes_on_after_lists_were_brought_over_that_cannot_be_looked_into(saver: MilepostSaver, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    config: Any = {"configurable": {"thread_id": "t"}}
    path = f"{tmp_path}/theirs.db"
    serde = JsonPlusSerializer(pickle_fallback=True)
    ours = MilepostSaver(saver.store, serde=serde)
    with SqliteSaver.from_conn_string(path) as theirs:
        theirs.serde = serde
        listing(theirs).invoke({"messages": [HumanMessage("a", id="a")], "log": [Opaque(1)]}, config)
        ours.import_threads(f"sqlite:{path}")
        given = {"messages": [HumanMessage("b", id="b")], "log": ["plain"]}
        expected = told(listing(theirs).invoke(given, config))
    assert told(listing(ours).invoke(given, config)) == expected == told(listing(ours).get_state(config).values)


# The same id again.


@pytest.mark.parametrize("is_its_own_parent", [False, True])
def test_a_checkpoint_that_is_put_again_keeps_its_writes(saver: MilepostSaver, is_its_own_parent: bool) -> None:
    first = saver.put(THREAD, checkpoint({"k": "first"}, {"k": "0"}), {}, {})
    again = checkpoint({"k": "v", "xs": [1]}, {"k": "1", "xs": "1"})
    saver.put(first, again, {"step": 1}, {})
    saver.put_writes(at(again), [("k", "w"), ("messages", [HumanMessage("hi", id="hi")])], "task", "path")
    after = saver.put(at(again), checkpoint({"k": "after", "xs": [1]}, {"k": "2", "xs": "1"}), {}, {})
    if is_its_own_parent:
        saver.get_tuple(at(again))
    saver.put(at(again) if is_its_own_parent else first, again, {"step": 2}, {})
    writes = [("task", "k", "w"), ("task", "messages", [HumanMessage("hi", id="hi")])]
    for other in (saver, MilepostSaver(saver.store)):
        assert shown(other, at(again)) == ({"k": "v", "xs": [1]}, writes, {"step": 2})
        assert shown(other, after)[0] == {"k": "after", "xs": [1]} == shown(other)[0]
        assert shown(other, first)[0] == {"k": "first"}
        assert len(list(other.list(THREAD))) == 3


# Keeping house.


def test_a_thread_that_is_copied_to_itself_stays_what_it_is(saver: MilepostSaver) -> None:
    first = saver.put(THREAD, checkpoint({"k": 1}, {"k": "1"}), {}, {})
    saver.put_writes(first, [("k", 2)], "task")
    session = saver.session("t")
    saver.copy_thread("t", "t")
    assert shown(saver) == ({"k": 1}, [("task", "k", 2)], {}) and saver.session("t") == session


# What a session shows.


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def test_a_session_shows_each_message_once_after_one_was_edited(saver: MilepostSaver) -> None:
    def node(state: Chat) -> Any:
        messages = state["messages"]
        match messages[-1].content:
            case "edit":
                return {"messages": [HumanMessage("edited", id=messages[0].id)]}
            case "forget":
                return {"messages": [RemoveMessage(id=messages[0].id)]}
        # It has no id yet: the graph gives it one.
        return {"messages": [AIMessage("re: " + messages[-1].content)]}

    graph = StateGraph(Chat)
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    agent = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    for text in ("hello", "edit", "again", "forget", "more"):
        agent.invoke({"messages": [HumanMessage(text)]}, config, durability="sync")
    said = [message.text for message in saver.store.messages(saver.session("t"))]
    assert sorted(said) == sorted(["hello", "re: hello", "edit", "edited", "again", "re: again", "forget", "more", "re: more"])


# Objects that are changed in place.


@dataclasses.dataclass(slots=True, eq=False)
class Task:
    name: str
    done: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    task: Any


class Tags(set[Any]):
    pass


class Line(collections.deque[Any]):
    pass


class Based:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


class Mixed(Based):
    """Has fields of both kinds."""


class Model(pydantic.BaseModel):
    x: Any = 0


class Private(pydantic.BaseModel):
    _count: int = pydantic.PrivateAttr(default=0)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return self._count


def finish(task: Any) -> None:
    task.done = True


def set_x(some: Any) -> None:
    some.x = 2


def count(some: Any) -> None:
    some._count += 1


IN_PLACE: list[tuple[Any, Any, Any]] = [
    (lambda: Task("a"), finish, lambda task: task.done),
    (lambda: Box(Task("a")), lambda box: finish(box.task), lambda box: box.task.done if hasattr(box.task, "done") else box.task["done"]),
    (lambda: Tags([1]), lambda tags: tags.add(2), sorted),
    (lambda: Line([1]), lambda line: line.append(2), list),
    (lambda: Based(1), set_x, lambda some: some.x),
    (lambda: Mixed(1), set_x, lambda some: some.x),
    (lambda: Model(x=Task("a")), lambda model: finish(model.x), lambda model: repr(model.x)),
    (lambda: Model(x=Tags([1])), lambda model: model.x.add(2), lambda model: sorted(model.x)),
    (lambda: Model(x=[1]), lambda model: model.x.append(2), lambda model: model.x),
    (lambda: Private(), count, lambda some: some.model_dump()),
    (lambda: {"task": Task("a")}, lambda some: finish(some["task"]), lambda some: repr(some["task"])),
    (lambda: {"a": bytearray(b"a")}, lambda some: some["a"].extend(b"b"), lambda some: bytes(some["a"])),
    (lambda: ValueError("one"), lambda error: setattr(error, "args", ("two",)), repr),
    (lambda: {"when": datetime.datetime(2020, 1, 2), "id": uuid.UUID(int=5)}, lambda some: some.update(id=uuid.UUID(int=6)), repr),
]


@pytest.fixture(params=["versions", "looks"])
def _changes_are_noticed_by(request: pytest.FixtureRequest) -> Any:
    look_into_dicts(request.param == "looks")
    yield
    look_into_dicts(False)


@pytest.mark.usefixtures("_changes_are_noticed_by")
@pytest.mark.parametrize("number", range(len(IN_PLACE)))
def test_an_item_that_was_changed_in_place_is_stored_anew(number: int) -> None:
    warnings.simplefilter("ignore")
    make, change, look = IN_PLACE[number]
    outcomes = []
    serde = JsonPlusSerializer(pickle_fallback=True)
    with MilepostSaver("memory:", serde=serde) as ours, SqliteSaver.from_conn_string(":memory:") as theirs:
        theirs.serde = serde
        for saver in (ours, theirs):
            item = make()
            first = saver.put(THREAD, checkpoint({"xs": [item, "tail"]}, {"xs": "1"}), {}, {"xs": "1"})
            change(item)
            saver.put(first, checkpoint({"xs": [item, "tail", "new"]}, {"xs": "2"}), {}, {"xs": "2"})
            outcomes.append((look(shown(saver)[0]["xs"][0]), look(shown(saver, first)[0]["xs"][0])))
    assert outcomes[0] == outcomes[1]


class Color(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "leaf",
    [datetime.datetime(2020, 1, 2), datetime.date(2020, 1, 2), datetime.timedelta(3), uuid.UUID(int=5), decimal.Decimal(1), Path("a"), Color.RED],
)
@pytest.mark.usefixtures("_changes_are_noticed_by")
def test_values_that_never_change_are_not_serialised_again(leaf: Any) -> None:
    counted: list[Any] = []

    class Counting(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            counted.append(obj) if isinstance(obj, list) and obj and isinstance(obj[0], dict) else None
            return super().dumps_typed(obj)

    item = {"role": "user", "leaf": leaf}
    with MilepostSaver("memory:", serde=Counting(pickle_fallback=True)) as saver:
        first = saver.put(THREAD, checkpoint({"xs": [item]}, {"xs": "1"}), {}, {"xs": "1"})
        saver.put(first, checkpoint({"xs": [item, 2]}, {"xs": "2"}), {}, {"xs": "2"})
    assert len(counted) == 1


class Colour(str, enum.Enum):
    RED = "red"


class Redacted(TypedDict):
    messages: Annotated[list[Any], add_messages]
    facts: dict[str, Any]
    n: int


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_a_node_changes_in_place_is_stored_though_it_was_not_written(saver: MilepostSaver, durability: Any) -> None:
    def redact(state: Redacted) -> Any:
        state["messages"][0].content = "[redacted]"
        state["facts"]["seen"]["deep"] = True
        return {"n": 1}

    graph = StateGraph(Redacted)
    graph.add_node("redact", redact)
    graph.add_node("after", lambda state: {"n": 2})
    graph.add_edge(START, "redact")
    graph.add_edge("redact", "after")
    agent = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    agent.invoke({"messages": [HumanMessage("secret", id="1")], "facts": {"seen": {}}}, config, durability=durability)
    found = agent.get_state(config).values
    assert (found["messages"][0].content, found["facts"]) == ("[redacted]", {"seen": {"deep": True}})


@pytest.mark.parametrize("secret", ["hunter2-very-secret", 'pässwörd-"7"\nline', "471147114711"])
def test_a_secret_that_leaked_is_erased_from_threads(tmp_path: Path, secret: str) -> None:
    """By the command, which knows nothing of the graph: every checkpoint stays and can be read, and the thread goes on."""
    command = os.environ.get("MILEPOST_COMMAND")
    if not command:
        pytest.skip("without the command: scripts/test-python names it")

    def reply(state: Redacted) -> Any:
        known = len(state["messages"])
        grown = {"whole": secret, "half": secret[: 4 + 3 * known], secret: known}
        said = AIMessage(f"I know {secret} now", tool_calls=[{"name": "log in", "args": {"as": secret}, "id": "1"}])
        return {"messages": [said], "facts": {**state.get("facts", {}), f"k{known}": grown}, "n": known}

    graph = StateGraph(Redacted)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    config: Any = {"configurable": {"thread_id": "t"}}
    url = f"sqlite:{tmp_path}/store.db"

    def milepost_(*arguments: str) -> str:
        run = subprocess.run([command, "--store", url, *arguments], input=secret, capture_output=True, text=True)
        assert run.returncode == 0, run
        return run.stdout

    with MilepostSaver(url) as saver:
        agent = graph.compile(checkpointer=saver)
        for turn in range(4):
            agent.invoke({"messages": [HumanMessage(f"it is {secret} {turn}")]}, config)
        before = [(found.config, len(found.values["messages"])) for found in agent.get_state_history(config)]
    milepost_("redact", "-", "--yes")
    assert milepost_("redact", "-", "--dry-run").strip() == "it is nowhere in this workspace"
    milepost_("verify")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in stored
    with MilepostSaver(url) as saver:
        agent = graph.compile(checkpointer=saver)
        history = list(agent.get_state_history(config))
        assert [(found.config, len(found.values["messages"])) for found in history] == before
        for found in history:
            assert secret not in repr(found) and repr(secret)[1:-1] not in repr(found)
        facts = history[0].values["facts"]["k1"]
        assert facts["whole"] == "[redacted]" and facts["[redacted]"] == 1
        assert history[0].values["messages"][0].content == "it is [redacted] 0"
        assert history[0].values["messages"][1].tool_calls[0]["args"] == {"as": "[redacted]"}
        agent.invoke({"messages": [HumanMessage("go on")]}, config)


def test_metadata_comes_back_as_pythons_json_would_have_it() -> None:
    told = {
        "plain": ["a\u0001\n\"\\é☃", (1, -(2**63)), {"deep": {"er": None}}, True, False],
        "large": 2**80, "float": 0.1 + 0.2, "small": 5e-324, "never": [float("inf"), 1e16],
        "keys": {1: "one", None: "none", True: "yes"}, "kind": Colour.RED,
    }  # fmt: skip
    for name, value in told.items():
        with MilepostSaver("memory:") as saver:
            kept = saver.put(THREAD, checkpoint({}, {}), {"source": "loop", name: value}, {})
            assert kept["configurable"].keys() == {"thread_id", "checkpoint_ns", "checkpoint_id"}
            assert shown(saver, kept)[2] == {"source": "loop", name: json.loads(json.dumps(value))}
    # What is no text of Unicode cannot be stored in one.
    with MilepostSaver("memory:") as saver:
        saver.put(THREAD, checkpoint({}, {}), {"source": "a\ud800b"}, {})  # type: ignore[typeddict-item]
        assert shown(saver)[2] == {"source": "ab"}
        with pytest.raises(TypeError):
            saver.put(THREAD, checkpoint({}, {}), {"source": object()}, {})  # type: ignore[typeddict-item]
        # Writes as other sequences, and names of threads that are no text.
        made = checkpoint({}, {})
        number: Any = {"configurable": {"thread_id": 7, "checkpoint_ns": None}}
        saver.put(number, made, {}, {})
        number["configurable"]["checkpoint_id"] = made["id"]
        saver.put_writes(number, collections.deque([["x", 1], ("__error__", "no")]), "task")  # type: ignore[arg-type]
        assert sorted(shown(saver, {"configurable": {"thread_id": "7"}})[1]) == [("task", "__error__", "no"), ("task", "x", 1)]
        with pytest.raises(KeyError, match="checkpoint_id"):
            saver.put_writes(THREAD, [("x", 1)], "task")


def test_a_channel_that_is_said_to_be_new_is_stored(saver: MilepostSaver) -> None:
    first = saver.put(THREAD, checkpoint({"d": 1, "e": [1]}, {"d": 1, "e": 1}), {}, {"d": 1, "e": 1})
    saver.put(first, checkpoint({"d": 2, "e": [2]}, {"d": 1, "e": 1}), {}, {"d": 1, "e": 1})
    assert shown(saver)[0] == {"d": 2, "e": [2]}


# Other interpreters.

SUBINTERPRETER = """
import sys
import _xxsubinterpreters as interpreters
if sys.argv[1] == "both": import milepost
other = interpreters.create()
try: interpreters.run_string(other, "import milepost")
except Exception as error: print(error)
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module has another name there")
@pytest.mark.parametrize("where", ["both", "other"])
def test_another_interpreter_of_the_process_is_refused(where: str) -> None:
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER, where], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "ImportError" in done.stdout and "main interpreter" in done.stdout, done


# Names and queries of all kinds.

NAMES = ["ok", "", " ", "a\nb", "😀" * 300, "L" * 3000, "L" * 2999 + "M", "nul\0x", "nul x", "x/y?*%_", "\x7f\x1b[1m"]


def test_threads_may_have_any_name(saver: MilepostSaver) -> None:
    for number, name in enumerate(NAMES):
        for space in ("", "space " + name):
            place: Any = {"configurable": {"thread_id": name, "checkpoint_ns": space}}
            made = checkpoint({"i": [number, space]}, {"i": "1"})
            saver.put_writes(saver.put(place, made, {}, {}), [("k", number)], "task")
    saver.copy_thread("L" * 3000, "copy\0")
    for number, name in enumerate(NAMES):
        thread: Any = {"configurable": {"thread_id": name}}
        found = sorted(found.checkpoint["channel_values"]["i"][1] for found in saver.list(thread))
        assert found == ["", "space " + name]
        assert shown(saver, thread)[:2] == ({"i": [number, ""]}, [("task", "k", number)])
        assert saver.session(name)
        saver.prune([name])
    assert len(list(saver.list({"configurable": {"thread_id": "copy\0"}}))) == 2
    for name in NAMES:
        saver.delete_thread(name)
        assert list(saver.list({"configurable": {"thread_id": name}})) == []
    assert len(list(saver.list(None))) == 2


def test_threads_with_any_name_are_brought_over(saver: MilepostSaver, tmp_path: Path) -> None:
    path = f"{tmp_path}/theirs.db"
    with SqliteSaver.from_conn_string(path) as theirs:
        for number, name in enumerate(NAMES):
            theirs.put({"configurable": {"thread_id": name, "checkpoint_ns": ""}}, checkpoint({"i": number}, {"i": "1"}), {}, {})
    assert saver.import_threads(f"sqlite:{path}").checkpoints == len(NAMES)
    for number, name in enumerate(NAMES):
        assert shown(saver, {"configurable": {"thread_id": name}})[0] == {"i": number}


def test_a_thread_that_cannot_be_brought_over_stops_no_other(saver: MilepostSaver, tmp_path: Path) -> None:
    path = f"{tmp_path}/theirs.db"
    with SqliteSaver.from_conn_string(path) as theirs:
        for name in ("a", "bad", "c"):
            theirs.put({"configurable": {"thread_id": name, "checkpoint_ns": ""}}, checkpoint({"i": name}, {"i": "1"}), {}, {})
        theirs.conn.execute("UPDATE checkpoints SET metadata = '{' WHERE thread_id = 'bad'")
        theirs.conn.commit()
    told = saver.import_threads(f"sqlite:{path}")
    assert [name for name, _ in told.left_out] == ["bad"] and "not JSON" in told.left_out[0][1]
    assert {found.checkpoint["channel_values"]["i"] for found in saver.list(None)} == {"a", "c"}


METADATA: list[Any] = [
    {"source": "loop", "step": 1, "f": 1.0, "b": True, "o": {"x": 1, "y": [1, 2]}, "l": [1, 2], "writes": {"w": {"deep": 3}}},
    {"source": "input", "b": False, "o": {"x": True}},
    {"b": 1, "n": None},
    {"step": "1", "o": {"x": None}},
]
FILTERS: list[Any] = [
    *({"o.x": value} for value in (1, 1.0, True, False, None)),
    *({"b": value} for value in (1, 0, 1.0, True, False, "true", None)),
    *({"step": value} for value in (1, True, "1")),
    {"writes.w.deep": 3},
    {"writes.w": {"deep": 3}},
    {"o": {"x": 1, "y": [1, 2]}},
    {"l": [1, 2]},
    {"n": None},
    {"o.z": None},
    {"source.x": None},
]


def test_filters_and_limits_find_what_they_find_there() -> None:
    with MilepostSaver("memory:") as ours, SqliteSaver.from_conn_string(":memory:") as theirs:
        for number, metadata in enumerate(METADATA):
            made = checkpoint({"i": number}, {"i": "1"})
            for saver in (ours, theirs):
                saver.put(THREAD, made, metadata, {})
        seen = lambda saver, **query: [found.checkpoint["channel_values"]["i"] for found in saver.list(None, **query)]
        for wanted in FILTERS:
            assert seen(ours, filter=wanted) == seen(theirs, filter=wanted), wanted
        # A name with dots in it is found, too: there it cannot be.
        ours.put(THREAD, checkpoint({"i": "dots"}, {"i": "1"}), {"o.x": 7, "o": {"x": 8}}, {})  # type: ignore[typeddict-unknown-key]
        assert (seen(ours, filter={"o.x": 7}), seen(ours, filter={"o.x": 8})) == (["dots"], [])
        theirs.put(THREAD, checkpoint({"i": "dots"}, {"i": "1"}), {}, {})
        for limit in (None, -1, -5, 0, 1, 3, 100):
            assert seen(ours, limit=limit) == seen(theirs, limit=limit), limit


# Memory.

MEMORY = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from test_langgraph_odd import MilepostSaver, checkpoint
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
saver = MilepostSaver(sys.argv[2])
start, big = rss(), "x" * 60_000
for number in range(48):
    messages = [{"role": "user", "content": f"{big}{number}-{n}"} for n in range(150)]
    saver.put({"configurable": {"thread_id": str(number), "checkpoint_ns": ""}}, checkpoint({"messages": messages}, {"messages": "1"}), {}, {})
    del messages
gc.collect()
print(round(rss() - start))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much is used is asked of Linux")
def test_what_is_remembered_of_threads_is_bounded(sqlite_url: str) -> None:
    """More than 400 MB of messages are put."""
    command = [sys.executable, "-c", MEMORY, str(Path(__file__).resolve().parent), sqlite_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 330, done.stdout


class Held(dict[str, Any]):
    """A dictionary that can be watched."""


def test_what_was_seen_is_let_go_when_a_saver_is_closed(sqlite_url: str) -> None:
    saver = MilepostSaver(sqlite_url)
    held = Held(role="user", content="x")
    saver.put(THREAD, checkpoint({"xs": [held]}, {"xs": "1"}), {}, {})
    watched = weakref.ref(held)
    del held
    saver.close()
    gc.collect()
    assert watched() is None
