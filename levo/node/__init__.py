"""node: one shard on one node: ranks, parts, audio, provenance. Knows no logits."""
