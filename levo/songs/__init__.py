"""songs: what to make: manifest, lyrics, text, length prediction, plan. Knows no tensors."""
