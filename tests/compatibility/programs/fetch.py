"""Fetches a URL with a library of Python, and prints status and body. Fails with the library's error."""

import asyncio
import os
import sys

library, url = sys.argv[1:]


def requests():
    import requests

    answer = requests.get(url)
    return answer.status_code, answer.text


def httpx():
    import httpx

    answer = httpx.get(url)
    return answer.status_code, answer.text


def aiohttp():
    import aiohttp

    async def fetch():
        async with aiohttp.ClientSession(trust_env=True) as session:
            async with session.get(url) as answer:
                return answer.status, await answer.text()

    return asyncio.run(fetch())


def urllib3():
    import urllib3

    manager = urllib3.ProxyManager(os.environ["HTTPS_PROXY"])
    answer = manager.request("GET", url, retries=False)
    return answer.status, answer.data.decode()


try:
    print(*globals()[library]())
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
