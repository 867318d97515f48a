"""The engine: handles, records, the tape and its walk. Knows no op by name."""
