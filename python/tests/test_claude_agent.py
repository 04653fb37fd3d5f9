"""The Claude Agent SDK's session store in Milepost, on every kind of store."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from adapters import KINDS, SHARED_KINDS, Cut, Elsewhere, anything, cut_off, finish, opened, same, texts
from claude_agent_sdk import (
    ClaudeAgentOptions,
    InMemorySessionStore,
    SessionKey,
    fork_session_via_store,
    get_session_messages_from_store,
    get_subagent_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
    tag_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance
from conftest import new_workspace, store_url
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost
from milepost.claude_agent import MilepostSessionStore

KEY: SessionKey = {"project_key": "p", "session_id": "s"}
SUB: SessionKey = {**KEY, "subpath": "subagents/agent-1"}
UUID = "0b8f1c0e-6f0c-4a55-9c80-6f3b8f0a2d11"


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[milepost.AsyncMilepost]:
    async for store in opened(request.param, tmp_path):
        yield store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, "0f" * 32], ids=["clear", "encrypted"])
async def test_every_contract_holds(kind: str, key: str | None, tmp_path: Path) -> None:
    made: list[MilepostSessionStore] = []

    def make() -> MilepostSessionStore:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(MilepostSessionStore(store_url(kind, directory), workspace=new_workspace(), key=key))
        return made[-1]

    await run_session_store_conformance(make)
    assert len(made) > 10
    for store in made:
        await store.aclose()


def line(number: int, text: str = "", **more: Any) -> Any:
    said = {"role": "user", "content": text or f"line {number}"}
    return {"type": "user", "uuid": f"u-{number}", "timestamp": "2026-11-16T10:00:00.000Z", "message": said, **more}


ODD: list[Any] = [
    {"type": "user", "uuid": "1", "message": {"role": "user", "content": "plain"}, "cwd": "/x", "isMeta": False},
    {
        "type": "assistant",
        "uuid": "2",
        "parentUuid": "1",
        "message": {
            "id": "msg_1",
            "role": "assistant",
            "model": "m",
            "usage": {"input_tokens": 3},
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig=="},
                {"type": "text", "text": "ü☃𝄞\u0000", "citations": None},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "name": 5},
                {"type": "redacted_thinking", "data": "x"},
            ],
        },
    },
    {
        "type": "user",
        "uuid": "3",
        "toolUseResult": {"stdout": "a"},
        "message": {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a\nb", "is_error": False},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "c"}], "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3", "is_error": None},
                {"type": "tool_result", "tool_use_id": "t4", "content": "x", "call_id": "mine"},
                {"type": "tool_result", "content": "x"},
                {"type": "tool_call", "id": "a", "name": "b", "input": {}},
                {"type": "thinking", "thinking": "a", "text": "b"},
                {"type": "thinking", "text": "b"},
                {"type": "wrapped", "block": {}},
                {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
                "bare",
                None,
            ],
        },
    },
    {"type": "summary", "summary": "What it was about", "leafUuid": "3"},
    {"type": "custom-title", "customTitle": "A title", "sessionId": "s"},
    {"type": "tag", "tag": "t"},
    {"type": "system", "uuid": "4", "content": "said", "channel": "side", "role": 7, "claude": {"moved": "json"}},
    {"type": "user", "uuid": "5", "message": {"role": "user"}},
    {"type": "user", "uuid": "6", "message": "text"},
    {"type": "", "uuid": ""},
    {"type": "x", "uuid": None, "nested": {"": [1, 2.5, True, None, [[]]]}},
    {"type": "x", "lone": "\ud800", "big": 1 << 80, "deep": json.loads("[" * 150 + "]" * 150)},
    {"type": "user", "message": {"role": "user", "content": "\udfff"}},
    {"type": "x", "huge": "x" * 3_000_000},
]


async def test_lines_come_back_exactly_as_they_were_given(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    for key in (KEY, SUB):
        await sessions.append(key, ODD)
        assert same(await sessions.load(key), ODD)
    assert same(await MilepostSessionStore(store).load(KEY), ODD)


blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "tool_call", "image", "wrapped"])},
    optional={
        "id": texts,
        "name": st.one_of(texts, anything),
        "input": anything,
        "tool_use_id": st.one_of(texts, anything),
        "call_id": anything,
        "content": anything,
        "is_error": st.one_of(st.booleans(), anything),
        "thinking": st.one_of(texts, anything),
        "text": st.one_of(texts, anything),
        "claude": anything,
        "block": anything,
        "source": anything,
    },
)
lines = st.fixed_dictionaries(
    {"type": st.one_of(st.sampled_from(["user", "assistant", "summary"]), texts)},
    optional={
        "message": st.one_of(
            st.fixed_dictionaries({"role": texts, "content": st.one_of(texts, st.lists(st.one_of(blocks, anything), max_size=3))}, optional={"usage": anything}),
            anything,
        ),
        "customTitle": st.one_of(texts, anything),
        "summary": anything,
        "lastPrompt": texts,
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given_lines=st.lists(lines, min_size=1, max_size=4))
def test_any_json_comes_back_exactly(given_lines: list[Any]) -> None:
    async def main() -> None:
        async with MilepostSessionStore("memory:", redact=False) as sessions:
            await sessions.append(KEY, given_lines)
            assert same(await sessions.load(KEY), given_lines)

    asyncio.run(main())


async def test_lines_are_messages_of_an_ordinary_session(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    await sessions.append(KEY, [line(1, "Find papers on logs"), ODD[1], ODD[4]])
    await sessions.append(SUB, [line(1, "Look for trees")])
    (hit,) = (await store.search("papers")).hits
    info = await store.session(hit.session)
    assert (info.project, info.task, info.agent, info.title) == ("p", "s", "claude-agent-sdk", "A title")
    assert info.counts == {"main": 3, "subagents/agent-1": 1}
    message = (await store.messages(hit.session))[1]
    assert [block["type"] for block in message.content][:3] == ["thinking", "text", "tool_call"]  # type: ignore[index]
    (hit,) = (await store.search("trees")).hits
    assert hit.message.channel == "subagents/agent-1"


async def test_a_line_with_a_known_uuid_is_not_added_again(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    mode = {"type": "mode"}
    await sessions.append(KEY, [line(1), line(2), line(1), mode])  # type: ignore[list-item]
    await sessions.append(KEY, [line(2), line(3), mode])  # type: ignore[list-item]
    await sessions.append(SUB, [line(1)])
    expected = [line(1), line(2), mode, line(3), mode]
    assert await sessions.load(KEY) == expected
    # Also not by another process, with or without having read it.
    for reads in (False, True):
        other = MilepostSessionStore(store)
        if reads:
            await other.load(KEY)
        await other.append(KEY, [line(3), line(1)])
        assert await other.load(KEY) == expected and await other.load(SUB) == [line(1)]
    (found,) = (await store.sessions()).sessions
    assert found.counts == {"main": 5, "subagents/agent-1": 1}


async def test_a_summary_is_of_what_every_process_wrote(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSessionStore(store), MilepostSessionStore(store)
    await one.append(KEY, [line(1, "First prompt")])
    await two.append(KEY, [{"type": "custom-title", "customTitle": "Title"}])  # type: ignore[typeddict-unknown-key]
    await one.append(KEY, [line(2, gitBranch="b")])
    (summary,) = await two.list_session_summaries("p")
    data = summary["data"]
    assert (data["first_prompt"], data["custom_title"], data["git_branch"]) == ("First prompt", "Title", "b")


async def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    async with await milepost.open_async(f"sqlite:{tmp_path}/a.db") as store:
        sessions = MilepostSessionStore(store)
        await sessions.append(KEY, [line(number, "word " * 200) for number in range(400)])
        (found,) = (await store.sessions()).sessions
        before = len(await store.entries(found.id))
        for number in range(400, 410):
            await sessions.append(KEY, [line(number)])
        # One line and one change of what a list shows, each time.
        assert len(await store.entries(found.id)) - before == 20


async def test_subagents_are_known_by_any_path(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    paths = ["subagents/agent-1", "main", "x" * 500, "a\nb", "ü☃", "subagents/deep/" + "y" * 110, "sha256:1"]
    for path in paths:
        await sessions.append({**KEY, "subpath": path}, [line(1, path)])
    assert sorted(await sessions.list_subkeys({"project_key": "p", "session_id": "s"})) == sorted(paths)
    for path in paths:
        assert await sessions.load({**KEY, "subpath": path}) == [line(1, path)]
    assert await sessions.load(KEY) is None and await sessions.list_sessions("p") == []
    with pytest.raises(ValueError, match="empty"):
        await sessions.append({**KEY, "subpath": ""}, [line(1)])


async def test_keys_of_any_kind_are_apart(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    keys: list[SessionKey] = [
        {"project_key": project, "session_id": session}
        for project, session in [("a", "b/c"), ("a/b", "c"), ("x" * 900, "s"), ("x" * 901, "s"), ("ü", "☃"), ("a", "y" * 900), ('["a"]', '"')]
    ]
    for number, key in enumerate(keys):
        await sessions.append(key, [line(number)])
    for number, key in enumerate(keys):
        assert await MilepostSessionStore(store).load(key) == [line(number)]
        listed = [found["session_id"] for found in await sessions.list_sessions(key["project_key"])]
        assert key["session_id"] in listed


async def test_what_is_deleted_begins_anew(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSessionStore(store), MilepostSessionStore(store)
    await one.append(KEY, [line(1)])
    await two.append(SUB, [line(1), line(2)])
    await one.delete(SUB)
    assert await one.load(SUB) is None and await two.load(SUB) is None
    assert await two.list_subkeys({"project_key": "p", "session_id": "s"}) == []
    fresh = MilepostSessionStore(store)
    await fresh.append(SUB, [line(2)])
    assert await fresh.load(SUB) == [line(2)]
    assert await fresh.list_subkeys({"project_key": "p", "session_id": "s"}) == ["subagents/agent-1"]
    # The other one does not know yet that it was deleted.
    await one.delete(KEY)
    assert (await store.sessions()).sessions == [] and await two.load(KEY) is None
    await fresh.append(KEY, [line(3)])
    await two.append(KEY, [line(4)])
    assert await one.load(KEY) == [line(3), line(4)] and await one.load(SUB) is None
    assert [found["session_id"] for found in await two.list_sessions("p")] == ["s"]


async def test_what_another_deleted_and_began_anew_is_read_at_once(store: milepost.AsyncMilepost) -> None:
    listed = {"project_key": "p", "session_id": "s"}
    one, two, three = (MilepostSessionStore(store) for _ in range(3))
    for sessions in (one, two):
        await sessions.append(KEY, [line(1)])
    await three.delete(KEY)
    await three.append(KEY, [line(2)])
    await three.append(SUB, [line(3)])
    assert await one.load(KEY) == [line(2)] and await one.load(SUB) == [line(3)]
    assert await two.list_subkeys(listed) == ["subagents/agent-1"]  # type: ignore[arg-type]
    # What is gone stays gone, however often it is asked for.
    await three.delete(KEY)
    for _ in range(2):
        assert await one.load(KEY) is None and await two.list_subkeys(listed) == []  # type: ignore[arg-type]


async def test_a_line_that_was_deleted_elsewhere_is_added_again(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSessionStore(store), MilepostSessionStore(store)
    await one.append(KEY, [line(1)])
    await two.delete(KEY)
    await one.append(KEY, [line(1)])
    assert await two.load(KEY) == await one.load(KEY) == [line(1)]


async def test_a_subagents_line_that_was_deleted_elsewhere_is_added_again(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSessionStore(store), MilepostSessionStore(store)
    await one.append(SUB, [line(1)])
    await two.delete(SUB)
    await one.append(SUB, [line(1)])
    assert await two.load(SUB) == await one.load(SUB) == [line(1)]
    await two.delete(SUB)
    await one.append(SUB, [line(1), line(2)])
    assert await two.load(SUB) == await one.load(SUB) == [line(1), line(2)]


async def test_what_was_deleted_but_for_its_branches_begins_anew(store: milepost.AsyncMilepost) -> None:
    one, two, three = (MilepostSessionStore(store) for _ in range(3))
    for sessions in (one, two):
        await sessions.append(KEY, [line(1)])
    (found,) = (await store.sessions()).sessions
    await store.add(found.id, checkpoint="here")
    await (await store.branch(found.id, at="here", title="by hand")).release()
    await three.delete(KEY)
    assert await one.load(KEY) is None
    await three.append(KEY, [line(2)])
    assert await one.load(KEY) == [line(2)]
    await one.append(KEY, [line(3)])
    await two.append(KEY, [line(1)])
    assert await three.load(KEY) == [line(2), line(3), line(1)]
    (branch,) = (await store.sessions(agent="claude-agent-sdk")).sessions[1:]
    assert branch.parent == found.id and len(await store.messages(branch.id)) == 1


@pytest.mark.parametrize("before", range(4))
async def test_a_beginning_that_is_cut_off_leaves_nothing_behind(store: milepost.AsyncMilepost, before: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, before)
        try:
            await MilepostSessionStore(store).append(KEY, [line(1)])
            lines = [line(1)]
        except Cut:
            lines = []
    assert bool(lines) == (before == 3)
    again = MilepostSessionStore(store)
    assert await again.load(KEY) == (lines or None)
    await again.append(KEY, [line(2)])
    assert await MilepostSessionStore(store).load(KEY) == [*lines, line(2)]
    assert len((await store.sessions()).sessions) == 1


async def test_a_branch_by_hand_is_not_the_sdks(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    await sessions.append(KEY, [line(1)])
    (found,) = (await store.sessions()).sessions
    await store.add(found.id, checkpoint="here")
    await (await store.branch(found.id, at="here")).release()
    await store.add(found.id, ("user", "By hand"))
    assert len(await sessions.list_sessions("p")) == 1
    assert await sessions.load(KEY) == [line(1)]


async def test_the_sdk_lists_reads_forks_and_renames(store: milepost.AsyncMilepost, tmp_path: Path) -> None:
    """The same calls on the SDK's own store in memory give the same."""
    sessions, theirs = MilepostSessionStore(store), InMemorySessionStore()
    key: SessionKey = {"project_key": project_key_for_directory(str(tmp_path)), "session_id": UUID}
    ids = [f"00000000-0000-4000-8000-{number:012}" for number in range(4)]
    transcript: list[Any] = []
    for number, id in enumerate(ids):
        kind = "assistant" if number % 2 else "user"
        said = {"role": kind, "content": [{"type": "text", "text": f"said {number}"}]}
        parent = ids[number - 1] if number else None
        transcript.append({"type": kind, "uuid": id, "parentUuid": parent, "sessionId": UUID, "timestamp": f"2026-11-16T10:00:0{number}.000Z", "message": said})
    seen = []
    for one in (sessions, theirs):
        for start in (0, 2):
            await one.append(key, transcript[start : start + 2])
        await one.append({**key, "subpath": "subagents/agent-7"}, transcript[:2])
        await rename_session_via_store(one, UUID, "Renamed", directory=str(tmp_path))
        await tag_session_via_store(one, UUID, "tagged", directory=str(tmp_path))
        fork = await fork_session_via_store(one, UUID, directory=str(tmp_path))
        listed = {found.session_id: found for found in await list_sessions_from_store(one, directory=str(tmp_path))}
        about = listed[UUID]
        messages = await get_session_messages_from_store(one, UUID, directory=str(tmp_path))
        subagents = await list_subagents_from_store(one, UUID, directory=str(tmp_path))
        deeper = await get_subagent_messages_from_store(one, UUID, subagents[0], directory=str(tmp_path))
        forked = await get_session_messages_from_store(one, fork.session_id, directory=str(tmp_path))
        seen.append((about.summary, about.tag, about.first_prompt, about.created_at, messages, subagents, deeper, len(forked), set(listed) == {UUID, fork.session_id}))
    assert seen[0] == seen[1] and seen[0][0] == "Renamed" and len(seen[0][4]) == 4


