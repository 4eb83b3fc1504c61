"""
The executor: a plain WSGI application for gunicorn's sync workers. No Twisted anywhere in it.

One process runs one script at a time and is killed at the wall. What it owes the drainer, and what
other executors owe it as well, is in ``docs/executor-contract.md``.
"""
