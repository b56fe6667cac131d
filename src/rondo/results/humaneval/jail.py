"""A process that locks itself up and then plays a part (:mod:`rondo.results.humaneval.parts`). Run as a script; it
imports the standard library only, and nothing of Rondo.

``python -s -S -P jail.py '{"part": "solver", ...}'``

Within namespaces of its own (Linux 5.12 or later) the part sees no process, no network, and no file but the libraries
of Python, read-only, and an empty folder in memory. In the weak mode, which the caller must ask for, the part keeps the
user's files, processes and network. In both modes it is not root, cannot become another user, has limits on processor
time, memory, files and processes, and no environment.

Three processes: this one makes the namespaces, its child is their first process and makes the root, and the grandchild
plays the part. When the first process of a process namespace ends, the kernel ends all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any

NOBODY = 65534
"""The user, and the group, that root becomes."""
_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET."""
_NEW_USER = 0x10000000
_BIND, _RECURSIVE, _PRIVATE, _NOSUID, _NODEV, _NOEXEC = 4096, 16384, 1 << 18, 2, 4, 8
_SET_DUMPABLE, _PARENT_DEATH, _NO_NEW_PRIVILEGES, _DROP_BOUND, _SECURE_BITS = 4, 1, 38, 24, 28
_MOUNT_SETATTR, _HERE, _ALL_BELOW, _DETACH = 442, -100, 0x8000, 2
_libc = ctypes.CDLL(None, use_errno=True)


def main(settings: dict[str, Any]) -> None:
    """Lock up and play ``settings["part"]``. ``settings`` also has the ``limits``, the ``root`` (an empty folder) and
    whether the mode is ``weak``."""
    parts = _module(settings["parts"])
    os.umask(0o022)
    if settings["weak"]:
        _bound_capabilities()
        if os.geteuid() == 0:
            _become_nobody()
        os.chdir(settings["root"])
    else:
        root = _new_namespaces()
        _follow_parent()
        _wait_for_child(os.fork())  # the child is the first process of its namespace
        _follow_parent()
        _no_shared_memory()
        _enter_root(settings["root"], settings["limits"]["folder"], NOBODY if root else 0)
        _wait_for_child(os.fork())
        os.chroot("/inner")  # not the root of its mounts: a process in such a place gets no user namespace
        os.chdir("/work")
        _bound_capabilities()
        if root:
            _become_nobody()
    _follow_parent()
    _limit(settings["limits"])
    os.environ.clear()
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), os.getcwd()))
    channel = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _give_up_capabilities()
    if not os.path.isfile(os.__file__):
        raise OSError(f"{os.path.dirname(os.__file__)} cannot be read by user {NOBODY}, which root becomes")
    if sys.platform == "linux":
        _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # no process of the same user can read or trace it
    os.write(1, b"ready\n")
    _silence()
    parts.play(settings["part"], *channel)


def _new_namespaces() -> bool:
    """Leave the machine's namespaces, and say whether this is still the machine's root. Root may leave them as it is.
    Any other user, or a root without that right, which becomes nobody first, gets rights in a user namespace only."""
    if os.geteuid() == 0:
        if _libc.unshare(_NEW) == 0:
            return True
        _become_nobody()
    user, group = os.getuid(), os.getgid()
    _must(_libc.unshare(_NEW | _NEW_USER), "new namespaces are refused")
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{file}", "w", encoding="utf-8") as written:
            written.write(text)
    return False


