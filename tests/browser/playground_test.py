#!/usr/bin/env python3
"""Drives the playground in headless Chromium against a running server.

usage: playground_test.py [--server PROGRAM] [--model DIR] [--lora DIR,DIR]
                          [--surgery FILE] [--screenshots DIR]

A recording proxy stands between the page and the server, so that what the page
sends is seen. Needs chromium and chromedriver; speaks WebDriver itself. Ends
with 1 when a check fails.
"""
import argparse
import base64
import http.client
import http.server
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BASES = ROOT / "tests/fixtures/lora"
PLAIN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the WebDriver standard's key
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, condition, limit=30):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            value = condition()
        except (OSError, http.client.HTTPException, StopIteration):
            value = None
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {limit} s: {what}")


class Proxy:
    """Forwards to the server, piece by piece, and keeps the bodies sent."""

    def __init__(self, target):
        self.seen = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                size = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(size)
                if body:
                    proxy.seen.append((self.path, json.loads(body)))
                back = http.client.HTTPConnection("127.0.0.1", target)
                headers = {k: v for k, v in self.headers.items()
                           if k.lower() != "connection"}
                back.request(self.command, self.path, body or None, headers)
                answer = back.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection",
                                            "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    pass  # the page has stopped it
                back.close()
                self.close_connection = True

            do_GET = do_POST = forward

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Browser:
    def __init__(self, width, dark):
        self.port = free_port()
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL)
        self.session = ""
        wait_for("chromedriver", lambda: self.call("GET", "/status")["ready"])
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu",
                     "--disable-dev-shm-usage", "--hide-scrollbars"]
        if dark:
            arguments.append("--force-dark-mode")
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {
                "args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + answer["sessionId"]
        self.devtools("Emulation.setDeviceMetricsOverride", width=width,
                      height=800, deviceScaleFactor=1, mobile=width < 700)
        self.devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme",
             "value": "dark" if dark else "light"}])

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.session}{path}", data,
            {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command, **params):
        return self.call("POST", "/goog/cdp/execute",
                         {"cmd": command, "params": params})

    def run(self, script, *args):
        return self.call("POST", "/execute/sync",
                         {"script": script, "args": list(args)})

    def element(self, css):
        return self.call("POST", "/element",
                         {"using": "css selector", "value": css})[ELEMENT]

    def type(self, css, text):
        self.call("POST", f"/element/{self.element(css)}/value", {"text": text})

    def click(self, css):
        self.call("POST", f"/element/{self.element(css)}/click", {})

    def text(self, css):
        return self.run("return [...document.querySelectorAll(arguments[0])]"
                        ".map((e) => e.innerText)", css)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()


def expect(name, got, want):
    if got != want:
        raise AssertionError(f"{name}: got {got!r}, want {want!r}")
    print(f"ok: {name}")


def idle(browser):
    return browser.run("return document.getElementById('stop').disabled")


def send(browser, proxy, text, answers):
    """Sends a message by the keyboard; the bodies of the requests."""
    before = len(proxy.seen)
    browser.type("#prompt", text + ENTER)
    wait_for("requests", lambda: len(proxy.seen) == before + answers)
    wait_for("the answer", lambda: idle(browser))
    return [body for _, body in proxy.seen[before:]]


def check_page(browser, proxy, num_adapters, args, name):
    browser.call("POST", "/url", {"url": f"http://127.0.0.1:{proxy.port}/"})
    wait_for("sliders", lambda: browser.run(
        "return document.querySelectorAll('input[type=range]').length")
        == num_adapters)
    # Long answers are for people; numbers in a closed section can still be set.
    browser.run("document.getElementById('max-tokens').value = 8;"
                "document.getElementById('temperature').value = 0;")

    [body] = send(browser, proxy, "The quick", 1)
    expect("scales as the server has them",
           body["lora"], [{"id": i, "scale": 1} for i in range(num_adapters)])

    # By the keyboard: to the least value, then five steps of 0.05.
    browser.type("#scale-A-0", "\ue011" + "\ue014" * 5)
    [body] = send(browser, proxy, "brown fox", 1)
    expect("the slider's scale is in the request",
           body["lora"][0], {"id": 0, "scale": 0.25})
    expect("the conversation goes along", len(body["messages"]) >= 2, True)
    expect("an answer was shown", bool(browser.text(".assistant")), True)
    expect("nothing failed", browser.text(".bad"), [])
    expect("the speed is shown", "/s" in browser.text(".stats")[0], True)

    browser.click("#compare")
    browser.type("#scale-B-0", "\ue010")  # to the greatest value
    bodies = send(browser, proxy, "jumps over", 2)
    expect("two answers under different scales",
           sorted(b["lora"][0]["scale"] for b in bodies), [0.25, 2])
    wide = browser.run("return document.documentElement.scrollWidth"
                       " <= document.documentElement.clientWidth")
    expect("nothing is wider than the window", wide, True)
    if args.surgery:
        expect("the recipe is named",
               Path(args.surgery).name in browser.text("#recipe")[0], True)
    if args.screenshots:
        browser.screenshot(Path(args.screenshots) / f"{name}.png")

    browser.run("document.getElementById('max-tokens').value = 1000000;")
    browser.type("#prompt", "on and on" + ENTER)
    wait_for("running or ended", lambda: True)
    browser.type("body", ESCAPE)
    wait_for("Escape stops it", lambda: idle(browser))
    logs = [entry for entry in browser.call("POST", "/se/log", {"type": "browser"})
            if entry["level"] == "SEVERE"]
    expect("the console has no errors", logs, [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--server", default=ROOT / "build/release/bin/mlxcel-server")
    parser.add_argument("--model", default=BASES / "bases/llama_untied_f32")
    parser.add_argument("--lora", default=",".join(
        str(BASES / "adapters" / n) for n in ("rank_1", "rank_config_disagrees")))
    parser.add_argument("--surgery")
    parser.add_argument("--screenshots")
    args = parser.parse_args()
    if args.screenshots:
        Path(args.screenshots).mkdir(parents=True, exist_ok=True)
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            sys.exit(f"{program} is needed: apt-get install chromium chromium-driver")
    port = free_port()
    command = [args.server, "--model", args.model, "--lora", args.lora, "--port",
               str(port), "--chat-template", PLAIN]
    if args.surgery:
        command += ["--surgery", args.surgery]
    with tempfile.NamedTemporaryFile("w+") as log:
        server = subprocess.Popen(list(map(str, command)), stderr=log)
        proxy = Proxy(port)
        try:
            wait_for("the server", lambda: urllib.request.urlopen(
                f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
            for width, dark in ((390, False), (390, True), (1280, False),
                                (1280, True)):
                name = f"{width}-{'dark' if dark else 'light'}"
                print(f"-- {name}")
                browser = Browser(width, dark)
                try:
                    check_page(browser, proxy, len(args.lora.split(",")), args,
                               name)
                finally:
                    browser.close()
        except AssertionError as error:
            log.seek(0)
            sys.exit(f"FAILED: {error}\n{log.read()[-2000:]}")
        finally:
            server.terminate()
            server.wait()
    print("all held")


if __name__ == "__main__":
    main()
