"""
The executor's HTTP door: a WSGI application, and the factory that gunicorn calls.

Every answer is JSON. What is refused says ``field``, ``problem`` and ``remedy``; ``errorCode`` and
``errorMessage`` say the same to a drainer. No answer carries a traceback or a secret.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from attrs import define

from crq import __version__, configfile, crashpoints, schema, submissions, tokens
from crq.config import Config, Token
from crq.configfile import ConfigError
from crq.database import is_outage
from crq.executor.clock import Clock
from crq.executor.run import Executor, Finished, Refused
from crq.gates import open_store
from crq.model import ErrorCode
from crq.sealing import same_secret
from crq.submissions import Refusal

FORM_LIMIT = 4096  # bytes of a dispatch; a job's number and a nonce have about 80

_log = logging.getLogger("crq.executor")
_JOB = re.compile(r"[0-9]{1,10}")

Environ = Mapping[str, Any]
Reply = tuple[int, dict[str, Any]]
NO_NONCE = Refused(
    400,
    "asyncNonce",
    "is missing or empty",
    "send the form fields jobId and asyncNonce as application/x-www-form-urlencoded",
    ErrorCode.NONCE_MISSING,
)
UNKNOWN_JOB = Refused(
    409,
    "jobId",
    "there is no such job",
    "send the number of a claimed job",
    ErrorCode.NONCE_INVALID,
)
BROKEN = Refused(500, "server", "something went wrong here", "the executor's log says what")


def make_app(config: Config | None = None) -> App:
    """
    Build the application. Nothing is connected yet: gunicorn forks after this.

    :param config: None: what `configfile.load` finds.
    :raise ConfigError: the executor cannot work with it.
    """
    config = configfile.load() if config is None else config
    if config.executor.contract != "fenced":
        raise ConfigError(
            f"executor.contract: is {config.executor.contract}, and this executor needs the fence;"
            " set it to fenced, or run no executor of crqueue beside a plain endpoint"
        )
    if config.script.language != "starlark":
        raise ConfigError(
            "script.language: this executor runs starlark alone; for another language set"
            " executor.url to the address of an executor that knows it"
        )
    try:
        gates = open_store(config, config.open_database())
        return App(config, Executor.of(config, gates, Clock()))
    except ValueError as error:
        raise ConfigError(str(error)) from None


@define(eq=False)
class App:
    """
    The application of one worker process.
    """

    config: Config
    executor: Executor

    def __call__(
        self, environ: Environ, start_response: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        """
        Answer one request.
        """
        headers = []
        try:
            status, answer = self._route(environ)
        except Refusal as refusal:
            status, answer = _refused(
                Refused(refusal.http_status, refusal.field, refusal.problem, refusal.remedy)
            )
        except Exception:  # noqa: BLE001 - a boundary; only what comes before a start ends here
            _log.exception("request failed")
            status, answer = _refused(BROKEN)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", _ROUTES[environ["PATH_INFO"]][0]))
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append(("WWW-Authenticate", "Bearer"))
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        headers += [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def _route(self, environ: Environ) -> Reply:
        route = _ROUTES.get(environ.get("PATH_INFO", ""))
        if route is None:
            raise Refusal("path", "there is nothing here", f"known: {', '.join(_ROUTES)}", 404)
        method, handler = route
        if environ["REQUEST_METHOD"] != method:
            raise Refusal("method", "is not allowed here", f"send {method}", 405)
        return handler(self, environ)

    def run_async(self, environ: Environ) -> Reply:
        """
        Run one dispatched execution.
        """
        form = parse_qs(
            _body(environ, FORM_LIMIT).decode("ascii", "replace"), keep_blank_values=True
        )
        job, nonce = (form.get(name, [""])[-1] for name in ("jobId", "asyncNonce"))
        if not nonce:
            return _refused(NO_NONCE)
        if _JOB.fullmatch(job) is None:
            return _refused(UNKNOWN_JOB)
        answer = self.executor.execute(int(job), nonce)
        crashpoints.reached("answering")
        if isinstance(answer, Refused):
            return _refused(answer)
        return 200, _finished(answer)

    def test(self, environ: Environ) -> Reply:
        """
        Run a script at once for a person who waits.
        """
        token = self._token(environ)
        if "admit" not in token.scopes:
            raise Refusal("scope", "the token may not run scripts", "use one that may admit", 403)
        body = _body(environ, self.config.web.body_limit)
        given = submissions.json_value(body, "body", 400)
        if not isinstance(given, dict):
            raise Refusal("body", "is no JSON object", "send the fields by name", 400)
        submission = submissions.submission(given)
        accounts = [name.lower() for name in token.accounts]
        if accounts and submission.subdomain not in accounts:
            raise Refusal("subdomain", "the token is not for this account", "use one that is", 403)
        try:
            ended = self.executor.trial(submission)
        except ValueError as error:
            raise Refusal("apikey", str(error), "correct it") from None
        place = {"line": ended.fault.line, "column": ended.fault.column} if ended.fault else {}
        return 200, {**_outcome(ended.outcome), **place, "output": ended.output}

    def health(self, environ: Environ) -> Reply:
        """
        Say whether this worker can execute: its database answers and has the schema it needs.

        What `crq doctor` compares with the drainer's own configuration comes along.
        """
        try:
            self.executor.connection.read(schema.check)
        except schema.SchemaMismatch as error:
            raise Refusal("database", str(error), "then ask again", 503) from None
        except Exception as error:
            if not is_outage(error):
                raise
            raise Refusal("database", "does not answer", "ask again", 503) from None
        return 200, {
            "status": "ok",
            "version": __version__,
            "wall": self.config.executor.wall,
            "liveness": self.config.executor.liveness,
            "gates": self.config.gates.backend,
            "time": round(self.executor.clock.wall(), 3),
        }

    def _token(self, environ: Environ) -> Token:
        """
        Find whose token a request carries. Every known one is compared: the time tells nothing.
        """
        # Any bytes may come; WSGI hands them over as Latin-1.
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace").strip()
        scheme, _, secret = given.partition(b" ")
        secret = secret.strip() if scheme.lower() == b"bearer" else b""
        found = [each for each in self.config.tokens if same_secret(secret, each.sha256)]
        if not found and secret:
            stored = self._stored_tokens()
            found = [each for each in stored if same_secret(secret, each.sha256)]
        if not found:
            raise Refusal(
                "Authorization", "no known token", "send: Authorization: Bearer TOKEN", 401
            )
        return found[-1]

    def _stored_tokens(self) -> tuple[Token, ...]:
        try:
            return self.executor.connection.read(tokens.active)
        except Exception as error:
            if not is_outage(error):
                raise
            # Nobody knows whether it is a known one, and nobody is let in on a guess (F118).
            raise Refusal("database", "does not answer", "ask again", 503) from None


_ROUTES: dict[str, tuple[str, Callable[[App, Environ], Reply]]] = {
    "/codeRunner/runAsync": ("POST", App.run_async),
    "/codeRunner/test": ("POST", App.test),
    "/health": ("GET", App.health),
}


def _body(environ: Environ, limit: int) -> bytes:
    length = environ.get("CONTENT_LENGTH") or str(limit + 1)  # none given: sent in chunks
    if re.fullmatch(r"[0-9]{1,18}", length) is None:
        raise Refusal("Content-Length", "is no length", "send the body's bytes", 400)
    if environ.get("CONTENT_LENGTH") and int(length) > limit:
        raise Refusal("body", f"is longer than {limit} bytes", "send less", 413)
    try:
        body: bytes = environ["wsgi.input"].read(min(int(length), limit + 1))
    except OSError:
        # Gunicorn's errors of a broken body are of this kind. Not 400: to a drainer that would
        # speak of the row, and cost it.
        raise Refusal("body", "did not arrive whole", "send it again", 408) from None
    if len(body) > limit:
        raise Refusal("body", f"is longer than {limit} bytes", "send less", 413)
    return body


def _refused(refused: Refused) -> Reply:
    answer: dict[str, Any] = {
        "errorCode": refused.error_code and int(refused.error_code),
        "errorMessage": f"{refused.field}: {refused.problem}; {refused.remedy}",
        "field": refused.field,
        "problem": refused.problem,
        "remedy": refused.remedy,
    }
    return refused.http_status, answer


def _finished(finished: Finished) -> dict[str, Any]:
    return {"executionId": finished.execution_id, **_outcome(finished.outcome)}


def _outcome(outcome: Any) -> dict[str, Any]:
    return {
        "status": outcome.status.value,
        "errorCode": outcome.error_code,
        "errorMessage": outcome.error_message,
    }
