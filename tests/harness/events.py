"""Tables of events."""

# The columns that Millpond fills, as in docs/event-tables.md.
OWN_COLUMNS = """_millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3),
    _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32"""
