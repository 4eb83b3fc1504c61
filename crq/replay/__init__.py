"""
A trace of arrivals, played against a running installation: what would the queue have made of it?

``crq replay`` reads a trace (`trace`), serves the rate-limited API that its scripts call (`api`),
submits each arrival when it is due (`play`) and says what became of them (`report`).
"""
