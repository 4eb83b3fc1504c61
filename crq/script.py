"""
The language of the scripts: Starlark. `parse` is for admission, `run` for the executor.

A script sees ``payload``, ``print``, ``json``, ``struct`` and ``api``, and nothing of the process
it runs in: there is no import, no file, no clock. Nothing here does I/O; what a script may reach is
handed to `run`.

# Note [Depth]

Parser and evaluator recurse over the nesting of a script on the native stack. 100,000 brackets end
the whole process, and at admission that process is the daemon. So `parse` counts first. Between two
commas or ends of a statement nothing can be nested deeper than there are tokens; a bracket adds its
inside to what stands before it. ``lambda`` and a ``for`` between brackets may hold commas at their
own level, and each ``elif`` nests in the one before, so these three are counted through to the end.

# Note [What a call raises]

When a function that a script calls raises, Starlark makes an error of its own out of it and keeps
no cause; not even SystemExit gets through, by which gunicorn ends a worker at the wall. So each
function remembers what it raised, and `run` raises that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import starlark

DEPTH_LIMIT = 500  # 1,000 levels were seen to be evaluated within 8 MB of stack, 2,000 were not
SOURCE_NAME = "script.star"

_DIALECT: Final = starlark.Dialect.extended()
_DIALECT.enable_f_strings = True
_DIALECT.enable_load = False
_GLOBALS: Final = starlark.Globals.extended_by(
    [starlark.LibraryExtension.StructType, starlark.LibraryExtension.Json]
)
_PRELUDE: Final = starlark.parse(
    "prelude.star",
    """
def _api():
    def call(method, path, json):
        return struct(**_send(method, path, json))

    return struct(
        get = lambda path, json = None: call("GET", path, json),
        post = lambda path, json = None: call("POST", path, json),
        put = lambda path, json = None: call("PUT", path, json),
        patch = lambda path, json = None: call("PATCH", path, json),
        delete = lambda path, json = None: call("DELETE", path, json),
    )

def print(*values, sep = " "):
    _show(sep.join([str(value) for value in values]))

api = _api()
""",
    _DIALECT,
)


class Fault(Exception):
    """
    A script cannot go on. Running it again unchanged cannot help.

    :ivar line: where, from 1.
    :ivar column: where in the line, from 1; 1 when only the line is known.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


class SyntaxFault(Fault):
    """
    A script does not parse (201).
    """


class CallFailed(Exception):
    """
    What a script called cannot be done; it ends the script. The text is for the customer.
    """


def parse(source: str) -> starlark.AstModule:
    """
    Parse a script.

    :raise SyntaxFault: it does not parse, or is nested too deeply.
    """
    source = source.replace("\r\n", "\n")
    _shallow(source)
    try:
        return starlark.parse(SOURCE_NAME, source, _DIALECT)
    except starlark.StarlarkError as error:
        raise SyntaxFault(*_located(str(error))) from None
    except UnicodeEncodeError as error:
        where = _position(source, error.start)
        raise SyntaxFault("not valid Unicode: half of a surrogate pair", *where) from None


def run(
    source: str,
    payload: Any,
    send: Callable[[str, str, Any], dict[str, Any]],
    show: Callable[[str], None],
    over: Callable[[], str | None],
) -> None:
    """
    Run a script to its end.

    :param payload: a JSON value; the script's ``payload``.
    :param send: makes a call of the API: method, path, JSON value or None.
    :param show: takes what the script prints.
    :param over: says why no further loop iteration and no further call may begin, or None.
    :raise SyntaxFault: it does not parse.
    :raise Fault: it failed.
    """
    parsed = parse(source)
    raised: list[BaseException] = []
    why: list[str] = []

    def exhausted() -> bool:
        why.extend(filter(None, [over()]))
        return bool(why)

    # Starlark asks `exhausted` once in some hundred iterations only: a loop whose iterations are
    # slow is a loop that calls, so calls ask as well.
    def call(method: str, path: str, body: Any) -> dict[str, Any]:
        if exhausted():
            raise CallFailed(why[0])
        return send(method, path, body)

    module = starlark.Module()
    try:
        module["payload"] = payload
    except starlark.StarlarkError as error:
        raise ValueError(f"the payload cannot be handed to the script: {error}") from None
    module.add_callable("_send", _remembering(call, raised))
    module.add_callable("_show", _remembering(show, raised))
    starlark.eval(module, _PRELUDE, _GLOBALS)
    options = starlark.EvalOptions(check_cancelled=exhausted)
    try:
        starlark.eval_with(options, module, parsed, _GLOBALS)
    except starlark.StarlarkError as error:
        message, line, column = _located(str(error))
        if raised and not isinstance(raised[0], CallFailed):
            raise raised[0] from None
        if message.startswith("SystemExit"):
            # It came before a function could remember it: the worker is to end all the same.
            raise SystemExit(1) from None
        message = str(raised[0]) if raised else why[0] if why else message
        raise Fault(message, line, column) from None