def _no_shared_memory() -> None:
    """Allow no System V shared memory and no queues in these namespaces: limits of a process do not count them. A
    kernel that leaves them to the machine's root (before Linux 6.0, for users) keeps its own limits."""
    for name in ("shmmni", "shmall", "msgmni"):
        with contextlib.suppress(OSError), open(f"/proc/sys/kernel/{name}", "w", encoding="utf-8") as limit:
            limit.write("0")


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("parts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _must(result: int, what: str) -> None:
    if result != 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if sys.platform == "linux":
        _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise its files in /proc are root's


def _follow_parent() -> None:
    """End when the parent ends."""
    parent = os.getppid()
    if sys.platform == "linux":
        _must(_libc.prctl(_PARENT_DEATH, int(signal.SIGKILL), 0, 0, 0), "the parent's end cannot be followed")
    if os.getppid() != parent:
        os._exit(1)


def _wait_for_child(child: int) -> None:
    """In the parent: wait, and end as the child did. In the child: nothing."""
    if child:
        for descriptor in (0, 1):
            os.close(descriptor)  # the part's end is then the channel's
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _enter_root(root: str, folder_bytes: int, owner: int) -> None:
    """Make a root that has libraries and an empty folder of ``owner`` in /inner and nothing else, and enter it."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "size=1m,mode=755")
    inner = f"{root}/inner"
    for path in _libraries():
        place = inner + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(os.readlink(path), place)
        elif not os.path.isdir(place):
            os.makedirs(place)
            _mount(path, place, None, _BIND | _RECURSIVE)
            _read_only(place)
    os.mkdir(f"{inner}/work")
    options = f"size={folder_bytes},mode=700,uid={owner},gid={owner}"
    _mount("tmpfs", f"{inner}/work", "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
    os.chdir(root)
    _must(_libc.pivot_root(b".", b"."), "the root cannot be changed")
    _must(_libc.umount2(b".", _DETACH), "the old root cannot be taken away")
    _read_only("/", below=0)


def _libraries() -> list[str]:
    """Folders that Python loads modules and libraries from, the outer ones first."""
    paths = [os.path.dirname(os.__file__), os.path.join(sys.base_prefix, "lib")]
    paths += ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    return sorted({os.path.abspath(path) for path in paths if os.path.isdir(path)}, key=len)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    source_, kind_ = (None if text is None else text.encode() for text in (source, kind))
    done = _libc.mount(source_, target.encode(), kind_, ctypes.c_ulong(flags), options.encode())
    _must(done, f"{source or kind or target} cannot be mounted")


def _read_only(path: str, below: int = _ALL_BELOW) -> None:
    """Read-only, without set-user-id and devices, with all mounts ``below``."""
    attributes = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)
    done = _libc.syscall(_MOUNT_SETATTR, _HERE, path.encode(), below, attributes, ctypes.c_size_t(len(attributes)))
    _must(done, f"{path} cannot be made read-only")


def _limit(limits: dict[str, int]) -> None:
    """Limits that cannot be raised again. No further process or thread can be started."""
    chosen = {
        resource.RLIMIT_CPU: limits["processor_seconds"],
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["folder"],
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in chosen.items():
        resource.setrlimit(kind, (value, value))


def _silence() -> None:
    """Connect input, output and errors to nothing. The root has no /dev/null, so both ends of a pipe do."""
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    os.close(writing)  # reading ends at once
    closed, output = os.pipe()
    os.close(closed)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdin, sys.stdout, sys.stderr = open(0, encoding="utf-8"), _Nothing(), _Nothing()  # noqa: SIM115


class _Nothing:
    """A file that discards all text, and all bytes."""

    encoding, errors = "utf-8", "strict"

    @property
    def buffer(self) -> _Nothing:
        return self

    def write(self, text: str | bytes) -> int:
        return len(text)

    def writelines(self, lines: Sequence[str | bytes]) -> None: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1


def _bound_capabilities() -> None:
    """Drop every capability from the bounding set, so that none comes back. Does nothing without the right to."""
    if sys.platform == "linux":
        for capability in range(64):
            _libc.prctl(_DROP_BOUND, capability, 0, 0, 0)
        _libc.prctl(_SECURE_BITS, 0b11101111, 0, 0, 0)  # user 0 is nobody special, and that stays so


def _give_up_capabilities() -> None:
    """Give up all rights that root, or the new namespaces, gave."""
    if sys.platform != "linux":
        return
    _must(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "privileges cannot be given up")
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _must(_libc.capset(header, none), "capabilities cannot be given up")


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        os.write(2, f"{error}".encode())
        os._exit(1)
