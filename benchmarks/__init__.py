"""How fast mlrh is beside what people use today: one file per question, one adapter per competitor.

`python -m benchmarks.run` asks all questions, prints a line per target and writes JSON. Nothing in `mlrh` imports it.
"""
