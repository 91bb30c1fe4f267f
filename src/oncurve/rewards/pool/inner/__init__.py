"""What runs in a pool's own processes. Only the standard library and its neighbours (and, to hold itself in, those of
the sandbox): a worker that had to import all of Oncurve would start ten times slower.
"""
