"""
What if: the real loop, claim and gates' memory under a virtual clock, before a modelled executor
and a modelled API.

# Note [What is real]

`crq.workbench` builds the daemon's own drainer over the tables in SQLite in memory; admission,
claim, start, finish and gates are the statements of production. Modelled are the scripts (how long
they take, how many calls they make), the executor's two ladders and its wall, and the quota of the
API. Time jumps from one event to the next (`crq.timeline`); the invariants are checked at
every change of a row (`crq.simulate.watch`).
"""
