"""Runs the OpenAI Agents SDK's own tests of sessions with `MilepostSession` in the place of its SQLite classes.

A plugin for pytest: `pytest -p milepost_in_place tests/memory/test_session.py …`, in the SDK's source distribution. Of the files
that it is given, the tests are run that use one of those classes. Those that look into SQLite or at attributes that are private
to the SDK's classes are left out: they are not about the protocol. So are those in `OTHERWISE`, for
what is said there.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import agents
import agents.extensions.memory
import agents.memory
import pytest

from milepost.openai_agents import MilepostSession


class InPlace(MilepostSession):
    """Takes what the SDK's classes take. A file is a store; memory is a store of its own."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", **options: Any) -> None:
        for name in ("create_tables", "logger", "sessions_table", "messages_table"):
            options.pop(name, None)
        super().__init__(session_id, "memory:" if str(db_path) == ":memory:" else f"sqlite:{db_path}", **options)

    @property
    def _current_branch_id(self) -> str:
        return self.current_branch


for module in (agents, agents.memory, agents.extensions.memory):
    for name in ("SQLiteSession", "AdvancedSQLiteSession", "AsyncSQLiteSession"):
        if name in dir(module):
            setattr(module, name, InPlace)

# One of the files asks for it, and does not use it.
sys.modules.setdefault("sqlalchemy", ModuleType("sqlalchemy"))

INNER = re.compile(
    r"sqlite3|aiosqlite|_connection|_locked_|\._lock\b|_file_lock|_table\b|_sync\b|_insert_items"
    r"|(?:session|s|first|second|original|other|stale|reopened)(?:_\w+)?\._(?!current_branch_id)\w+"
    r"|patch\.object|setattr\((?:session|AdvancedSQLiteSession|SQLiteSession)"
)
"""What only a test of the SDK's own classes mentions."""

OTHERWISE = {
    "test_branch_allocation_is_serialized_across_processes": "its processes wait inside of SQLite's transactions",
    "test_pop_item_claim_is_unique_across_processes": "its processes make the SDK's own class; see test_openai_agents.py",
    "test_external_clear_resets_stale_branch_before_default_reads[usage]": "the SDK's own class fails it with today's openai package",
}
"""Tests that cannot be run so, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        source = inspect.getsource(item.function).partition("def ")[2].partition("\n")[2]  # type: ignore[attr-defined]
        names = {item.name, item.name.partition("[")[0]}
        is_meant = "SQLiteSession(" in source and not INNER.search(source) and not names & OTHERWISE.keys()
        (kept if is_meant else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