async def test_a_resume_gets_every_transcript(store: milepost.AsyncMilepost, tmp_path: Path) -> None:
    from claude_agent_sdk._internal.session_resume import materialize_resume_session

    sessions = MilepostSessionStore(store)
    key: SessionKey = {"project_key": project_key_for_directory(str(tmp_path)), "session_id": UUID}
    await sessions.append(key, ODD[:7])
    await sessions.append({**key, "subpath": "subagents/agent-1"}, [line(1)])
    options = ClaudeAgentOptions(session_store=MilepostSessionStore(store), resume=UUID, cwd=str(tmp_path))
    made = await materialize_resume_session(options)
    assert made is not None
    files = {path.name: [json.loads(text) for text in path.read_text().splitlines()] for path in made.config_dir.rglob("*.jsonl")}
    await made.cleanup()
    assert files == {f"{UUID}.jsonl": ODD[:7], "agent-1.jsonl": [line(1)]}


async def test_appends_of_one_process_keep_the_order_of_the_calls(store: milepost.AsyncMilepost) -> None:
    sessions = MilepostSessionStore(store)
    await asyncio.gather(*(sessions.append(KEY if number % 4 else SUB, [line(number)]) for number in range(48)))
    assert await sessions.load(KEY) == [line(number) for number in range(48) if number % 4]
    assert await sessions.load(SUB) == [line(number) for number in range(0, 48, 4)]


