"""Messages come back as LangGraph's own serializer makes them, however they were made."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import field_validator
from test_langgraph_saver import config, put, values

from milepost.langgraph import MilepostSaver


class Shouting(HumanMessage):
    """A class of one's own, that changes what it is given."""

    @field_validator("content", mode="before")
    @classmethod
    def shout(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
optional = st.one_of(st.none(), texts)
small = st.dictionaries(texts, st.one_of(st.none(), st.booleans(), st.integers(0, 9), texts), max_size=2)
call = st.fixed_dictionaries({"name": texts, "args": small, "id": optional})
usage = st.fixed_dictionaries({"input_tokens": st.just(1), "output_tokens": st.just(2), "total_tokens": st.just(3)})
plain = {"content": texts, "id": optional, "name": optional}
contents = st.one_of(texts, st.lists(st.one_of(texts, st.fixed_dictionaries({"type": st.just("text"), "text": texts})), max_size=2))
messages = st.one_of(
    st.builds(HumanMessage, **plain),
    st.builds(AIMessage, **plain),
    st.builds(SystemMessage, **plain),
    st.builds(ToolMessage, tool_call_id=texts, status=st.sampled_from(["success", "error"]), **plain),
    st.builds(ToolMessage, tool_call_id=texts, artifact=st.one_of(st.none(), small), content=contents),
    st.builds(HumanMessage, content=contents, additional_kwargs=small, response_metadata=small),
    st.builds(AIMessage, content=contents, tool_calls=st.lists(call, max_size=2), usage_metadata=st.one_of(st.none(), usage)),
    st.builds(HumanMessage, content=texts, beyond=texts),
    st.builds(ChatMessage, content=texts, role=texts),
    st.builds(AIMessageChunk, content=texts),
    st.builds(Shouting, content=texts),
)


def told(message: Any) -> Any:
    parts = (message.__dict__, message.__pydantic_fields_set__, message.__pydantic_extra__, message.__pydantic_private__)
    return type(message), list(message.__dict__), *parts, repr(message)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(messages, min_size=1, max_size=12), st.lists(st.sampled_from([HumanMessage, AIMessage]), max_size=3))
def test_messages_are_what_the_serializer_makes_of_them(given_messages: list[AnyMessage], more: list[Any]) -> None:
    given_messages += [kind(content=f"more {number}", id=str(number)) for number, kind in enumerate(more)]
    serializer = JsonPlusSerializer()
    expected = serializer.loads_typed(serializer.dumps_typed(given_messages))
    with MilepostSaver("memory:") as saver:
        at = put(saver, {"messages": given_messages})
        # Twice: the first time forms are learned, the second time they are known.
        for _ in range(2):
            fresh = MilepostSaver(saver.store)
            fresh._inner = saver._inner
            for found in (values(fresh, at)["messages"], next(fresh.list(config())).checkpoint["channel_values"]["messages"]):
                assert list(map(told, found)) == list(map(told, expected))


def test_messages_that_are_given_out_share_nothing_that_can_change(sqlite_url: str) -> None:
    with MilepostSaver(sqlite_url) as saver:
        at = put(saver, {"messages": [AIMessage(content=str(number), id=str(number)) for number in range(4)]})
        saver = MilepostSaver(saver.store)
        for _ in range(2):
            one, two = values(saver, at)["messages"][1:3]
            one.additional_kwargs["x"] = 1
            one.tool_calls.append({"name": "f", "args": {}, "id": "c"})
            one.content = "changed"
            assert (two.additional_kwargs, two.tool_calls, two.content) == ({}, [], "2")
            assert two.model_copy(update={"content": "new"}).content == "new"


def test_a_serializer_of_ones_own_makes_every_message(sqlite_url: str) -> None:
    class Own(JsonPlusSerializer):
        def loads_typed(self, data: Any) -> Any:
            made = super().loads_typed(data)
            if isinstance(made, list):
                made = [message.model_copy(update={"name": "own"}) for message in made]
            return made

    chance = random.Random(1)
    with MilepostSaver(sqlite_url) as saver:
        at = put(saver, {"messages": [HumanMessage(content=str(chance.random()), id=str(n)) for n in range(3)]})
        other = MilepostSaver(saver.store, serde=Own())
        assert [message.name for message in values(other, at)["messages"]] == ["own"] * 3
