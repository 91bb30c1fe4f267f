"""One question to an OpenAI-compatible endpoint: sent, sent again where that may help, and read with suspicion."""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from oncurve.rewards.judge.prompt import Messages
from oncurve.rewards.judge.store import Cost
from oncurve.terminal import clean
from oncurve.types import OncurveError

FIRST_WAIT = 0.5
MOST_BACKOFF = 30.0
"""Seconds before the second attempt, doubled for each further one up to the most; each times 0.5 to 1.5."""
MOST_WAIT = 120.0
"""A longer ``Retry-After`` is not waited for: the question is given up."""
MOST_BYTES = 4 << 20
"""Of a response."""

# What no other completion would change: the address, the key, the account.
_MISCONFIGURED = {401, 402, 403, 404, 405}
_PASSING = {408, 409, 425, 429}


class Misconfigured(OncurveError):
    """The endpoint refuses every call: a wrong address, key or model."""


class Failed(Exception):
    """No reply to one question. ``kind``: a word to count by."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Again(Failed):
    """A failure that may pass. ``after``: the seconds that the endpoint asks to wait, if it does. ``free``: nothing can
    have been charged for it."""

    def __init__(self, kind: str, text: str, *, after: float | None = None, free: bool = False) -> None:
        super().__init__(kind, text)
        self.after, self.free = after, free


@dataclass(frozen=True, slots=True)
class Reply:
    """What the judge said, and the tokens of prompt and answer if the endpoint told them."""

    text: str
    prompt_tokens: int | None
    answer_tokens: int | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask and how."""

    url: str
    """Of the chat completions."""
    model: str
    parameters: Mapping[str, Any]
    """Of the body, beside model and messages."""
    timeout: float
    """Seconds for one attempt, from connecting to the last byte."""
    retries: int
    price_in: float = 0.0
    price_out: float = 0.0
    """Per million tokens."""
    most_answer_tokens: int = 0
    api_key: str = field(default="", repr=False)

    def body(self, messages: Messages) -> bytes:
        return json.dumps({"model": self.model, "messages": messages, **self.parameters}).encode()

    def most(self, body: bytes) -> Cost:
        """The most that a call can cost: a token is at least a byte of text, but for those of the chat template."""
        return self.cost(len(body) + 64, self.most_answer_tokens)

    def cost(self, prompt_tokens: int, answer_tokens: int) -> Cost:
        money = (prompt_tokens * self.price_in + answer_tokens * self.price_out) / 1e6
        return Cost(prompt_tokens + answer_tokens, money)


class Purse(Protocol):
    """What attempts are paid from."""

    async def reserve(self, most: Cost) -> None:
        """Before an attempt, with the most that it can cost. May raise."""
        ...

    def settle(self, reserved: Cost, actual: Cost) -> None:
        """After it, with what was reserved and what it did cost."""
        ...


