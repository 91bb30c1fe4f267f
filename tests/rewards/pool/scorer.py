"""What the tests of the pool have scored: by name, as a model's text would bring it about."""

from __future__ import annotations

import os
import re
import sys
import threading
import time

SEEN: list[str] = []


def score(item):
    if isinstance(item, dict):
        return item
    SEEN.append(item)
    name, _, argument = item.partition(" ")
    return ACTIONS[name](argument)


def spin(_):
    while True:
        pass


def regex(_):
    return re.match(r"(a+)+$", "a" * 60 + "b")


def grow(_):
    return len([bytearray(1 << 32) for _ in range(1000)])


def raises(argument):
    raise ValueError(argument)


def write(path):
    with open(path, "w") as file:
        file.write("x")


ACTIONS = {
    "say": lambda argument: argument,
    "seen": lambda _: list(SEEN),
    "spin": spin,
    "regex": regex,
    "sleep": lambda argument: time.sleep(float(argument)),
    "grow": grow,
    "deep": lambda _: sys.setrecursionlimit(10**8) or raises("deep"),
    "exit": lambda _: os._exit(0),
    "raise": raises,
    "write": write,
    "pid": lambda _: os.getpid(),
    "fork": lambda _: os.fork(),
    "threads": lambda _: threading.active_count(),
    "modules": lambda argument: argument in sys.modules,
}
