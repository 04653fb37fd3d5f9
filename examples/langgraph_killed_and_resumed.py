"""A LangGraph agent that is killed and goes on where it was, in another process. Its model is offline: nothing is sent anywhere.

    pip install './python[langgraph]' langgraph
    python examples/langgraph_killed_and_resumed.py

The agent researches five topics, one a step. The first process is killed (SIGKILL) in the middle of the third; the second
one is started with the same thread and does only what is left. The thread is a Milepost session: `milepost --store
sqlite:agent.db sessions list` shows it, `search` finds what was said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from milepost.langgraph import MilepostSaver

TOPICS = ["write-ahead logs", "leases", "content addressing", "group commit", "hash chains"]
CONFIG: Any = {"configurable": {"thread_id": "research"}}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    done: list[str]


def agent(killed_at: int | None) -> StateGraph[State]:
    """Researches one topic a step, until all are done."""

    def research(state: State) -> dict[str, Any]:
        done = state.get("done", [])
        topic = TOPICS[len(done)]
        print(f"[process {os.getpid()}] researching {topic}", flush=True)
        if len(done) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        model = GenericFakeChatModel(messages=iter([AIMessage(content=f"What there is to know about {topic}.")]))
        return {"messages": [model.invoke(state["messages"])], "done": [*done, topic]}

    graph = StateGraph(State)
    graph.add_node("research", research)
    graph.add_edge(START, "research")
    graph.add_conditional_edges("research", lambda state: END if len(state["done"]) == len(TOPICS) else "research")
    return graph


def run(url: str, killed_at: int | None) -> None:
    """One process of the agent: begins the thread, or goes on with it."""
    with MilepostSaver(url) as saver:
        app = agent(killed_at).compile(checkpointer=saver)
        begun = app.get_state(CONFIG)
        if begun.next:
            print(f"[process {os.getpid()}] goes on after {begun.values['done']}", flush=True)
            app.invoke(None, CONFIG, durability="sync")
        else:
            # Each step is durable before the next begins. LangGraph's default saves while the next one runs.
            app.invoke({"messages": [HumanMessage(content="Research our five topics.")]}, CONFIG, durability="sync")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:{Path(directory) / 'agent.db'}"
        first = subprocess.run([sys.executable, __file__, url, "2"])
        print(f"the first process ended with {first.returncode}")
        subprocess.run([sys.executable, __file__, url], check=True)
        with MilepostSaver(url) as saver:
            session = saver.session("research")
            for message in saver.store.messages(session):
                print(f"{message.role:>9}: {message.text}")
            found = saver.store.search('"content addressing"').hits
            print(f"{len(found)} message about content addressing, in session {found[0].title!r}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
