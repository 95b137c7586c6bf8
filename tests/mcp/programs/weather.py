"""The MCP server with the tool that overrides.rs simplifies: weather.py PORT FILE.

The tool needs arguments that agents should not see. The server appends the arguments of each call to FILE.
"""

import json
import sys

import uvicorn
from mcp.server.fastmcp import FastMCP

# uvicorn closes connections that were idle for 5 s. The gateway may send a request at that moment, and a request that
# may have been received is not sent again.
IDLE_SECONDS = 3600

port, file = sys.argv[1:]
server = FastMCP("weather", host="127.0.0.1", port=int(port))


@server.tool(description="Reads the forecast of a station")
def fetch_forecast(
    city: str, station_id: str, request_id: str, units: str = "imperial", debug_mode: bool = False
) -> str:
    called = {
        "city": city,
        "station_id": station_id,
        "request_id": request_id,
        "units": units,
        "debug_mode": debug_mode,
    }
    with open(file, "a") as calls:
        calls.write(json.dumps(called) + "\n")
    return f"sunny in {city}"


app = server.streamable_http_app()
uvicorn.run(app, host="127.0.0.1", port=int(port), timeout_keep_alive=IDLE_SECONDS)
