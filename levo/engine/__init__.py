"""engine: how the networks run fast. Knows no files, no paths and no song ids.

Where to look, from the outside in:

* songs: engine (language model and codec in turns), request (what goes in and comes out), build (makes a decoder)
* tokens: decoder (who gets a slot), forecast, memory, pages, phases, main_phase, sub_phase, passes
* a tick: graph, slots, stack, sampling, philox
* audio: codec, flow_solver, vae_decoder
* kernels: kernels (a folder), twins, codec_twins (the same in plain torch)
"""
