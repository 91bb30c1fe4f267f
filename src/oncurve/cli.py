"""The command line: parse, build, call one function. What is heavy is imported by the command that needs it, so that
``oncurve --help`` is instant."""

from __future__ import annotations

import argparse
import codecs
import difflib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from oncurve import __version__
from oncurve.types import OncurveError, Stopped

if TYPE_CHECKING:
    from oncurve.config import Recipe
    from oncurve.terminal import Terminal
    from oncurve.train import Result

_CHECK_FAILED = 1
_USAGE_ERROR = 2
_SOURCE = "RECIPE|RUN|MODEL"
_SOURCE_HELP = "a recipe, a run's directory, or a model's directory or name"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0; 1 if `oncurve conform` or `oncurve check` found something; 2 for an
    error the user can mend (its text alone on stderr); 128 + the signal's number after SIGINT or SIGTERM."""
    _encode_anything(sys.stdout, sys.stderr)
    try:
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, where a broken pipe is caught, and not when Python ends
    except OncurveError as error:
        _complain(str(error))
        return _USAGE_ERROR
    except Stopped as stopped:
        _complain(str(stopped))
        return 128 + stopped.signal
    except KeyboardInterrupt:
        _complain("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _drop_output()  # whoever read it is gone (`oncurve runs | head`)
        return 128 + signal.SIGPIPE
    except UnicodeEncodeError as error:
        if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8":
            raise
        _complain(
            f"{error.object!a:.200} cannot be the name of a file in this system's encoding, {error.encoding}; set "
            "PYTHONUTF8=1, or LC_ALL=C.UTF-8"
        )
        return _USAGE_ERROR
    except OSError as error:
        if error.filename and error.errno in (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP):
            _complain(f"{error.filename}: {error.strerror}")
            return _USAGE_ERROR
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # What is written into a run directory names its file. This may well be standard output, sent to a file.
        place = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror}{place}; make room, and the same command goes on")
        _drop_output()
        return _USAGE_ERROR


def _dispatch(argv: list[str]) -> int:
    parser, commands = _parsers()
    name = argv[0] if argv else "--help"
    if not name.startswith("-") and name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(commands)}"
        raise OncurveError(f"oncurve has no command {name!r}; {hint}")
    if name not in commands:
        parser.parse_args([name])  # --help, --version, or no such option
        return 0
    own, flags = _split_flags(commands[name], argv[1:])
    options = commands[name].parse_args(own, argparse.Namespace(flags=flags))
    return options.run(options) or 0


# --- commands -------------------------------------------------------------------------------------------------------


def _train(options: argparse.Namespace) -> None:
    from oncurve.recipe import load_recipe, stages_of

    recipe = load_recipe(options.recipe, options.flags)
    wanted = options.stage
    if wanted and getattr(recipe, wanted) is None:
        raise OncurveError(f"{options.recipe} has no [{wanted}] section, which `oncurve {wanted}` runs")
    stages = ("sft",) if wanted == "sft" else stages_of(recipe)
    if options.dry_run:
        _show(recipe, stages, options.quiet)
        return
    from oncurve.terminal import Terminal
    from oncurve.train import run, show_result

    terminal = Terminal(options.quiet)
    result = run(recipe, stages=stages, terminal=terminal)
    show_result(result, terminal)
    _products(result, terminal)


def _reward_model(options: argparse.Namespace) -> None:
    from oncurve.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.flags)
    if options.dry_run:
        _show(recipe, ("reward_model",), options.quiet)
        return
    from oncurve.terminal import Terminal
    from oncurve.train import show_reward_result, train_reward_model

    terminal = Terminal(options.quiet)
    show_reward_result(train_reward_model(recipe, terminal), terminal)


def _iterate(options: argparse.Namespace) -> None:
    from oncurve.recipe import load_recipe, stages_of

    recipe = load_recipe(options.recipe, options.flags)

    from oncurve.terminal import Terminal
    from oncurve.train import iterate, show_iterate_result
    from oncurve.train.iterate import check_iterate

    check_iterate(recipe)
    if options.dry_run:
        _show(recipe, stages_of(recipe), options.quiet)
        return
    terminal = Terminal(options.quiet)
    show_iterate_result(iterate(recipe, terminal), terminal)


def _demo(options: argparse.Namespace) -> None:
    from oncurve.recipe import load_recipe, recipe_path, stages_of

    recipe = load_recipe(recipe_path(options.task), options.flags)
    if options.dry_run:
        _show(recipe, stages_of(recipe), options.quiet)
        return
    from oncurve.terminal import Terminal
    from oncurve.train.demo import run_demo

    terminal = Terminal(options.quiet)
    _products(run_demo(recipe, control=options.control, terminal=terminal).result, terminal)