def function(
    source: str, name: str, known: Mapping[str, Any], over: Callable[[], bool]
) -> Callable[[Any], Any]:
    """
    Make a function that a source defines callable, with one JSON value in and one out.

    The source is run once; what it made is frozen then, so that no call knows of another. It sees
    ``json`` and ``struct``, and neither ``print`` nor ``api``: a rule decides and does nothing.

    :param known: JSON values by the names it sees them under.
    :param over: whether what runs is to be broken off.
    :raise SyntaxFault: the source does not parse.
    :raise Fault: it, or later a call, failed; or it defines no such function.
    """
    parsed = parse(source)
    module = starlark.Module()
    for word, value in known.items():
        module[word] = value
    options = starlark.EvalOptions(check_cancelled=over)
    try:
        starlark.eval_with(options, module, parsed, _GLOBALS)
    except starlark.StarlarkError as error:
        raise Fault(*_located(str(error))) from None
    frozen = module.freeze()

    def call(argument: Any) -> Any:
        try:
            return frozen.call_with(options, name, argument).value
        except starlark.StarlarkError as error:
            raise Fault(*_located(str(error))) from None

    return call


def read_json(text: str) -> Any:
    """
    Read JSON as a script can take it: half surrogate pairs become question marks.

    :raise ValueError: it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if "\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _remembering(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    # See note [What a call raises].
    def remembering(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            raised.append(error)
            raise

    return remembering


# "error: what\n --> script.star:3:5\n  |\n3 | the line\n", after a traceback with frames such as
# "  * script.star:7, in name". Only the last arrow is Starlark's own: a script may print others.
_ERROR = re.compile(r"^error: ", re.M)
_ARROW = re.compile(r"^ *--> ([a-z]+\.star):(\d+):(\d+)$", re.M)
_FRAME = re.compile(rf"^  \* {re.escape(SOURCE_NAME)}:(\d+), in ", re.M)


def _located(text: str) -> tuple[str, int, int]:
    """
    Take a StarlarkError's text apart: message, line and column in the script.
    """
    begin = _ERROR.search(text)
    arrow = None
    for arrow in _ARROW.finditer(text):  # noqa: B007 - the last one
        pass
    message = text[begin.end() if begin else 0 : arrow.start() if arrow else None].strip()
    if arrow is not None and arrow[1] == SOURCE_NAME:
        return message, int(arrow[2]), int(arrow[3])
    frames = _FRAME.findall(text)
    return message, int(frames[-1]) if frames else 1, 1


_TOKEN = re.compile(
    r"""
      (?P<blank> [^\S\n]+ | \#[^\n]* | \\\n )
    | (?P<line> \n\ * )
    | (?P<token> '''(?:[^\\]|\\.)*?''' | \"""(?:[^\\]|\\.)*?\"""
        | '(?!'')(?:[^'\\\n]|\\.)*' | "(?!"")(?:[^"\\\n]|\\.)*"
        | \d+ | \w+ | [^\s'"] )
    | (?P<torn> . )
    """,
    re.X | re.S,
)


def _shallow(source: str) -> None:
    """
    Make sure that a script is not nested too deeply (see note [Depth]).
    """
    if "\r" in source:
        # Starlark reads it now as a blank, now as the end of a comment; nothing else writes it.
        where = _position(source, source.index("\r"))
        raise SyntaxFault("a carriage return without a line feed", *where)
    chains = [0]  # tokens since the last comma, one count for each open bracket
    depth = 0  # their sum, and what is counted through to the end
    indent = 0
    for match in _TOKEN.finditer(source):
        word = match[0]
        if match.lastgroup == "torn":
            return  # a text without an end: the parser says so, and reads no further
        if match.lastgroup == "line":
            if len(chains) == 1:
                indent = len(word) - 1
                depth -= chains[0]
                chains[0] = 0
        elif match.lastgroup == "token":
            if word in ",;":
                depth -= chains[-1]
                chains[-1] = 0
                continue
            depth += 1
            through = word in ("lambda", "elif") or (word == "for" and len(chains) > 1)
            chains[-1] += not through
            if word in "([{":
                chains.append(0)
            elif word in ")]}" and len(chains) > 1:
                depth -= chains.pop()
            if depth + indent > DEPTH_LIMIT:
                where = _position(source, match.start())
                raise SyntaxFault(f"nested deeper than {DEPTH_LIMIT} levels", *where)


def _position(source: str, offset: int) -> tuple[int, int]:
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)
