"""Breadth-first search of a random graph with preferential attachment: {"size": 10000, "seed": 1}."""

import random

import igraph

MOST_VERTICES = 200_000


def handler(event, context):
    size = int(event.get("size", 10_000))
    if not 2 <= size <= MOST_VERTICES:
        raise ValueError(f"size must be 2 to {MOST_VERTICES}")
    # igraph uses Python's random numbers.
    random.seed(event.get("seed", 1))
    graph = igraph.Graph.Barabasi(size, 10)
    order, layer_starts, parents = graph.bfs(0)
    return {
        "visited": len(order),
        "depth": len(layer_starts) - 2,
        "last": order[-1],
        "its_parent": parents[order[-1]],
    }
