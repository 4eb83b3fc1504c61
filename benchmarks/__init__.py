"""
Benchmarks: ``python -m benchmarks`` lists them, README.md says what each one measures.
"""