def _products(result: Result, terminal: Terminal) -> None:
    from oncurve.board.report import write_report

    terminal.say(f"model   {result.model_dir} (a transformers directory)")
    terminal.say(f"report  {write_report(result.run_dir)}")


def _eval(options: argparse.Namespace) -> None:
    from oncurve.recipe import located

    recipe, model = located(options.source, options.flags)  # first: a typo is told before torch has been loaded

    from oncurve.terminal import Terminal
    from oncurve.train import evaluate_command

    evaluate_command(recipe, options.model or model, Terminal())


def _sample(options: argparse.Namespace) -> None:
    from oncurve.train.api import sample

    sample(options.source, options.prompt, options.flags, n=options.n, temperature=options.temperature)


def _label(options: argparse.Namespace) -> None:
    from oncurve.recipe import located

    recipe, model = located(options.source, options.flags)

    from oncurve.terminal import Terminal
    from oncurve.train.label import Labelling, label_command

    how = Labelling(
        options.kind, options.prompts, options.samples, options.checker, options.monte_carlo or 0, options.soft
    )
    label_command(recipe, options.model or model, options.out, how, Terminal(options.quiet))


def _rerank(options: argparse.Namespace) -> None:
    from oncurve.recipe import located

    recipe, model = located(options.source, options.flags)

    from oncurve.terminal import Terminal
    from oncurve.train.rerank import rerank_command

    rerank_command(recipe, options.model or model, options.by, Terminal(), n=options.n)


def _conform(options: argparse.Namespace) -> int:
    from oncurve.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.flags)

    from oncurve.terminal import Terminal
    from oncurve.train import conform_command

    checks = conform_command(recipe, Terminal(options.quiet), bound=options.bound, float64=options.float64)
    return 0 if all(check.passed for check in checks) else _CHECK_FAILED


def _export(options: argparse.Namespace) -> None:
    from oncurve.runlog import export

    out = options.out or options.run_dir / f"completions.{options.to}"
    export(options.run_dir, options.to, out)
    print(out)


def _report(options: argparse.Namespace) -> None:
    from oncurve.board.report import write_report

    print(write_report(options.run_dir))


def _runs(options: argparse.Namespace) -> None:
    from oncurve.runlog import list_runs
    from oncurve.terminal import Terminal

    runs = list_runs(options.dir)
    terminal = Terminal()
    if not runs:
        terminal.say(f"no runs in {options.dir}")
        return
    terminal.table(
        str(options.dir),
        ["run", "begun", "status", "stage", "iteration", "step", "reward", "held-out"],
        [[r.name, r.created, r.status, r.stage, r.iteration, r.step, r.reward, r.accuracy] for r in runs],
    )
    for run in runs:
        if run.problem:
            terminal.say(f"{run.name}: {run.problem}")


def _compare(options: argparse.Namespace) -> None:
    from oncurve.compare import read_plan, run_all, write_report
    from oncurve.terminal import Terminal

    plan, terminal = read_plan(options.plan), Terminal()
    page = write_report(plan, run_all(plan, options.out, terminal.say), options.out)
    terminal.say(f"written: {page} and {page.with_suffix('.md')}")


def _presets(options: argparse.Namespace) -> None:
    from oncurve.presets import details, table

    print("\n".join(table() if options.name is None else details(options.name)))


def _tasks(options: argparse.Namespace) -> None:
    from oncurve.clinic.tasks import list_tasks, show_task
    from oncurve.terminal import Terminal

    if options.name is None:
        list_tasks(Terminal())
    else:
        show_task(options.name, Terminal())


def _check(options: argparse.Namespace) -> int:
    from oncurve.terminal import Terminal

    if options.what == "reward":
        from oncurve.clinic.reward import check_reward

        if options.data is None:
            raise OncurveError("oncurve check reward: which data? Give --data FILE, as in data.train, or a recipe")
        findings = check_reward(
            options.subject,
            options.data,
            options.flags,
            Terminal(),
            rows=options.rows or 64,
            form_only=options.form_only,
        )
        return 0 if all(each.passed for each in findings) else _CHECK_FAILED
    from oncurve.clinic.data import check_data

    wrong = check_data(options.subject, options.flags, Terminal(), model=options.model, rows=options.rows)
    return _CHECK_FAILED if wrong else 0


