"""A legacy MCP server on stdio with some of the tools of `library.rs`. `ask` sends the client a
question and returns the answer, `work` reports progress once a second for 4 s, `never` does not
answer, and `cancelled` returns whether the last call of `never` was cancelled."""

import json
import sys
import time

SCHEMA = {"type": "object", "properties": {"by": {"type": "string"}}}
QUESTION = {"mode": "form", "message": "Who answers?", "requestedSchema": SCHEMA}
questions = {}
unanswered = cancelled = None


def send(message):
    sys.stdout.write(json.dumps(dict(jsonrpc="2.0", **message)) + "\n")
    sys.stdout.flush()


def text(id, value):
    send({"id": id, "result": {"content": [{"type": "text", "text": value}]}})


def call(id, params):
    if params["name"] == "ask":
        questions[f"question-{id}"] = id
        send({"id": f"question-{id}", "method": "elicitation/create", "params": QUESTION})
    elif params["name"] == "work":
        token = params["_meta"]["progressToken"]
        for number in range(4):
            time.sleep(1)
            progress = {"progressToken": token, "progress": number}
            send({"method": "notifications/progress", "params": progress})
        text(id, "worked")
    elif params["name"] == "cancelled":
        text(id, json.dumps(unanswered is not None and cancelled == unanswered))


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "library", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        send({"id": id, "result": result})
    elif method == "tools/list":
        schema = {"type": "object"}
        tools = [{"name": name, "inputSchema": schema} for name in ["ask", "work", "never", "cancelled"]]
        send({"id": id, "result": {"tools": tools}})
    elif method == "tools/call" and message["params"]["name"] == "never":
        unanswered = id
    elif method == "tools/call":
        call(id, message["params"])
    elif method == "notifications/cancelled":
        cancelled = message["params"]["requestId"]
    elif method is None and id in questions:
        text(questions.pop(id), json.dumps(message.get("result")))
    elif method is not None and id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no"}})
