"""
The operator's pages: plain HTML made on the server, usable without a script.

`desk` is what all of them share, `showing` reads, `acting` changes, `signing` lets in; what a page
shows is put together by the pure functions of `views` and `plot`. Automations have the same:
`automations` reads, `declaring` is their editor, `switching` changes; `forms` and `bars` are pure.
"""

from crq.web.pages import acting, automations, declaring, showing, signing, switching

HANDLERS = (
    acting,
    automations,
    declaring,
    showing,
    signing,
    switching,
)  # their routes are known by now

__all__ = ["HANDLERS", "acting", "automations", "declaring", "showing", "signing", "switching"]
