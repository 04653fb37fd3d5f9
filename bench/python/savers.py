"""LangGraph's checkpointers side by side: Milepost's against LangGraph's own. What each figure means: bench/README.md.

    savers.py figures --workload FILE --dir DIR [--quick]    prints the figures; PostgreSQL is at MILEPOST_TEST_POSTGRES
    savers.py one --saver NAME --shape SHAPE …               one run in a process of its own, as JSON: for the former
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))

from langgraph_thread import Thread, read_workload  # noqa: E402
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # noqa: E402


def open_saver(stack, name, where, text_index=True):
    """A saver on a store of its own."""
    if name == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return stack.enter_context(SqliteSaver.from_conn_string(where))
    if name == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver

        saver = stack.enter_context(PostgresSaver.from_conn_string(where))
        saver.setup()
        return saver
    import milepost
    from milepost.langgraph import MilepostSaver

    url = where if where.startswith("postgres") else f"sqlite:{where}"
    store = stack.enter_context(milepost.open(url, text_index=text_index))
    return MilepostSaver(store)


def steps_of(workload, kind):
    """The workload's steps, with messages as dicts or as LangChain's classes."""
    state, steps = read_workload(workload)
    if kind == "langchain":
        from langchain_core.messages import AIMessage, HumanMessage

        classes = {"user": HumanMessage, "assistant": AIMessage}
        for step in steps:
            step["messages"] = [
                classes[message["role"]](content=message["content"], id=str(uuid.uuid4())) for message in step["messages"]
            ]
    return state, steps


def save(thread, steps):
    """Seconds of each put_writes and each put."""
    writes_s, puts_s = [], []
    for step in steps:
        change = {step["key"]: step["value"]}
        start = time.perf_counter()
        thread.put_writes(step["messages"], change)
        between = time.perf_counter()
        thread.apply(step["messages"], change)
        thread.put("loop")
        puts_s.append(time.perf_counter() - between)
        writes_s.append(between - start)
    return writes_s, puts_s


def latest(saver, thread):
    """The newest state, as a graph that goes on would have it."""
    found = saver.get_tuple({"configurable": {"thread_id": thread.name, "checkpoint_ns": ""}})
    values = found.checkpoint["channel_values"]
    messages = values.get("messages", [])
    if thread.delta:
        if "messages" in values:
            return values["state"], list(messages.value)
        history = saver.get_delta_channel_history(config=found.config, channels=["messages"])["messages"]
        stored = history.get("seed", [])
        messages = list(stored.value if isinstance(stored, _DeltaSnapshot) else stored)
        for _, _, write in history["writes"]:
            messages.extend(write)
    return values["state"], messages


def timed(call, times):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def run_one(options):
    """One thread saves the workload; then it is read."""
    state, steps = steps_of(options.workload, options.messages)
    answer = {}
    with ExitStack() as stack:
        saver = open_saver(stack, options.saver, options.where)
        thread = Thread(saver, dict(state), options.shape)
        thread.put("input")
        writes_s, puts_s = save(thread, steps)
        answer["get_s"] = timed(lambda: latest(saver, thread), 10)
        stored = latest(saver, thread)
        if stored != (thread.state, thread.messages) or len(stored[1]) != 2 * len(steps):
            sys.exit("the saver does not give back what was saved")
        closing = time.perf_counter()
    answer["total_s"] = sum(writes_s) + sum(puts_s) + time.perf_counter() - closing
    answer["put_last_s"] = statistics.fmean(puts_s[-100:])
    answer["put_first_s"] = statistics.fmean(puts_s[:100])
    if not options.where.startswith("postgres"):
        answer["bytes"] = sum(file.stat().st_size for file in Path(options.where).parent.iterdir())
    return answer


def run_cold(options):
    """Both sides save the workload; then each opens its store, lists and closes it again, in turns: this machine is not equally
    quick all the time, and one after the other they see the same of that."""
    state, steps = steps_of(options.workload, options.messages)
    savers = ("milepost", "sqlite")
    config = {"configurable": {"thread_id": "L", "checkpoint_ns": ""}}
    for name in savers:
        with ExitStack() as stack:
            thread = Thread(open_saver(stack, name, f"{options.where}.{name}"), dict(state), options.shape)
            thread.put("input")
            save(thread, steps)
    calls = {
        "list_s": lambda saver: len(list(saver.list(config, limit=10))) == min(10, len(steps) + 1),
        "get_s": lambda saver: saver.get_tuple(config) is not None,
    }
    taken = []
    for _ in range(options.turns):
        turn = {name: {} for name in savers}
        for (what, call), name in itertools.product(calls.items(), savers):
            with ExitStack() as stack:
                saver = open_saver(stack, name, f"{options.where}.{name}")
                start = time.perf_counter()
                is_right = call(saver)
                turn[name][what] = time.perf_counter() - start
                if not is_right:
                    sys.exit("the saver does not give back what was saved")
        taken.append((turn["milepost"], turn["sqlite"]))
    return taken


def run_threads(options):
    """Eight threads for a fixed time, each saving its own threads of the graph, one after the other: steps a second, each a
    put_writes and a put."""
    state, steps = steps_of(options.workload, "dict")
    steps = steps[: options.length]
    counts, barrier = [], threading.Barrier(options.threads)

    def work(saver, name):
        barrier.wait()
        end, done = time.perf_counter() + options.seconds, 0
        for number in itertools.count():
            thread = Thread(saver, dict(state), options.shape, f"{name}.{number}")
            thread.put("input")
            for step in steps:
                change = {step["key"]: step["value"]}
                thread.put_writes(step["messages"], change)
                thread.apply(step["messages"], change)
                thread.put("loop")
                if time.perf_counter() >= end:
                    counts.append(done)
                    return
                done += 1

    with ExitStack() as stack:
        shared = open_saver(stack, options.saver, options.where)
        own = [open_saver(stack, options.saver, options.where) if options.own else shared for _ in range(options.threads)]
        threads = [threading.Thread(target=work, args=(saver, f"L{number}")) for number, saver in enumerate(own)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"steps_per_s": sum(counts) / options.seconds}


class Bench:
    def __init__(self, options):
        self.options = options
        self.short = 0
        self.runs = 1 if options.quick else options.runs

    def one(self, saver, shape, messages="dict", postgres=None, **more):
        with tempfile.TemporaryDirectory(dir=self.options.dir) as directory:
            where = postgres or f"{directory}/store.db"
            command = [sys.executable, __file__, "one", "--saver", saver, "--shape", shape, "--messages", messages]
            command += ["--where", where, "--workload", self.options.workload]
            for name, value in more.items():
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"savers.py: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
            return json.loads(done.stdout)

    def pairs(self, ours, theirs):
        """Runs that take turns."""
        found = ([], [])
        for _ in range(self.runs):
            found[0].append(ours())
            found[1].append(theirs())
        return found

    def figure(self, name, value, bar, at_least=False):
        if self.options.quick:
            print(f"# python.{name} {value:.4f}, not judged")
            return
        fine = value >= bar if at_least else value <= bar
        self.short += not fine
        print(f"python.{name} {value:.4f} {'>=' if at_least else '<='} {bar} {'ok' if fine else 'SHORT'}", flush=True)


def ratio(found, name):
    ours, theirs = ([run[name] for run in runs] for runs in found)
    return statistics.median(a / b for a, b in zip(ours, theirs))


def tell(title, found):
    for side, runs in zip(("milepost", "peer"), found):
        told = {name: round(statistics.median(run[name] for run in runs), 5) for name in runs[0]}
        print(f"# {title}, {side}: {told}", flush=True)


def database(server, name):
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    from urllib.parse import urlsplit

    return urlsplit(server)._replace(path=f"/{name}").geturl()


def database_bytes(url):
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")
        size = """SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
        return int(connection.execute(size).fetchone()[0])


