"""Measurements of the toolkit itself, and what they need. Knows every room above; none of them knows it."""
