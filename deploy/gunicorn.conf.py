"""
How gunicorn runs the executor: ``gunicorn -c gunicorn.conf.py``.

The numbers come from crqueue's own configuration: the file in $CRQ_CONFIG, ./crqueue.toml or
/etc/crqueue/crqueue.toml. After a change of it, restart: SIGHUP replaces the workers, but the
application has been loaded before they are forked, and is kept.
"""

import logging
import math
import resource
from pathlib import Path

from crq import configfile

_options = configfile.load().executor

wsgi_app = "crq.executor.app:make_app()"
proc_name = "crqueue-executor"
bind = _options.bind

# A fixed ceiling of processes, one request each, killed at the wall (brief §2, §3). Threads or
# coroutines would lose the wall: it is the process that ends.
worker_class = "sync"
workers = _options.workers
timeout = math.ceil(_options.wall)
# A stop lets the scripts that run come to their end.
graceful_timeout = timeout + 5
# Never more than a few dispatches are under way; a flood waits at the sender, not in the kernel.
backlog = 64

# A broken configuration ends the start, instead of one worker after the other; and what a worker
# may add to its memory is counted from the loaded application.
preload_app = True
# What a thousand scripts leave behind in a process goes with it. It ends between two requests, so
# no execution sees it, and not all workers in the same hour.
max_requests = 1000
max_requests_jitter = 200

# When memory is used up the interpreter panics, and a backtrace would need more of it: the worker
# would hang to the wall instead of telling the outcome.
raw_env = ["RUST_BACKTRACE=0"]

control_socket_disable = True  # it would be made in the home directory, and nothing here uses it


def on_starting(server):
    """
    Let what the application logs go where gunicorn's own log goes: to the journal.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s [%(process)d] [%(name)s] %(message)s"
    )


def post_fork(server, worker):
    """
    Bound what a script may add to its worker's memory: it dies alone, not the machine.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _options.memory_mb * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
