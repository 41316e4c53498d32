"""The command line of `spoke`: run, status, doctor, leave, rejoin."""
