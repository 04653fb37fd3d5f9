"""Milepost as a typed program uses it: checked by mypy, run by nobody."""

from __future__ import annotations

import milepost
from milepost.langgraph import MilepostSaver


def sample() -> list[str]:
    with milepost.open("memory:") as store:
        with store.create("Typed", tags=["a"], state={"memory": {}}) as session:
            session.append([("user", "hi"), {"role": "assistant", "content": "hello"}])
            checkpoint: str = session.checkpoint("one")
        page: milepost.SessionPage = store.sessions(limit=3)
        hits = store.search("hi").hits
        record = store.record("kind", "key")
        value: bytes | None = record.value if record else None
        del checkpoint, page, value
        return [hit.message.text for hit in hits]


async def asynchronous() -> int:
    async with await milepost.open_async("memory:") as store:
        async with await store.create() as session:
            added: milepost.Added = await session.append(("user", "hi"))
        messages = await store.messages(session.id, last=1)
        return len(messages) + added.seq


def saver() -> MilepostSaver:
    return MilepostSaver("sqlite:threads.db", strict=True)
