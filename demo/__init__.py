"""
A first look: ``make demo`` (or ``python -m demo``) runs three accounts against a throttled API.
"""
