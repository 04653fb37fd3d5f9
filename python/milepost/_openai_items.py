"""The OpenAI Agents SDK's items as messages, and what they tell of a conversation."""

from __future__ import annotations

import json
from typing import cast

from milepost import _adapt
from milepost.types import JSON, Message

# Items as messages, and back. Values are moved, never changed: `openai` says what of the item is elsewhere in the message.


def encode(item: JSON, exact: bool = True) -> dict[str, JSON]:
    """An item as a message. What has no exact form in the store is kept as a text of JSON."""
    if not exact and not _adapt.fits(item):
        text = json.dumps(item)
        return {"role": _role(item), "content": [{"type": "json", "json": text}], "openai": {"moved": "json"}}
    if not isinstance(item, dict):
        return {"role": "other", "content": [item], "openai": {"moved": "item"}}
    role, kind, content = item.get("role"), item.get("type"), item.get("content")
    if isinstance(role, str) and role and kind in (None, "message") and isinstance(content, (str, list)):
        rest = {key: value for key, value in item.items() if key not in ("role", "content")}
        said = content if isinstance(content, str) else [_encode_part(part) for part in content]
        return {"role": role, "content": said, "openai": {"moved": "content", "item": rest}}
    call_id = item.get("call_id")
    if kind == "function_call" and isinstance(call_id, str) and isinstance(item.get("name"), str):
        call = {"type": "tool_call", "id": call_id, "name": item["name"], "input": _arguments(item.get("arguments"))}
        return {"role": "assistant", "content": [call], "openai": {"item": item}}
    if kind == "function_call_output" and isinstance(call_id, str) and "output" in item:
        rest = {key: value for key, value in item.items() if key != "output"}
        result = {"type": "tool_result", "call_id": call_id, "content": item["output"]}
        return {"role": "tool", "content": [result], "openai": {"moved": "output", "item": rest}}
    if kind == "reasoning":
        thought = {"type": "thinking", "text": _summary(item.get("summary"))}
        return {"role": "assistant", "content": [thought], "openai": {"item": item}}
    return {"role": _role(item), "content": [item], "openai": {"moved": "item"}}


def decode(message: Message) -> JSON:
    """The item of a message. A message that someone else wrote is one that the SDK understands."""
    kept, content = message.extra.get("openai"), message.content
    if not isinstance(kept, dict):
        return {"role": message.role if message.role != "tool" else "user", "content": message.text}
    match kept.get("moved"):
        case "content":
            said = content if isinstance(content, str) else [_decode_part(part) for part in content]
            return {**kept["item"], "role": message.role, "content": said}
        case "output":
            return {**kept["item"], "output": cast("list[dict[str, JSON]]", content)[0]["content"]}
        case "item":
            return content[0]
        case "json":
            return json.loads(cast("list[dict[str, str]]", content)[0]["json"])
        case _:
            return kept["item"]


def _encode_part(part: JSON) -> JSON:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        if part.get("type") in ("input_text", "output_text", "text"):
            return {"type": "text", "text": part["text"], "part": {k: v for k, v in part.items() if k != "text"}}
    return part


def _decode_part(part: JSON) -> JSON:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) and "part" in part:
        return {**part["part"], "text": part["text"]}
    return part


def _role(item: JSON) -> str:
    if not isinstance(item, dict):
        return "other"
    role, kind = item.get("role"), item.get("type")
    if isinstance(role, str) and role and _adapt.fits(role):
        return role
    is_answer = isinstance(kind, str) and kind.endswith(("_output", "_response"))
    return "tool" if is_answer else "assistant"


def _arguments(text: JSON) -> JSON:
    """A call's arguments as a viewer wants them; the item has them as they were given."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text
    return found if _adapt.fits(found) else text


def _summary(parts: JSON) -> str:
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


# What the SDK's own sessions tell of a conversation.


def is_turn(item: JSON) -> bool:
    return isinstance(item, dict) and item.get("role") == "user"


def kind(item: JSON) -> str:
    if not isinstance(item, dict):
        return "other"
    if item.get("role") in ("user", "assistant"):
        return str(item["role"])
    return str(item.get("type") or "other")


_NAMELESS = frozenset(
    ("computer_call", "file_search_call", "web_search_call", "code_interpreter_call", "shell_call", "apply_patch_call")
)


def tool(item: JSON) -> str | None:
    """The name of the tool that an item is about."""
    if not isinstance(item, dict):
        return None
    kind, tool = item.get("type"), item.get("name")
    if kind in ("tool_search_call", "tool_search_output"):
        return "tool_search"
    if kind in _NAMELESS:
        return str(kind)
    if kind in ("mcp_call", "mcp_approval_request") and item.get("server_label"):
        return f"{item['server_label']}.{tool}" if tool else str(item["server_label"])
    if tool is None:
        return None
    return f"{item['namespace']}.{tool}" if item.get("namespace") not in (None, "", tool) else str(tool)


def is_call(item: JSON) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and (kind.endswith("_call") or kind == "mcp_approval_request")


def preview(content: JSON, longest: int | None = None) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text if longest is None or len(text) <= longest else text[:longest] + "..."


def texts(content: JSON) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
