"""
The operator's side of a real daemon: what it keeps over a kill, what is seen when it is dead, TLS.
"""

from __future__ import annotations

import datetime
import http.client
import json
import ssl
import time
from pathlib import Path
from typing import Any

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from crq import actions, status
from crq.actions import By
from crq.model import GateReading
from crq.statusreport import StatusReport
from crq.verdict import Verdict
from tests.fake_api import FakeApi
from tests.installation import Installation
from tests.servers import HOST, free_port

WITHIN = 30.0  # s
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def do(installation: Installation, method: str, path: str, **body: Any) -> Any:
    """
    Ask the daemon, and return what it answered.
    """
    answer = requests.request(
        method,
        f"http://{HOST}:{installation.web_port}{path}",
        json=body or None,
        headers={"Authorization": f"Bearer {installation.token}"},
        timeout=WITHIN,
    )
    assert answer.ok, answer.text
    return answer.json()


def resume(installation: Installation) -> None:
    """
    End the pause without a daemon.
    """
    database = installation.config.open_database()
    connection = database.connect()
    try:
        database.transact(connection, actions.resume, "all", "", By("token:ops", time.time()))
    finally:
        connection.close()


def outside(installation: Installation, later: float) -> StatusReport:
    """
    How the queue looks from outside, some seconds from now.
    """
    database = installation.config.open_database()
    connection = database.connect()
    try:
        reading = database.read(connection, status.read)
    finally:
        connection.close()
    limits = installation.config.limits.limits()
    return status.report(reading, GateReading(), limits, time.time() + later)


def test_what_was_set_outlives_a_kill(tmp_path: Path) -> None:
    """
    Paused, killed, started again: still paused, and nothing was dispatched; a daemon that is dead
    is seen as such, from the database alone.
    """
    with Installation(tmp_path) as installation:
        installation.start_daemon()
        do(installation, "PUT", "/controls/pause/all", note="moving")
        do(installation, "PUT", "/controls/cap/all", value=2)
        status_code, answer = installation.submit(subdomain="acme", apikey="k", source_code="x = 1")
        assert status_code == 202, answer
        deadline = time.monotonic() + WITHIN
        while outside(installation, 0.0).verdict is not Verdict.GATED:
            assert time.monotonic() < deadline, "no beat of a good tick"
            time.sleep(0.05)
        installation.kill("daemon")
        assert outside(installation, 5.0).verdict is Verdict.GATED
        assert outside(installation, 40.0).verdict is Verdict.DEGRADED
        installation.start_daemon()
        shown = do(installation, "GET", "/status")
        assert (shown["verdict"], shown["limits"]["inFlight"]) == ("gated", 2)
        assert (shown["controls"]["paused"], shown["daemon"]["starts"]) == (True, 0)
        lines = do(installation, "GET", "/audit")["entries"]
        assert [line["action"] for line in lines] == ["cap", "pause"]
        installation.kill("daemon")
        resume(installation)  # only now: a living daemon might have the row on its way
        report = outside(installation, 60.0)
        assert report.verdict is Verdict.STALLED, report.because
        assert "is the daemon running?" in report.because


def test_one_starts_under_a_pause_with_its_trace(tmp_path: Path) -> None:
    """
    Of two that are paused the one that was asked for runs, is measured, and leaves its trace on the
    row; the other waits, and an explanation says why.
    """
    with FakeApi() as api:
        settings: dict[str, dict[str, object]] = {
            "api": {"base_url": api.url},
            "executor": {"workers": 2},
        }
        with Installation(tmp_path, settings) as installation:
            installation.start_executor()
            installation.start_daemon()
            do(installation, "PUT", "/controls/pause/account/acme")
            numbers = []
            for _ in range(2):
                answer = requests.post(
                    f"http://{HOST}:{installation.web_port}/codeRunner",
                    json={"subdomain": "acme", "apikey": "k", "source_code": "x = 1"},
                    headers={
                        "Authorization": f"Bearer {installation.token}",
                        "traceparent": TRACE,
                    },
                    timeout=WITHIN,
                )
                numbers.append(answer.json()["executionId"])
            do(installation, "POST", f"/codeRunner/executions/{numbers[1]}/run-one")
            path = f"/codeRunner/executions/{numbers[1]}"
            deadline = time.monotonic() + WITHIN
            while (shown := do(installation, "GET", path))["status"] != "success":
                assert time.monotonic() < deadline, shown
                time.sleep(0.05)
            assert shown["traceparent"] == TRACE
            why = do(installation, "GET", f"/codeRunner/executions/{numbers[0]}/explain")
            assert why["why"][0]["rule"] == "paused"
            deadline = time.monotonic() + WITHIN
            wanted = 'crqueue_executions_finished_total{outcome="success"} 1.0'
            while wanted not in (text := installation.get("/metrics")[1]):
                assert time.monotonic() < deadline, text
                time.sleep(0.05)
            assert "crqueue_service_seconds_count 1.0" in text
            assert "crqueue_wait_seconds_count 1.0" in text


def certificate(folder: Path) -> tuple[Path, Path]:
    """
    A key and a certificate for this machine, signed by itself.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private, public = folder / "door.key", folder / "door.pem"
    private.touch(0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(made.public_bytes(Encoding.PEM))
    return private, public


def test_the_door_speaks_tls(tmp_path: Path) -> None:
    """
    With a certificate of our own: whoever trusts it admits and reads; plain HTTP is not understood.
    """
    private, public = certificate(tmp_path)
    port = free_port()
    listen = f"ssl:{port}:privateKey={private}:certKey={public}:interface={HOST}"
    with Installation(tmp_path, {"web": {"listen": listen}}) as installation:
        installation.start_daemon(wait=False)
        trust = ssl.create_default_context(cafile=str(public))

        def ask(method: str, path: str, body: str | None = None) -> tuple[int, Any]:
            connection = http.client.HTTPSConnection(
                "localhost", port, timeout=WITHIN, context=trust
            )
            headers = {
                "Authorization": f"Bearer {installation.token}",
                "Content-Type": "application/json",
            }
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())
            finally:
                connection.close()

        deadline = time.monotonic() + WITHIN
        while True:
            try:
                code, _ = ask("GET", "/health/ready")
            except OSError:
                code = 0
            if code == 200:
                break
            installation.check()
            assert time.monotonic() < deadline, installation.log("daemon")
            time.sleep(0.05)
        given = {"subdomain": "acme", "apikey": "k", "source_code": "x = 1"}
        code, answer = ask("POST", "/codeRunner", json.dumps(given))
        assert code == 202, answer
        assert ask("GET", f"/codeRunner/executions/{answer['executionId']}")[0] == 200
        code, answer = ask("POST", "/codeRunner", "x" * 2_000_000)
        assert (code, answer["field"]) == (413, "body")
        plain = http.client.HTTPConnection(HOST, port, timeout=WITHIN)
        try:
            plain.request("GET", "/health/live")
            plain.getresponse()
        except (OSError, http.client.HTTPException):
            pass
        else:
            raise AssertionError("plain HTTP was answered")
        finally:
            plain.close()
        assert "Traceback" not in installation.log("daemon")
