#!/usr/bin/env python3
"""Many clients at once against a running server; every answer must equal the
same request alone.

usage: load_test.py [--streams 64] [--seconds 60] [--seed 1]
                    -- build/release/bin/mlxcel-server --model DIR [--lora DIR,DIR ...]

Starts the server given after --, on a free port. Each client sends requests of
random length, scales, sampling, stop texts and routes, streamed and not; some
read slowly, some leave in the middle, some before the answer begins, and the
live scales change all the while. Checks every answer, that memory stays flat,
that neither descriptors nor KV blocks are lost, and that SIGTERM ends it with
exit code 0. Ends with 1 when something does not hold.
"""
import argparse
import asyncio
import collections
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

WORDS = ("the quick brown fox jumps over a lazy dog while seven wizards "
         "quietly examine nine golden boxes of jam 0 1 2 3 { } ( ) \n").split(" ")
ANSWER_LIMIT = 600  # seconds for one request


class Refused(Exception):
    """503: the queue is full."""


def make_request(rng, adapters, words):
    """A route with a body whose answer the seed fixes."""
    prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, words)))
    if rng.random() < 0.5:  # a beginning that many share
        prompt = "Once upon a time in a server room. " * 4 + prompt
    body = {"seed": rng.randint(0, 2**31 - 1), "stream": rng.random() < 0.7,
            "temperature": rng.choice([0, 0, 0.7, 1.2]), "top_k": 40,
            "cache_prompt": rng.random() < 0.8,
            "lora": [{"id": i, "scale": rng.choice([0, 0, 0.25, 1, 1.5])}
                     for i in range(adapters)]}
    if not adapters:
        del body["lora"]
    if rng.random() < 0.3:
        body["stop"] = rng.sample(["e", "th", "\n", "zz", "9"], 2)
    length = rng.randint(1, 96)
    route = rng.choice(["/completion", "/v1/completions", "/v1/chat/completions"])
    if route == "/completion":
        return route, {**body, "prompt": prompt, "n_predict": length}
    if route == "/v1/completions":
        return route, {**body, "prompt": prompt, "max_tokens": length}
    return route, {**body, "messages": [{"role": "user", "content": prompt}],
                   "max_tokens": length}


def text_of(event):
    """The text of an answer, or of one event of a stream."""
    if "error" in event:
        raise AssertionError(f"error: {event['error']}")
    if "content" in event:
        return event["content"]
    choice = event["choices"][0] if event.get("choices") else {}
    part = choice.get("delta") or choice.get("message") or choice
    return (part.get("reasoning_content") or "") + (
        part.get("content") or part.get("text") or "")


class Connection:
    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error):
        self.writer.transport.abort()  # no orderly end: as a client that dies

    def send(self, method, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: load\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode() + data)

    async def head(self):
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status = int(text.split(" ", 2)[1])
        headers = {line.split(": ")[0].lower(): line.split(": ", 1)[1]
                   for line in text.split("\r\n")[1:-2]}
        return status, headers

    async def pieces(self, headers):
        if "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def call(self, method, path, body=None):
        self.send(method, path, body)
        status, headers = await self.head()
        data = b"".join([piece async for piece in self.pieces(headers)])
        if status == 503:
            raise Refused(headers.get("retry-after", "1"))
        if status != 200:
            raise AssertionError(f"{path}: {status} {data[:300]!r}")
        return data


async def generate(port, route, body, leave_after=None, pause=0):
    """The text; with leave_after the part that came before leaving."""
    text, events, held = "", 0, b""
    async with Connection(port) as c:
        c.send("POST", route, body)
        if leave_after == 0:
            await c.writer.drain()
            await asyncio.sleep(pause)
            return text
        status, headers = await c.head()
        async for piece in c.pieces(headers):
            held += piece
            if status == 200 and body["stream"]:
                *whole, held = held.split(b"\n\n")
                for event in whole:
                    if not event.startswith(b"data: ") or event == b"data: [DONE]":
                        continue
                    text += text_of(json.loads(event[6:]))
                    events += 1
                    if events == leave_after:
                        return text
                if pause:
                    await asyncio.sleep(pause)
        if status == 503:
            raise Refused(headers.get("retry-after", "1"))
        if status != 200:
            raise AssertionError(f"{route}: {status} {held[:300]!r}")
        return text if body["stream"] else text_of(json.loads(held))


