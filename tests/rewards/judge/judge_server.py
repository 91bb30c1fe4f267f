"""An OpenAI-compatible endpoint on 127.0.0.1 whose every answer a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One response. ``act`` writes it itself: it gets the handler."""

    status: int = 200
    body: bytes | str | dict[str, Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    act: Callable[[BaseHTTPRequestHandler], None] | None = None


def said(content: Any, *, usage: Any = None, **message: Any) -> Answer:
    """A chat completion with that content."""
    text = json.dumps(content) if isinstance(content, dict) else content
    usage = {"prompt_tokens": 100, "completion_tokens": 20} if usage is None else usage
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    return Answer(body={"object": "chat.completion", "choices": [choice], "usage": usage})


@dataclass
class Server:
    url: str
    asked: list[dict[str, Any]]
    """The body of every request."""
    headers: list[dict[str, str]]
    paths: list[str]
    most_at_once: int = 0

    def user_texts(self) -> list[str]:
        return [body["messages"][1]["content"] for body in self.asked]


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], Answer]) -> Iterator[Server]:
    """``answer`` gets the body of a request and how many came before it."""
    lock = threading.Lock()
    now = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            nonlocal now
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.asked)
                server.asked.append(body)
                server.headers.append(dict(self.headers))
                server.paths.append(self.path)
                now += 1
                server.most_at_once = max(server.most_at_once, now)
            try:
                given = answer(body, number)
                with lock:
                    now -= 1
                if given.act is not None:
                    self.close_connection = True
                    given.act(self)
                    return
                content = json.dumps(given.body).encode() if isinstance(given.body, dict) else given.body
                content = content.encode() if isinstance(content, str) else content
                self.send_response(given.status)
                for name, value in given.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def do_GET(self) -> None:
            with lock:
                server.paths.append(f"GET {self.path}")
            self.send_error(418)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False
    server = Server(f"http://127.0.0.1:{httpd.server_address[1]}/v1", [], [], [])
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def scripted(*answers: Answer) -> Callable[[dict[str, Any], int], Answer]:
    """These one after the other, and the last of them for ever."""
    return lambda body, number: answers[min(number, len(answers) - 1)]
