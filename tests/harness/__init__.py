"""The basis of the whole-process tests: processes, services, OTLP requests, rows.

Nothing here knows Millpond's expected behaviour; the tests do.
"""
