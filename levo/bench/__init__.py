"""bench: how fast it is, beside what the hardware allows and beside the public ways. Knows every room above.

Where to look:

* the verbs: verbs, card (what a figure was measured on, tables, the line of JSON), device (energy, memory, idle)
* ticks: decode, profile, steady (a decoder in the middle of a long run), sizes (networks at the released sizes)
* the language model: lm, baselines (the public ways)
* the codec: codec
* songs: song, song_line, song_model, song_publics, song_soak, song_calibration, ablation, stages
* loading: load, random_checkpoint
* many jobs: sweep, cluster, cluster_task
* before a campaign: selfcheck, rehearse, rehearsed
"""