class Line:
    """An open client, and what all questions through it share: when the endpoint wants to be asked again."""

    def __init__(self, endpoint: Endpoint, concurrency: int) -> None:
        # Where the extra is missing, importing Oncurve must still work.
        import httpx2  # noqa: PLC0415

        limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._client = httpx2.AsyncClient(timeout=None, follow_redirects=False, limits=limits)
        self._unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
        self._broken = (httpx2.RequestError, httpx2.StreamError, OSError)
        self._endpoint = endpoint
        self._not_before = 0.0
        self._stopped = asyncio.Event()
        self._random = random.SystemRandom()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def stop(self) -> None:
        """No further attempt is made; one that is under way comes to its end."""
        self._stopped.set()

    async def ask(self, messages: Messages, purse: Purse) -> Reply:
        """The reply to a conversation.

        Each attempt is paid for from ``purse``. One that was answered with an error costs nothing; of one that broke
        off nobody knows, and it stays at the most that it can have cost.

        Raises:
            Misconfigured: the endpoint would refuse any question.
            Failed: no reply, after all attempts.
        """
        body = self._endpoint.body(messages)
        most = self._endpoint.most(body)
        for attempt in range(self._endpoint.retries + 1):
            await self._wait_until(self._not_before)
            await purse.reserve(most)
            actual = most
            try:
                status, headers, content = await self._once(body)
                actual = most if status == 200 else Cost()
                reply = self._read(status, headers, content)
                actual = self._cost(reply, most)
            except Again as error:
                actual = Cost() if error.free else actual
                if attempt == self._endpoint.retries:
                    raise Failed(error.kind, f"{error}, after {attempt + 1} attempts") from error
                if error.after is not None and error.after > MOST_WAIT:
                    raise Failed(error.kind, f"{error}, and asks to wait {error.after:.0f} s") from error
                resume_at = self._resume_at(attempt, error.after)
            else:
                return reply
            finally:
                purse.settle(most, actual)
            await self._wait_until(resume_at)
        raise AssertionError("unreachable")

    def _cost(self, reply: Reply, most: Cost) -> Cost:
        if reply.prompt_tokens is None or reply.answer_tokens is None:
            return most
        return self._endpoint.cost(reply.prompt_tokens, reply.answer_tokens)

    def _resume_at(self, attempt: int, after: float | None) -> float:
        backoff = min(MOST_BACKOFF, FIRST_WAIT * 2**attempt) * self._random.uniform(0.5, 1.5)
        now = time.monotonic()
        if after is None:
            return now + backoff
        # What the endpoint asks of one caller it asks of all; a little apart, so that they do not all come at once.
        self._not_before = max(self._not_before, now + after)
        return now + after + (backoff if after == 0.0 else self._random.uniform(0.0, 0.1 * after))

    async def _wait_until(self, moment: float) -> None:
        seconds = moment - time.monotonic()
        if seconds > 0.0:
            await pause(self._stopped.wait(), seconds)
        if self._stopped.is_set():
            raise Failed("stopped", "not asked any more")

    async def _once(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        content = bytearray()
        try:
            # One limit over all of it: an endpoint that sends a byte now and then is as late as one that sends none.
            async with asyncio.timeout(self._endpoint.timeout):
                async with self._client.stream("POST", self._endpoint.url, content=body, headers=headers) as response:
                    async for chunk in response.aiter_bytes():
                        content += chunk
                        if len(content) > MOST_BYTES:
                            raise Failed("bad_response", f"the endpoint sent more than {MOST_BYTES >> 20} MiB")
                return response.status_code, response.headers, bytes(content)
        except TimeoutError:
            raise Again("timeout", f"the endpoint did not answer within {self._endpoint.timeout:g} s") from None
        except self._broken as error:
            said = self._shown(str(error)) or type(error).__name__
            text = f"the connection to {self._endpoint.url} failed: {said}"
            raise Again("connection", text, free=isinstance(error, self._unsent)) from None

    def _read(self, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
        url = self._endpoint.url
        if status == 200:
            return self._reply(content)
        said = f"HTTP {status}: {self._error_text(content)}"
        if 300 <= status < 400:
            where = self._shown(headers.get("location", "elsewhere"))
            raise Misconfigured(f"the judge at {url} redirects to {where} (HTTP {status}); give that as base_url")
        if status in _MISCONFIGURED or b'"insufficient_quota"' in content:
            raise Misconfigured(f"the judge at {url} refuses calls with {said}; {self._mend(status)}")
        if status in _PASSING or status >= 500:
            kind = "rate_limit" if status == 429 else "server_error"
            raise Again(kind, f"the endpoint answered {said}", after=retry_after(headers.get("retry-after")))
        raise Failed("rejected", f"the endpoint answered {said}")

    def _mend(self, status: int) -> str:
        if status in (401, 403) and not self._endpoint.api_key:
            return "no key was sent: name the environment variable that holds it as api_key_env"
        if status in (401, 403):
            return "is the key in api_key_env the right one, and may it use this model?"
        if status in (404, 405):
            return f"is base_url right (often it ends in /v1), and is there a model {self._endpoint.model!r}?"
        return "the account must be put in order"

    def _reply(self, content: bytes) -> Reply:
        try:
            tree = json.loads(content)
        except (ValueError, RecursionError):
            raise Failed("bad_response", f"the endpoint sent no JSON: {self._error_text(content)}") from None
        match tree:
            case {"choices": [{"message": {**message}, **choice}, *_]}:
                pass
            case _:
                raise Failed("bad_response", f"the endpoint sent no choices: {self._error_text(content)}")
        if isinstance(message.get("refusal"), str) and message["refusal"]:
            raise Failed("refusal", f"the judge refuses: {self._shown(message['refusal'])}")
        text = _text(message.get("content"))
        if not text.strip() and choice.get("finish_reason") == "length":
            raise Failed("length", "the judge's answer was cut before it began; raise max_tokens")
        usage = tree.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Reply(text, _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))

    def _error_text(self, content: bytes) -> str:
        """What an error says: the message that OpenAI's form has, or the beginning of the text."""
        text = content[:100_000].decode("utf-8", "replace")
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            tree = None
        match tree:
            case (
                {"error": {"message": str(said)}}
                | {"error": str(said)}
                | {"message": str(said)}
                | {"detail": str(said)}
            ):
                text = said
        return self._shown(text) or "(nothing)"

    def _shown(self, text: str) -> str:
        """One short line of what somebody else wrote; the key taken out, for some endpoints repeat it."""
        if self._endpoint.api_key:
            text = text.replace(self._endpoint.api_key, "(the key)")
        line = " ".join(clean(text[:2000]).split())
        return line if len(line) <= 300 else f"{line[:297]}..."


async def pause(ends_early: Awaitable[object], seconds: float) -> None:
    """Wait that long, or until ``ends_early``."""
    try:
        async with asyncio.timeout(seconds):
            await ends_early
    except TimeoutError:
        return


def retry_after(value: str | None) -> float | None:
    """The seconds that a ``Retry-After`` header asks for: a number of them or a date. None if it is absent or neither.

    Source: RFC 9110, section 10.2.3. A date in the past is 0.
    """
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return max(0.0, seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _text(content: Any) -> str:
    """Text, or the text of the parts of a list."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9 else None
