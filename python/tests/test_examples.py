"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "langgraph_killed_and_resumed.py"


def test_a_killed_agent_goes_on() -> None:
    places = [HERE.parent / NAME, HERE.parent.parent / "examples" / NAME]
    script = next(place for place in places if place.exists())
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the first process ended with -9" in done.stdout
    # The step that was cut off is done again, and no other.
    for topic, times in [("write-ahead logs", 1), ("leases", 1), ("content addressing", 2), ("hash chains", 1)]:
        assert done.stdout.count(f"researching {topic}") == times, done.stdout
    assert done.stdout.count("assistant:") == 5 and "1 message about content addressing" in done.stdout
