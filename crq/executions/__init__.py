"""
All transitions of an execution: one function each, one conditional UPDATE each.

Plain functions on a `crq.database.Cursor`, called inside `Database.transact`; the daemon reaches
them through adbapi, the executor and the command line directly. Every UPDATE names the state it
leaves, and the row count says who won; "somebody else decided" is an answer, not an error.

# Note [The fence]

`claim` mints a nonce and stores its SHA-256; `start` needs it and takes it away. A row that is
still claimed has therefore not begun, whatever was sent, and may go back to the queue; a row that
is running has begun and is never started again.
"""

from crq.executions.admission import admit, find, record_invalid
from crq.executions.claiming import cancel, claim, fail_dispatch, release
from crq.executions.keeping import purge, reap_queued, running_since, scrub
from crq.executions.plain import Ending, end, parcels, put_back
from crq.executions.reading import heads, in_flight, news, snapshot, waiting, waits
from crq.executions.running import died, finish, row_states, start, startable, worker_of
from crq.executions.steering import cancel_waiting, count_waiting, settle_unknown

__all__ = [
    "Ending",
    "admit",
    "cancel",
    "cancel_waiting",
    "claim",
    "count_waiting",
    "died",
    "end",
    "fail_dispatch",
    "find",
    "finish",
    "heads",
    "in_flight",
    "news",
    "parcels",
    "purge",
    "put_back",
    "reap_queued",
    "record_invalid",
    "release",
    "row_states",
    "running_since",
    "scrub",
    "settle_unknown",
    "snapshot",
    "start",
    "startable",
    "waiting",
    "waits",
    "worker_of",
]
