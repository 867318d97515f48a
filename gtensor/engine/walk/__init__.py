"""The backward walk: gradient slots, the verbs of rules, and what becomes of the results."""
