"""songs: what to make: manifest, lyrics, text, length prediction, plan. Knows no tensors.

Where to look:

* a row: rows (of a file), fields, song (canonical), reasons (why it is refused), manifest (all rows into two
  tables)
* its text: lyrics (the grammar), language, text (token ids)
* its audio prompt: prompts, prompt_files
* all songs: length (predicted), plan (shards)
"""
