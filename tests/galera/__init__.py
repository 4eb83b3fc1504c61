"""
Three nodes of Galera on the loopback interface: what holds when the database itself is several.
"""
