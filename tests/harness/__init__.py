"""The basis of the whole-process tests: processes, services, OTLP requests, rows.

Nothing in here knows what Millpond should do; the tests do.
"""