def _show(recipe: Recipe, stages: tuple[str, ...], quiet: bool) -> None:
    """``--dry-run``: what can be checked without the model; then the whole recipe, and the objective and the batch
    arithmetic as comments: together they are a recipe again."""
    from oncurve.dry_run import check_recipe
    from oncurve.presets import describe, remarks
    from oncurve.recipe import batch_arithmetic, dump_toml

    found = check_recipe(recipe, stages)
    if quiet:
        return
    rows = batch_arithmetic(recipe, stages, found.rows)
    width = max(len(what) for what, _ in rows)
    lines = [*found.notes, *(f"{what.ljust(width)}  {how_many}" for what, how_many in rows)]
    if recipe.grpo is not None and "grpo" in stages:
        lines = [*describe(recipe.grpo), *remarks(recipe.grpo), "", *lines]
    print(dump_toml(recipe))
    print("\n".join(f"# {line}".rstrip() for line in lines))


# --- parsing --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse with errors as this project words them: the message, and where to look."""

    def error(self, message: str) -> NoReturn:
        raise OncurveError(f"{self.prog}: {message}\n{self.format_usage().strip()}")


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="oncurve",
        description="Turn a scoring function into a better language model.",
        epilog="`oncurve COMMAND --help` says more. Any option of a recipe can be set by --section.key value.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"oncurve {__version__}")
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands: dict[str, _Parser] = {}

    def command(
        name: str, run: Callable[[argparse.Namespace], int | None], text: str, usage: str | None = None
    ) -> _Parser:
        if usage is not None:
            usage = f"oncurve {name} {usage}[options] [--section.key value ...]"
        added = group.add_parser(name, help=text, description=text, usage=usage, allow_abbrev=False)
        added.set_defaults(run=run, takes_flags=usage is not None)
        commands[name] = added
        return added

    for name, stage, text in (
        ("sft", "sft", "supervised fine-tuning: the [sft] stage of a recipe"),
        ("grpo", "grpo", "GRPO: the [grpo] stage, after [sft] if the recipe has one that is not done"),
        ("train", None, "every stage of a recipe"),
    ):
        added = command(name, _train, text, "RECIPE ")
        added.set_defaults(stage=stage)
        added.add_argument("recipe", metavar="RECIPE", help="a .toml or .yaml file")
        _add_running_options(added)

    added = command("reward-model", _reward_model, "train a reward model: the [reward_model] of a recipe", "RECIPE ")
    added.add_argument("recipe", metavar="RECIPE", help="a .toml or .yaml file")
    _add_running_options(added)

    added = command("iterate", _iterate, "iterative GRPO: policy and reward model trained in turns", "RECIPE ")
    added.add_argument("recipe", metavar="RECIPE", help="a .toml or .yaml file")
    _add_running_options(added)

    added = command("label", _label, "samples of a policy, labelled by the recipe's reward", f"{_SOURCE} --out FILE ")
    added.add_argument("source", metavar=_SOURCE, help=_SOURCE_HELP)
    added.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .jsonl file, written when all is done"
    )
    added.add_argument("--model", metavar="DIR", help="default: what the run has trained, else the recipe's model.path")
    kinds = ("pairwise", "pointwise", "process")
    added.add_argument("--kind", choices=kinds, help="default: the recipe's reward_model.kind, else pointwise")
    added.add_argument("--prompts", type=int, default=200, metavar="N", help="training prompts; default: 200")
    added.add_argument("--samples", type=int, default=8, metavar="N", help="completions of each; default: 8")
    added.add_argument("--checker", metavar="FUNC", help="process: labels the steps; default: the task's own")
    added.add_argument("--monte-carlo", type=int, metavar="N", help="process: label a step by N completions from it")
    added.add_argument("--soft", action="store_true", help="with --monte-carlo: the share that comes out right")
    added.add_argument("--quiet", action="store_true", help="print nothing but errors")

    added = command("rerank", _rerank, "best of n by a reward model, beside majority vote", f"{_SOURCE} --by DIR ")
    added.add_argument("source", metavar=_SOURCE, help=_SOURCE_HELP)
    added.add_argument("--by", required=True, metavar="DIR", help="a reward model's directory")
    added.add_argument("--model", metavar="DIR", help="default: what the run has trained, else the recipe's model.path")
    added.add_argument(
        "--n", type=int, default=16, metavar="N", help="completions of each held-out prompt; default: 16"
    )

    added = command("demo", _demo, "the embedded example, from nothing to a report", "")
    added.add_argument("--task", choices=("letters", "chain"), default="letters", help="default: letters")
    added.add_argument("--control", action="store_true", help="also give the same time to more supervised fine-tuning")
    _add_running_options(added)

    added = command("eval", _eval, "evaluate on the held-out prompts of a recipe", f"{_SOURCE} ")
    added.add_argument(
        "source", metavar=_SOURCE, help=f"{_SOURCE_HELP}; a model that is in no run needs --data.train FILE"
    )
    added.add_argument("--model", metavar="DIR", help="default: what the run has trained, else the recipe's model.path")

    added = command("sample", _sample, "print completions of a prompt", f"{_SOURCE} --prompt TEXT ")
    added.add_argument("source", metavar=_SOURCE, help=_SOURCE_HELP)
    added.add_argument("--prompt", required=True, metavar="TEXT")
    added.add_argument("--n", type=int, default=4, metavar="N", help="how many; default: 4")
    added.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy; default: 1.0")

    added = command("conform", _conform, "check that the gradient does not depend on how a batch is cut", "RECIPE ")
    added.add_argument("recipe", metavar="RECIPE", help="a .toml or .yaml file")
    added.add_argument("--bound", type=float, metavar="X", help="largest error; default: by model.dtype")
    added.add_argument(
        "--float64", action="store_true", help="compute in double precision: what differs is no rounding"
    )
    added.add_argument("--quiet", action="store_true", help="print nothing but errors; exit with 1 if a check differs")

    added = command("export", _export, "the completions of a run as one table")
    added.add_argument("run_dir", type=Path, metavar="RUN", help="a run directory")
    added.add_argument("--to", choices=("parquet", "jsonl"), required=True)
    added.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/completions.parquet or .jsonl")

    added = command("report", _report, "write a run's report.html anew")
    added.add_argument("run_dir", type=Path, metavar="RUN", help="a run directory")

    added = command("runs", _runs, "list the runs in a directory")
    added.add_argument("dir", type=Path, nargs="?", default=Path("runs"), metavar="DIR", help="default: runs")

    added = command("compare", _compare, "several methods on one task: same models, seeds and samples; a table, a page")
    added.add_argument("plan", type=Path, metavar="FILE", help="a .toml file: recipe, seeds, methods")
    added.add_argument("--out", type=Path, default=Path("runs/compare"), metavar="DIR", help="default: runs/compare")

    added = command("presets", _presets, "the published objectives that grpo.preset names, or one of them term by term")
    added.add_argument("name", nargs="?", metavar="NAME", help="default: a line for each")

    added = command("tasks", _tasks, "the generated tasks there are, each with a sample, or one of them in full")
    added.add_argument("name", nargs="?", metavar="NAME", help="as in data.train; default: a line for each")

    usage = "reward FUNC --data FILE | oncurve check data FILE [--model M] "
    added = command("check", _check, "examine a reward function, or a data set, before training", usage)
    added.add_argument("what", choices=("reward", "data"))
    added.add_argument("subject", metavar="FUNC|FILE", help="as in rewards.functions; as in data.train, or a recipe")
    added.add_argument("--data", metavar="FILE", help="reward: the rows to try it on, as in data.train, or a recipe")
    added.add_argument("--form-only", action="store_true", help="reward: it judges the form, not the answer")
    added.add_argument("--model", metavar="M", help="data: as in model.path; shows what the model reads, and lengths")
    added.add_argument("--rows", type=int, metavar="N", help="the first N rows; default: 64 for a reward, all data")
    return parser, commands


