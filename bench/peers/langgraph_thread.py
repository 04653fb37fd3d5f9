"""One thread of one graph as LangGraph's savers see it: what a graph with one node and one superstep a step makes them store.

Each step is one put_writes (the node's output, on the checkpoint it ran from) and one put (the next checkpoint), in
that order, as langgraph.pregel does. Only the saver runs: no graph, no channels, no copying of state. So this is the
least that a user of LangGraph pays.

The graph it stands for has two channels besides the one that triggers the node:
  state     a dict merged by `|`: the write is the changed key, the checkpoint holds the whole dict
  messages  shape full: a list joined by `+`, whole in every checkpoint
            shape delta: a DeltaChannel (beta) with its default snapshot_frequency: absent from the checkpoint, but
            for every 100th, which holds a snapshot of the whole list; rebuilt from the writes in between

Messages are plain dicts, which are faster and smaller than LangChain's classes.
"""

import json
import statistics
import sys
import time
import uuid
from datetime import datetime, timezone

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

NODE = "step"
TRIGGER = f"branch:to:{NODE}"
TASK_PATH = f"~__pregel_pull, {NODE}"
SNAPSHOT_FREQUENCY = DeltaChannel(lambda state, writes: state).snapshot_frequency


def read_workload(path):
    with open(path, encoding="utf-8") as lines:
        state = json.loads(next(lines))["state"]
        return state, [json.loads(line) for line in lines]


class Thread:
    """One thread of one graph, as the saver sees it."""

    def __init__(self, saver, state, shape, name="L"):
        self.saver = saver
        self.name = name
        self.delta = shape == "delta"
        self.state = state
        self.messages = []
        self.updates = 0  # of the messages channel since its last snapshot
        self.versions = {}
        self.seen = {"__input__": {}, "__start__": {}, NODE: {}}
        self.config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self.step = -1

    def put(self, source):
        """The checkpoint after the channels were updated; see create_checkpoint and _put_checkpoint in langgraph.pregel."""
        values = {"state": self.state, TRIGGER: None}
        metadata = {"source": source, "step": self.step, "parents": {}}
        if not self.delta:
            values["messages"] = self.messages
        elif self.updates >= SNAPSHOT_FREQUENCY:
            values["messages"] = _DeltaSnapshot(self.messages)
            self.updates = 0
        elif self.updates:
            metadata["counters_since_delta_snapshot"] = {"messages": (self.updates, self.updates)}
        current = max(self.versions.values(), default=None)
        next_version = self.saver.get_next_version(current, None)
        new_versions = dict.fromkeys(("messages", "state", TRIGGER), next_version)
        self.seen[NODE] = {TRIGGER: self.versions.get(TRIGGER)} if self.versions else {}
        self.versions = {**self.versions, **new_versions}
        checkpoint = {
            "v": 4,
            "ts": datetime.now(timezone.utc).isoformat(),
            "id": str(uuid6(clock_seq=self.step)),
            "channel_values": values,
            "channel_versions": self.versions,
            "versions_seen": self.seen,
            "updated_channels": sorted(new_versions),
        }
        self.config = self.saver.put(self.config, checkpoint, metadata, new_versions)
        self.step += 1

    def put_writes(self, new_messages, change):
        """The node's output, stored on the checkpoint that the node ran from."""
        writes = [("messages", new_messages), ("state", change), (TRIGGER, None)]
        self.saver.put_writes(self.config, writes, str(uuid.uuid4()), TASK_PATH)

    def apply(self, new_messages, change):
        self.messages.extend(new_messages)
        self.state.update(change)
        self.updates += 1


def save_all(thread, steps):
    """Seconds of each put_writes and of each put."""
    writes_s, puts_s = [], []
    for step in steps:
        change = {step["key"]: step["value"]}
        start = time.perf_counter()
        thread.put_writes(step["messages"], change)
        between = time.perf_counter()
        thread.apply(step["messages"], change)
        thread.put("loop")
        end = time.perf_counter()
        writes_s.append(between - start)
        puts_s.append(end - between)
    return writes_s, puts_s


def check(saver, thread, steps):
    """What was stored is what was saved: else the figures mean nothing."""
    latest = saver.get_tuple({"configurable": {"thread_id": thread.name, "checkpoint_ns": ""}})
    values = latest.checkpoint["channel_values"]
    messages = values.get("messages", [])
    if thread.delta:
        history = saver.get_delta_channel_history(config=latest.config, channels=["messages"])["messages"]
        stored = values.get("messages", history.get("seed", []))
        messages = list(stored.value if isinstance(stored, _DeltaSnapshot) else stored)
        if "messages" not in values:
            for _, _, write in history["writes"]:
                messages.extend(write)
    if values["state"] != thread.state or messages != thread.messages or len(messages) != 2 * steps:
        sys.exit("the saver does not give back what was saved")


def summary_ms(seconds):
    first, last = seconds[:100], seconds[-100:]
    return {
        f"{name}_{how}_ms": round(1e3 * function(part), 4)
        for name, part in (("first_100", first), ("last_100", last))
        for how, function in (("p50", statistics.median), ("mean", statistics.fmean))
    }
