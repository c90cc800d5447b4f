"""Runs of experiments and their reports."""