def _add_running_options(parser: _Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the whole recipe and the batch arithmetic")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _split_flags(parser: _Parser, argv: list[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and the ``--section.key value`` flags for the recipe."""
    known = [option for action in parser._actions for option in action.option_strings]
    own: list[str] = []
    flags: list[str] = []
    waiting = list(reversed(argv))
    while waiting:
        word = waiting.pop()
        name = word.partition("=")[0]
        if not word.startswith("--") or name in known:
            own.append(word)
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        takes_flags = parser.get_default("takes_flags")
        if not takes_flags or ("." not in name and near):
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise OncurveError(f"{parser.prog}: no such option: {name}{hint}")
        flags.append(word)
        if "=" not in word and waiting and not waiting[-1].startswith("--"):
            flags.append(waiting.pop())
    return own, flags


def _drop_output() -> None:
    """Keep Python from complaining when it flushes at the end what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _encode_anything(*streams: TextIO) -> None:
    """What the encoding of a stream does not have is printed as an escape. No run shall end for a name it prints."""
    codecs.register_error("oncurve.escape", _escaped)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="oncurve.escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """``\\u00e9``, which is also how TOML writes it: a recipe that is printed can be read again."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}" for code in codes), error.end


def _complain(text: str) -> None:
    from oncurve.terminal import clean

    # Python stands for bytes of a name that are no text by half characters, which ``clean`` would leave out.
    print(clean(text.encode("utf-8", "backslashreplace").decode("utf-8")), file=sys.stderr)
