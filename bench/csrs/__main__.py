"""`python -m bench.csrs`."""

from bench.csrs.runs import main

if __name__ == "__main__":
    main()
