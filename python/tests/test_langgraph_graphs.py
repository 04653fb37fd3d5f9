"""Real graphs: what LangGraph sees is what it sees with its own checkpointer, result by result."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import pytest
from conftest import new_workspace, store_url
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from milepost.langgraph import MilepostSaver

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def human(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(content=text, id=f"h-{text}")]}


def told(snapshot: Any, ids: dict[str, int]) -> Any:
    """A snapshot without what differs from run to run."""

    def number(config: Any) -> int | None:
        id = (config or {}).get("configurable", {}).get("checkpoint_id")
        return None if id is None else ids.setdefault(id, len(ids))

    tasks = [(task.name, str(task.error), [i.value for i in task.interrupts]) for task in snapshot.tasks]
    metadata = {key: value for key, value in (snapshot.metadata or {}).items() if key in ("source", "step")}
    return number(snapshot.config), number(snapshot.parent_config), snapshot.values, snapshot.next, metadata, sorted(tasks)


class Run:
    """A graph with one checkpointer, and everything that was seen of it."""

    def __init__(self, saver: BaseCheckpointSaver[Any], graph: Any) -> None:
        self.app = graph.compile(checkpointer=saver)
        self.saver = saver
        self.ids: dict[str, int] = {}
        self.seen: list[Any] = []

    def look(self, config: Any = CONFIG) -> None:
        self.seen.append(told(self.app.get_state(config), self.ids))
        history = list(self.app.get_state_history(config))
        for snapshot in reversed(history):
            self.ids.setdefault(snapshot.config["configurable"]["checkpoint_id"], len(self.ids))
        self.seen.append([told(snapshot, self.ids) for snapshot in history])

    def invoke(self, given: Any, config: Any = CONFIG) -> None:
        try:
            outcome = self.app.invoke(given, config)
            outcome.pop("__interrupt__", None)
            self.seen.append(outcome)
        except RuntimeError as error:
            self.seen.append(str(error))
        self.look()

    def past(self, step: int) -> Any:
        return next(s.config for s in self.app.get_state_history(CONFIG) if s.metadata["step"] == step)


def chats(run: Run) -> None:
    for text in ("one", "two", "three"):
        run.invoke(human(text))


def interrupts(run: Run) -> None:
    run.invoke(human("one"))
    run.invoke(Command(resume="yes"))
    run.invoke(human("two"))
    run.app.update_state(CONFIG, {"log": ["by hand"]})
    run.look()
    run.invoke(Command(resume="no"))


def updates(run: Run) -> None:
    run.invoke(human("one"))
    run.app.update_state(CONFIG, {"messages": [AIMessage(content="put in", id="by-hand")], "facts": {"by": "hand"}}, as_node="chat")
    run.look()
    run.invoke(None)
    run.app.update_state(CONFIG, {"messages": [AIMessage(content="changed", id="by-hand")]})
    run.look()


def forks(run: Run) -> None:
    run.invoke(human("one"))
    run.invoke(human("two"))
    past = run.past(1)
    run.invoke(None, past)
    forked = run.app.update_state(run.past(1), {"messages": [HumanMessage(content="another way", id="fork")]})
    run.look()
    run.invoke(None, forked)
    run.invoke(human("on from the fork"))
    run.invoke(human("again from the past"), run.past(0))


def nests(run: Run) -> None:
    run.invoke(human("one"))
    run.seen.append(run.app.get_state(CONFIG, subgraphs=True).tasks[0].state.values)
    run.invoke(Command(resume="yes"))
    run.invoke(human("two"))
    run.invoke(Command(resume="no"))


def sends(run: Run) -> None:
    run.invoke(human("one"))
    run.invoke(human("two"))


SCENES: dict[str, tuple[Callable[[], Any], Callable[[Run], None]]] = {
    "chat": (graphs.chatting, chats),
    "interrupt and resume": (graphs.asking, interrupts),
    "update_state": (graphs.chatting, updates),
    "fork from history": (graphs.chatting, forks),
    "subgraph": (graphs.nested, nests),
    "send and remove": (graphs.sending, sends),
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_graph_sees_what_it_sees_with_sqlitesaver(scene: str, kind: str, tmp_path: Path) -> None:
    make, play = SCENES[scene]
    with MilepostSaver(store_url(kind, tmp_path), workspace=new_workspace()) as saver:
        ours = Run(saver, make())
        play(ours)
    theirs = Run(SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False)), make())
    play(theirs)
    assert len(ours.seen) == len(theirs.seen)
    for number, (a, b) in enumerate(zip(ours.seen, theirs.seen)):
        assert a == b, number


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_parallel_branches_go_on_after_a_crash(kind: str, tmp_path: Path) -> None:
    """What other branches wrote is not done again when one of them failed."""
    seen = []
    url, workspace = store_url(kind, tmp_path), new_workspace()

    def milepost_saver() -> BaseCheckpointSaver[Any]:
        return MilepostSaver(url, workspace=workspace)

    connection = sqlite3.connect(":memory:", check_same_thread=False)
    for make in (milepost_saver, lambda: SqliteSaver(connection)):
        state: dict[str, Any] = {"b": True}
        run = Run(make(), graphs.branching(state))
        run.invoke(human("one"))
        # Another saver has only what is stored.
        again = Run(make(), graphs.branching(state))
        again.ids = run.ids
        state["b"] = False
        again.look()
        again.invoke(None)
        assert state["ran a"] == state["ran b"] == state["ran c"] == 1
        seen.append(run.seen + again.seen)
    assert seen[0] == seen[1]


async def test_a_graph_with_an_event_loop(tmp_path: Path) -> None:
    async with MilepostSaver(store_url("sqlite", tmp_path)) as saver:
        app = graphs.asking().compile(checkpointer=saver)
        await app.ainvoke(human("one"), CONFIG)
        outcome = await app.ainvoke(Command(resume="yes"), CONFIG)
        assert outcome["approved"] == "yes"
        state = await app.aget_state(CONFIG)
        assert [m.content for m in state.values["messages"]] == ["one", "You said 'one' as number 1"]
        assert len([s async for s in app.aget_state_history(CONFIG)]) == 4


def test_a_thread_is_a_session(tmp_path: Path) -> None:
    with MilepostSaver(store_url("sqlite", tmp_path)) as saver:
        app = graphs.chatting().compile(checkpointer=saver)
        app.invoke(human("where are the write-ahead logs"), CONFIG)
        app.invoke(human("second"), CONFIG)
        session = saver.session("1")
        messages = saver.store.messages(session)
        graph = app.get_state(CONFIG).values["messages"]
        assert [m.text.replace("\n", "") for m in messages] == [m.text for m in graph]
        roles = {"human": "user", "ai": "assistant", "tool": "tool"}
        assert [m.role for m in messages] == [roles[m.type] for m in graph]
        (hit,) = saver.store.search("write-ahead", role="user").hits
        assert hit.session == session
        # A fork takes the conversation along.
        past = next(s.config for s in app.get_state_history(CONFIG) if len(s.values.get("messages", [])) == 2)
        app.update_state(past, {"messages": [HumanMessage(content="another way", id="fork")]})
        assert [m.text for m in saver.store.messages(session)][-1] == "another way"
        assert len(saver.store.messages(session)) == 3
