"""Matrix products, decompositions and linear systems."""
