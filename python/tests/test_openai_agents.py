"""The OpenAI Agents SDK's sessions in Milepost, on every kind of store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from adapters import KINDS, SHARED_KINDS, Cut, Elsewhere, anything, cut_off, finish, opened, same, texts
from agents import Agent, RunConfig, Runner, function_tool
from agents.extensions.memory import AdvancedSQLiteSession
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost
from milepost import _adapt, errors
from milepost.openai_agents import _RECORD, MilepostSession


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[milepost.AsyncMilepost]:
    async for store in opened(request.param, tmp_path):
        yield store


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[milepost.AsyncMilepost]:
    async for store in opened("memory", tmp_path, redact=False):
        yield store


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def said(text: str) -> Any:
    return {"role": "assistant", "content": text}


ODD: list[Any] = [
    {"role": "user", "content": "plain"},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,x", "detail": "auto"}]},
    {"role": "developer", "content": "be brief", "type": "message"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "ü☃𝄞\u0000\u202e", "annotations": [{"type": "url_citation", "start_index": 0}], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
            {"type": "text", "part": {"x": 1}},
            {"type": "text", "text": "t", "part": {"text": "u"}},
        ],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city":  "Bergen", "n": 1e2}'},
    {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{not json"},
    {"type": "function_call", "call_id": "c4", "name": "big", "arguments": '{"n": 123456789012345678901234567890, "x": NaN}'},
    {"type": "function_call", "call_id": 7, "name": None, "arguments": None},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}], "status": "completed"},
    {"type": "function_call_output", "call_id": "c3", "output": None},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I think"}], "encrypted_content": "gAAA=="},
    {"type": "reasoning", "summary": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "logs"}},
    {"type": "mcp_call", "server_label": "s", "name": "n", "output": "o", "arguments": "{}"},
    {"type": "item_reference", "id": "msg_9"},
    {"type": "hologram", "nested": {"a": [1, 2.5, True, None, [[]], {}], "": ""}, "channel": "side", "role": 5},
    {"type": "tool_result", "call_id": "x", "content": "c", "is_error": False},
    {"role": "", "content": []},
    {"role": "user"},
    {"role": "user", "content": None, "openai": {"moved": "item"}, "seq": 9},
    {"lone": "\ud800 surrogate", "big": 1 << 80, "deep": json.loads("[" * 150 + "]" * 150)},
    {"role": "user", "content": "\udfff"},
    {"float": [0.1, -0.0, 1e-320, 1.7976931348623157e308], "int": [-(1 << 63), (1 << 64) - 1]},
    {"role": "user", "content": "x" * 3_000_000},
    {},
    [],
    "bare",
    None,
    7,
]


def test_it_is_a_session() -> None:
    assert isinstance(MilepostSession("a", "memory:"), Session)


async def test_items_come_back_exactly_as_they_were_given(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("odd", store)
    await session.add_items(ODD)
    assert same(await session.get_items(), ODD)
    for item in ODD[::-1]:
        assert same(await session.pop_item(), item)
    assert await session.pop_item() is None and await session.get_items() == []


parts = st.fixed_dictionaries({"type": st.sampled_from(["input_text", "output_text", "text", "refusal"])}, optional={"text": st.one_of(texts, anything), "part": anything})
kinds = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "computer_call", "tool_call", "tool_result", "thinking", "text", "image"])
items = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.one_of(texts, st.lists(st.one_of(parts, anything), max_size=3))}, optional={"type": kinds, "id": anything}),
    st.fixed_dictionaries({"type": kinds}, optional={"call_id": st.one_of(texts, anything), "id": texts, "name": texts, "arguments": st.one_of(texts, anything), "output": anything, "summary": anything, "content": anything, "input": anything, "text": texts, "source": anything, "is_error": anything}),
    anything,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(given_items=st.lists(items, max_size=5))
def test_any_json_comes_back_exactly(given_items: list[Any]) -> None:
    async def main() -> None:
        async with MilepostSession("any", "memory:", redact=False) as session:
            await session.add_items(given_items)
            assert same(await session.get_items(), given_items)

    asyncio.run(main())


async def test_items_are_messages_of_an_ordinary_session(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("seen", store, project="p", title="Weather")
    await session.add_items([user("Is it raining in Bergen?"), ODD[4], ODD[8], said("Always.")])
    (hit,) = (await store.search("raining")).hits
    info = await store.session(hit.session)
    assert (info.title, info.project, info.agent, info.task, info.messages) == ("Weather", "p", "openai-agents", "seen", 4)
    messages = await store.messages(hit.session)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    call, result = messages[1].content[0], messages[2].content[0]
    assert isinstance(call, dict) and (call["type"], call["name"], call["input"]) == ("tool_call", "weather", {"city": "Bergen", "n": 100.0})
    assert result == {"type": "tool_result", "call_id": "c1", "content": "rain"}
    assert (await store.checkpoints(hit.session))[0].messages == 4
    # What someone else says there is heard.
    await store.add(hit.session, ("user", "By hand"))
    assert (await session.get_items())[-1] == user("By hand")


async def test_secrets_are_redacted_unless_the_store_is_told_not_to(tmp_path: Path) -> None:
    secret = {"type": "function_call_output", "call_id": "c", "output": "password=hunter2hunter2"}
    async with MilepostSession("s", "memory:") as session:
        await session.add_items([secret])
        assert "hunter2hunter2" not in json.dumps(await session.get_items())
    async with MilepostSession("s", "memory:", redact=False) as session:
        await session.add_items([secret])
        assert await session.get_items() == [secret]


async def test_the_last_items_are_given_when_there_is_a_limit(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("limit", store)
    assert await session.get_items() == [] and await session.get_items(limit=3) == []
    await session.add_items([user(str(number)) for number in range(6)])
    texts = lambda items: [item["content"] for item in items]
    assert texts(await session.get_items(limit=3)) == ["3", "4", "5"]
    assert texts(await session.get_items(limit=100)) == [str(number) for number in range(6)]
    assert await session.get_items(limit=0) == []
    assert len(await session.get_items(limit=-1)) == 6
    for given_settings in ({"limit": 2}, SessionSettings(limit=2)):
        limited = MilepostSession("limit", store, session_settings=given_settings)
        assert texts(await limited.get_items()) == ["4", "5"] and texts(await limited.get_items(limit=1)) == ["5"]
    assert session.session_settings == SessionSettings(limit=None)
    with pytest.raises(TypeError, match="limitt"):
        MilepostSession("limit", store, session_settings={"limitt": 1})


async def test_sessions_are_apart_and_known_by_any_id(memory: milepost.AsyncMilepost) -> None:
    ids = ["a", "A", "", " ", "a\nb", "x" * 3000, "ü☃", "'; DROP TABLE sessions; --", "\x00", "\ud800", "sha256:1"]
    for number, id in enumerate(ids):
        await MilepostSession(id, memory).add_items([user(str(number))])
    for number, id in enumerate(ids):
        assert await MilepostSession(id, memory).get_items() == [user(str(number))]
    await MilepostSession("a", memory).clear_session()
    assert await MilepostSession("a", memory).get_items() == [] and len(await MilepostSession("A", memory).get_items()) == 1


async def test_what_is_taken_back_stays_in_the_log(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("back", store)
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([user("one"), said("two"), user("three")])
    assert await session.pop_item() == user("three")
    await session.add_items([user("four")])
    assert [item["content"] for item in await session.get_items()] == ["one", "two", "four"]
    await session.clear_session()
    assert await session.get_items() == [] and await session.pop_item() is None
    await session.add_items([user("anew")])
    assert await session.get_items() == [user("anew")]
    for word in ("two", "three", "four"):
        (hit,) = (await store.search(word)).hits
        assert not hit.current
    assert (await store.search("anew")).hits[0].current


async def test_adding_is_all_or_nothing(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("all", store)
    await session.add_items([user("first")])
    for bad in (object(), {1: 2}, {"x": {3}}):
        with pytest.raises((TypeError, ValueError)):
            await session.add_items([user("second"), bad])  # type: ignore[list-item]
    await session.add_items([])
    assert await session.get_items() == [user("first")]


async def test_a_closed_session_says_so(tmp_path: Path) -> None:
    session = MilepostSession("closed", f"sqlite:{tmp_path}/a.db")
    await session.add_items([user("kept")])
    session.close()
    await session.aclose()
    for call in (session.add_items([]), session.add_items([user("x")]), session.get_items(), session.pop_item(), session.clear_session()):
        with pytest.raises(errors.Closed):
            await call
    async with MilepostSession("closed", f"sqlite:{tmp_path}/a.db") as again:
        assert await again.get_items() == [user("kept")]
    with pytest.raises(TypeError, match="redact"):
        MilepostSession("a", milepost.open("memory:"), redact=False)


async def test_one_that_was_deleted_for_good_begins_anew(store: milepost.AsyncMilepost) -> None:
    session, other = MilepostSession("gone", store), MilepostSession("gone", store)
    await session.add_items([user("old")])
    assert await other.get_items() == [user("old")]
    (branch,) = await session.list_branches()
    await store.delete(branch["session"])
    assert await session.get_items() == [] and await session.pop_item() is None
    await asyncio.gather(session.add_items([user("new")]), other.add_items([user("new")]))
    assert await session.get_items() == await other.get_items() == [user("new")] * 2


async def test_what_another_began_anew_is_seen_at_once(store: milepost.AsyncMilepost) -> None:
    writer, reader, popper, brancher, adder = [MilepostSession("anew", store) for _ in range(5)]
    await writer.add_items([user("old")])
    for session in (reader, popper, brancher, adder):
        assert await session.get_items() == [user("old")]

    async def delete() -> None:
        (branch,) = await MilepostSession("anew", store).list_branches()
        await store.delete(branch["session"])

    await delete()
    await writer.add_items([user("new"), said("answer")])
    assert await reader.get_items() == [user("new"), said("answer")]
    assert await popper.pop_item() == said("answer")
    # The one that came after it is gone too.
    await delete()
    await adder.add_items([user("newer")])
    assert await reader.get_items() == [user("newer")]
    await brancher.create_branch_from_item(1, "b")
    assert await brancher.get_items() == [user("newer")]


async def test_what_was_deleted_but_for_its_branches_begins_anew(store: milepost.AsyncMilepost) -> None:
    writer, reader, popper, adder = [MilepostSession("anew", store) for _ in range(4)]
    await writer.add_items([user("old"), said("answer")])
    for session in (reader, popper, adder):
        assert len(await session.get_items()) == 2
    await MilepostSession("anew", store).create_branch_from_item(1, "b")
    main, _ = await writer.list_branches()
    await store.delete(main["session"], branches="keep")
    assert await reader.get_items() == [] and await popper.pop_item() is None
    await adder.add_items([user("new")])
    for session in (writer, reader):
        assert await session.get_items() == [user("new")]
    await writer.add_items([user("newer")])
    assert await reader.get_items() == [user("new"), user("newer")]
    assert await reader.get_items(branch_id="b") == [user("old")]
    assert [branch["branch_id"] for branch in await writer.list_branches()] == ["b", "main"]


async def test_a_secret_that_leaked_is_erased_from_branches(tmp_path: Path) -> None:
    """By the command: their names go with it, and the adapter finds them by the new ones."""
    command = os.environ.get("MILEPOST_COMMAND")
    if not command:
        pytest.skip("without the command: scripts/test-python names it")
    secret, url = "wombat-77", f"sqlite:{tmp_path}/store.db"

    def milepost_(*arguments: str) -> str:
        run = subprocess.run([command, "--store", url, *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run
        return run.stdout

    async with MilepostSession("s", url) as session:
        await session.add_items([user(f"it is {secret}")])
        for name in (f"the {secret}", "the [redacted]", "gone", "main branch"):
            await session.switch_to_branch("main")
            await session.create_branch_from_item(1, name)
            await session.add_items([said(name)])
            await session.store_run_usage(Result(5))  # type: ignore[arg-type]
        await session.delete_branch("gone", force=True)
        index = (await session._index())["branches"]
    for word in (secret, "main", "used"):
        milepost_("redact", word, "--yes")
        assert milepost_("redact", word, "--dry-run").strip() == "it is nowhere in this workspace"
    milepost_("verify")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in stored
    async with MilepostSession("s", url) as session:
        branches = {branch["branch_id"]: branch["session"] for branch in await session.list_branches()}
        names = {"the [redacted] 2": f"the {secret}", "the [redacted]": "the [redacted]", "[redacted] branch": "main branch"}
        assert branches == {"main": index["main"]["session"], **{new: index[old]["session"] for new, old in names.items()}}
        for name in names:
            await session.switch_to_branch(name)
            with pytest.raises(ValueError, match="already been used"):
                await session.create_branch_from_item(1, name)
        store = await session._place.store()
        for name, id in branches.items():
            told = (await store.session(id)).extra["openai"]["branch"]
            assert told == name.removesuffix(" 2")
        await session.switch_to_branch("main")
        assert await session.get_items() == [user("it is [redacted]")]


@pytest.mark.parametrize("before", range(4))
async def test_a_beginning_that_is_cut_off_leaves_nothing_behind(store: milepost.AsyncMilepost, before: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, before)
        try:
            await MilepostSession("a", store).add_items([user("one")])
            items = [user("one")]
        except Cut:
            items = []
    assert bool(items) == (before == 3)
    again = MilepostSession("a", store)
    assert await again.get_items() == items
    await again.add_items([user("two")])
    assert await MilepostSession("a", store).get_items() == [*items, user("two")]
    assert len((await store.sessions()).sessions) == 1


def test_it_is_used_from_one_event_loop_after_another(tmp_path: Path) -> None:
    session = MilepostSession("loops", f"sqlite:{tmp_path}/a.db")
    for number in range(3):
        asyncio.run(session.add_items([user(str(number))]))
    assert len(asyncio.run(session.get_items())) == 3
    session.close()


# Branches.


async def test_a_branch_shares_what_came_before_a_turn(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("b", store)
    await session.add_items([user("q1"), said("a1"), user("q2"), said("a2"), user("q3"), said("a3")])
    assert await session.create_branch_from_turn(2, "other") == "other"
    assert session.current_branch == "other" and await session.get_items() == [user("q1"), said("a1")]
    await session.add_items([user("q2b"), said("a2b")])
    assert len(await session.get_items(branch_id="main")) == 6
    deeper = await session.create_branch_from_turn(2)
    await session.add_items([user("q2c")])
    assert await session.get_items() == [user("q1"), said("a1"), user("q2c")]
    assert await session.get_items(branch_id="other", limit=1) == [said("a2b")]
    branches = await session.list_branches()
    about = [(b["branch_id"], b["message_count"], b["user_turns"], b["is_current"]) for b in branches]
    assert about == [("main", 6, 3, False), ("other", 4, 2, False), (deeper, 3, 2, True)]
    main, other, last = (branch["session"] for branch in branches)
    assert (await store.session(other)).parent == main and (await store.session(last)).parent == other
    await session.switch_to_branch("main")
    assert len(await session.get_items()) == 6
    # A session that is opened anew is on the main branch, and knows the others.
    again = MilepostSession("b", store)
    assert len(await again.get_items()) == 6
    await again.switch_to_branch("other")
    assert len(await again.get_items()) == 4


async def test_a_branch_begins_at_any_item_or_text(memory: milepost.AsyncMilepost) -> None:
    session = MilepostSession("b", memory)
    await session.add_items([user("Where is Ærø?"), said("a1"), {"role": "user", "content": [{"type": "input_text", "text": "And LÆSØ, 100%?"}]}])
    await session.create_branch_from_item(2, "two")
    assert await session.get_items() == [user("Where is Ærø?"), said("a1")]
    await session.create_branch_from_item(0, "none")
    assert await session.get_items() == []
    await session.add_items([user("x")])
    await session.switch_to_branch("main")
    await session.create_branch_from_content("100%", "found")
    assert len(await session.get_items()) == 2
    await session.switch_to_branch("main")
    for wrong in (session.create_branch_from_content("nowhere"), session.create_branch_from_item(4), session.create_branch_from_turn(3), session.create_branch_from_turn(0)):
        with pytest.raises(ValueError):
            await wrong
    fresh = MilepostSession("fresh", memory)
    with pytest.raises(ValueError):
        await fresh.create_branch_from_turn(1)


async def test_names_of_branches_are_given_once(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("n", store)
    await session.add_items([user("q1"), said("a1")])
    await session.create_branch_from_turn(1, "b")
    await session.add_items([user("other")])
    with pytest.raises(ValueError, match="current"):
        await session.delete_branch("b")
    await session.delete_branch("b", force=True)
    assert session.current_branch == "main"
    for name in ("b", "main", "", "  "):
        with pytest.raises(ValueError):
            await session.create_branch_from_turn(1, name)
    for name in ("b", "main", "", "nowhere"):
        with pytest.raises(ValueError):
            await session.delete_branch(name, force=True)
    with pytest.raises(ValueError, match="does not exist"):
        await session.switch_to_branch("b")
    assert await session.get_items(branch_id="b") == []
    assert [branch["branch_id"] for branch in await session.list_branches()] == ["main"]
    # It is in the trash, not gone.
    assert [info.messages for info in (await store.sessions(trashed=True)).sessions] == [1]
    names = {await session.create_branch_from_turn(1) for _ in range(1)}
    for _ in range(3):
        await session.switch_to_branch("main")
        names.add(await session.create_branch_from_turn(1))
    assert len(names) == 4


async def test_taking_back_concerns_the_current_branch_only(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("p", store)
    await session.add_items([user("q1"), said("a1"), user("q2")])
    await session.create_branch_from_turn(2, "b")
    assert await session.pop_item() == said("a1")
    assert await session.get_items() == [user("q1")]
    assert await session.pop_item() == user("q1") and await session.pop_item() is None
    assert len(await session.get_items(branch_id="main")) == 3


async def test_a_clear_elsewhere_leads_back_to_the_main_branch(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSession("c", store), MilepostSession("c", store)
    await one.add_items([user("q1"), said("a1")])
    await one.create_branch_from_turn(1, "b")
    await one.add_items([user("on b")])
    await two.clear_session()
    assert await one.get_items() == [] and one.current_branch == "main"
    await one.add_items([user("new")])
    assert await two.get_items() == [user("new")]
    with pytest.raises(ValueError, match="already been used"):
        await one.create_branch_from_turn(1, "b")


async def test_turns_are_told_as_the_sdk_tells_them(memory: milepost.AsyncMilepost, tmp_path: Path) -> None:
    """The same calls on the SDK's own session give the same."""
    given_items: list[Any] = [
        said("before"),
        user("Find papers " + "x" * 200),
        ODD[4],
        ODD[8],
        {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "id": "m"},
        {"type": "function_call", "call_id": "n1", "name": "lookup", "namespace": "crm", "arguments": "{}"},
        {"type": "function_call", "call_id": "n2", "name": "same", "namespace": "same", "arguments": "{}"},
        said("a1"),
        {"role": "user", "content": [{"type": "input_text", "text": "Second ☃"}]},
        ODD[13],
        {"type": "tool_search_output", "tools": []},
        {"type": "computer_call", "call_id": "cc", "action": {}},
        {"type": "computer_call", "call_id": "cd", "action": {}},
        said("a2"),
    ]
    theirs = AdvancedSQLiteSession(session_id="t", db_path=tmp_path / "t.db", create_tables=True)
    ours = MilepostSession("t", memory)
    for session in (theirs, ours):
        await session.add_items(given_items)
    untimed = lambda turns: [{key: value for key, value in turn.items() if key != "timestamp"} for turn in turns]
    assert untimed(await ours.get_conversation_turns()) == untimed(await theirs.get_conversation_turns())
    for term in ("second", "☃", "papers", "%", "nothing"):
        assert untimed(await ours.find_turns_by_content(term)) == untimed(await theirs.find_turns_by_content(term))
    assert await ours.get_conversation_by_turns() == await theirs.get_conversation_by_turns()
    assert sorted(await ours.get_tool_usage()) == sorted(await theirs.get_tool_usage())
    theirs.close()


