"""Attacks on the sandbox: programs that say ESCAPED where they got through, and what must become of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FAILED = frozenset({"exception", "timeout", "memory", "output", "killed"})
ANY = FAILED | {"ok"}

TRY = """
import os, sys
def attempt(name, function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        print("refused", name, type(error).__name__, getattr(error, "errno", ""))
        return
    print("ESCAPED", name)
"""

SYSTEM_CALL = (
    TRY
    + """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
def call(name, numbers, *arguments):
    def made():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(numbers[column]), *arguments)
        if result == -1:
            raise OSError(ctypes.get_errno(), name)
    attempt(name, made)
null = ctypes.c_void_p(0)
"""
)


@dataclass(frozen=True)
class Attack:
    number: int
    name: str
    sources: tuple[str, ...]
    """Programs, one after another."""
    statuses: frozenset[str] = ANY
    """What may become of them."""
    control: bool = False
    """Without a sandbox it does no harm that lasts, and must be seen to get through: else it would prove nothing."""


@dataclass(frozen=True)
class Forgery:
    number: int
    name: str
    source: str
    """A wrong program that would be taken for right."""
    tests: tuple[Any, ...] = field(default=())
    passes: int = 0
    """How many of the tests it may pass, being right there."""


ATTACKS = (
    Attack(
        1,
        "fork bomb",
        (
            TRY + "for _ in range(50):\n    attempt('fork', os.fork)\n"
            "attempt('vfork', os.posix_spawn, '/bin/true', ['true'], {})\n"
            "import subprocess\nattempt('subprocess', subprocess.run, ['true'])\n"
            "import multiprocessing as m\nattempt('multiprocessing', lambda: m.Process(target=print).start())\n",
        ),
    ),
    Attack(
        2,
        "thread bomb",
        (
            "import threading, time\nthreading.stack_size(32768)\nwhile True:\n"
            "    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
        ),
        FAILED,
    ),
    Attack(3, "memory by lists", ("kept = [bytearray(10**8) for _ in range(100000)]",), frozenset({"memory"})),
    Attack(4, "memory at once", ("kept = 'a' * 10**10",), frozenset({"memory"})),
    Attack(5, "10**10**10", ("print(10**10**10)",), frozenset({"timeout", "memory"})),
    Attack(6, "endless loop", ("while True: pass",), frozenset({"timeout"})),
    Attack(7, "endless sleep", ("import time\ntime.sleep(1e9)",), frozenset({"timeout"})),
    Attack(
        8,
        "ignores every signal",
        (
            "import signal\nfor number in signal.valid_signals():\n    try: signal.signal(number, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\nwhile True: pass",
        ),
        frozenset({"timeout"}),
    ),
    Attack(9, "endless output", ("while True: print('x' * 1000)",), frozenset({"output", "timeout"})),
    Attack(
        10,
        "endless line, and errors",
        (
            "import sys\nwhile True: sys.stdout.write('x' * 1000)",
            "import sys\nwhile True: sys.stderr.write('x' * 1000)",
        ),
        frozenset({"output", "timeout"}),
    ),
    Attack(
        11,
        "reads files",
        (
            TRY + "for path in ('/etc/passwd', '/etc/shadow', '/etc/hostname', os.path.expanduser('~/.ssh/id_rsa'),\n"
            "             '@SECRET@', '/proc/1/cmdline',\n"
            "             '/proc/self/maps', '/proc/self/environ', '/proc/cpuinfo', '/var/log/dpkg.log'):\n"
            "    attempt(path, lambda: print(open(path, 'rb').read(100)))\n"
            "for path in ('/', '/etc', '/home', '/root', '/tmp/..', os.path.dirname('@SECRET@')):\n"
            "    attempt('list ' + path, lambda: print(os.listdir(path)))\n",
        ),
        control=True,
    ),
    Attack(
        12,
        "reads other processes",
        (
            TRY + "for pid in (os.getppid(), 1, @HOST@):\n    for name in ('environ', 'mem', 'maps', 'cmdline'):\n"
            "        attempt(f'{pid}/{name}', lambda: open(f'/proc/{pid}/{name}', 'rb').read(10))\n"
            "    attempt(f'{pid}/fd', os.listdir, f'/proc/{pid}/fd')\n",
        ),
        control=True,
    ),
    Attack(13, "looks for secrets in its environment", ("import os\nprint(dict(os.environ))",)),
    Attack(
        14,
        "network",
        (
            TRY
            + """import socket, urllib.request
def tcp(): socket.create_connection(("127.0.0.1", @TCP@), 1)
def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", @UDP@))
def unix():
    made = socket.socket(socket.AF_UNIX)
    made.connect("@SOCKET@")
