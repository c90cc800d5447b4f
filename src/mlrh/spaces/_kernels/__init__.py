"""Compiled recurrences over label sets: arrays in, arrays out."""
