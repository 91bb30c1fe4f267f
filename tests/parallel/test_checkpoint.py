"""Checkpoints: the same bits come back, one changed bit is noticed, no death and no full disk loses the last one."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oncurve.parallel import checkpoint
from oncurve.parallel.checkpoint import Loaded, load, load_newest, prune, save
from oncurve.parallel.manifest import CheckpointError
from oncurve.types import OncurveError

OLD_FORMATS = Path(__file__).parent / "formats"


def tensors_of(step: int) -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) + step
    return {
        "policy": {"embed": weight, "head": weight},
        "optimizer": {"exp_avg:embed": weight * 0.5, "step:embed": torch.tensor(float(step))},
    }


def state_of(step: int) -> dict[str, Any]:
    return {"stage": "grpo", "iteration": step, "seconds": 0.1 + step}


def saved(root: Path, *steps: int) -> list[Path]:
    return [save(root, step, tensors_of(step), state_of(step)) for step in steps]


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.numpy().tobytes()


def assert_is_step(loaded: Loaded | None, step: int) -> None:
    assert loaded is not None
    assert loaded.step == step
    assert loaded.state == state_of(step)
    expected = tensors_of(step)
    assert loaded.tensors.keys() == expected.keys()
    for file, named in expected.items():
        assert list(loaded.tensors[file]) == list(named)
        for name, tensor in named.items():
            assert bits(loaded.tensors[file][name]) == bits(tensor)


def newest(root: Path) -> tuple[Loaded | None, list[str]]:
    said: list[str] = []
    return load_newest(root, say=said.append), said


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# -- what is saved comes back -----------------------------------------------------------------------------------------


def test_layout_and_content(tmp_path: Path) -> None:
    path = save(tmp_path / "run" / "checkpoints", 123, tensors_of(123), state_of(123))
    assert path == tmp_path / "run" / "checkpoints" / "step-00000123"
    assert names(path) == ["manifest.json", "optimizer.safetensors", "policy.safetensors", "state.json"]
    assert names(path.parent) == ["step-00000123"]
    assert_is_step(load(path), 123)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert sorted(manifest["files"]) == ["optimizer.safetensors", "policy.safetensors", "state.json"]
    state = (path / "state.json").read_bytes()
    assert manifest["files"]["state.json"] == {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()}


def test_the_newest_is_by_number_not_by_name_or_time(tmp_path: Path) -> None:
    saved(tmp_path, 100_000_000, 99_999_999, 3)
    loaded, said = newest(tmp_path)
    assert_is_step(loaded, 100_000_000)
    assert said == []


def test_loaded_cannot_be_rebound(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        load(path).step = 2  # type: ignore[misc]


def test_none_when_there_is_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "absent") == (None, [])
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / "step-12").mkdir()
    assert newest(tmp_path) == (None, [])


def test_state_is_exact(tmp_path: Path) -> None:
    state = {
        "third": 1 / 3,
        "tiny": 5e-324,
        "minus zero": -0.0,
        "infinite": [math.inf, -math.inf],
        "large": 2**200 + 1,
        "text": "é\u2028\x00\ud800 </script>",
        "nothing": None,
        "yes": True,
        "nested": {"": [[], {}]},
    }
    loaded = load(save(tmp_path, 1, {}, state))
    assert loaded.tensors == {}
    assert repr(loaded.state) == repr(state)
    assert math.isnan(load(save(tmp_path, 2, {}, {"x": math.nan})).state["x"])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"rng": (3, 4)}, "state['rng'] is a tuple"),
        ({"a": [{"b": {1: 2}}]}, "state['a'][0]['b'] has the key 1"),
        ({"path": Path("x")}, "state['path'] is a PosixPath"),
        ({"lr": torch.tensor(1.0)}, "state['lr'] is a Tensor"),
    ],
)
def test_state_that_json_would_change_is_refused(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        save(tmp_path / "new", 1, {}, state)
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("file", ["../policy", "a/b", "", ".hidden", "two words"])
def test_file_keys_stay_inside_the_directory(tmp_path: Path, file: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        save(tmp_path / "new", 1, {file: {}}, {})
    assert not (tmp_path / "new").exists()


def test_same_input_same_bytes(tmp_path: Path) -> None:
    [one] = saved(tmp_path / "one", 7)
    [two] = saved(tmp_path / "two", 7)
    assert [(one / name).read_bytes() for name in names(one)] == [(two / name).read_bytes() for name in names(two)]


def test_changing_what_was_loaded_does_not_change_the_file(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 5)
    load(path).tensors["policy"]["embed"].fill_(9.0)
    assert_is_step(load(path), 5)


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 5)
    assert len({(path / name).stat().st_mode for name in names(path)}) == 1


def test_format_1_loads_for_ever() -> None:
    assert_is_step(load(OLD_FORMATS / "1" / "step-00000003"), 3)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    path = save(tmp_path, 4, {}, {"again": True})
    assert load(path).state == {"again": True}
    assert names(tmp_path) == ["step-00000004"]


def test_leftovers_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    for name in (".tmp-step-00000009", ".tmp-del-step-00000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.safetensors").write_bytes(b"half")
    saved(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]


# -- order of flushing ------------------------------------------------------------------------------------------------


def test_everything_is_flushed_before_the_rename_and_the_parent_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def watch(owner: Any, attribute: str, verb: str) -> None:
        real = getattr(owner, attribute)

        def recorded(path: Path, *rest: Any) -> Any:
            events.append(f"{verb} {path.relative_to(tmp_path)}")
            return real(path, *rest)

        monkeypatch.setattr(owner, attribute, recorded)

    saved(tmp_path, 1)
    watch(checkpoint, "_write", "write and flush")
    watch(checkpoint, "write_tensors", "write")
    watch(checkpoint, "_flush", "flush")
    watch(os, "rename", "rename")
    saved(tmp_path, 2)
    assert events == [
        "write and flush .tmp-step-00000002/state.json",
        "write .tmp-step-00000002/policy.safetensors",
        "flush .tmp-step-00000002/policy.safetensors",
        "write .tmp-step-00000002/optimizer.safetensors",
        "flush .tmp-step-00000002/optimizer.safetensors",
        "write and flush .tmp-step-00000002/manifest.json",
        "flush .tmp-step-00000002",
        "rename .tmp-step-00000002",
        "flush .",
    ]


# -- damage -----------------------------------------------------------------------------------------------------------

FILES = ["manifest.json", "state.json", "policy.safetensors", "optimizer.safetensors"]


def falls_back(root: Path, from_name: str, reason: str) -> None:
    loaded, said = newest(root)
    assert_is_step(loaded, 1)
    assert len(said) == 1
    assert from_name in said[0]
    assert reason in said[0]


@pytest.mark.parametrize("file", FILES)
def test_one_flipped_bit_anywhere(tmp_path: Path, file: str) -> None:
    _, path = saved(tmp_path, 1, 2)
    original = (path / file).read_bytes()
    for position in range(len(original)):
        for bit in range(8) if file == "manifest.json" else [position % 8]:
            changed = bytearray(original)
            changed[position] ^= 1 << bit
            (path / file).write_bytes(changed)
            with pytest.raises(CheckpointError):
                load(path)
    falls_back(tmp_path, "step-00000002", file)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("file", FILES)
def test_a_file_cut_short(tmp_path: Path, file: str, share: float) -> None:
    _, path = saved(tmp_path, 1, 2)
    content = (path / file).read_bytes()
    (path / file).write_bytes(content[: int(len(content) * share)])
    falls_back(tmp_path, "step-00000002", file)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file(tmp_path: Path, file: str) -> None:
    _, path = saved(tmp_path, 1, 2)
    (path / file).unlink()
    falls_back(tmp_path, "step-00000002", f"{file} is missing")


def test_an_empty_directory_with_a_higher_number(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-00000009").mkdir()
    falls_back(tmp_path, "step-00000009", "manifest.json is missing")


def test_a_file_named_like_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-00000009").write_text("?")
    falls_back(tmp_path, "step-00000009", "Not a directory")


def test_an_older_one_renamed_to_a_higher_number(tmp_path: Path) -> None:
    saved(tmp_path, 0, 1)
    (tmp_path / "step-00000000").rename(tmp_path / "step-00000009")
    falls_back(tmp_path, "step-00000009", "it was saved as step 0")


def test_a_format_of_the_future(tmp_path: Path) -> None:
    _, path = saved(tmp_path, 1, 2)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    falls_back(tmp_path, "step-00000002", "reads format 1")


def test_a_manifest_that_points_outside(tmp_path: Path) -> None:
    _, path = saved(tmp_path, 1, 2)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../step-00000001/state.json"] = manifest["files"]["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    falls_back(tmp_path, "step-00000002", "not a plain file name")


def test_files_that_were_added_are_ignored(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 1)
    (path / ".DS_Store").write_bytes(b"?")
    assert_is_step(load(path), 1)


def test_two_damaged_ones_are_both_named(tmp_path: Path) -> None:
    _, two, three = saved(tmp_path, 1, 2, 3)
    (two / "policy.safetensors").unlink()
    (three / "state.json").write_text("{}")
    loaded, said = newest(tmp_path)
    assert_is_step(loaded, 1)
    assert ["step-00000003" in said[0], "step-00000002" in said[1], len(said)] == [True, True, 2]


def test_all_damaged_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    one, two = saved(tmp_path, 1, 2)
    (one / "policy.safetensors").unlink()
    (two / "manifest.json").write_bytes(b"\xff\xfe")
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="nothing was deleted") as caught:
        load_newest(tmp_path, say=lambda _: None)
    assert isinstance(caught.value, OncurveError)
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_damaged_step_is_replaced_when_the_run_reaches_it_again(tmp_path: Path) -> None:
    _, path = saved(tmp_path, 1, 2)
    (path / "policy.safetensors").write_bytes(b"")
    saved(tmp_path, 2)
    assert_is_step(newest(tmp_path)[0], 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


# -- pruning ----------------------------------------------------------------------------------------------------------


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5)
    prune(tmp_path, 3)
    assert names(tmp_path) == ["step-00000003", "step-00000004", "step-00000005"]
    prune(tmp_path, 3)
    assert len(names(tmp_path)) == 3


def test_a_damaged_one_does_not_count_as_kept(tmp_path: Path) -> None:
    *_, four = saved(tmp_path, 1, 2, 3, 4)
    (four / "policy.safetensors").write_bytes(b"")
    prune(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]


def test_nothing_is_deleted_while_too_few_are_valid(tmp_path: Path) -> None:
    *_, three, four = saved(tmp_path, 1, 2, 3, 4)
    for path in (three, four):
        (path / "manifest.json").unlink()
    prune(tmp_path, 3)
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("keep_last", [1, 0, -1])
def test_fewer_than_two_are_never_kept(tmp_path: Path, keep_last: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        prune(tmp_path, keep_last)


def test_prune_without_a_directory(tmp_path: Path) -> None:
    prune(tmp_path / "absent", 2)


# -- killed at every file operation -----------------------------------------------------------------------------------


def killed_at(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a forked child that kills itself with SIGKILL just before its ``number``-th file operation, or
    with a half-written file of tensors. False: it ended before that."""
    child = os.fork()
    if child == 0:
        done = 1
        try:
            _kill_before(number)
            action()
            done = 0
        finally:
            os._exit(done)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _kill_before(number: int) -> None:
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(owner: Any, attribute: str) -> None:
        real = getattr(owner, attribute)

        def ticking(*args: Any, **options: Any) -> Any:
            tick()
            return real(*args, **options)

        setattr(owner, attribute, ticking)

    def torn(path: Path, named: Any) -> None:
        write_tensors(path, named)
        os.truncate(path, path.stat().st_size // 2)
        tick()
        path.unlink()
        write_tensors(path, named)

    write_tensors = checkpoint.write_tensors
    checkpoint.write_tensors = torn
    for attribute in ("mkdir", "open", "fsync", "rename", "unlink", "rmdir", "close"):
        hook(os, attribute)
    hook(Path, "open")


def every_death(start: Path, action: Callable[[Path], object], tmp_path: Path) -> Iterator[Path]:
    """A copy of ``start`` for each moment at which ``action`` can be killed, after the kill."""
    for number in range(1, 500):
        root = tmp_path / f"killed-{number}"
        shutil.copytree(start, root)
        died = killed_at(number, lambda root=root: action(root))
        yield root
        if not died:
            assert number > 12  # the hooks do see the work
            return
    raise AssertionError("it never ends")


def test_killed_while_saving(tmp_path: Path) -> None:
    start = tmp_path / "start"
    saved(start, 1, 2)
    seen = set()
    for root in every_death(start, lambda root: saved(root, 3), tmp_path):
        loaded, said = newest(root)
        assert loaded is not None
        assert_is_step(loaded, loaded.step)
        assert said == []
        seen.add(loaded.step)
        saved(root, 3)
        assert names(root) == ["step-00000001", "step-00000002", "step-00000003"]
    assert seen == {2, 3}


def test_killed_while_replacing_the_only_one(tmp_path: Path) -> None:
    start = tmp_path / "start"
    saved(start, 1)
    seen = set()
    again = {"again": True}
    for root in every_death(start, lambda root: save(root, 1, {}, again), tmp_path):
        loaded, said = newest(root)
        assert loaded is not None
        assert said == []
        assert loaded.state in (state_of(1), again)
        seen.add(loaded.state == again)
        save(root, 1, {}, again)
        assert names(root) == ["step-00000001"]
    assert seen == {True, False}


def test_killed_while_pruning(tmp_path: Path) -> None:
    start = tmp_path / "start"
    saved(start, 1, 2, 3, 4)
    for root in every_death(start, lambda root: prune(root, 2), tmp_path):
        loaded, said = newest(root)
        assert_is_step(loaded, 4)
        assert said == []
        visible = [path for path in root.iterdir() if not path.name.startswith(".tmp-")]
        assert len(visible) >= 2
        assert [load(path).step for path in sorted(visible)][-2:] == [3, 4]
        prune(root, 2)
        assert names(root) == ["step-00000003", "step-00000004"]


def test_killed_between_saving_and_pruning(tmp_path: Path) -> None:
    start = tmp_path / "start"
    saved(start, 1, 2)

    def save_and_prune(root: Path) -> None:
        saved(root, 3)
        prune(root, 2)

    for root in every_death(start, save_and_prune, tmp_path):
        valid = [load(path).step for path in sorted(root.iterdir()) if not path.name.startswith(".tmp-")]
        assert len(valid) >= 2
        save_and_prune(root)
        assert names(root) == ["step-00000002", "step-00000003"]


# -- disks that fail --------------------------------------------------------------------------------------------------


def assert_not_saved(error: CheckpointError, root: Path, reason: str) -> None:
    text = str(error)
    assert f"checkpoint {root / 'step-00000002'} was not saved" in text
    assert reason in text
    assert "It needs" in text
    assert "are free there" in text
    assert f"The previous checkpoint, {root / 'step-00000001'}, is intact" in text
    assert names(root) == ["step-00000001"]
    assert_is_step(newest(root)[0], 1)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "No space left on device"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_flushing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str, nth: int) -> None:
    saved(tmp_path, 1)
    count = 0

    def failing(_: int) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CheckpointError) as caught:
        saved(tmp_path, 2)
    assert_not_saved(caught.value, tmp_path, reason)


