"""
``crq``: the command line.

It works on the database directly, so it needs no daemon. Modules of this package import nothing
heavy before a command runs: ``crq --help`` is to be quick.
"""

from crq.cli.commands import main

__all__ = ["main"]
