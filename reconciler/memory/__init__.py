"""Memory of reconciles between runs. A restart loses it, so correctness must not depend on it.

Each field documents the cost of its loss: an additional request, delay, or status write. Times come
from the monotonic clock.
"""
