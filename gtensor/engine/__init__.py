"""The engine: tensor handles, records, the tape and the backward walk. It names no op."""
