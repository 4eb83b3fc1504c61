"""
The tests, by cost: ``unit`` (no I/O, no time), ``store`` (real databases), ``integration`` (real
servers and processes).
"""
