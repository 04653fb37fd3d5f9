"""LangGraph's own conformance suite: every capability, every test, on every kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conftest import new_workspace, store_url
from langgraph.checkpoint.conformance import checkpointer_test, validate

from milepost.langgraph import MilepostSaver


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "s3"])
@pytest.mark.parametrize("strict", [False, True])
async def test_langgraphs_suite_passes(kind: str, strict: bool, tmp_path: Path) -> None:
    if strict and kind != "sqlite":
        pytest.skip("once is enough")
    url = store_url(kind, tmp_path)

    @checkpointer_test(name="MilepostSaver")
    async def saver() -> AsyncIterator[MilepostSaver]:
        with MilepostSaver(url, workspace=new_workspace(), strict=strict) as made:
            yield made

    report = await validate(saver)
    results = report.results
    assert len(results) == 8
    for name, result in results.items():
        assert result.detected, name
        assert result.passed and result.tests_failed == 0 and result.tests_passed > 0, (name, result.failures)
    assert sum(result.tests_passed for result in results.values()) >= 81
