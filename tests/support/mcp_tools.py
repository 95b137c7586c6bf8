"""An MCP server with two tools, on stdin and stdout or, with the argument `http`, over HTTP.

Over HTTP it listens on a free port of loopback, which it prints.
"""

import http.server
import json
import sys

ERASE = {"name": "erase", "inputSchema": {"type": "object"}}
ECHO = {"name": "echo", "description": "Repeats a text",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def respond(message):
    params = message.get("params", {})
    results = {
        "initialize": lambda: {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "tools", "version": "1"}},
        "tools/list": lambda: {"tools": [ECHO, ERASE]},
        "tools/call": lambda: {"content": [{"type": "text", "text": call(params)}]},
    }
    result = results.get(message["method"])
    body = {"result": result()} if result else {"error": {"code": -32601, "message": "Method not found"}}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"]} | body)


def call(params):
    return params["name"] + ": " + params.get("arguments", {}).get("text", "")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.reply(202, b"")
        self.reply(200, respond(message).encode())

    def do_GET(self):
        self.reply(405, b"")

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if sys.argv[1:] == ["http"]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(respond(message), flush=True)
