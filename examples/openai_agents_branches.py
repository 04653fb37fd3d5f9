"""An OpenAI Agents SDK agent whose conversation is kept, branched and searched, with a model that needs no network.

    pip install './python[openai-agents]'
    python examples/openai_agents_branches.py [STORE]

Run it again with the same store: the conversation goes on.
"""

import asyncio
import sys

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

import milepost
from milepost.openai_agents import MilepostSession


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}"


async def ask(session: MilepostSession, city: str) -> None:
    call = f"call-{len(await session.get_items())}-{session.current_branch}"
    steps = [[function_call("weather", {"city": city}, call_id=call)], [assistant_message(f"It rains in {city}.")]]
    agent = Agent(name="Forecaster", model=ScriptedModel(steps), tools=[weather])
    result = await Runner.run(agent, f"How is {city}?", session=session, run_config=RunConfig(tracing_disabled=True))
    await session.store_run_usage(result)
    print(f"{session.current_branch}: {result.final_output}")


async def main(url: str) -> None:
    async with await milepost.open_async(url) as store:
        session = MilepostSession("forecast", store)
        await ask(session, "Bergen")
        await session.create_branch_from_turn(1)
        await ask(session, "Oslo")
        for branch in await session.list_branches():
            print(f"{branch['branch_id']}: {branch['message_count']} items, session {branch['session']}")
        for hit in (await store.search('"Rain in Oslo"')).hits:
            print(f"found in session {hit.session}: {hit.message.role}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:"))
