"""A stand-in for Docker's MCP Gateway: asks the interceptor before and after each call.

Reads one call per line, `{"name": …, "arguments": {…}}`, and prints one result per line. It sends the
bytes that the gateway sends, ignores the status, and takes an empty body as "unchanged", as the
gateway does. In its place, run the real one with the same two interceptors.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode

URL = urllib.parse.urlsplit(os.environ["INTERCEPTOR_URL"])


def go_json(value):
    """JSON as Go's encoder writes it, without white space and with <, > and & escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def ask(path, value):
    request = urllib.request.Request(f"http://{URL.hostname}:{URL.port}{path}", go_json(value).encode())
    request.add_header("Content-Type", "application/json")
    if URL.password:
        login = b64encode(f"{URL.username}:{URL.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        body = urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        body = error.read()
    return json.loads(body) if body else None


def call(params):
    before = {"Session": {}, "Params": {"_meta": {"progressToken": 1}, **params}, "Extra": None}
    result = ask("/intercept/before", before)
    if result is None:
        text = json.dumps(params.get("arguments", {}))
        result = {"content": [{"type": "text", "text": text}]}
    # The gateway keeps the members of a result alone.
    kept = ("_meta", "content", "structuredContent", "isError")
    result = {key: result[key] for key in kept if key in result}
    return ask("/intercept/after", result) or result


for line in sys.stdin:
    print(go_json(call(json.loads(line))), flush=True)
