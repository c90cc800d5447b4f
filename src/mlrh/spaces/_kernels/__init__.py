"""Compiled recurrences over label sets: arrays in, arrays out.

`dispatch` is what the cardinality space calls. It runs `lanes` (eight rows at a time), `divide_and_conquer` (many
labels and sizes), `plain` (what is asked less often), and `wide_range` where floating point has too little range.
`ranking` finds the most probable sets and `expected_metrics` the best answers for a metric.
"""
