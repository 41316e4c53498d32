"""`hub doctor`: everything that a hub stands on, and its doors from outside, looked at, with what to do where it is not well.

It only looks: no schema is changed, no file written, no lock taken, so that it can run beside a running hub.
"""
