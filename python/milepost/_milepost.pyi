"""The inner part: every call takes an event loop and returns a future of it, or takes none and waits."""

from asyncio import AbstractEventLoop
from typing import Any, final

def before_exit() -> None: ...
def before_fork() -> None: ...
def after_fork_in_parent() -> None: ...
def after_fork_in_child() -> None: ...
def head(event_loop: AbstractEventLoop | None, engine: Engine, session: str) -> Any: ...
def add_at(
    event_loop: AbstractEventLoop | None,
    engine: Engine,
    session: str,
    head: tuple[str, int] | None,
    back_to: int | None,
    messages: list[dict[str, Any]],
    event: tuple[str, dict[str, Any]] | None,
    set: dict[str, Any] | None,
    patch: dict[str, Any] | None,
    trigger: str | None,
) -> Any: ...
def branch_at(
    event_loop: AbstractEventLoop | None, engine: Engine, session: str, seq: int, fields: dict[str, Any]
) -> Any: ...
@final
class Engine:
    @staticmethod
    def open(
        event_loop: AbstractEventLoop | None,
        url: str,
        workspace: str | None,
        key: str | None,
        settings: dict[str, Any],
    ) -> Any: ...
    def close(self, event_loop: AbstractEventLoop | None) -> Any: ...
    def create(self, event_loop: AbstractEventLoop | None, fields: dict[str, Any]) -> Any: ...
    def create_shared(self, event_loop: AbstractEventLoop | None, fields: dict[str, Any]) -> Any: ...
    def get_or_create(
        self,
        event_loop: AbstractEventLoop | None,
        project: str | None,
        agent: str | None,
        feature: str | None,
        task: str | None,
        stage: str | None,
    ) -> Any: ...
    def hold(self, event_loop: AbstractEventLoop | None, session: str) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

@final
class Held:
    @property
    def id(self) -> str: ...
    def __getattr__(self, name: str) -> Any: ...

@final
class LangGraph:
    def __new__(cls, engine: Engine) -> LangGraph: ...
    def __getattr__(self, name: str) -> Any: ...
