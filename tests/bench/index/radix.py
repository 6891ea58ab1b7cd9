"""What Dynamo's RadixTree takes, from Python: radix.py SIZES. As in tests/bench/measure/src/index.rs; prints JSON."""

import json
import sys
import time

from dynamo._core import RadixTree

CHAIN, REPLICAS, WANTED, OTHERS = 250, 8, 200, 1000
WORD = (1 << 64) - 1


def chain(n):
    def block(b):
        x = (n << 10 | b) * 0x9E3779B97F4A7C15 & WORD
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
        x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
        return x ^ x >> 31

    return [block(b) for b in range(CHAIN)]


tree, event, rows = RadixTree(), 0, {}


def store(replica, hashes):
    """Seconds, its parsing of the event with it: there is no other way in."""
    global event
    event += 1
    blocks = [{"block_hash": h, "tokens_hash": h} for h in hashes]
    data = {"event_id": event, "data": {"stored": {"parent_hash": None, "blocks": blocks}}, "dp_rank": 0}
    data = json.dumps(data).encode()
    begun = time.perf_counter()
    tree.apply_event(replica, data)
    return time.perf_counter() - begun


chains = 0
for size in map(int, sys.argv[1].split()):
    took, begun = 0.0, chains
    while chains * CHAIN < size:
        took += store(chains % REPLICAS, chain(chains))
        chains += 1
    rows[f"{size} fill, ns"] = took * 1e9 / ((chains - begun) * CHAIN)
    wanted = [chain(size << 20 | n) for n in range(WANTED)]
    for hashes in wanted:
        for replica in range(REPLICAS):
            store(replica, hashes)
    held = tree.find_matches(wanted[0]).scores
    if len(held) != REPLICAS or set(held.values()) != {CHAIN}:
        sys.exit(f"it finds {held}")
    others = [chain(n * 7919 % chains) for n in range(OTHERS)]
    best = float("inf")
    for _ in range(10):
        for hashes in others:
            tree.find_matches(hashes)
        begun_at = time.perf_counter()
        for hashes in wanted:
            tree.find_matches(hashes)
        best = min(best, time.perf_counter() - begun_at)
    rows[f"{size} walk"] = best * 1e6 / WANTED
print(json.dumps(rows))
