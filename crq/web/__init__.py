"""
The HTTP door: admission, the log, the status, health. `site` makes it.
"""

from crq.web.app import site

__all__ = ["site"]
