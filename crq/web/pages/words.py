"""
How states and verdicts look: each has a word, a symbol and a class of its own, so that it is told
from the others without colour as well.
"""

from __future__ import annotations

from attrs import frozen

from crq.automations.model import Automation
from crq.model import Status
from crq.recordvalues import Record
from crq.verdict import Verdict


@frozen
class Look:
    """
    How one word is shown.

    :ivar css: a class that the style sheet gives a colour and an outline.
    :ivar meaning: what it says, for somebody who has not seen it before.
    """

    word: str
    symbol: str
    css: str
    meaning: str


STATES = {
    look.word: look
    for look in (
        Look("queued", "○", "queued", "waits for its turn"),
        Look("claimed", "◔", "claimed", "on its way to the executor; has not begun"),
        Look("running", "▶", "running", "has begun and has not ended"),
        Look("success", "✓", "success", "ended well"),
        Look("failed", "✗", "failed", "began and ended with an error"),
        Look("rejected", "⊘", "rejected", "refused at admission: the queue was full (107)"),
        Look("cancelled", "⊟", "cancelled", "cancelled by an operator while it waited"),
        Look("outcome unknown", "?", "unknown", "began; nobody knows how it ended (303)"),
        Look("never started", "∅", "never", "closed without having begun"),
    )
}
VERDICTS = {
    Verdict.FLOWING: Look("flowing", "▶", "flowing", "work is being started"),
    Verdict.IDLE: Look("idle", "○", "idle", "nothing to do"),
    Verdict.SATURATED: Look(
        "saturated", "▲", "saturated", "every slot is taken: a backlog, no outage"
    ),
    Verdict.GATED: Look("gated", "◆", "gated", "held on purpose"),
    Verdict.STALLED: Look("stalled", "■", "stalled", "work could start and does not: an outage"),
    Verdict.DEGRADED: Look("degraded", "!", "degraded", "something the queue needs is not well"),
}


def state(word: str) -> Look:
    """
    How a state is shown; an unknown one as it is stored.
    """
    return STATES.get(word) or Look(word or "(none)", "·", "odd", "a state this program knows not")


def state_of(record: Record) -> Look:
    """
    How the state of a row is shown: operators see `claimed` apart from `queued`.
    """
    claimed = record.status == Status.CLAIMED.value
    return state(Status.CLAIMED.value if claimed else record.shown)


MODES = {
    look.word: look
    for look in (
        Look("off", "❚❚", "off", "switched off: no run is made"),
        Look("observe", "◎", "observe", "decides by its schedule and changes nothing"),
        Look("live", "●", "acting", "decides and acts"),
    )
}
RUNS = {
    look.word: look
    for look in (
        Look("queued", "○", "queued", "made, and not begun"),
        Look("running", "▶", "running", "goes on, maybe in the next minute"),
        Look("completed", "✓", "success", "nothing was left"),
        Look("capped", "▲", "capped", "a cap was reached"),
        Look("failed", "✗", "failed", "its type raised, broke its contract or did not come back"),
        Look("stopped", "⊟", "cancelled", "switched off or demoted meanwhile"),
        Look("refused", "⊘", "rejected", "live, and a precondition does not hold"),
        Look("overlapped", "∅", "never", "never begun: the one before it was still open"),
    )
}
VERDICT = {
    look.word: look
    for look in (
        Look("approved", "✓", "success", "something is to happen"),
        Look("declined", "–", "declined", "nothing is to happen"),
    )
}
EFFECTS = {
    look.word: look
    for look in (
        Look("none", "–", "declined", "nothing was to be applied"),
        Look("intended", "○", "queued", "recorded, not begun"),
        Look("applying", "▶", "running", "begun"),
        Look("applied", "✓", "success", "done"),
        Look("failed", "✗", "failed", "apply said so"),
        Look("unknown", "?", "unknown", "begun; nobody knows how it ended"),
        Look("withdrawn", "⊟", "cancelled", "the run ended before it was begun"),
    )
}


def mode_of(automation: Automation) -> Look:
    """
    How the mode of an automation is shown.
    """
    return MODES[automation.mode.value if automation.enabled else "off"]