APPEND = """
from milepost.claude_agent import MilepostSessionStore
async def main():
    async with MilepostSessionStore(URL, workspace=WORKSPACE) as store:
        key = {"project_key": "p", "session_id": "s"}
        print("1", flush=True)
        for number in range(int(sys.argv[2])):
            title = f"{sys.argv[1]}/{number}"
            lines = [{"type": "x", "uuid": f"{title}/{part}", "timestamp": "2026-11-16T10:00:00.000Z"} for part in "ab"]
            lines.append({"type": "x", "uuid": f"shared {number}"})
            await store.append(key, [*lines, {"type": "custom-title", "customTitle": title}])
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", SHARED_KINDS)
async def test_two_processes_lose_and_tear_nothing(kind: str, tmp_path: Path) -> None:
    place = Elsewhere(kind, tmp_path)
    for process in [place.start(APPEND, str(name), "12") for name in range(2)]:
        await asyncio.to_thread(finish, process)
    async with MilepostSessionStore(place.url, workspace=place.workspace) as sessions:
        loaded: Any = await sessions.load(KEY)
        for name in range(2):
            own = [entry["uuid"] for entry in loaded if entry.get("uuid", "").startswith(f"{name}/")]
            assert own == [f"{name}/{number}/{part}" for number in range(12) for part in "ab"]
        assert sorted(e["uuid"] for e in loaded if "shared" in e.get("uuid", "")) == sorted(f"shared {n}" for n in range(12))
        titles = [entry["customTitle"] for entry in loaded if "customTitle" in entry]
        assert len(titles) == 24
        # The summary is of everything, in the order of the log.
        (summary,) = await sessions.list_session_summaries("p")
        assert summary["data"]["custom_title"] == titles[-1]


@pytest.mark.parametrize("kind", SHARED_KINDS)
async def test_a_kill_leaves_whole_batches(kind: str, tmp_path: Path) -> None:
    place = Elsewhere(kind, tmp_path)
    for pause in (0.05, 0.15, 0.3):
        process = place.start(APPEND, str(pause), "100000")
        assert process.stdout is not None and await asyncio.to_thread(process.stdout.readline)
        await asyncio.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    async with MilepostSessionStore(place.url, workspace=place.workspace) as sessions:
        await sessions.append(KEY, [line(1)])
        loaded: Any = await sessions.load(KEY)
        own = [entry["uuid"] for entry in loaded if entry.get("uuid", "").endswith(("/a", "/b"))]
        assert own[::2] == [uuid[:-1] + "a" for uuid in own[1::2]] and loaded[-1] == line(1)
        assert len([entry for entry in loaded if "customTitle" in entry]) * 2 == len(own)
        (summary,) = await sessions.list_session_summaries("p")
        (listed,) = await sessions.list_sessions("p")
        assert summary["mtime"] == listed["mtime"]
