"""
Automations over HTTP: the same desk as the command line's, the same words in its answers.

`asking` is what all of it shares (the pages too), `reading` tells, `acting` changes, `described` is
its part of the OpenAPI description.
"""

from crq.web.automations import acting, reading

HANDLERS = (acting, reading)  # their routes are known by now

__all__ = ["HANDLERS", "acting", "reading"]
