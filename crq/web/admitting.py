"""
``POST /codeRunner``: admission; and ``POST /wake``, for those who insert their rows by SQL.
"""

from __future__ import annotations

from typing import IO

from twisted.web.iweb import IRequest

from crq import admission, crashpoints, records
from crq.admission import Answer, Prepared
from crq.database import CommitUnknown, Cursor
from crq.messages import Admitted, Rejected
from crq.submissions import Refusal
from crq.web import answers, bodies
from crq.web.answers import Reply
from crq.web.door import Door, routes
from crq.web.tokens import Caller


@routes.route("/codeRunner", methods=["POST"])
async def submit(door: Door, request: IRequest) -> bytes:
    """
    Admit one execution, or say why not.
    """
    caller = await door.caller(request, "admit")
    if not door.admits:
        remedy = "ask one that was started with --roles admit or all"
        raise Refusal("path", "this process admits nothing (--roles drain)", remedy, 404)
    headers = request.requestHeaders
    prepared = await door.pool.compute(
        _prepare,
        door,
        request.content,
        bodies.media_type(headers),
        bodies.idempotency_key(headers),
        bodies.trace(headers),
        caller,
    )
    try:
        answer = await door.pool.transact(_admit, door, prepared)
    except CommitUnknown:
        answer = await door.pool.read(admission.settle_in, prepared)
    crashpoints.reached("admitted")
    if isinstance(answer, Admitted) and not answer.repeated:
        door.meters.admitted.inc()
        door.wake()
    shown = None
    if isinstance(answer, Admitted) and answer.repeated:
        found = await door.pool.read(records.execution, answer.execution_id)
        shown = found.record.shown if found is not None else "purged"
    elif isinstance(answer, Rejected):
        door.meters.rejected.labels(answer.depth).inc()
        door.note_refusal()
    return door.reply(request, answers.of(answer, shown))


@routes.route("/wake", methods=["POST"])
async def wake(door: Door, request: IRequest) -> bytes:
    """
    Look for work now. A body is read by nobody; while a tick runs, any number of calls make one
    more.
    """
    await door.caller(request, "admit")
    door.wake()
    return door.reply(request, Reply(200, {"woken": True}))


def _prepare(
    door: Door,
    content: IO[bytes],
    media: str,
    idempotency_key: str | None,
    trace: str | None,
    caller: Caller,
) -> Prepared:
    # On a thread, for the time it takes to read and parse; and not before it is its turn, so that
    # only few bodies are in memory at once.
    wanted = admission.submission(bodies.fields(content.read(), media), idempotency_key, trace)
    if not caller.owns(door.sealer.account(wanted.subdomain)):
        raise Refusal(
            "subdomain", "this token may not admit for it", "use a token of this account", 403
        )
    return admission.prepare(wanted, door.sealer, door.config.script.language)


def _admit(txn: Cursor, door: Door, prepared: Prepared) -> Answer:
    return admission.admit_in(txn, prepared, door.limits(), door.wall())
