"""An LLM of your own behind the gateway, which prints all that `llm.vendor` `custom` gives it (docs/gateway.md)."""

import json

from aiohttp import web

WORDS = ["Why did the scarecrow ", "win an award?"]


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    print("turn", body.get("turn_id", "unknown"))  # other vendors are told roles and texts
    now, left = body.get("timestamp", 0), None
    for message in body["messages"]:
        about = message.get("metadata", {})  # system messages have none
        seconds = (now - message.get("timestamp", now)) // 1000
        print(f"  {seconds} s ago, {about.get('user', message['role'])}: {message['content']}")
        if about.get("interrupted"):
            left = about["original"].removeprefix(message["content"])
            print(f"    nobody heard: {left}")

    answer = ["I was saying: ", left] if left else WORDS
    if not body.get("stream"):  # summaries and memories are asked for whole
        message = {"role": "assistant", "content": "".join(answer)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for text in answer:
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


app = web.Application(client_max_size=16 * 1024 * 1024)
app.router.add_post("/v1/chat/completions", complete)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=9001, print=None)
