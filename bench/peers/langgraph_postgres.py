"""Workload L through LangGraph's PostgresSaver. What is saved: langgraph_thread.py. Prints one JSON object.

Without --sessions: one thread of the graph saves the whole workload. With it: so many threads of the graph at once, each
with a thread and a connection of its own, in as many processes as there are cores, for a fixed time; all begin with the
same state and save the workload's steps over and over.
"""

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
from importlib.metadata import version

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph_thread import Thread, check, read_workload, save_all, summary_ms


def one(url, state, steps, shape):
    """What one session's saves took."""
    with PostgresSaver.from_conn_string(url) as saver:
        thread = Thread(saver, dict(state), shape)
        thread.put("input")
        writes_s, puts_s = save_all(thread, steps)
        check(saver, thread, len(steps))
        closing = time.perf_counter()
    close_s = time.perf_counter() - closing
    saves_s = [sum(pair) for pair in zip(writes_s, puts_s)]
    return {
        "steps": len(steps),
        "total_s": round(sum(saves_s), 4),
        "close_s": round(close_s, 4),
        "save": summary_ms(saves_s),
        "put": summary_ms(puts_s),
        "put_writes": summary_ms(writes_s),
    }


def session(state, steps, options, name, barrier, counts):
    """Saves for the time that was asked for, and counts the saves that end in it."""
    try:
        save_for_a_while(state, steps, options, name, barrier, counts)
    except BaseException:
        # The others would wait for this one.
        barrier.abort()
        raise


def save_for_a_while(state, steps, options, name, barrier, counts):
    with PostgresSaver.from_conn_string(options.url) as saver:
        thread = Thread(saver, dict(state), options.shape, name)
        thread.put("input")
        barrier.wait()
        begin = time.perf_counter() + options.warm_up_s
        end, done = begin + options.measured_s, 0
        while True:
            for step in steps:
                change = {step["key"]: step["value"]}
                thread.put_writes(step["messages"], change)
                thread.apply(step["messages"], change)
                thread.put("loop")
                now = time.perf_counter()
                if now >= end:
                    counts.append(done)
                    return
                done += now >= begin


def process(options, names, barrier, answer):
    """Some of the sessions, each in a thread."""
    state, steps = read_workload(options.workload)
    counts = []
    threads = [
        threading.Thread(target=session, args=(state, steps, options, name, barrier, counts))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.put(sum(counts) if len(counts) == len(names) else None)


def many(options):
    """Saves a second of all sessions together."""
    names = [f"L{number}" for number in range(options.sessions)]
    processes = min(os.cpu_count() or 1, len(names))
    context = multiprocessing.get_context("spawn")
    barrier, answer = context.Barrier(len(names)), context.Queue()
    children = [
        context.Process(target=process, args=(options, names[number::processes], barrier, answer))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    counts = [answer.get() for _ in children]
    for child in children:
        child.join()
    if None in counts:
        sys.exit("a session failed; see above")
    return {
        "sessions": options.sessions,
        "processes": processes,
        "saves": sum(counts),
        "saves_per_s": round(sum(counts) / options.measured_s, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("full", "delta"), required=True)
    parser.add_argument("--workload", required=True, help="file written by `milepost-bench workload`")
    parser.add_argument("--url", required=True, help="an empty database")
    parser.add_argument("--sessions", type=int, help="so many sessions at once")
    parser.add_argument("--warm-up-s", type=float, default=0.5)
    parser.add_argument("--measured-s", type=float, default=5.0)
    options = parser.parse_args()

    with PostgresSaver.from_conn_string(options.url) as saver:
        saver.setup()
    with psycopg.connect(options.url) as connection:
        setting = lambda name: connection.execute(f"SHOW {name}").fetchone()[0]
        server = {name: setting(name) for name in ("server_version", "synchronous_commit", "fsync")}
    if options.sessions:
        answer = many(options)
    else:
        state, steps = read_workload(options.workload)
        answer = one(options.url, state, steps, options.shape)
    versions = {
        "langgraph": version("langgraph"),
        "langgraph_checkpoint": version("langgraph-checkpoint"),
        "langgraph_checkpoint_postgres": version("langgraph-checkpoint-postgres"),
        "psycopg": f"{version('psycopg')} ({psycopg.pq.__impl__})",
        "python": sys.version.split()[0],
    }
    print(json.dumps({"shape": options.shape, **answer, **server, **versions}))


if __name__ == "__main__":
    main()
