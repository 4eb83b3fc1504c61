"""
From a script to its outcome: the one place where a failure becomes an error code.

201: it does not parse. 301: the script failed, or the API would not have it. 302: the executor
failed. What ends the worker (SystemExit at gunicorn's wall) is no outcome and goes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from attrs import define, field, frozen

from crq import script
from crq.config import Config
from crq.executor.api import Access, ApiClient, Refusal
from crq.executor.clock import Clock
from crq.interfaces import IGateStore
from crq.messages import Outcome
from crq.model import ErrorCode, Status

KEPT_BACK = 0.02  # of the wall, 6 s of 300: for writing the outcome before the worker is killed
MESSAGE_LENGTH = 4000  # characters; in UTF-8 they always fit into a TEXT column
OUTPUT_LENGTH = 65_536  # characters that a script may print; more is cut

_log = logging.getLogger("crq.executor")


@frozen
class Work:
    """
    One script with all it needs.

    :ivar payload: JSON text, or None.
    """

    source_code: str = field(repr=False)
    payload: str | None = field(repr=False)
    access: Access


@frozen
class Ended:
    """
    How a script ended.

    :ivar fault: where, if it failed at a place of its own.
    :ivar output: what it printed.
    """

    outcome: Outcome
    fault: script.Fault | None = None
    output: str = field(default="", repr=False)


@define(eq=False)
class _Output:
    _parts: list[str] = field(init=False, factory=list)
    _room: int = field(init=False, default=OUTPUT_LENGTH)

    def show(self, text: str) -> None:
        if self._room <= 0:
            return
        text += "\n"
        if len(text) > self._room:
            text = text[: self._room] + "…\n(what it printed after this is cut)\n"
        self._parts.append(text)
        self._room -= len(text)

    def text(self) -> str:
        return "".join(self._parts)


def interpret(
    work: Work,
    config: Config,
    gates: IGateStore,
    clock: Clock,
    begun: float,
    refused: Callable[[Refusal], None] = lambda _: None,
) -> Ended:
    """
    Run a script to its end, whatever it is.

    :param begun: monotonic instant at which the worker's wall began.
    :param refused: told of each refusal by the API; must not raise.
    """
    ends = begun + config.executor.wall * (1 - KEPT_BACK)
    seconds = config.executor.script_seconds
    over = clock.monotonic() + seconds
    output = _Output()

    def failed(code: ErrorCode, message: str, fault: script.Fault | None = None) -> Ended:
        return Ended(Outcome(Status.FAILED, int(code), clean(message)), fault, output.text())

    def why_over() -> str | None:
        if clock.monotonic() < over:
            return None
        return f"the script has run for {seconds:g} s, and nothing new begins after that"

    def left() -> float:
        return ends - clock.monotonic()

    api = ApiClient(config.api, work.access, gates, clock, left, config.gates, refused)
    try:
        payload = None if work.payload is None else script.read_json(work.payload)
    except ValueError as error:
        return failed(ErrorCode.EXECUTOR_FATAL, f"the payload is not JSON: {error}")
    try:
        with closing(api):
            script.run(work.source_code, payload, api.send, output.show, why_over)
    except script.SyntaxFault as fault:
        return failed(ErrorCode.SCRIPT_INVALID, str(fault), fault)
    except script.Fault as fault:
        return failed(ErrorCode.SCRIPT_ERROR, str(fault), fault)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - a boundary; a Rust panic is no Exception
        if isinstance(error, MemoryError) or str(error) == "out of memory":
            return failed(ErrorCode.EXECUTOR_FATAL, "the worker ran out of memory")
        _log.exception("the executor failed in the midst of a script")
        name = type(error).__name__
        return failed(ErrorCode.EXECUTOR_FATAL, f"the executor failed: {name}; its log says more")
    return Ended(Outcome(Status.SUCCESS), None, output.text())


def clean(text: str) -> str:
    """
    Make a message fit to be stored anywhere: valid Unicode, no control characters, not too long.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = "".join(
        each if each >= " " or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
    if len(text) > MESSAGE_LENGTH:
        text = text[: MESSAGE_LENGTH - 1] + "…"
    return text
