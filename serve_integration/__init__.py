"""Serving through failures on Ray Serve: its decisions so far, each a pure machine.

    batching.py  what a stage runs next
    joins.py     which inputs of a query have met
    votes.py     when an ensemble may answer, and what
"""
