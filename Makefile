# The ways to run crqueue out of a checkout. A fresh Debian or Ubuntu needs make and python3 >= 3.11.

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

# PyPI may be slow or lose a connection now and then.
PIP := $(PYTHON) -m pip --quiet --disable-pip-version-check --retries 10 --timeout 60

PYTEST := -m pytest

# Most tests wait for processes most of the time. Tests of one file stay together: they share parts.
JOBS := 3
PARALLEL := --numprocesses $(JOBS) --dist loadfile --max-worker-restart 0
TRIAL := -W error -m twisted.trial --temp-directory build/trial --random 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help venv demo test quick lint bench servers clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY)  ## make .venv and install crqueue into it, editable

# editable_mode=compat puts the checkout itself on sys.path; with the import hook of a plain editable
# install, twistd does not find twisted/plugins/crqueue_plugin.py.
$(READY): setup.cfg pyproject.toml
	@test -x $(PYTHON) || { python=$$(scripts/provision python) && "$$python" -m venv $(VENV); }
	$(PIP) install --editable '.[test,lint]' --config-settings editable_mode=compat
	@touch $@

demo: $(READY)  ## a first look: daemon, executor and a throttled API (KEEP=1 leaves them running)
	$(PYTHON) -m demo $(if $(filter-out 0,$(KEEP)),--keep)

test: lint servers  ## everything: lint, all tests on both databases, coverage floors
	$(PYTHON) $(TRIAL) tests.unit
	$(PYTHON) $(PYTEST) $(PARALLEL) -p no:twisted --cov --cov-report=json tests/unit tests/store tests/automations \
		--ignore tests/automations/test_daemon.py
	@$(PYTHON) scripts/floors.py build/coverage/coverage.json
	$(PYTHON) $(PYTEST) $(PARALLEL) tests/automations/test_daemon.py tests/integration tests/browser
	$(PYTHON) $(PYTEST) tests/acceptance tests/galera

quick: lint  ## lint, unit tests and the store on SQLite; needs no server
	$(PYTHON) $(PYTEST) tests/unit tests/store --engine sqlite

lint: $(READY)  ## ruff, mypy, import floors
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

bench: $(READY) servers  ## all benchmarks
	$(PYTHON) -m benchmarks all

servers:  ## install what the tests start: mariadbd, memcached, php-fpm, apache2, nginx, chromium (starts none)
	@scripts/provision servers

clean:  ## remove what was built or cached, and .venv
	rm -rf $(VENV) .tox build dist *.egg-info _trial_temp* .coverage .hypothesis tests.unit.* \
		.import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name dropin.cache -type f -delete
