"""
The HTTP door against its own description: schemathesis asks a real daemon whatever the description
allows, and much that it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error, positive_data_acceptance

from crq.web import openapi
from crq.web.automations import described
from tests.installation import Installation
from tests.servers import HOST

EXAMPLES = 8  # of each operation
# Whose requests may be refused for what they mean, which no schema can say: a script that does not
# parse, a cursor that is none, a cap above the executor's ceiling, an instant in the past.
MEANING = {
    ("post", "/codeRunner"),
    ("get", "/codeRunner/logs/data"),
    ("put", "/controls/cap/all"),
    ("put", "/controls/cap/account/{name}"),
    ("put", "/gates/{key}"),
    # A name that is taken, settings that do not fit their type, a schedule that never comes; what
    # is switched off has no run made.
    ("post", "/automations"),
    ("post", "/automations/preview"),
    ("patch", "/automations/{automation_id}"),
    ("get", "/automations/occurrences"),
    ("post", "/automations/{automation_id}/run-now"),
    ("post", "/automations/{automation_id}/promote"),
}
NUMBERS = {"automation_id": 1, "run_id": 1}  # of what there is
OPERATIONS = [
    (method, path)
    for path, item in sorted(openapi.document()["paths"].items())
    for method in item
    if method != "parameters"
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """
    A daemon with a few executions and no executor.
    """
    settings: dict[str, dict[str, object]] = {"web": {"rate": 0.0}}
    with Installation(tmp_path_factory.mktemp("schema"), settings) as made:
        made.start_daemon()
        for account in ("acme", "other"):
            made.submit(subdomain=account, apikey="k", source_code="x = 1")
        tidy = {"tenant": "acme", "name": "tidy", "type": "housekeeping", "config": {}}
        _post(made, "/automations", {**tidy, "cron": "0 3 * * *", "zone": "UTC"})
        _post(made, "/automations/1/observe", {})
        _post(made, "/automations/1/run-now", {})
        yield made


def _post(daemon: Installation, path: str, body: dict[str, object]) -> None:
    answer = requests.post(
        f"http://{HOST}:{daemon.web_port}{path}",
        json=body,
        headers={"Authorization": f"Bearer {daemon.token}"},
        timeout=10,
    )
    assert answer.ok, answer.text


@pytest.fixture(scope="module")
def schema(daemon: Installation) -> Any:
    """
    The description, as the daemon serves it.
    """
    url = f"http://{HOST}:{daemon.web_port}"
    found = requests.get(f"{url}/openapi.json", timeout=10).json()
    made = schemathesis.openapi.from_dict(found)
    made.config.update(base_url=url)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_as_described(
    daemon: Installation, schema: Any, method: str, path: str
) -> None:
    """
    No fault of ours (5xx), no undescribed code or body, for good requests and bad ones, with a
    token.
    """
    headers = {"Authorization": f"Bearer {daemon.token}"}
    excluded = [positive_data_acceptance] if (method, path) in MEANING else []
    if path.startswith("/health/"):
        excluded.append(not_a_server_error)  # 503 is what they are asked for

    @hypothesis.given(case=schema[path][method.upper()].as_strategy())
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        for name, number in NUMBERS.items():
            given = (case.path_parameters or {}).get(name)
            if isinstance(given, int) and 1 <= given <= described.HIGHEST:
                case.path_parameters[name] = number
        case.call_and_validate(headers=headers, excluded_checks=excluded)

    ask()
    daemon.check()
