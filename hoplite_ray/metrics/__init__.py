"""Name the counters of a node, and show them.

`counters` reads the counters of one node as one typed snapshot, `NodeStats`. `dashboards` has the
table of the metrics that Prometheus reads, and makes the Grafana dashboard from it. `alerts` has
the alert rules, and makes the file for Prometheus. Start with `dashboards`. The room uses
`hoplite_ray.control.client` and the errors.
"""
