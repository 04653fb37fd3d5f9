"""Every example in a docstring does what it says."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import milepost
import milepost._sync
import milepost.claude_agent
import milepost.langgraph
import milepost.openai_agents

HERE = Path(__file__).resolve().parent.parent


MODULES = [milepost, milepost._sync, milepost.langgraph, milepost.openai_agents, milepost.claude_agent]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: object) -> None:
    names = {"milepost": milepost}
    outcome = doctest.testmod(module, extraglobs=names)  # type: ignore[arg-type]
    assert outcome.attempted > 0 and outcome.failed == 0


def test_the_engine_for_event_loops_is_made_from_the_other() -> None:
    where = [HERE / "milepost", HERE / "milepost-sources"]
    sources = next(place for place in where if (place / "_sync.py").exists())
    subprocess.run([sys.executable, HERE / "make-async", "--check", sources], check=True)
