"""What the whole-process tests stand on: processes, services, OTLP requests, rows.

Nothing in here knows what Millpond should do; the tests say that.
"""
