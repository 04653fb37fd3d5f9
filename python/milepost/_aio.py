"""How a future of an event loop is resolved from a thread of the engine's."""

from __future__ import annotations

import asyncio
from typing import Any


def resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Called on the loop's own thread. Whoever waited may have given up meanwhile."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
