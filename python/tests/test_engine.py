"""The engine from Python: what goes in comes out, on every kind of store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import milepost
from milepost import errors


def test_a_session_is_resumed_with_what_it_had(store: milepost.Milepost) -> None:
    with store.create("Papers", project="p", tags=["x"], state={"memory": {"n": 1}}, extra={"own": [1, None]}) as session:
        session.append([("user", "one"), {"role": "assistant", "content": "two"}])
        session.set({"memory.n": 2})
        session.pause("for now")
    info = store.session(session.id)
    assert (info.title, info.status, info.messages, info.tags, info.extra) == ("Papers", "paused", 2, ("x",), {"own": [1, None]})
    with store.resume(session.id, set={"memory.more": True}) as again:
        assert again.resumed is not None
        assert again.resumed.state == {"memory": {"n": 2, "more": True}}
        assert again.resumed.messages == 2 and again.resumed.status == "paused"
        again.complete()
    assert store.session(session.id).status == "completed"


def test_a_session_of_which_nothing_is_whole_is_begun_anew_where_asked(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    with milepost.open(url) as store, store.create("Papers", task="t-1", state={"memory": {"n": 1}}) as session:
        session.append([("user", "one"), ("assistant", "two")])
    database = sqlite3.connect(tmp_path / "m.db")
    database.execute("UPDATE entries SET body = zeroblob(length(body)) WHERE kind IN (2, 3)")
    database.commit()
    database.close()
    with milepost.open(url) as store:
        with pytest.raises(errors.Corrupt, match="begin anew"):
            store.resume(session.id)
        with store.resume(session.id, begin_anew=True) as again:
            assert again.resumed is not None
            assert again.id != session.id and again.resumed.instead_of == session.id
            assert again.resumed.messages == 2 and again.resumed.state == {}
        with store.get_or_create(task="t-1") as same:
            assert same.id == again.id
        assert store.session(again.id).extra == {"begun_anew_from": session.id}


def test_unknown_blocks_and_fields_come_back_as_they_went_in(store: milepost.Milepost) -> None:
    message = {
        "role": "wizard",
        "content": [{"type": "text", "text": "hi", "cache": 1}, {"type": "spell", "power": 9.5, "of": {"x": []}}],
        "uuid": "u-1",
        "nested": {"a": [1, 2.5, True, None, "ü\u2603"]},
    }
    session = store.create_shared()
    store.add(session, [message])
    (back,) = store.messages(session)
    assert back.to_dict() == message
    assert back.text == "hi"


def test_a_text_is_of_texts_only(store: milepost.Milepost) -> None:
    blocks = ["plain", {"type": "x", "text": 5}, {"type": "text", "text": "said"}, {"type": "y", "text": None}, 7, ""]
    session = store.create_shared()
    store.add(session, [{"role": "user", "content": blocks}])
    (back,) = store.messages(session)
    assert back.content == blocks and back.text == "plain\nsaid"


def test_messages_are_read_by_ranges_and_channels(store: milepost.Milepost) -> None:
    session = store.create_shared("Ranges")
    for number in range(10):
        store.add(session, [{"role": "user", "content": str(number), "channel": "side" if number % 5 == 0 else "main"}])
    texts = lambda **query: [message.text for message in store.messages(session, **query)]
    assert texts() == [str(number) for number in range(10)]
    assert texts(first=2) == ["0", "1"] and texts(last=2) == ["8", "9"]
    assert texts(channel="side") == ["0", "5"]
    third = store.messages(session)[3]
    assert texts(start=third.seq)[0] == "3" and texts(stop=third.seq)[-1] == "2"


def test_adding_is_all_or_nothing_and_needs_no_lease(store: milepost.Milepost) -> None:
    session = store.create_shared("Shared", task="t")
    with store.hold(session):
        added = store.add(
            session, ("user", "beside"), event=("seen", {"by": "me"}), set={"memory.a": 1}, patch={"title": "New"}, checkpoint="here"
        )
    assert added.checkpoint == store.checkpoint(session, "here").id
    assert store.state(session) == {"memory": {"a": 1}} and store.session(session).title == "New"
    kinds = [(entry.kind, (entry.body or {}).get("type")) for entry in store.entries(session) if entry.kind == "event"]
    assert ("event", "seen") in kinds
    length = len(store.entries(session))
    with pytest.raises(errors.Invalid):
        store.add(session, [("user", "x"), {"role": "user", "content": "y", "channel": "\n"}])
    with pytest.raises(errors.Refused):
        store.add(session, ("user", "x"), set={"memory.a.b": 1})
    assert len(store.entries(session)) == length


def test_branches_diffs_and_search(store: milepost.Milepost) -> None:
    with store.create("Trunk", project="p") as session:
        session.append(("user", "the quick brown fox"))
        first = session.checkpoint("first")
        session.append(("assistant", "jumped"))
        second = session.checkpoint("second")
    branch = store.branch(session.id, at="first", title="Branch")
    assert [message.text for message in store.messages(branch.id)] == ["the quick brown fox"]
    assert store.session(branch.id).parent == session.id
    diff = store.diff(first, second)
    assert [message.text for message in diff.only_b] == ["jumped"] and diff.only_a == []
    (hit,) = store.search('"quick brown"', project="p").hits
    assert hit.session == session.id and [message.text for message in hit.after] == ["jumped"]
    branch.release()
    with pytest.raises(errors.Conflict, match="branches"):
        store.delete(session.id)
    store.delete(session.id, branches="delete")
    with pytest.raises(errors.NotFound):
        store.session(branch.id)


def test_a_search_for_no_hits_gives_none(store: milepost.Milepost) -> None:
    store.add(store.create_shared(), ("user", "the quick brown fox"))
    assert store.search("fox", limit=0) == milepost.Found([], more=True)
    assert store.search("wolf", limit=0) == milepost.Found([], more=False)
    assert store.sessions(limit=0).sessions == []


def test_a_session_is_set_back_in_place(store: milepost.Milepost) -> None:
    with store.create(state={"memory": {"n": 1}}) as session:
        session.checkpoint("one")
        session.set({"memory.n": 2})
        assert session.restore("one").label == "one"
        assert session.state() == {"memory": {"n": 1}}


def test_sessions_are_listed_in_pages(store: milepost.Milepost) -> None:
    ids = [store.create_shared(str(number), project="p" if number % 2 else "q") for number in range(7)]
    seen, after = [], None
    while True:
        page = store.sessions(limit=3, by_creation=True, after=after)
        seen += [session.id for session in page.sessions]
        after = page.next
        if after is None:
            break
    assert seen == ids[::-1]
    assert {session.title for session in store.sessions(project="p").sessions} == {"1", "3", "5"}
    store.trash(ids[0])
    assert [session.id for session in store.sessions(trashed=True).sessions] == [ids[0]]
    store.untrash(ids[0])
    assert len(store.sessions().sessions) == 7


def test_records_are_compared_and_set(store: milepost.Milepost) -> None:
    version = store.put_record("setting", "a", b"\x00one")
    with pytest.raises(errors.Conflict) as raised:
        store.put_record("setting", "a", b"two")
    assert raised.value.what == "record"
    store.put_record("setting", "a", b"two", expected=version)
    found = store.record("setting", "a")
    assert found is not None and found.value == b"two"
    store.put_record("setting", "b", b"")
    assert [record.key for record in store.records("setting", after="a")] == ["b"]
    store.delete_record("setting", "a", expected=found.version)
    assert store.record("setting", "a") is None


def test_errors_say_what_why_and_what_to_do(store: milepost.Milepost) -> None:
    with store.create() as session:
        other = milepost.errors.Held
        with pytest.raises(other) as held:
            store.hold(session.id)
        assert held.value.session == session.id and "take it over" in str(held.value)
    with pytest.raises(errors.Invalid, match="not a session id"):
        store.session("../etc/passwd")
    with pytest.raises(errors.NotFound) as missing:
        store.session("ses_" + "0" * 26)
    assert missing.value.what == "session" and isinstance(missing.value, LookupError)
    with pytest.raises(errors.Refused):
        session.append(("user", "late"))
    session = store.create()
    for bad in (object(), float("nan"), 1 << 80, {1: 2}):
        with pytest.raises((TypeError, ValueError)):
            session.set({"memory.x": bad})
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="128"):
        session.set({"memory.x": deep})
    session.release()


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, 1e12, float("nan"), float("inf")])
async def test_a_lease_that_never_or_always_holds_is_refused(seconds: float) -> None:
    said = f"lease_seconds={seconds} is not valid: it must be from 0.001 to 31536000"
    with pytest.raises(errors.Invalid, match=said) as refused:
        milepost.open("memory:", lease_seconds=seconds)
    assert refused.value.what == f"lease_seconds={seconds}" and refused.value.why is not None
    with pytest.raises(errors.Invalid, match=said):
        await milepost.open_async("memory:", lease_seconds=seconds)
    milepost.open("memory:", lease_seconds=0.001).close()


def test_a_closed_store_says_so(sqlite_url: str) -> None:
    store = milepost.open(sqlite_url)
    store.close()
    store.close()
    with pytest.raises(errors.Closed):
        store.sessions()


def test_an_encrypted_workspace_needs_its_key(sqlite_url: str) -> None:
    with milepost.open(sqlite_url, key="0f" * 32) as store:
        store.add(store.create_shared("Secret title"), ("user", "Secret words"))
    with pytest.raises(errors.Key):
        milepost.open(sqlite_url)
    assert b"Secret" not in Path(sqlite_url.removeprefix("sqlite:")).read_bytes()
    with milepost.open(sqlite_url, key="0f" * 32) as store:
        assert store.search("words").hits[0].title == "Secret title"


async def test_the_same_with_an_event_loop(sqlite_url: str) -> None:
    async with await milepost.open_async(sqlite_url) as store:
        async with await store.create("Async") as session:
            await asyncio.gather(*(session.append(("user", str(number))) for number in range(20)))
            await session.checkpoint("end")
        shared = await store.create_shared()
        await asyncio.gather(*(store.add(shared, ("user", str(number))) for number in range(20)))
        assert sorted(int(message.text) for message in await store.messages(shared)) == list(range(20))
        assert len(await store.messages(session.id)) == 20
        with pytest.raises(errors.NotFound):
            await store.session("ses_" + "0" * 26)


async def test_the_loop_goes_on_while_the_store_works(sqlite_url: str) -> None:
    """Another process holds the database's lock for a while: the loop must not notice."""
    path = sqlite_url.removeprefix("sqlite:")
    async with await milepost.open_async(sqlite_url) as store:
        session = await store.create_shared()
        block = "import sqlite3,sys,time; c=sqlite3.connect(sys.argv[1]); c.execute('begin immediate'); print(1,flush=True); time.sleep(0.7)"
        child = subprocess.Popen([sys.executable, "-c", block, path], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline()
        adding = asyncio.create_task(store.add(session, ("user", "late")))
        ticks = 0
        while not adding.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await adding
        child.wait()
        assert ticks > 10


async def test_a_cancelled_call_harms_nobody(sqlite_url: str) -> None:
    async with await milepost.open_async(sqlite_url) as store:
        session = await store.create_shared()
        for _ in range(20):
            task = asyncio.create_task(store.add(session, ("user", "x")))
            await asyncio.sleep(0)
            task.cancel()
        await store.add(session, ("user", "last"))
        texts = [message.text for message in await store.messages(session)]
        assert texts.count("last") == 1 and len(texts) <= 21


def test_threads_share_a_store(sqlite_url: str) -> None:
    with milepost.open(sqlite_url) as store:
        shared = store.create_shared()

        def work(name: int) -> None:
            with store.create(str(name)) as session:
                for number in range(20):
                    session.append(("user", str(number)))
                    store.add(shared, ("user", f"{name}/{number}"))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.messages(shared)) == 320
        assert sum(session.messages for session in store.sessions().sessions) == 640


