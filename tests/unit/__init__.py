"""
Pure code and fakes only: trial-style cases that pass under pytest and under trial.
"""
