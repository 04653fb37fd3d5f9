"""Workload L through LangGraph's SqliteSaver. What is saved: langgraph_thread.py. Prints one JSON object."""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_thread import Thread, check, read_workload, save_all, summary_ms


def run(path, state, steps, shape):
    """Seconds of each put_writes, of each put, and of closing."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        thread = Thread(saver, dict(state), shape)
        thread.put("input")
        writes_s, puts_s = save_all(thread, steps)
        check(saver, thread, len(steps))
        closing = time.perf_counter()
    return writes_s, puts_s, time.perf_counter() - closing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("full", "delta"), required=True)
    parser.add_argument("--workload", required=True, help="file written by `milepost-bench workload`")
    parser.add_argument("--dir", default=".", help="where the database is written, and removed again")
    options = parser.parse_args()

    state, steps = read_workload(options.workload)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        writes_s, puts_s, close_s = run(Path(directory) / "peer.sqlite", state, steps, options.shape)
        disk_bytes = sum(file.stat().st_size for file in Path(directory).iterdir())
    saves_s = [sum(pair) for pair in zip(writes_s, puts_s)]
    print(
        json.dumps(
            {
                "shape": options.shape,
                "steps": len(steps),
                "total_s": round(sum(saves_s), 4),
                "close_s": round(close_s, 4),
                "disk_bytes": disk_bytes,
                "save": summary_ms(saves_s),
                "put": summary_ms(puts_s),
                "put_writes": summary_ms(writes_s),
                "langgraph": version("langgraph"),
                "langgraph_checkpoint": version("langgraph-checkpoint"),
                "langgraph_checkpoint_sqlite": version("langgraph-checkpoint-sqlite"),
                "sqlite": sqlite3.sqlite_version,
                "python": sys.version.split()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