def test_the_interpreter_is_free_while_the_store_works(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:")
    with milepost.open(sqlite_url) as store:
        session = store.create_shared()
        block = "import sqlite3,sys,time; c=sqlite3.connect(sys.argv[1]); c.execute('begin immediate'); print(1,flush=True); time.sleep(0.7)"
        child = subprocess.Popen([sys.executable, "-c", block, path], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline()
        thread = threading.Thread(target=store.add, args=(session, ("user", "late")))
        thread.start()
        ticks = 0
        while thread.is_alive():
            time.sleep(0.01)
            ticks += 1
        child.wait()
        assert ticks > 10


FORK = """
import os, sys, threading
import milepost
store = milepost.open(sys.argv[1])
shared = store.create_shared("fork")
held = store.create("held")
store.add(shared, ("user", "before"))
stop = threading.Event()
done = []
def work():
    while not stop.is_set():
        store.add(shared, ("user", "thread"))
        done.append(1)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
children = []
for number in range(6):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(10): store.add(shared, ("user", f"child {number}"))
            try:
                held.append(("user", "no"))
            except milepost.errors.Forked:
                code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
for thread in threads: thread.join()
held.append(("user", "still held"))
texts = [message.text for message in store.messages(shared)]
assert codes == [0] * 6, codes
assert texts.count("thread") == len(done), (texts.count("thread"), len(done))
for number in range(6): assert texts.count(f"child {number}") == 10
store.close()
print("fine", len(done))
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_a_fork_loses_and_blocks_nothing(kind: str, tmp_path: Path) -> None:
    from conftest import store_url

    url = store_url(kind, tmp_path)
    done = subprocess.run([sys.executable, "-c", FORK, url], capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0 and done.stdout.startswith("fine"), done.stdout + done.stderr


def test_fields_that_only_the_store_sets_are_refused() -> None:
    with milepost.open("memory:") as store:
        with store.create(title="kept", tags=["a"]) as session:
            pass
        for wrong in ({"hidden": True}, {"trashed": 5}, {"title": 5}, {"tags": "ab"}):
            with pytest.raises(milepost.errors.Invalid):
                store.patch(session.id, **wrong)  # type: ignore[arg-type]
        with pytest.raises(milepost.errors.Invalid):
            store.create(extra={"hidden": True})
        assert [(one.title, list(one.tags)) for one in store.sessions().sessions] == [("kept", ["a"])]


def test_what_was_deleted_is_not_there_also_when_its_branches_are() -> None:
    with milepost.open("memory:") as store:
        with store.create(title="gone") as session:
            session.append(("user", "shared"))
            session.checkpoint("here")
        store.add(session.id, ("user", "its own"))
        with store.branch(session.id, at="here", title="kept") as branch:
            pass
        store.delete(session.id, branches="keep")
        for ask in (
            lambda: store.session(session.id),
            lambda: store.messages(session.id),
            lambda: store.entries(session.id),
            lambda: store.state(session.id),
            lambda: store.checkpoints(session.id),
            lambda: store.checkpoint(session.id, "here"),
            lambda: store.add(session.id, ("user", "more")),
            lambda: store.patch(session.id, title="back"),
            lambda: store.hold(session.id),
            lambda: store.resume(session.id),
            lambda: store.branch(session.id, at="here"),
            lambda: store.trash(session.id),
            lambda: store.delete(session.id, branches="keep"),
        ):
            with pytest.raises(milepost.errors.NotFound):
                ask()  # type: ignore[no-untyped-call]
        assert [message.text for message in store.messages(branch.id)] == ["shared"]
        assert store.session(branch.id).parent == session.id
