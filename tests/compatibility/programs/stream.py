"""Streams a reply with an SDK for Python, and prints it with the milliseconds between its first and its last piece."""

import sys
import time


def openai():
    from openai import OpenAI

    chunks = OpenAI(max_retries=0).chat.completions.create(
        model="stand-in", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    for chunk in chunks:
        yield chunk.choices[0].delta.content


def anthropic():
    from anthropic import Anthropic

    stream = Anthropic(max_retries=0).messages.stream(
        model="stand-in", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
    )
    with stream as events:
        yield from events.text_stream


try:
    pieces = [(time.monotonic(), piece) for piece in globals()[sys.argv[1]]()]
except Exception as error:
    cause = error.__cause__ or error
    sys.exit(f"{type(error).__name__}: {error} ({cause})")
text = "".join(piece for _, piece in pieces)
print(text, round(1000 * (pieces[-1][0] - pieces[0][0])))
