"""How several processes meet under Ray and work as one group.

The room may use process/ and seams/.
`Collective` in collective.py is the backend "HOPLITE" of ray.util.collective: start there.
roster.py says how its members meet, and how they hear of a failure; operation.py is one operation.
rendezvous.py is the meeting place of `hoplite_ray.worlds`, which uses nothing else of this room.
"""