def figures(options):
    bench = Bench(options)
    names = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "langchain-core")
    import sqlite3

    told = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"# {told}, milepost {version('milepost')}, python {sys.version.split()[0]}, the peer's SQLite {sqlite3.sqlite_version}")

    found = bench.pairs(lambda: bench.one("milepost", "full"), lambda: bench.one("sqlite", "delta"))
    tell("messages as dicts, peer: SqliteSaver, delta", found)
    bench.figure("total_vs_sqlite_delta", ratio(found, "total_s"), 1.0)
    bench.figure("bytes_vs_sqlite_delta", ratio(found, "bytes"), 0.1)
    bench.figure("get_latest_vs_sqlite_delta", ratio(found, "get_s"), 0.7)

    kind = "langchain"
    found = bench.pairs(lambda: bench.one("milepost", "full", kind), lambda: bench.one("sqlite", "full", kind))
    tell("messages as LangChain's, peer: SqliteSaver", found)
    bench.figure("total_vs_sqlite_langchain", ratio(found, "total_s"), 0.1)
    bench.figure("last_puts_vs_sqlite_langchain", ratio(found, "put_last_s"), 0.05)
    bench.figure("bytes_vs_sqlite_langchain", ratio(found, "bytes"), 0.005)

    turns = bench.one("both", "full", kind, turns=1 if options.quick else 5 * options.runs)
    found = tuple(zip(*turns))
    tell("the same, opened anew for every call", found)
    bench.figure("list_10_cold_vs_sqlite_langchain", ratio(found, "list_s"), 0.1)

    limits = {"threads": 8, "seconds": 0.5 if options.quick else 4}

    def best(shape):
        runs = [bench.one("sqlite", shape, **limits), bench.one("sqlite", shape, own=True, **limits)]
        return max(run["steps_per_s"] for run in runs)

    def peers():
        return {"steps_per_s": best("full"), "delta_steps_per_s": best("delta")}

    def ours():
        run = bench.one("milepost", "full", **limits)
        return {**run, "delta_steps_per_s": run["steps_per_s"]}

    found = bench.pairs(ours, peers)
    tell("8 threads, peer: SqliteSaver as it is, and delta; shared or own connections, whichever is quicker", found)
    bench.figure("threads_8_steps_per_s", ratio(found, "steps_per_s"), 2.5, at_least=True)
    print(f"# 8 threads against the peer's delta shape: {ratio(found, 'delta_steps_per_s'):.2f} times its steps a second")

    server = os.environ.get("MILEPOST_TEST_POSTGRES", "none")
    if server == "none":
        print("# without PostgreSQL")
        return bench.short

    def on_postgres(saver):
        url = database(server, f"bench_{saver}")
        run = bench.one(saver, "full", "langchain", postgres=url)
        return {**run, "bytes": database_bytes(url)}

    found = bench.pairs(lambda: on_postgres("milepost"), lambda: on_postgres("postgres"))
    tell("PostgreSQL, messages as LangChain's, peer: PostgresSaver", found)
    bench.figure("pg_total_vs_postgres_full", ratio(found, "total_s"), round(1 / 6, 4))
    bench.figure("pg_bytes_vs_postgres_full", ratio(found, "bytes"), 0.02)
    return bench.short


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("figures", "one"))
    parser.add_argument("--workload", required=True)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--saver", choices=("milepost", "sqlite", "postgres", "both"))
    parser.add_argument("--shape", choices=("full", "delta"))
    parser.add_argument("--messages", choices=("dict", "langchain"), default="dict")
    parser.add_argument("--where")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--length", type=int, default=100, help="steps of each thread, with --threads")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--turns", type=int, help="how often both sides open their stores, with --saver both")
    options = parser.parse_args()
    if options.what == "one":
        run = run_cold if options.saver == "both" else run_threads if options.threads else run_one
        print(json.dumps(run(options)))
        return 0
    return int(figures(options) > 0)


if __name__ == "__main__":
    sys.exit(main())
