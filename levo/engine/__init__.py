"""engine: how the networks run fast. Knows no files, no paths and no song ids."""