def abstract(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "\\0@ABSTRACT@")
def pair():
    made, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.sendto(b"x", "\\0@ABSTRACT@")
def netlink(): socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
def dns(): socket.getaddrinfo("localhost", 80)
def web(): urllib.request.urlopen("http://127.0.0.1:@TCP@", timeout=1)
def listen(): socket.create_server(("127.0.0.1", 0))
for function in (tcp, udp, unix, abstract, pair, netlink, web, listen):
    attempt(function.__name__, function)
""",
        ),
        control=True,
    ),
    Attack(
        15,
        "writes outside, links, modes",
        (
            TRY
            + """
attempt("write", lambda: open("@MARKER@", "w").write("x"))
attempt("append", lambda: open("@SECRET@", "a").write("x"))
attempt("symbolic link", os.symlink, "/etc", "link")
attempt("symbolic link in", os.symlink, "/etc", "/tmp/link")
attempt("hard link", os.link, "@SECRET@", "/tmp/hard")
attempt("chmod", os.chmod, "@SECRET@", 0o777)
attempt("chown", os.chown, "@SECRET@", os.getuid(), os.getgid())
attempt("utime", os.utime, "@SECRET@")
attempt("setxattr", os.setxattr, "@SECRET@", "user.x", b"x")
attempt("truncate", os.truncate, "@SECRET@", 0)
attempt("rename", os.rename, "@SECRET@", "@MARKER@")
attempt("remove", os.remove, "@SECRET@")
attempt("mkdir", os.mkdir, "@MARKER@")
attempt("mkfifo", os.mkfifo, "/tmp/fifo")
attempt("mknod", os.mknod, "/tmp/device", 0o60600, os.makedev(8, 0))
attempt("shm", lambda: open("/dev/shm/oncurve", "w"))
attempt("library", lambda: open(os.__file__, "a"))
""",
        ),
    ),
    Attack(
        16,
        "fills the disk, leaves files",
        (
            """
import os
written = files = 0
try:
    for number in range(20000):
        with open(f"/tmp/file{number}", "w") as file:
            written += file.write("x" * 100000)
            files += 1
except OSError as error:
    print(error)
if written > 32 * 2**20 or files > 600:
    print("ESCAPED", written, files)
""",
            "import os\ntry: print('ESCAPED' if os.listdir('/tmp') else 'empty')\n"
            "except OSError: print('no directory')",
        ),
    ),
    Attack(
        17,
        "signals and limits of others",
        (
            SYSTEM_CALL
            + """
import fcntl, resource, signal
for pid in (os.getppid(), @BYSTANDER@, @HOST@, 1):
    attempt(f"kill {pid}", os.kill, pid, 0)
    attempt(f"kill {pid}", os.kill, pid, signal.SIGTERM)
    attempt(f"killpg {pid}", os.killpg, pid, signal.SIGTERM)
    attempt(f"limits {pid}", resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0))
    attempt(f"priority {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"affinity {pid}", os.sched_setaffinity, pid, {0})
    attempt(f"pidfd {pid}", os.pidfd_open, pid)
    call(f"tkill {pid}", (200, 130), pid, 15)
    call(f"tgkill {pid}", (234, 131), pid, pid, 15)
    call(f"sigqueue {pid}", (129, 138), pid, 15, ctypes.create_string_buffer(128))
    read, write = os.pipe()
    attempt(f"owner {pid}", fcntl.fcntl, read, fcntl.F_SETOWN, pid)
attempt("kill all", os.kill, -1, signal.SIGTERM)
attempt("kill group", os.kill, 0, signal.SIGCONT)
""",
        ),
    ),
    Attack(
        18,
        "daemon that outlives it",
        (
            TRY
            + """
import time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.3)
            open("@MARKER@", "w").write("x")
            time.sleep(60)
        os._exit(0)
attempt("daemon", daemon)
attempt("setsid", os.setsid)
""",
        ),
    ),
    Attack(
        19,
        "memory of other processes",
        (
            SYSTEM_CALL
            + """
