"""What is done to threads seldom: whatever it is, they hold what LangGraph's own checkpointers would hold."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import gc
import operator
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
