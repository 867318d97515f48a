LARGE = (70, 90)  # where paths stop using np.where
