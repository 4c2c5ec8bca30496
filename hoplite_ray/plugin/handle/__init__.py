"""`Array`, the handle that travels in Ray's objects in place of a value's bytes.

The room may use process/, steward_client/ and seams/.
It makes arrays, fetches their values, and answers the operators of Python, numpy and torch.
Start with `Array` in array.py; making.py makes each Array.
fetching.py brings the bytes; borrowing.py makes this process known to the stewards of its arrays.
"""
