"""One captured tick. On a CPU, or with graphs off, the same call runs eagerly."""

from collections.abc import Callable

import torch

WARM_UPS = 3  # eager runs first: lazy initialisation and compilation must not fall into the capture


class Graph:
    """Runs `tick` by replay. tick reads and writes tensors that stay where they are, and returns nothing."""

    def __init__(self, tick: Callable[[], None], device: torch.device, *, captured: bool) -> None:
        self.run = tick
        if not (captured and device.type == "cuda"):
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                tick()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            tick()
        self.run = self.graph.replay
