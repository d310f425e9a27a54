"""`mayfly train`: from profiles to a model of lifetimes, in Python. docs/train.md describes it.

Layers, from the bottom up: errors, progress, data, model, studies, commands, __main__.
"""
