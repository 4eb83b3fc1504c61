"""
Real servers, sockets, processes and signals.
"""
