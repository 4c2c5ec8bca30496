"""Small tools that every other room may use, and that know nothing of the store.

`files` replaces a small file as a whole, `locks` locks a file between processes, `threads` does
work in a thread of its own, `interfaces` lists this machine's addresses, and `release` is the
version of the package. The room uses Python's standard library and psutil, and no other room of
the package. Each module stands alone, so there is no place to start.
"""
