"""Graphs with an offline model, to be run with one checkpointer after another."""

from __future__ import annotations

import operator
import time
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    facts: dict[str, Any]
    approved: str
    items: list[int]


def chat(state: State) -> dict[str, Any]:
    """Answers with what it was told, and calls a tool now and then."""
    messages = state["messages"]
    number = len(messages)
    if number % 3 == 0:
        call = {"name": "look", "args": {"n": number, "deep": {"x": [1, 2]}}, "id": f"call-{number}"}
        return {"messages": [AIMessage(content="", tool_calls=[call], id=f"ai-{number}")], "log": [f"call {number}"]}
    text = f"You said {messages[-1].content!r} as number {number}"
    return {"messages": [AIMessage(content=text, id=f"ai-{number}")], "facts": {"count": number}, "log": [text]}


def tools(state: State) -> dict[str, Any]:
    last = state["messages"][-1]
    calls = getattr(last, "tool_calls", [])
    said = [ToolMessage(content=[{"type": "text", "text": "found"}, {"type": "text", "text": call["id"]}], tool_call_id=call["id"], id=f"t-{call['id']}") for call in calls]
    return {"messages": said, "items": [len(said)] * 3}


def chatting() -> StateGraph:
    graph = StateGraph(State)
    graph.add_node("chat", chat)
    graph.add_node("tools", tools)
    graph.add_edge(START, "chat")
    graph.add_conditional_edges("chat", lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", None) else END)
    graph.add_edge("tools", "chat")
    return graph


def asking() -> StateGraph:
    """Stops to ask, and goes on with the answer."""

    def ask(state: State) -> dict[str, Any]:
        answer = interrupt({"question": "go on?", "seen": len(state["messages"])})
        return {"approved": answer, "log": [f"approved: {answer}"]}

    graph = StateGraph(State)
    graph.add_node("chat", chat)
    graph.add_node("ask", ask)
    graph.add_edge(START, "chat")
    graph.add_edge("chat", "ask")
    graph.add_edge("ask", END)
    return graph


def branching(fails: dict[str, bool]) -> StateGraph:
    """Parallel branches, one of which fails while it is told to."""

    def branch(name: str) -> Any:
        def work(state: State) -> dict[str, Any]:
            if fails.get(name):
                # The others are done and told: LangGraph gives up what a failure overtakes.
                while not all(fails.get(f"ran {other}") for other in "abc" if other != name):
                    time.sleep(0.01)
                time.sleep(0.3)
                raise RuntimeError(f"{name} failed")
            fails[f"ran {name}"] = fails.get(f"ran {name}", 0) + 1  # type: ignore[assignment]
            return {"messages": [AIMessage(content=f"from {name}", id=f"ai-{name}-{len(state['messages'])}")], "log": [name]}

        return work

    graph = StateGraph(State)
    for name in ("a", "b", "c"):
        graph.add_node(name, branch(name))
        graph.add_edge(START, name)
        graph.add_edge(name, "join")
    graph.add_node("join", lambda state: {"log": [f"joined {len(state['messages'])}"]})
    graph.add_edge("join", END)
    return graph


def nested() -> StateGraph:
    """A graph in a graph, which stops to ask."""
    inner = asking().compile(checkpointer=True)
    graph = StateGraph(State)
    graph.add_node("inner", inner)
    graph.add_node("after", lambda state: {"log": [f"after {state.get('approved')}"]})
    graph.add_edge(START, "inner")
    graph.add_edge("inner", "after")
    graph.add_edge("after", END)
    return graph


def sending() -> StateGraph:
    """Work that is handed out, and messages that are taken away again."""

    def split(state: State) -> Command[Any]:
        return Command(goto=[Send("work", {"messages": [], "log": [str(number)]}) for number in range(4)])

    def work(state: State) -> dict[str, Any]:
        number = state["log"][0]
        return {"messages": [AIMessage(content=f"did {number}", id=f"w-{number}")], "log": [f"did {number}"]}

    def trim(state: State) -> dict[str, Any]:
        gone = [RemoveMessage(id=str(message.id)) for message in state["messages"][1:3]]
        return {"messages": [*gone, HumanMessage(content="trimmed", id="trim")]}

    graph = StateGraph(State)
    graph.add_node("split", split, destinations=("work",))
    graph.add_node("work", work)
    graph.add_node("trim", trim)
    graph.add_edge(START, "split")
    graph.add_edge("work", "trim")
    graph.add_edge("trim", END)
    return graph
