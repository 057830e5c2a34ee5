"""The progress lines of a shard."""

from levo.node.progress import Progress


def test_a_line_tells_songs_speed_cost_and_what_is_left_but_not_too_often():
    now, said = [0.0], []
    progress = Progress(n_songs=24, n_done=4, predicted_s=4000.0, say=said.append, clock=lambda: now[0])
    now[0] = 4.0
    progress.tell(2)
    assert said == []
    now[0] = 100.0
    progress.add(n_songs=5, predicted_s=1000.0, audio_s=900.0)
    progress.tell(2)
    progress.tell(2)
    assert said == ["9/24 songs, 9.0x realtime, 0.056 GPU-hours, 5 min left"]
