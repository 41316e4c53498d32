"""The commands `hub migrate`, `hub keys`, `hub backup`, `hub restore` and `hub doctor`."""
