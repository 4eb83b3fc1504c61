"""
The operator's pages: plain HTML made on the server, usable without a script.

`desk` is what all of them share, `showing` reads, `acting` changes, `signing` lets in; what a page
shows is put together by the pure functions of `views` and `plot`.
"""

from crq.web.pages import acting, showing, signing

HANDLERS = (acting, showing, signing)  # their routes are known by now

__all__ = ["HANDLERS", "acting", "showing", "signing"]
