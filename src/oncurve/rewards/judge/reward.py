"""The reward ``judge``: completions graded by a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from oncurve.rewards.extract import completion_text
from oncurve.rewards.judge.answer import BadAnswer, read_answer
from oncurve.rewards.judge.endpoint import Failed, Line
from oncurve.rewards.judge.prompt import VERSION, Case, asked_again, messages_for, prompt_text, shortened
from oncurve.rewards.judge.settings import Settings, settings_for
from oncurve.rewards.judge.store import Cost, LimitReached, Store, StoreError, plain
from oncurve.rewards.loops import run
from oncurve.rewards.values import MOST_FAILED
from oncurve.terminal import clean
from oncurve.types import OncurveError

log = logging.getLogger(__name__)

_MOST_SAID = 2000


@dataclass(frozen=True, slots=True)
class Grade:
    """What came of one case. ``outcome``: scored, cached, empty, or why there are no scores."""

    outcome: str
    scores: Mapping[str, float] | None
    said: str
    """The judge's reply, or what went wrong."""


def judge_reward(
    prompts: Sequence[str | Sequence[Mapping[str, Any]]],
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    rubric: str | Path | Mapping[str, Any],
    base_url: str,
    model: str,
    *,
    temperature: float = 0.0,
    max_tokens: int = 512,
    json_schema: bool = False,
    parameters: Mapping[str, Any] | None = None,
    reference: str = "",
    api_key_env: str = "",
    timeout: float = 60.0,
    retries: int = 5,
    concurrency: int = 8,
    cache: str | Path = "judge.sqlite",
    limit_calls: int | None = None,
    limit_tokens: int | None = None,
    limit_cost: float | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    most_characters: int = 32_000,
    most_unscored: float = MOST_FAILED,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The weighted mean of a rubric's grades, 0.0 to 1.0, given by a language model.

    None where the judge gave no grade that can be used: its reply is not JSON with a number in its scale for every
    criterion, twice; or the endpoint failed, after all attempts. A completion without any text gets 0.0 unasked.

    Args:
        rubric: a TOML file, or the same as a mapping.
        base_url: of the endpoint, up to ``/v1``.
        temperature, max_tokens, parameters: of the judge's sampling; ``parameters`` go into the body as they are.
        json_schema: ask the endpoint to hold the reply to the rubric's JSON schema (``response_format``).
        reference: name of a column whose value the judge is shown as the right answer.
        api_key_env: name of the environment variable that holds the key; "" sends none.
        timeout: seconds for an attempt. ``retries``: further attempts after 408, 409, 425, 429, 5xx, a broken
            connection or no answer in time.
        cache: SQLite file of what was graded and spent; "" keeps it in memory.
        limit_calls, limit_tokens, limit_cost: the most that may be spent under ``cache``; ``price_in`` and
            ``price_out`` are of a million tokens.
        most_characters: of a completion, a prompt and a reference; what is longer is shown without its middle.
        most_unscored: the share of the completions that may be left unscored.

    Raises:
        OncurveError: an option that cannot be; an endpoint that refuses every call; a limit that is reached; a cache
            that is damaged; more than ``most_unscored`` of the completions unscored.
    """
    settings = settings_for(
        rubric=rubric,
        base_url=base_url,
        model=model,
        temperature=temperature,
        max_tokens=max_tokens,
        json_schema=json_schema,
        parameters=parameters,
        reference=reference,
        api_key_env=api_key_env,
        timeout=timeout,
        retries=retries,
        concurrency=concurrency,
        cache=cache,
        limit_calls=limit_calls,
        limit_tokens=limit_tokens,
        limit_cost=limit_cost,
        price_in=price_in,
        price_out=price_out,
        most_characters=most_characters,
        most_unscored=most_unscored,
    )
    if not len(completions):
        if settings.cache is not None and settings.cache.exists():
            Store(settings.cache).close()  # tells now what is wrong with it
        return []
    cases = _cases(prompts, completions, settings, columns)
    store = _memory() if settings.cache is None else Store(settings.cache)
    try:
        calls, cost = store.spent()
        grades = run(_Judging(settings, store, cases).grades())
        calls_now, cost_now = store.spent()
    finally:
        if settings.cache is not None:
            store.close()
    _record(settings, grades, log_extra, log_metric, calls_now - calls, cost_now, cost)
    return [None if each.scores is None else settings.rubric.total(each.scores) for each in grades]


@lru_cache(maxsize=1)
def _memory() -> Store:
    """What is kept without a file, as long as the process lives."""
    return Store(None)


def _cases(
    prompts: Sequence[Any], completions: Sequence[Any], settings: Settings, columns: Mapping[str, Any]
) -> list[Case]:
    most = settings.most_characters
    references: Sequence[Any] = [None] * len(completions)
    if settings.reference:
        if settings.reference not in columns:
            raise OncurveError(f"reference = {settings.reference!r}: the data has no such column")
        references = columns[settings.reference]
    return [
        Case(
            shortened(prompt_text(prompt), most),
            shortened(completion_text(completion), most),
            "" if right is None else shortened(str(right), most),
        )
        for prompt, completion, right in zip(prompts, completions, references, strict=True)
    ]


class _Judging:
    """One batch: what is in the cache, and the rest asked by a few workers."""

    def __init__(self, settings: Settings, store: Store, cases: Sequence[Case]) -> None:
        self._settings, self._store, self._cases = settings, store, cases
        self._found: dict[Case, Grade] = {}
        self._rows = Counter(cases)
        self._unscored = 0
        self._stop: OncurveError | None = None
        self._under_way = 0
        self._settled = asyncio.Event()

    async def grades(self) -> list[Grade]:
        """One for each case, in order; equal cases are asked once."""
        waiting: deque[Case] = deque()
        for case in self._rows:
            grade = self._known(case)
            if grade is None:
                waiting.append(case)
            else:
                self._found[case] = grade
        if waiting:
            endpoint, workers = self._settings.endpoint, min(self._settings.concurrency, len(waiting))
            async with Line(endpoint, workers) as line:
                await asyncio.gather(*(self._work(line, waiting) for _ in range(workers)))
        if self._stop is not None:
            raise self._stop
        return [self._found[case] for case in self._cases]

    def _known(self, case: Case) -> Grade | None:
        if not case.completion.strip():
            return Grade("empty", {each.name: each.low for each in self._settings.rubric.criteria}, "")
        kept = self._store.get(self._key(case))
        if kept is None:
            return None
        scores, said = kept
        try:
            return Grade("cached", read_answer(plain(scores), self._settings.rubric), said)
        except BadAnswer as error:
            raise StoreError(
                f"the judge's cache {self._settings.cache} is damaged: an answer is {scores!r:.60} ({error}); move it "
                "away, or name another file as `cache`"
            ) from error

    def _key(self, case: Case) -> str:
        asked = [
            VERSION,
            self._settings.endpoint.model,
            self._settings.endpoint.parameters,
            self._settings.rubric.plain(),
            case.shown(),
        ]
        return hashlib.sha256(plain(asked).encode()).hexdigest()

    async def _work(self, line: Line, waiting: deque[Case]) -> None:
        while waiting and self._stop is None:
            case = waiting.popleft()
            try:
                grade = await self._grade(line, case)
            except OncurveError as error:
                self._end(line, error)
                return
            self._found[case] = grade
            if grade.scores is None and grade.outcome != "stopped":
                self._count_unscored(line, case)

    async def _grade(self, line: Line, case: Case) -> Grade:
        messages = messages_for(case, self._settings.rubric)
        said, fault = "", BadAnswer("")
        for _ in range(2):
            try:
                reply = await line.ask(messages, self)
            except Failed as error:
                return Grade(error.kind, None, str(error))
            try:
                scores = read_answer(reply.text, self._settings.rubric, case.shown())
            except BadAnswer as error:
                said, fault = reply.text, error
                messages = asked_again(messages, said, str(fault))
                continue
            self._store.put(self._key(case), scores, reply.text[:_MOST_SAID])
            return Grade("scored", scores, reply.text[:_MOST_SAID])
        return Grade("invalid", None, f"the judge's reply cannot be used, twice: {fault}; it is {said!r:.200}")

    async def reserve(self, most: Cost) -> None:
        """Count an attempt. Those under way are counted at the most that they can cost; where that is too much, the
        next one waits until it is known what they did cost."""
        while True:
            if self._stop is not None:
                raise Failed("stopped", "not asked any more")
            try:
                self._store.reserve(most, self._settings.limits)
            except LimitReached:
                if not self._under_way:
                    raise
                self._settled.clear()
                await self._settled.wait()
            else:
                self._under_way += 1
                return

    def settle(self, reserved: Cost, actual: Cost) -> None:
        self._under_way -= 1
        self._settled.set()
        self._store.settle(reserved, actual)

    def _count_unscored(self, line: Line, case: Case) -> None:
        self._unscored += self._rows[case]
        if self._unscored > self._settings.most_unscored * len(self._cases):
            kinds = Counter(each.outcome for each in self._found.values() if each.scores is None)
            listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common() if kind != "stopped")
            self._end(
                line,
                OncurveError(
                    f"the judge left {self._unscored} of {len(self._cases)} completions unscored ({listed}), more than "
                    f"most_unscored = {self._settings.most_unscored:g} of them; the last: {self._found[case].said}"
                ),
            )

    def _end(self, line: Line, error: OncurveError) -> None:
        """What is under way is still waited for, and kept: it has been paid for."""
        self._stop = self._stop or error
        line.stop()


def _record(
    settings: Settings,
    grades: Sequence[Grade],
    log_extra: Callable[[str, list[Any]], None] | None,
    log_metric: Callable[[str, float], None] | None,
    calls: int,
    cost: Cost,
    before: Cost,
) -> None:
    prefix = f"judge/{settings.rubric.name}"
    unscored = [each for each in grades if each.scores is None]
    for kind, number in Counter(each.outcome for each in unscored).items():
        said = next(each.said for each in unscored if each.outcome == kind)
        log.warning("judge: %d of %d completions unscored (%s): %s", number, len(grades), kind, clean(said))
    if log_extra is not None:
        log_extra(f"{prefix}/outcome", [each.outcome for each in grades])
        for criterion in settings.rubric.criteria:
            log_extra(f"{prefix}/{criterion.name}", [each.scores and each.scores[criterion.name] for each in grades])
        log_extra(f"{prefix}/said", [each.said for each in grades])
    if log_metric is not None:
        log_metric(f"{prefix}/unscored", float(len(unscored)))
        log_metric(f"{prefix}/cached", float(sum(each.outcome == "cached" for each in grades)))
        log_metric(f"{prefix}/calls", float(calls))
        log_metric(f"{prefix}/tokens", float(cost.tokens - before.tokens))
        if settings.endpoint.price_in or settings.endpoint.price_out:
            log_metric(f"{prefix}/cost", cost.money - before.money)
