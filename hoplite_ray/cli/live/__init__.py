"""Show what is under way between the nodes, again and again.

`flows` compares two looks at the cluster; `top` shows it in a terminal, and `web` on a page for a
browser of this machine. Start with `flows`. The room uses `hoplite_ray.cli.cluster`; the packages
rich and aiohttp are imported only when a command needs them.
"""
