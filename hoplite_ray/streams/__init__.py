"""Values whose leaves are read while their other bytes still come, and files as such values.

`cursor` knows which leaves are whole once a number of bytes is there, and `stream` waits for these
bytes. `safetensors` reads the header of a file, and `filling` its tensors, straight into the arena.
"""
