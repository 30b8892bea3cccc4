"""Public data sets: the catalogue, downloading, and the folder where they are stored."""
