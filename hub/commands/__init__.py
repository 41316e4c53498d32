"""The commands `hub migrate`, `hub backup`, `hub restore` and `hub doctor`. Their command lines are in `hub.__main__`."""
