"""
Every limit of an automation's life, with its reason.

They exist so that one automation cannot take a tick for itself, a bad clock cannot flood the
tables, and a mistake that survived observe costs a handful of records that a person can look
through. None is an option: an operator who could raise them would raise them on the wrong day.
"""

from __future__ import annotations

from typing import Final

# -- what an operator may choose, and how far

MAX_ITEMS: Final = 1_000  # records that one run decides, unless the automation says otherwise
MAX_ITEMS_CEILING: Final = 100_000  # at 100 a chunk and 10 chunks a tick, under two hours
MAX_CHANGES: Final = 25  # records that one live run changes: what a person looks through at once
MAX_CHANGES_CEILING: Final = 1_000  # beyond it is a migration, and wants a person beside it
AUTOMATIONS_PER_TENANT: Final = 1_000  # bounds what one tenant can make due in one minute

# -- Phase A: due automations become runs

CLAIMS_PER_ROUND: Final = 100  # of one tenant in one transaction: its locks last milliseconds
PHASE_A_SECONDS: Final = 30.0  # half the minute; what is left then is due in the next one as well

# -- Phase B: open runs go on

PHASE_B_SECONDS: Final = 40.0  # from the tick's start no chunk begins after this …
CALL_SECONDS: Final = 15.0  # … and one call is waited for this long: 55 s, before the next minute
TENANT_SECONDS: Final = 10.0  # of one tenant in a tick, once it has its turn
RUNS_PER_TENANT: Final = 50  # open runs of one tenant that a tick looks at
CHUNKS_PER_TICK: Final = 10  # of one run: a long one does not eat its tenant's seconds
BATCH: Final = 100  # records of one chunk: one INSERT, one short transaction
LEASE_SECONDS: Final = 120.0  # a worker renews it with every write; far above CALL_SECONDS
STALE_PER_TICK: Final = 200  # abandoned runs taken over in one tick

# -- one run

CHUNKS_PER_RUN: Final = 10_000  # a cursor that counts for ever finds nothing new for ever
RUN_HOURS: Final = 24.0  # that a run may be open: what waits longer than a day is not waiting
CURSOR_BYTES: Final = 8_192  # a position; whoever keeps more in it keeps a list
INTENT_BYTES: Final = 65_536  # what one effect needs to know
SUBJECT_CHARACTERS: Final = 190  # of a subject's id: it is part of a unique index
REASON_CHARACTERS: Final = 255
REASONS_KEPT: Final = 50  # different reasons counted by name; the rest is counted together
NOTICES_KEPT: Final = 20
NOTICE_CHARACTERS: Final = 500  # also of every other text that is stored of a run
FAILED_EFFECTS: Final = 10  # then the run ends: what fails ten times will fail again

# -- calls of automation types

LOST_CALLS: Final = 32  # calls that never came back, each holding a thread; then none are made
LOST_CALLS_PER_TENANT: Final = 2

# -- what a person asks for

CONFIG_BYTES: Final = 262_144  # a configuration with its scripts
NAME_CHARACTERS: Final = 100
PREVIEW_ITEMS: Final = 200  # decisions that a preview shows: two chunks
PAGE_ROWS: Final = 500  # rows of one page of runs, items or audit
PURGE_ITEMS: Final = 5_000  # old items deleted in one transaction: some 50 ms of locks …
PURGE_RUNS: Final = 500  # … or old runs
PURGE_ROUNDS: Final = 20  # such transactions of one tick: as many runs as 10,000 a minute make
STEP_NOTICED: Final = 60.0  # s that the wall clock was set back before pointers are aimed anew
