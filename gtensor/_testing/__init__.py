"""The parts of `gtensor.testing`: comparison, numeric differences, cases, checks of one op."""
