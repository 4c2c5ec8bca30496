"""Those whom hoplite_ray is measured against, each on the same emulated network."""
