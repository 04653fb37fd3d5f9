"""A chain of nodes that do nothing, run by LangGraph with its SqliteSaver. Prints one JSON object."""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    count: int


def chain(steps):
    """The graph, not compiled."""
    graph = StateGraph(State)
    for number in range(steps):
        graph.add_node(f"n{number}", lambda state: {})
        graph.add_edge(START if number == 0 else f"n{number - 1}", f"n{number}")
    graph.add_edge(f"n{steps - 1}", END)
    return graph


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--durability", choices=("async", "sync"), required=True)
    parser.add_argument("--dir", default=".", help="where the database is written, and removed again")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        with SqliteSaver.from_conn_string(str(Path(directory) / "peer.sqlite")) as saver:
            app = chain(options.steps).compile(checkpointer=saver)
            config = {"configurable": {"thread_id": "1"}, "recursion_limit": options.steps + 10}
            start = time.perf_counter()
            app.invoke({"count": 0}, config, durability=options.durability)
            seconds = time.perf_counter() - start
            checkpoints = sum(1 for _ in saver.list(config))
            if checkpoints < options.steps:
                raise SystemExit(f"{checkpoints} checkpoints of {options.steps} steps")
    print(
        json.dumps(
            {
                "steps": options.steps,
                "durability": options.durability,
                "seconds": round(seconds, 4),
                "checkpoints": checkpoints,
                "langgraph": version("langgraph"),
                "langgraph_checkpoint_sqlite": version("langgraph-checkpoint-sqlite"),
                "sqlite": sqlite3.sqlite_version,
                "python": sys.version.split()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
