"""The parts of `gtensor.testing`: comparison, numeric differences, cases and the checks of one op."""
