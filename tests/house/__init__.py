"""The house style as tests: each checker answers with the violations that it found."""