@pytest.mark.parametrize("call", ["mkdir", "open", "rename"])
def test_an_operation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    saved(tmp_path, 1)

    def failing(*args: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(args[0]))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(CheckpointError) as caught:
            saved(tmp_path, 2)
        # Removing a directory opens it: where that is what fails, the leftover waits for the next save.
        leftover = tmp_path / ".tmp-step-00000002"
    if leftover.exists():
        assert call == "open"
        shutil.rmtree(leftover)
    assert_not_saved(caught.value, tmp_path, "Permission denied")


def test_a_write_that_fails_half_way(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the write itself fails, for anyone, on any system."""
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            save(tmp_path, 2, {"policy": {"weight": torch.zeros(1 << 19)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_not_saved(caught.value, tmp_path, "File too large")
    assert "It needs 2,097," in str(caught.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    if sys.platform != "linux":
        pytest.skip("tmpfs is a thing of Linux")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"may not mount: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    root = small_disk / "checkpoints"
    saved(root, 1)
    with pytest.raises(CheckpointError) as caught:
        save(root, 2, {"policy": {"weight": torch.zeros(1 << 17)}}, {})
    assert_not_saved(caught.value, root, "No space left on device")
    assert "It needs 524," in str(caught.value)
    saved(root, 2)
    assert_is_step(newest(root)[0], 2)


def test_the_very_first_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]))

    monkeypatch.setattr(os, "mkdir", failing)
    with pytest.raises(CheckpointError, match=r"Read-only file system .* There is no earlier checkpoint"):
        saved(tmp_path / "run" / "checkpoints", 1)


def test_interrupting_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    saved(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "write_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001"]


def test_an_old_one_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(args[0]))

    saved(tmp_path, 1, 2, 3)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(CheckpointError, match="could not be removed: Permission denied"):
        prune(tmp_path, 2)
    assert_is_step(newest(tmp_path)[0], 3)
