"""Async tests of hollow run in virtual time."""

from tests.fixtures.virtual_loops import pytest_asyncio_loop_factories, pytest_pycollect_makeitem

__all__ = ["pytest_asyncio_loop_factories", "pytest_pycollect_makeitem"]
