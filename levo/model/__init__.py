"""model: the exact networks, slow and plain. Knows no batch in flight."""
