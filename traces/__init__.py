"""
Traces for ``crq replay``, and what makes them.
"""
