"""
The installed units: do their limits leave room for what the configuration asks for?

Files are parsed, drop-ins included, because a unit that has been edited and not loaded is a fault
that waits for the next restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from crq.config import Config
from crq.doctor.findings import Finding, error, note, ok, warning

DAEMON, EXECUTOR = "crqueue.service", "crqueue-executor.service"
FOLDERS = (  # the first that has a unit wins, as with systemd
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
STOP, WATCHDOG, FILES = 90.0, None, 1024  # what systemd takes when a unit does not say
FILES_NEEDED = 4096  # descriptors: callers' connections are the most of them
TICKS = 3  # that must fit into the watchdog's time
FAULTS = 4  # time-outs of the database that one tick may run into

_SECONDS = {
    **dict.fromkeys(("us", "usec", "µs"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_SPAN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]*)")

Unit = Mapping[str, str]


def look(config: Config, folders: Iterable[str] = FOLDERS) -> Iterator[Finding]:
    """
    Look at both units, if they are installed.
    """
    folders = tuple(folders)
    daemon, executor = installed(DAEMON, folders), installed(EXECUTOR, folders)
    if daemon is None:
        yield note("unit", f"no {DAEMON} is installed here")
    else:
        yield restarts(DAEMON, daemon)
        yield stopping(daemon, config.drainer.stop_limit)
        yield watchdog(daemon, config.drainer.tick, config.database.timeout)
        yield files(daemon)
    if executor is not None:
        yield restarts(EXECUTOR, executor)
        yield draining(executor, config.executor.wall)


def installed(name: str, folders: Iterable[str]) -> Unit | None:
    """
    Read a unit and its drop-ins; the last word on a key counts. None: it is not installed.
    """
    folders = tuple(folders)
    for folder in folders:
        path = Path(folder) / name
        if path.is_file():
            texts = [path.read_text("utf-8", "replace")]
            break
    else:
        return None
    drop_ins = {
        found.name: found  # of two with one name the one in the first folder counts
        for folder in reversed(folders)
        for found in sorted((Path(folder) / f"{name}.d").glob("*.conf"))
    }
    texts += [drop_ins[key].read_text("utf-8", "replace") for key in sorted(drop_ins)]
    return parsed("\n".join(texts))


def parsed(text: str) -> Unit:
    """
    The keys of a unit, as ``Section.Key``.
    """
    found: dict[str, str] = {}
    section = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and line[0] not in "#;" and "=" in line:
            key, _, value = line.partition("=")
            found[f"{section}.{key.strip()}"] = value.strip()
    return found


def seconds(text: str | None, default: float | None) -> float | None:
    """
    A time span of systemd in seconds; None: without end, or switched off.

    :raise ValueError: it is no time span.
    """
    if not text:
        return default
    if text == "infinity":
        return None
    total, end = 0.0, 0
    while end < len(text):
        match = _SPAN.match(text, end)
        if match is None or match[2] not in _SECONDS:
            raise ValueError(f"{text!r} is no time span")
        total, end = total + float(match[1]) * _SECONDS[match[2]], match.end()
    return total or None  # systemd: 0 switches it off


def restarts(name: str, unit: Unit) -> Finding:
    """
    Judge whether a process comes back, however often it has died.
    """
    check = f"restarts of {name}"
    restart = unit.get("Service.Restart", "no")
    if restart != "always":
        return warning(
            check,
            f"Restart={restart}: it does not always come back by itself",
            "set Restart=always",
        )
    interval = unit.get("Unit.StartLimitIntervalSec", unit.get("Service.StartLimitInterval"))
    if seconds(interval, 10.0) is not None:
        return warning(
            check,
            "systemd gives up after some quick starts, as while a database comes up",
            "set StartLimitIntervalSec=0 in [Unit]",
        )
    return ok(check, "always, without a limit")


def stopping(unit: Unit, stop_limit: float) -> Finding:
    """
    Judge whether a stop may take the time that the configuration gives it.
    """
    limit = seconds(unit.get("Service.TimeoutStopSec", unit.get("Service.TimeoutSec")), STOP)
    text = f"TimeoutStopSec is {_shown(limit)}, drainer.stop_limit {stop_limit:g} s"
    if limit is not None and limit <= stop_limit:
        return warning(
            "stop of the daemon",
            f"{text}: SIGKILL comes first; nothing is lost, but answers are not waited for",
            f"set TimeoutStopSec above {stop_limit:g}, or lower drainer.stop_limit",
        )
    return ok("stop of the daemon", text)


def watchdog(unit: Unit, tick: float, timeout: float) -> Finding:
    """
    Judge whether a daemon that hangs is found, and one that waits is left alone.
    """
    name = "watchdog of the daemon"
    kind = unit.get("Service.Type", "simple")
    limit = seconds(unit.get("Service.WatchdogSec"), WATCHDOG)
    if not kind.startswith("notify"):
        return warning(
            name,
            f"Type={kind}: systemd does not know whether the daemon is ready, or hangs",
            "take the unit that is shipped: Type=notify, WatchdogSec=60",
        )
    if limit is None:
        return warning(name, "off: a daemon that hangs is not started anew", "set WatchdogSec=60")
    least = max(TICKS * tick, FAULTS * timeout)
    text = f"WatchdogSec is {_shown(limit)}"
    if limit <= TICKS * tick:
        return error(
            name,
            f"{text} and drainer.tick {tick:g} s: a healthy daemon is killed between two ticks",
            f"raise it above {least:g}",
        )
    if limit <= least:
        return warning(
            name,
            f"{text} and database.timeout {timeout:g} s: a tick that runs into time-outs is killed",
            f"raise it above {least:g}",
        )
    return ok(name, text)


def files(unit: Unit) -> Finding:
    """
    Judge how many descriptors the daemon may have.
    """
    text = unit.get("Service.LimitNOFILE", str(FILES)).split(":")[0]
    if text == "infinity" or (text.isdigit() and int(text) >= FILES_NEEDED):
        return ok("descriptors of the daemon", f"LimitNOFILE is {text}")
    return warning(
        "descriptors of the daemon",
        f"LimitNOFILE is {text}: that many idle callers keep everybody else out",
        f"set LimitNOFILE={FILES_NEEDED} or more",
    )


def draining(unit: Unit, wall: float) -> Finding:
    """
    Judge whether a stop of the executor lets a script come to its end.
    """
    name = "stop of the executor"
    limit = seconds(unit.get("Service.TimeoutStopSec", unit.get("Service.TimeoutSec")), STOP)
    text = f"TimeoutStopSec is {_shown(limit)}, executor.wall {wall:g} s"
    if limit is not None and limit <= wall:
        return warning(
            name,
            f"{text}: scripts that run are killed, and their outcome is unknown",
            f"set TimeoutStopSec above {wall:g}",
        )
    if unit.get("Service.KillMode") != "mixed":
        return warning(
            name,
            "KillMode is not mixed: SIGTERM goes to the workers as well, in the middle of scripts",
            "set KillMode=mixed",
        )
    return ok(name, text)


def _shown(limit: float | None) -> str:
    return "infinite" if limit is None else f"{limit:g} s"
