"""bench: how fast it is, beside what the hardware allows and beside the public ways. Knows every room above."""
