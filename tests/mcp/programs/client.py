"""Lists tools and calls some, with one of Python's MCP libraries.

client.py LIBRARY TRANSPORT TARGET CALLS: TARGET is a URL, or for the transport `stdio` a command as
a JSON list; CALLS is a JSON list of [tool, arguments]. Prints {"revision", "tools", "results"}: each
listed tool, and the text of each result or error.
"""

import asyncio
import json
import sys


def text(content):
    return "".join(getattr(part, "text", "") for part in content)


def text_of_dicts(content):
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def contents(call):
    async def called(tool, arguments):
        return text((await call(tool, arguments)).content)

    return called


async def results_of(calls, call):
    async def result(tool, arguments):
        try:
            return await call(tool, arguments)
        except Exception as error:
            return str(error)

    return [await result(tool, arguments) for tool, arguments in calls]


async def sdk_1(transport, target, calls):
    from mcp import ClientSession
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    if transport == "stdio":
        streams = stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    else:
        streams = (sse_client if transport == "sse" else streamablehttp_client)(target)
    async with streams as (read, write, *_), ClientSession(read, write) as session:
        begun = await session.initialize()
        tools = (await session.list_tools()).tools
        results = await results_of(calls, contents(session.call_tool))
        listed = [{"name": tool.name, "schema": tool.inputSchema} for tool in tools]
        return {"revision": begun.protocolVersion, "tools": listed, "results": results}


async def sdk_2(transport, target, calls, mode="auto"):
    from mcp.client.client import Client
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters

    if transport == "stdio":
        server = StdioServerParameters(command=target[0], args=target[1:])
    else:
        server = sse_client(target) if transport == "sse" else target
    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        results = await results_of(calls, contents(client.call_tool))
        listed = [{"name": tool.name, "schema": tool.input_schema} for tool in tools]
        return {"revision": client.protocol_version, "tools": listed, "results": results}


async def sdk_2_legacy(transport, target, calls):
    return await sdk_2(transport, target, calls, "legacy")


async def fastmcp(transport, target, calls):
    from fastmcp import Client
    from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport

    if transport == "stdio":
        server = StdioTransport(command=target[0], args=target[1:])
    else:
        server = (SSETransport if transport == "sse" else StreamableHttpTransport)(target)
    async with Client(server) as client:
        tools = await client.list_tools()
        results = await results_of(calls, contents(client.call_tool))
        listed = [{"name": tool.name, "schema": tool.input_schema} for tool in tools]
        return {"revision": client.protocol_version, "tools": listed, "results": results}


async def langchain(transport, target, calls):
    from langchain_mcp_adapters.client import MultiServerMCPClient

    if transport == "stdio":
        server = {"transport": "stdio", "command": target[0], "args": target[1:]}
    else:
        server = {"transport": "sse" if transport == "sse" else "streamable_http", "url": target}
    tools = await MultiServerMCPClient({"gateway": server}).get_tools()
    by_name = {tool.name: tool for tool in tools}

    async def call(tool, arguments):
        return text_of_dicts(await by_name[tool].ainvoke(arguments))

    results = await results_of(calls, call)
    listed = [
        {"name": tool.name, "description": tool.description, "schema": tool.args_schema} for tool in tools
    ]
    return {"revision": None, "tools": listed, "results": results}


library, transport, target, calls = sys.argv[1:]
target = json.loads(target) if transport == "stdio" else target
print(json.dumps(asyncio.run(globals()[library](transport, target, json.loads(calls)))))
