"""Small tools that every other room may use, and that know nothing of the store.

`files` replaces a small file as a whole, `locks` locks a file between processes, and `threads` does
work in a thread of its own. The room uses Python's standard library and no other room of the
package. Each module stands alone, so there is no place to start.
"""
