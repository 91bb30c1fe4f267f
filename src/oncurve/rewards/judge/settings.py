"""The options of the reward ``judge``, checked before anything is sampled or asked."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oncurve.rewards.judge.endpoint import Endpoint
from oncurve.rewards.judge.rubric import Rubric, load_rubric
from oncurve.rewards.judge.store import Limits
from oncurve.rewards.values import MOST_FAILED
from oncurve.types import OncurveError

_TAKEN = ("model", "messages", "stream", "n", "response_format")


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``judge_reward`` was told, checked."""

    rubric: Rubric
    endpoint: Endpoint
    concurrency: int
    reference: str
    """The column with the right answer; "" for none."""
    cache: Path | None
    limits: Limits
    most_characters: int
    most_unscored: float


def settings_for(
    *,
    rubric: Any,
    base_url: Any,
    model: Any,
    temperature: Any = 0.0,
    max_tokens: Any = 512,
    json_schema: Any = False,
    parameters: Any = None,
    reference: Any = "",
    api_key_env: Any = "",
    timeout: Any = 60.0,
    retries: Any = 5,
    concurrency: Any = 8,
    cache: Any = "judge.sqlite",
    limit_calls: Any = None,
    limit_tokens: Any = None,
    limit_cost: Any = None,
    price_in: Any = None,
    price_out: Any = None,
    most_characters: Any = 32_000,
    most_unscored: Any = MOST_FAILED,
) -> Settings:
    """Check what ``judge_reward`` was given.

    Raises:
        OncurveError: a value that cannot be; the text names it, and what would be right.
    """
    if importlib.util.find_spec("httpx2") is None:
        raise OncurveError("the reward `judge` needs the package httpx2: pip install 'oncurve[judge]'")
    graded = load_rubric(rubric)
    if not isinstance(model, str) or not model:
        raise OncurveError(f"model = {model!r:.80}: give the name by which the endpoint knows the judge")
    more = dict(parameters or {}) if isinstance(parameters, Mapping) or parameters is None else None
    if more is None or any(name in _TAKEN for name in more):
        raise OncurveError(
            f"parameters = {parameters!r:.80}: give a table of what else the endpoint takes, such as "
            f"{{ top_p = 0.9 }}; not {', '.join(_TAKEN)}"
        )
    answer_tokens = int(_number("max_tokens", max_tokens, 1, 10**6, whole=True))
    # Newer models of OpenAI know the limit by another name and refuse this one.
    limit = "max_completion_tokens" if "max_completion_tokens" in more else "max_tokens"
    body: dict[str, Any] = {"temperature": _number("temperature", temperature, 0.0, 2.0), limit: answer_tokens, **more}
    answer_tokens = int(_number(f"parameters.{limit}", body[limit], 1, 10**6, whole=True))
    if not isinstance(json_schema, bool):
        raise OncurveError(f"json_schema = {json_schema!r:.80}: give true or false")
    if json_schema:
        schema = {"name": graded.name, "strict": True, "schema": graded.schema()}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    try:
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OncurveError(f"parameters = {more!r:.80}: {error}") from error
    prices = [
        0.0 if price is None else _number(name, price, 0.0, 1e9)
        for name, price in (("price_in", price_in), ("price_out", price_out))
    ]
    if limit_cost is not None and (price_in is None or price_out is None):
        raise OncurveError(
            f"limit_cost = {limit_cost!r:.80}: give price_in and price_out as well, the price of a million tokens of "
            "prompt and of answer"
        )
    return Settings(
        rubric=graded,
        endpoint=Endpoint(
            url=_url(base_url),
            model=model,
            parameters=body,
            timeout=_number("timeout", timeout, 0.001, 86_400.0),
            retries=int(_number("retries", retries, 0, 20, whole=True)),
            price_in=prices[0],
            price_out=prices[1],
            most_answer_tokens=answer_tokens,
            api_key=_key(api_key_env),
        ),
        concurrency=int(_number("concurrency", concurrency, 1, 1024, whole=True)),
        reference=_text("reference", reference),
        cache=_cache(cache),
        limits=Limits(
            None if limit_calls is None else int(_number("limit_calls", limit_calls, 0, 10**15, whole=True)),
            None if limit_tokens is None else int(_number("limit_tokens", limit_tokens, 0, 10**15, whole=True)),
            None if limit_cost is None else _number("limit_cost", limit_cost, 0.0, 1e15),
        ),
        most_characters=int(_number("most_characters", most_characters, 100, 10**7, whole=True)),
        most_unscored=_number("most_unscored", most_unscored, 0.0, 1.0),
    )


def _number(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> float:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high or not math.isfinite(value):
        kind = "a whole number" if whole else "a number"
        raise OncurveError(f"{name} = {value!r:.80}: give {kind} from {low:g} to {high:g}")
    return value if whole else float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OncurveError(f"{name} = {value!r:.80}: give text")
    return value


def _cache(cache: Any) -> Path | None:
    text = str(cache) if isinstance(cache, Path) else _text("cache", cache)
    path = Path(text).expanduser() if text else None
    if path is not None and path.is_dir():
        raise OncurveError(f"cache = {text!r:.200} is a directory; give a file in it")
    return path


def _url(base_url: Any) -> str:
    right = "give the address under which the endpoint has chat/completions, such as http://127.0.0.1:8000/v1"
    if not isinstance(base_url, str):
        raise OncurveError(f"base_url = {base_url!r:.80}: {right}")
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError as error:
        raise OncurveError(f"base_url = {base_url!r:.200}: {error}; {right}") from error
    if parts.username is not None or parts.password is not None:
        # Not shown: it may be a password.
        raise OncurveError(
            f"base_url holds a name or password; name a variable of the environment as api_key_env; {right}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise OncurveError(f"base_url = {base_url!r:.200}: {right}")
    if not base_url.isascii() or re.search(r"[\s\x00-\x1f]", base_url):
        raise OncurveError(f"base_url = {base_url!r:.200}: {right}")
    return base_url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"


def _key(name: Any) -> str:
    if not isinstance(name, str) or (name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
        # Not shown: it may be the key itself.
        raise OncurveError("api_key_env must be the name of an environment variable that holds the key, not the key")
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise OncurveError(f"api_key_env = {name!r}: there is no such variable in the environment, or it is empty")
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise OncurveError(f"the key in {name} holds a blank or a sign that no key can hold")
    return key
