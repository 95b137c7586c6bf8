"""The everything-server in both eras of the protocol, or in one: everything.py both|legacy|modern PORT.

In one era, it responds to requests of the other era like a server that does not support that era.
"""

import json
import sys

import uvicorn
from mcp_everything_server.server import event_store, mcp

MODERN = b"2026-07-28"
# uvicorn closes connections that were idle for 5 s. The gateway may send a request at that moment, and a request that
# may have been received is not sent again.
IDLE_SECONDS = 3600

era, port = sys.argv[1:]
everything = mcp.streamable_http_app(event_store=event_store, retry_interval=100)
refusal = {
    "legacy": {"code": -32600, "message": "Bad Request: Unsupported protocol version"},
    "modern": {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {"supported": [MODERN.decode()], "requested": "2025-11-25"},
    },
}.get(era)
body = json.dumps({"jsonrpc": "2.0", "id": None, "error": refusal}).encode()


async def app(scope, receive, send):
    is_http = scope["type"] == "http"
    is_modern = is_http and dict(scope["headers"]).get(b"mcp-protocol-version") == MODERN
    if refusal is None or not is_http or is_modern == (era == "modern"):
        return await everything(scope, receive, send)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


uvicorn.run(app, host="127.0.0.1", port=int(port), timeout_keep_alive=IDLE_SECONDS)
