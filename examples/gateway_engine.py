"""An engine that sends what it hears, asks the gateway for the answer, and reports how much of it was heard."""

import asyncio

from openai import AsyncOpenAI

from voicemem.client import Client, ClientError

REST, CALL = "http://127.0.0.1:8080", "gateway-call"


async def main() -> None:
    async with (
        Client("ws://127.0.0.1:8765", REST) as client,
        AsyncOpenAI(base_url=f"{REST}/v1/sessions/{CALL}", api_key="vm_...") as llm,
    ):
        session = await client.open(CALL, config={"llm": {"vendor": "custom"}})
        for turn, words in enumerate(["Tell me a joke.", "Sorry, go on."], 1):
            await session.send({"type": "asr", "turn_id": turn, "text": words, "final": True, "user": "ann"})
            answer = await llm.chat.completions.with_raw_response.create(
                model="-", messages=[{"role": "user", "content": words}], stream=True
            )
            async for chunk in answer.parse():
                if text := chunk.choices[0].delta.content:
                    print(text, flush=True)
            if turn == 1:
                item = answer.headers["Voicemem-Item"]
                await session.send({"type": "interrupt", "item": item, "heard_text": "Why did the "})
        await session.end()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ClientError as error:  # no service, or a second run: a session that has ended is not opened again
        raise SystemExit(error.detail) from None