# Runs.


@function_tool
def weather(city: str) -> str:
    return f"Rain in {city}"


def agent(*steps: Any, usage: Usage | None = None) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel(steps, default_usage=usage)
    return Agent(name="a", model=model, tools=[weather]), model


USAGE = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
QUIET = RunConfig(tracing_disabled=True)


async def test_a_run_goes_on_where_the_last_one_ended(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("run", store)
    first, _ = agent([function_call("weather", {"city": "Bergen"}, call_id="c1")], [assistant_message("It rains.")], usage=USAGE)
    result = await Runner.run(first, "How is Bergen?", session=session, run_config=QUIET)
    await session.store_run_usage(result)
    kinds = [item.get("type") or item.get("role") for item in await session.get_items()]  # type: ignore[union-attr]
    assert kinds == ["user", "function_call", "function_call_output", "message"]
    second, model = agent([assistant_message("Still.")], usage=USAGE)
    result = await Runner.run(second, "And now?", session=MilepostSession("run", store), run_config=QUIET)
    await session.store_run_usage(result)
    assert model.last_call is not None and [item.get("call_id") for item in model.last_call.input][1:3] == ["c1", "c1"]  # type: ignore[union-attr]
    assert len(await session.get_items()) == 6
    turns = await session.get_turn_usage()
    assert isinstance(turns, list) and [(t["user_turn_number"], t["requests"], t["total_tokens"]) for t in turns] == [(1, 2, 30), (2, 1, 15)]
    total = await session.get_session_usage()
    assert total == {"requests": 3, "input_tokens": 30, "output_tokens": 15, "total_tokens": 45, "total_turns": 2}
    (hit,) = (await store.search('"Rain in Bergen"')).hits
    assert hit.message.role == "tool"
    limited, model = agent([assistant_message("Yes.")])
    await Runner.run(limited, "x", session=session, run_config=RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=2)))
    assert model.last_call is not None and len(model.last_call.input) == 3


