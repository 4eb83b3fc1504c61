"""
The revisions, in order.
"""
