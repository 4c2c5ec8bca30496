"""Values taken apart: their containers as a tree, and their leaves as columns.

It knows numpy and torch, named tuples and dataclasses, and arrays that have two names. It copies
nothing, and knows no object's bytes.
"""