async def test_a_streamed_run_is_kept_too(memory: milepost.AsyncMilepost) -> None:
    session = MilepostSession("stream", memory)
    scripted, _ = agent([function_call("weather", {"city": "Oslo"}, call_id="c1")], [assistant_message("Sun.")])
    result = Runner.run_streamed(scripted, "Oslo?", session=session, run_config=QUIET)
    async for _ in result.stream_events():
        pass
    assert len(await session.get_items()) == 4


class Result:
    def __init__(self, tokens: int) -> None:
        self.context_wrapper = type("C", (), {"usage": Usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)})


async def test_usage_belongs_to_the_turns_of_its_branch(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("u", store)
    await session.store_run_usage(Result(1))  # type: ignore[arg-type]
    assert await session.get_session_usage() is None and await session.get_turn_usage() == [] and await session.get_turn_usage(1) == {}
    for number in (1, 2):
        await session.add_items([user(f"q{number}"), said(f"a{number}")])
        await session.store_run_usage(Result(number * 10))  # type: ignore[arg-type]
    await session.create_branch_from_turn(2, "b")
    assert await session.get_turn_usage() == []
    await session.add_items([user("q2b"), said("a2b")])
    await session.store_run_usage(Result(500))  # type: ignore[arg-type]
    one = await session.get_turn_usage(2)
    assert isinstance(one, dict) and (one["input_tokens"], one["output_tokens_details"]) == (500, {"reasoning_tokens": 0})
    sums = [(await session.get_session_usage(branch) or {}).get("input_tokens") for branch in (None, "main", "b")]
    assert sums == [530, 30, 500]
    await session.switch_to_branch("main")
    # It is kept while something of its turn is, and is gone with it.
    await session.pop_item()
    assert [turn["user_turn_number"] for turn in await session.get_turn_usage()] == [1, 2]  # type: ignore[union-attr]
    await session.pop_item()
    assert [turn["user_turn_number"] for turn in await session.get_turn_usage()] == [1]  # type: ignore[union-attr]
    await session.clear_session()
    assert await session.get_session_usage() is None


async def test_a_branch_that_was_deleted_for_good_is_left_out(store: milepost.AsyncMilepost) -> None:
    session = MilepostSession("left out", store)
    await session.add_items([user("q1")])
    await session.store_run_usage(Result(1))  # type: ignore[arg-type]
    for name, tokens in (("a", 10), ("b", 100)):
        await session.switch_to_branch("main")
        await session.create_branch_from_item(1, name)
        await session.add_items([user("q2")])
        await session.store_run_usage(Result(tokens))  # type: ignore[arg-type]
    for name, left, sum in (("b", ["main", "a"], 11), ("a", ["main"], 1)):
        (gone,) = [branch["session"] for branch in await session.list_branches() if branch["branch_id"] == name]
        await store.delete(gone)
        assert [branch["branch_id"] for branch in await session.list_branches()] == left
        usage = await session.get_session_usage()
        assert usage is not None and usage["input_tokens"] == sum


RUN = """
import json
from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from milepost.openai_agents import MilepostSession
session = MilepostSession("killed", URL, workspace=WORKSPACE)
@function_tool
async def weather(city: str) -> str:
    if sys.argv[1] == "first":
        print(json.dumps(city), flush=True)
        await asyncio.sleep(600)
    return "Rain"
async def main():
    steps = [[function_call("weather", {"city": "Bergen"}, call_id="c" + sys.argv[1])], [assistant_message("It rains.")]]
    model = ScriptedModel(steps)
    agent = Agent(name="a", model=model, tools=[weather])
    result = await Runner.run(agent, sys.argv[1], session=session, run_config=RunConfig(tracing_disabled=True))
    print(json.dumps([model.first_call.input, await session.get_items(), result.final_output]))
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", SHARED_KINDS)
async def test_a_run_that_was_killed_is_gone_on_with_elsewhere(kind: str, tmp_path: Path) -> None:
    place = Elsewhere(kind, tmp_path)
    process = place.start(RUN, "first")
    assert process.stdout is not None and await asyncio.to_thread(process.stdout.readline)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    async with MilepostSession("killed", place.url, workspace=place.workspace) as session:
        before = await session.get_items()
    assert before[0] == user("first")
    given_input, items, output = await asyncio.to_thread(place.run, RUN, "second")
    assert output == "It rains." and items[: len(before)] == before
    assert given_input[0] == user("first") and given_input[-1] == user("second")
    assert [item.get("call_id") for item in items if item.get("type") == "function_call_output"] == ["csecond"]


# Many at once.


@pytest.mark.parametrize("kind", KINDS)
async def test_sixteen_tasks_lose_and_tear_nothing(kind: str, tmp_path: Path) -> None:
    async for store in opened(kind, tmp_path):
        sessions = [MilepostSession("many", store) for _ in range(4)]

        async def work(name: int) -> None:
            for number in range(5):
                await sessions[name % 4].add_items([user(f"{name}/{number}"), said(f"{name}/{number}")])

        await asyncio.gather(*(work(name) for name in range(16)))
        found = [item["content"] for item in await sessions[0].get_items()]  # type: ignore[typeddict-item]
        assert len(found) == 160 and found[::2] == found[1::2]
        for name in range(16):
            assert [text for text in found[::2] if text.startswith(f"{name}/")] == [f"{name}/{number}" for number in range(5)]
        assert len((await store.sessions()).sessions) == 1


async def test_tasks_begin_together_what_another_process_only_named(store: milepost.AsyncMilepost) -> None:
    # A process that was killed, or is slow, between the two: the record names a session that is not there.
    await MilepostSession("named", store).add_items([user("gone")])
    (record,) = await store.records(_RECORD)
    index = json.loads(record.value)
    await store.delete(index["branches"]["main"]["session"])
    index["branches"]["main"] |= {"session": await _adapt.new_session_id(store), "new": True}
    await store.put_record(_RECORD, record.key, json.dumps(index).encode(), expected=record.version)
    session = MilepostSession("named", store)
    assert await session.get_items() == []
    await asyncio.gather(*(session.add_items([user(f"{task}")]) for task in range(8)))
    found = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
    assert sorted(found) == [f"{task}" for task in range(8)]


ADD = """
import json
from milepost.openai_agents import MilepostSession
async def main():
    async with MilepostSession("two", URL, workspace=WORKSPACE) as session:
        async def work(task):
            for number in range(5):
                text = f"{sys.argv[1]}/{task}/{number}"
                await session.add_items([{"role": "user", "content": text}, {"role": "assistant", "content": text}])
        await asyncio.gather(*(work(task) for task in range(4)))
asyncio.run(main())
"""

POP = """
import json
from milepost.openai_agents import MilepostSession
async def main():
    async with MilepostSession("two", URL, workspace=WORKSPACE) as session:
        popped = []
        for _ in range(10): popped.append((await session.pop_item())["content"])
        print(json.dumps(popped))
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", SHARED_KINDS)
async def test_two_processes_lose_and_tear_nothing(kind: str, tmp_path: Path) -> None:
    place = Elsewhere(kind, tmp_path)
    for process in [place.start(ADD, str(name)) for name in range(2)]:
        await asyncio.to_thread(finish, process)
    async with MilepostSession("two", place.url, workspace=place.workspace) as session:
        found = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
        assert len(found) == 80 and found[::2] == found[1::2] and len(set(found)) == 40
        # No item is taken by both.
        popped = [await asyncio.to_thread(finish, process) for process in [place.start(POP) for _ in range(2)]]
        assert sorted(popped[0] + popped[1]) == sorted(found[-20:])
        left = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
        assert left == found[:-20]


async def test_tasks_take_back_while_others_add(store: milepost.AsyncMilepost) -> None:
    one, two = MilepostSession("mixed", store), MilepostSession("mixed", store)
    await one.add_items([user(f"old {number}") for number in range(4)])

    async def add() -> None:
        for number in range(6):
            await one.add_items([user(f"new {number}")])

    async def pop() -> list[Any]:
        return [await two.pop_item() for _ in range(6)]

    _, popped = await asyncio.gather(add(), pop())
    left = await one.get_items()
    texts = [item["content"] for item in [*left, *popped]]  # type: ignore[typeddict-item,misc]
    assert sorted(texts) == sorted([f"old {number}" for number in range(4)] + [f"new {number}" for number in range(6)])


async def test_an_item_that_comes_while_another_is_taken_back_is_not_lost(
    store: milepost.AsyncMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = MilepostSession("late", store), MilepostSession("late", store)
    await one.add_items([user("old"), user("last")])
    read, late = milepost.AsyncMilepost.messages, [user("late")]

    async def messages(self: milepost.AsyncMilepost, *given: Any, **named: Any) -> list[milepost.Message]:
        found = await read(self, *given, **named)
        if late:
            await two.add_items([late.pop()])
        return found

    monkeypatch.setattr(milepost.AsyncMilepost, "messages", messages)
    assert await one.pop_item() == user("late")
    assert await one.get_items() == [user("old"), user("last")]


async def test_a_cancelled_write_has_happened_or_not(tmp_path: Path) -> None:
    async with MilepostSession("cancel", f"sqlite:{tmp_path}/a.db") as session:
        await session.add_items([user("first")])
        for number in range(10):
            task = asyncio.create_task(session.add_items([user(str(number))]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # It settled before the cancellation was told: nothing lands later.
            before = await session.get_items()
            await asyncio.sleep(0.005)
            assert await session.get_items() == before
