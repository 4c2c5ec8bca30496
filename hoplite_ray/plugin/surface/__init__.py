"""The functions that users call, and the check of their arguments.

The room may use handle/, process/ and seams/; `hoplite_ray` exports its names.
api.py has put, array, empty, get, wait and delete: start there.
combining.py has the reduces and gathers, awaiting.py the awaitable twin of each function.
"""