class Load:
    def __init__(self, args, process, port):
        self.args, self.process, self.port = args, process, port
        self.count = collections.Counter()
        self.faults = []
        self.samples = []
        self.end = 0.0

    async def references(self):
        async with Connection(self.port) as c:
            adapters = json.loads(await c.call("GET", "/lora-adapters"))
        self.adapters = len(adapters)
        rng = random.Random(self.args.seed)
        self.requests = [make_request(rng, self.adapters, self.args.words)
                         for _ in range(self.args.requests)]
        self.want = []
        for route, body in self.requests:
            alone = {**body, "stream": False, "cache_prompt": False}
            self.want.append(await generate(self.port, route, alone))

    async def client(self, number):
        rng = random.Random(self.args.seed * 1000 + number)
        while time.monotonic() < self.end:
            index = rng.randrange(len(self.requests))
            route, body = self.requests[index]
            dice = rng.random()
            leave = None if dice < 0.75 else 0 if dice < 0.85 else rng.randint(1, 9)
            pause = rng.choice([0, 0, 0, 0.02]) if leave is None else (
                rng.random() * 0.2 if leave == 0 else 0)
            try:
                text = await asyncio.wait_for(
                    generate(self.port, route, body, leave, pause), ANSWER_LIMIT)
            except Refused:
                self.count["refused"] += 1
                await asyncio.sleep(0.2 + rng.random())
                continue
            except Exception as error:
                self.faults.append(f"{route} {body}: {type(error).__name__} {error}")
                continue
            self.count["whole" if leave is None else "left"] += 1
            want = self.want[index]
            if leave is None and text != want or not want.startswith(text):
                self.faults.append(f"{route} {body}: got {text!r}, alone {want!r}")

    async def change_scales(self):
        """Other requests' scales must not reach those that name their own."""
        rng = random.Random(self.args.seed)
        while self.adapters and time.monotonic() < self.end:
            async with Connection(self.port) as c:
                await c.call("POST", "/lora-adapters", [
                    {"id": i, "scale": rng.random()} for i in range(self.adapters)])
            await asyncio.sleep(0.5)

    def sample(self):
        """(anonymous bytes, descriptors) of the server."""
        folder = Path(f"/proc/{self.process.pid}")
        status = (folder / "status").read_text()
        return (int(re.search(r"RssAnon:\s+(\d+)", status)[1]) * 1024,
                len(list((folder / "fd").iterdir())))

    async def watch(self):
        while time.monotonic() < self.end:
            self.samples.append(self.sample())
            await asyncio.sleep(max(0.5, self.args.seconds / 60))

    async def settle(self):
        """Waits until nothing runs; the blocks that are still in use."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            async with Connection(self.port) as c:
                slots = json.loads(await c.call("GET", "/slots"))
            if not any(slot["is_processing"] for slot in slots):
                break
            await asyncio.sleep(0.2)
        else:
            self.faults.append("requests still run a minute after their clients left")
        async with Connection(self.port) as c:
            await c.call("POST", "/v1/cache/reset")
            stats = json.loads(await c.call("GET", "/v1/cache/stats"))
        if stats["kv_blocks_used"]:
            self.faults.append(f"{stats['kv_blocks_used']} KV blocks are lost")
        await asyncio.sleep(0.5)

    async def run(self):
        await self.references()
        fds = self.sample()[1]
        self.end = time.monotonic() + self.args.seconds
        await asyncio.gather(
            self.watch(), self.change_scales(),
            *(self.client(i) for i in range(self.args.streams)))
        await self.settle()
        memory, left = self.sample()
        if left > fds:
            self.faults.append(f"{left - fds} descriptors are lost")
        # Caches fill at first; after that the level must not rise.
        peaks = [s[0] for s in self.samples[len(self.samples) // 3:]]
        if len(peaks) >= 9:
            third = len(peaks) // 3
            early, late = max(peaks[:third]), max(peaks[-third:])
            if late > early * 1.1 + (16 << 20):
                self.faults.append(
                    f"memory grows: {early >> 20} MiB, later {late >> 20} MiB")
        print(f"{self.count['whole']} answers compared, {self.count['left']} left, "
              f"{self.count['refused']} refused; memory {memory >> 20} MiB, "
              f"most {max(s[0] for s in self.samples) >> 20} MiB; "
              f"descriptors {fds} before, {left} after")


def wait_until_ready(process, port):
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server ended with {process.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=60,
                        help="different requests to draw from")
    parser.add_argument("--words", type=int, default=40, help="of the longest prompt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="+", help="the server, after --")
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen(
        [*args.command, "--port", str(port), "--log-disable"])
    load = Load(args, process, port)
    try:
        wait_until_ready(process, port)
        asyncio.run(load.run())
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        if code != 0:
            load.faults.append(f"SIGTERM ended it with exit code {code}")
    finally:
        process.kill()
        process.wait()
    for fault in load.faults[:20]:
        print(f"FAULT: {fault}"[:1000])
    if load.faults or not load.count["whole"]:
        sys.exit(f"{len(load.faults)} faults")
    print("all held")


if __name__ == "__main__":
    main()