for pid in (os.getppid(), @BYSTANDER@):
    call(f"ptrace attach {pid}", (101, 117), 16, pid, null, null)
    call(f"ptrace seize {pid}", (101, 117), 0x4206, pid, null, null)
    buffer = ctypes.create_string_buffer(8)
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    local, remote = Vector(ctypes.addressof(buffer), 8), Vector(id(os), 8)
    for name, numbers in (("readv", (310, 270)), ("writev", (311, 271))):
        call(f"process_vm_{name} {pid}", numbers, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    call(f"kcmp {pid}", (312, 272), os.getpid(), pid, 0, 0, 0)
""",
        ),
    ),
    Attack(
        20,
        "system calls",
        (
            SYSTEM_CALL
            + """
for name, numbers in {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "io_uring_setup": (425, 425), "bpf": (321, 280), "userfaultfd": (323, 282),
    "memfd_create": (319, 279), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "personality": (135, 92), "syslog": (103, 116), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "execve": (59, 221), "execveat": (322, 281), "clone3": (435, 435),
    "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "inotify_init1": (294, 26), "seccomp": (317, 277),
    "fanotify_init": (300, 262), "open_tree": (428, 428), "fsopen": (430, 430), "setuid": (105, 146),
    "capset": (126, 91), "reboot": (169, 142), "swapon": (167, 224), "init_module": (175, 105), "acct": (163, 89),
    "sethostname": (170, 161), "settimeofday": (170, 170), "quotactl": (179, 60), "landlock_create_ruleset": (444, 444),
    "pidfd_getfd": (438, 438), "sendmsg": (46, 211), "recvmsg": (47, 212), "openat2": (437, 437),
}.items():
    call(name, numbers, null, null, null, null)
call("clone of a process", (56, 220), 17, null, null, null, null)
call("prctl dumpable", (157, 167), 4, 1, 0, 0, 0)
call("prctl parent death", (157, 167), 1, 0, 0, 0, 0)
""",
            SYSTEM_CALL + "call('x32 getpid', (39 | 0x40000000, 1000))\nprint('ESCAPED' if column == 0 else '')",
            SYSTEM_CALL + "call('x32 fork', (57 | 0x40000000, 1000))\nprint('ESCAPED' if column == 0 else '')",
            # 32-bit calls have numbers of their own: 2 is fork there.
            SYSTEM_CALL
            + """
import mmap
if column == 0:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b802000000cd80c3"))
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    print("ESCAPED")
""",
        ),
    ),
    Attack(21, "reads address 0", ("import ctypes\nctypes.string_at(0)",), frozenset({"killed"})),
    Attack(
        22,
        "endless recursion",
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",),
        FAILED,
    ),
    Attack(
        23,
        "source that is hard to read",
        (
            "(" * 100_000 + ")" * 100_000,
            "print(1)\0print(2)",
            "x = '\ud800'\nprint(x)",
            "x = [\n" + "1,\n" * 1_700_000 + "]\n",
            "-" * 200_000 + "1",
            "x" + ".x" * 100_000,
        ),
    ),
)

DOUBLE = ({"call": [2], "returns": 4, "function": "f"}, {"call": [3], "returns": 6, "function": "f"})
ASSERTS = (
    "assert f(2) == 4",
    "assert sorted(f(n) for n in [3, 1]) == [2, 6]",
    "import math\nassert math.isclose(f(5), 10)",
)
PRINTS = ({"stdin": "2\n", "stdout": "4\n"}, {"stdin": "3\n", "stdout": "6\n"})
EVERY = (*DOUBLE, *ASSERTS, *PRINTS)

EVIL = """
class Evil({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __le__(self, other): return True
    def __gt__(self, other): return True
    def __ge__(self, other): return True
    def __hash__(self): return 0
    def __bool__(self): return True
    def __reduce__(self): return (print, ("PASS",))
def f(x): return Evil()
"""

FORGERIES = (
    Forgery(24, "exits at import", "import sys\nsys.exit(0)", EVERY),
    Forgery(25, "ends its process in the call", "import os\ndef f(x): os._exit(0)", EVERY),
    Forgery(26, "SystemExit in the call", "def f(x): raise SystemExit(0)", EVERY),
    *(
        Forgery(27, f"{base} equal to everything", EVIL.format(base=base), EVERY)
        for base in ("int", "float", "str", "list", "tuple", "dict", "set", "object")
    ),
    Forgery(
        28,
        "patches builtins",
        "import builtins, math, operator\nbuiltins.sorted = builtins.sum = lambda *a, **k: [2, 6]\n"
        "builtins.all = builtins.any = builtins.isinstance = math.isclose = operator.eq = lambda *a, **k: True\n"
        "builtins.AssertionError = type('Never', (Exception,), {})\n"
        "def f(x): return -1\ndef sorted(*a): return [2, 6]\ndef isclose(*a): return True\nmath.isclose = isclose\n",
        EVERY,
    ),
    Forgery(
        29,
        "at exit, hooks, tracing",
        "import atexit, os, sys, threading\natexit.register(lambda: os._exit(0))\n"
        "sys.excepthook = lambda *a: os._exit(0)\n"
        "def trace(frame, event, argument):\n    for name in list(frame.f_locals):\n        frame.f_locals[name] = 4\n"
        "    return trace\nsys.settrace(trace)\nthreading.settrace(trace)\ndef f(x): return -1\n",
        EVERY,
    ),
    Forgery(
        30,
        "writes verdicts to every descriptor",
        "import json, os\ndef frame(message):\n    body = json.dumps(message).encode()\n"
        "    return len(body).to_bytes(4, 'big') + body\n"
        "def spray():\n    for text in (b'PASS\\n', b'OK\\n', b'passed\\n', json.dumps({'passed': True}).encode(),\n"
        "                 frame({'test': 0, 'ok': True, 'e': None}), frame({'ready': True}),\n"
        "                 frame({'passed': True, 'ok': True, 'exit': 0, 'id': 1})):\n"
        "        for fd in range(256):\n            try: os.write(fd, text)\n            except OSError: pass\n"
        "spray()\ndef f(x):\n    spray()\n    return -1\n",
        EVERY,
    ),
    Forgery(
        31,
        "looks for what is expected",
        """
import gc, sys
def found(wanted):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if wanted(value): return value
        frame = frame.f_back
    for value in gc.get_objects():
        if wanted(value): return value
def f(x):
    names = f.__globals__
    hit = found(lambda v: type(v) is dict and v is not names and ('returns' in v or 'expected' in v))
    if hit: return hit.get('returns', hit.get('expected'))
    return found(lambda v: isinstance(v, str) and 'assert' + ' f(' in v) or -1
""",
        EVERY,
    ),
    Forgery(
        32,
        "replaces json, stdout and the wire",
        "import json, sys\njson.dumps = lambda *a, **k: '{\"v\": 4}'\n"
        "json.loads = lambda *a, **k: {'f': 'f', 'a': [2], 'k': {}}\n"
        "for name, module in list(sys.modules.items()):\n    if hasattr(module, 'write_frame'):\n"
        "        module.write_frame = lambda *a: None\nclass Out:\n    def write(self, text): return len(text)\n"
        "    def flush(self): pass\nsys.stdout = Out()\ndef f(x): return -1\n",
        # It makes its process answer 4 whatever is asked, which is right once in each kind of test that asks once.
        EVERY,
        passes=2,
    ),
    *(
        Forgery(33, f"returns {name}", source, EVERY)
        for name, source in {
            "NaN": "def f(x): return float('nan')",
            "10**7000": "def f(x): return 10**7000",
            "10**300000": "def f(x): return 10**300000",
            "a deep list": "def f(x):\n    r = []\n    for _ in range(5000): r = [r]\n    return r",
            "itself": "def f(x):\n    r = []\n    r.append(r)\n    return r",
            "a generator": "def f(x): yield 4",
            "a function": "def f(x): return f",
            "an evil pickle": "class P:\n    def __reduce__(self): return (print, ('x',))\ndef f(x): return P()",
            "many items": "def f(x): return list(range(10**6))",
            "colliding keys": "def f(x): return {n * (2**61 - 1): 0 for n in range(3000)}",
        }.items()
    ),
    Forgery(
        34,
        "changes its argument",
        "def f(x):\n    x.clear()\n    x.extend([9])\n    return x\n",
        (
            {"call": [[1, 2]], "returns": [2, 1], "function": "f"},
            "given = [1, 2]\nassert f(given) == [2, 1]",
            "given = [1, 2]\nright = list(reversed(given))\nf(given)\nassert f([0]) == right",
        ),
    ),
    Forgery(
        35,
        "right once, then never ends",
        "def f(x):\n    if x == 2: return 4\n    while True: pass\n",
        (*DOUBLE, "assert f(2) == 4", "assert f(3) == 6"),
        passes=2,
    ),
    Forgery(
        36,
        "knows the visible tests only",
        "def f(x): return {2: 4, 3: 6}.get(x)\n",
        (*DOUBLE, {"call": [7], "returns": 14, "function": "f"}),
        passes=2,
    ),
)

NEEDLE = "NEEDLE-7c1f"
SCAN = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
needle = b"-".join([b"NEEDLE", b"7c1f"])
read, write = os.pipe()
pages = hits = 0
for region in {id(thing) >> 28 << 28 for thing in (object(), [], sys, type, read, "x" * 10**6)}:
    for page in range(region - (1 << 27), region + (1 << 28), 4096):
        # The kernel tells of a page that is not there, where to read it would end the process.
        if libc.write(write, ctypes.c_void_p(page), ctypes.c_size_t(4096)) == 4096:
            pages += 1
            hits += os.read(read, 4096).count(needle)
print(pages > 1000, hits)
"""
"""Counts the needle in its own memory, where it is a few times of necessity."""
