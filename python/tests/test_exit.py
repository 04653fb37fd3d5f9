"""An interpreter that ends while the store works ends well."""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import asyncio, milepost
async def main():
    store = await milepost.open_async("memory:")
    session = await store.create_shared()
    for _ in range(20): await store.add(session, ("user", "x"))
    left = [asyncio.ensure_future(store.add(session, ("user", "x"))) for _ in range(30)]
    await asyncio.sleep(0)
asyncio.run(main())
"""

LATE = """
import asyncio, atexit
@atexit.register
def late():
    async def main():
        await store.add(session, ("user", "late"))
        try: await store.session("ses_" + "0" * 26)
        except LookupError: print(len(await store.messages(session)))
    asyncio.run(main())
import milepost
store = asyncio.run(milepost.open_async("memory:"))
session = asyncio.run(store.create_shared())
"""


def test_calls_under_way_do_not_bring_the_process_down() -> None:
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_call_while_the_interpreter_ends_is_answered() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
