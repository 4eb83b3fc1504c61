"""
The files of this host: who may read the secrets, how much room is left, what kind of disk it is.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from attrs import evolve, frozen

from crq.config import Config
from crq.doctor.findings import Finding, error, ok, warning

MB = 1_000_000  # bytes
ROOM_LEFT = 1_000 * MB  # below it, and below a tenth of the disk, there is a warning
ROOM_NEEDED = 100 * MB  # below it writes fail soon
INODES_NEEDED = 1_000
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "9p", "fuse.sshfs", "afs")


@frozen
class Secret:
    """
    A file that not everybody may read, as it was found.

    :ivar option: which option names it.
    :ivar mode: permission bits; None: there is no such file.
    :ivar replaceable: anybody may put another file in its place.
    :ivar open: it holds nothing secret: everybody may read it, nobody else change it.
    """

    option: str
    path: str
    mode: int | None
    replaceable: bool = False
    open: bool = False


@frozen
class Room:
    """
    What is left of a disk.
    """

    path: str
    free: int
    total: int
    inodes: int | None = None


def look(config: Config, path: str | None) -> Iterator[Finding]:
    """
    Look at the files that a configuration names, and at the file it comes from.
    """
    yield from map(secret, _secrets(config, path))
    places = {Path(config.drainer.lock_file).absolute().parent}
    if config.open_database().dialect == "sqlite":
        database = Path(config.open_database().path).absolute().parent
        places.add(database)
        yield filesystem(str(database), _filesystem(database))
    for place in sorted(places):
        if place.is_dir():
            yield room(_room(place))


def secret(found: Secret) -> Finding:
    """
    Judge who may read or change a file with secrets.
    """
    name = f"mode of {found.option}"
    if found.mode is None:
        return error(name, f"{found.path} is not there", "see the option's value")
    text = f"{found.path} has mode {found.mode:03o}"
    remedy = f"chmod 600 {found.path} (640 if its group is the service's own)"
    if found.replaceable:
        return error(
            name,
            f"{found.path} lies in a directory in which anybody may replace it",
            f"chmod o-w {Path(found.path).parent}",
        )
    if found.mode & (stat.S_IWOTH if found.open else stat.S_IWOTH | stat.S_IROTH):
        return error(name, f"{text}: everybody on this machine may read or change it", remedy)
    if found.mode & stat.S_IWGRP:
        return warning(name, f"{text}: its group may change it", remedy)
    return ok(name, text)


def room(left: Room) -> Finding:
    """
    Judge what is left of a disk.
    """
    name = f"room in {left.path}"
    text = f"{left.free // MB} MB of {left.total // MB} MB are free"
    remedy = "make room: a full disk stops admission and the writing of outcomes"
    if left.inodes is not None and left.inodes < INODES_NEEDED:
        return error(name, f"{left.inodes} inodes are left", remedy)
    if left.free < ROOM_NEEDED:
        return error(name, text, remedy)
    if left.free < min(ROOM_LEFT, left.total // 10):
        return warning(name, text, remedy)
    return ok(name, text)


def filesystem(path: str, kind: str | None) -> Finding:
    """
    Judge where a SQLite file lies.
    """
    if kind in NETWORK:
        return error(
            "filesystem",
            f"{path} is on {kind}: SQLite's log and our file locks do not hold there",
            "put the database and executor.lock_dir on a local disk, or take MySQL",
        )
    return ok("filesystem", f"{path} is on {kind or 'a disk of unknown kind'}")


def _secrets(config: Config, path: str | None) -> Iterator[Secret]:
    if path is not None:
        yield evolve(_file("the configuration", path), open=not _has_secrets(path))
    for option in ("salt_file", "seal_keys_file"):
        if name := getattr(config.secrets, option):
            yield _file(f"secrets.{option}", name)
    if config.executor.token_file:
        yield _file("executor.token_file", config.executor.token_file)
    database = config.open_database()
    if database.dialect == "sqlite" and Path(database.path).exists():
        yield _file("the database", database.path)


def _has_secrets(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except (OSError, ValueError):
        return True
    given = tree.get("secrets", {})
    url = tree.get("database", {}).get("url", "")
    return bool(given.get("salt") or given.get("seal_keys") or urlsplit(url).password)


def _file(option: str, path: str) -> Secret:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        folder = os.stat(Path(path).absolute().parent).st_mode
    except OSError:
        return Secret(option, path, None)
    return Secret(option, path, mode, bool(folder & stat.S_IWOTH and not folder & stat.S_ISVTX))


def _room(place: Path) -> Room:
    found = os.statvfs(place)
    inodes = found.f_favail if found.f_files else None  # btrfs and the like count none
    size = found.f_frsize
    return Room(str(place), found.f_bavail * size, found.f_blocks * size, inodes)


def _filesystem(place: Path) -> str | None:
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    mounts = [line.split() for line in lines]
    inside = [
        (len(words[1]), words[2])
        for words in mounts
        if len(words) > 2 and place.resolve().is_relative_to(words[1].replace("\\040", " "))
    ]
    return max(inside, default=(0, None))[1]
