"""
The rate-limited API, as scripts reach it: one call, its waits, its gate.

# Note [The two ladders]

An API that limits its callers answers 429 with Retry-After, or 401 "API limit reached for this
method". Either is waited for and sent again, at most `ApiOptions.attempts` times in one call and
never past the end of the worker's wall (brief §10). How often a call has been tried is a variable
of that call: counted on the client, the third 429 anywhere in a long script would end the retries
of all later calls. A 429 that asks for a long wait ends the script; either way it closes the gate,
so that no other execution of this key starts until then.

# Note [Secrets]

An exception of requests or http.client may quote a header's value, so no text of theirs is passed
on: what failed is said in our words, and ``from None`` keeps theirs out of tracebacks.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import requests
import urllib3
from attrs import define, field, frozen

import crq
from crq import crashpoints, policy
from crq.config import ApiOptions, GateOptions
from crq.executor.clock import Clock
from crq.instants import Instant, iso
from crq.interfaces import IGateStore
from crq.script import CallFailed, read_json

BODY_LIMIT = 8_000_000  # bytes of an answer, unpacked; it is held in memory some five times over
PIECE = 65_536  # bytes read at a time
API_LIMIT = "API limit reached for this method"  # what a 401 says that is a limit in truth

_log = logging.getLogger("crq.executor")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.A | re.I)
_CHARSET = re.compile(r"charset=\"?([\w.:-]{1,40})", re.A | re.I)
_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


@frozen
class Access:
    """
    What an account's calls need.

    :ivar address: of the API, with the account's host; without a slash at its end.
    :ivar key_hash: whose gate a 429 closes; None: the row has no key to gate.
    :raise ValueError: the account or its key cannot be used; the text repeats neither.
    """

    address: str
    apikey: str = field(repr=False)
    key_hash: str | None = None

    @apikey.validator
    def _sendable(self, _attribute: object, value: str) -> None:
        if _KEY.fullmatch(value) is None:
            raise ValueError("the API key cannot be sent in a header")

    @classmethod
    def of(
        cls, options: ApiOptions, subdomain: str | None, apikey: str, key_hash: str | None
    ) -> Access:
        """
        The access of an account.
        """
        address = options.base_url.rstrip("/")
        if "{subdomain}" in address:
            if subdomain is None or _LABEL.fullmatch(subdomain) is None:
                raise ValueError("the account's subdomain is no DNS label")
            address = address.replace("{subdomain}", subdomain)
        return cls(address, apikey, key_hash)


@frozen
class _Answer:
    status: int
    retry_after: str | None
    text: str

    def json(self) -> Any:
        try:
            return read_json(self.text)
        except ValueError:
            return None


@frozen
class Refusal:
    """
    A 429, as the history of gates is told of it.

    :ivar said: what the API said of the wait, if anything.
    """

    key_hash: str
    until: Instant
    now: Instant
    said: str | None


@frozen
class _Limit:
    wait: float  # s
    short: bool = True  # short enough to be waited for inside a script
    gate: str = " (401)"


@define(eq=False)
class ApiClient:
    """
    The calls of one execution: one connection, one cookie jar, never another account's.

    :ivar left: seconds that are left of the wall, less what it takes to write the outcome.
    :ivar rules: how long a refusal is waited for.
    :ivar refused: told of each refusal; must not raise.
    """

    options: ApiOptions
    access: Access
    gates: IGateStore
    clock: Clock
    left: Callable[[], float]
    rules: GateOptions = field(factory=GateOptions)
    refused: Callable[[Refusal], None] = lambda _: None
    _session: requests.Session = field(init=False, factory=requests.Session)

    def close(self) -> None:
        """
        Let go of the connection.
        """
        self._session.close()

    def send(self, method: str, path: object, body: Any = None) -> dict[str, Any]:
        """
        Make one call (see note [The two ladders]).

        :param body: a JSON value, or None for no body.
        :raise CallFailed: there is no answer, or a limit that cannot be waited for.
        """
        what = f"{method} {str(path)[:200]}"
        url = self.access.address + _checked(what, path)
        for attempt in itertools.count(1):
            crashpoints.reached("call begins")
            answer = self._exchange(what, method, url, body)
            crashpoints.reached("call ended")
            limit = self._limit(answer)
            if limit is None:
                break
            if not limit.short:
                problem = f"a wait of {limit.wait:g} s is too long for a script"
            elif attempt >= self.options.attempts:
                problem = f"{attempt} attempts were answered so"
            elif limit.wait > self.left():
                left = max(0.0, self.left())
                problem = f"a wait of {limit.wait:g} s does not fit into the {left:.0f} s left"
            else:
                self.clock.sleep(limit.wait)
                continue
            raise CallFailed(f"{what}: over the API's limit{limit.gate}; {problem}")
        return {"status": answer.status, "json": answer.json(), "text": answer.text}

    def _limit(self, answer: _Answer) -> _Limit | None:
        """
        Read a limit out of an answer; a 429 closes the gate.
        """
        if answer.status == 401 and API_LIMIT in answer.text:
            return _Limit(self.options.wait_unauthorized)
        if answer.status != 429:
            return None
        said = answer.retry_after
        if said is None:
            value = answer.json()
            found = value.get("retry_after") if isinstance(value, dict) else None
            said = None if found is None else str(found)
        now = self.clock.wall()
        seconds = policy.retry_after(said, now, self.rules.shortest_wait)
        until = self._close_gate(policy.gate_until(seconds, now, self.rules.margin), now)
        if self.access.key_hash is not None:
            self.refused(Refusal(self.access.key_hash, until, now, said))
        return _Limit(
            seconds + self.rules.margin,
            short=seconds < self.options.wait_below,
            gate=f" (429, the gate of its key is closed until {iso(until)})",
        )

    def _close_gate(self, until: Instant, now: Instant) -> Instant:
        key = self.access.key_hash
        if key is None:
            return until
        crashpoints.reached("gate closing")
        try:
            standing = self.gates.close(key, until, now)
            crashpoints.reached("gate closed")
            return standing
        except Exception as error:  # noqa: BLE001 - the gate only predicts; the script goes on
            _log.error("gate of key %s not closed: %s", key[:8], type(error).__name__)
            return until

    def _exchange(self, what: str, method: str, url: str, body: Any) -> _Answer:
        seconds = min(self.options.timeout, self.left())
        if seconds <= 0:
            raise CallFailed(f"{what}: no time is left for it")
        deadline = self.clock.monotonic() + seconds
        try:
            with self._session.request(
                method,
                url,
                json=body,
                headers={"Accept": "application/json", "User-Agent": f"crqueue/{crq.__version__}"},
                # Not a header of the request: with `auth` given, no .netrc is looked into.
                auth=self._authorize,
                timeout=seconds,
                allow_redirects=False,  # the host is the account's, whatever it answers
                stream=True,
            ) as response:
                text = self._text(what, response, deadline)
                return _Answer(response.status_code, response.headers.get("Retry-After"), text)
        except (requests.Timeout, urllib3.exceptions.TimeoutError):
            raise CallFailed(f"{what}: no whole answer within {seconds:g} s") from None
        except (requests.ConnectionError, urllib3.exceptions.HTTPError):
            raise CallFailed(f"{what}: the connection to the API failed") from None
        except requests.RequestException as error:
            raise CallFailed(f"{what}: cannot be sent ({type(error).__name__})") from None

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers[self.options.key_header] = self.access.apikey
        return request

    def _text(self, what: str, response: requests.Response, deadline: float) -> str:
        # Each read waits for as long as the whole call may take; the wall ends what drips longer.
        body = bytearray()
        while piece := response.raw.read1(PIECE, decode_content=True):
            body += piece
            if len(body) > BODY_LIMIT:
                raise CallFailed(f"{what}: the answer is longer than {BODY_LIMIT:,} bytes")
            if self.clock.monotonic() > deadline:
                raise urllib3.exceptions.TimeoutError
        said = _CHARSET.search(response.headers.get("Content-Type", ""))
        try:
            text = body.decode(said[1] if said else "utf-8", "replace")
        except (LookupError, UnicodeError):  # an encoding that nobody knows, or that cannot repair
            text = body.decode("utf-8", "replace")
        return text.encode("utf-8", "replace").decode("utf-8")  # half surrogate pairs


def _checked(what: str, path: object) -> str:
    """
    Make sure that a path stays below the API's address.
    """
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
        raise CallFailed(f"{what}: a path begins with one slash; the host is not the script's")
    plain = unquote(path.partition("?")[0])
    if "\\" in plain or {".", ".."} & set(plain.split("/")):
        raise CallFailed(f"{what}: a path has no backslash and no segment that is only dots")
    if "#" in path or any(character < " " or character == "\x7f" for character in path):
        raise CallFailed(f"{what}: write # and control characters as %23, %0A and so on")
    return path
