"""
A soak: admission, kills and faults at random from a seed, with all real parts, and what was wrong.
"""
