"""Nodes in network namespaces with shaped links. Needs root."""
