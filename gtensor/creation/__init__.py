"""Making tensors, their dtypes, and what the array API standard asks of a namespace."""
