"""model: the exact networks, slow and plain. Knows no batch in flight.

Where to look:

* the networks: lm, prefix, pattern, oracle (the plain generation of one song), codec, flow, estimator, vae,
  table (embeddings)
* their shapes: config, codec_config, memory (what fits on a GPU)
* a model directory: identity (what it is), folder, checkpoint (to modules and back), codec_weights, fused,
  tensor_files, tensor_writer, inventory
* what a user holds: upstream, upstream_config, upstream_names, tensor_source, known_files, auto_prompts, convert (to
  a model directory)
* a random model: tiny, tiny_weights
"""
