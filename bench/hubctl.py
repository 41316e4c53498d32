"""How fast hubctl starts: the wall and CPU time of whole processes, every module that a command needs included."""

import os
import statistics
import subprocess
import sys
import time

import click

from hubctl.__main__ import hubctl as program
from hubctl.reference import commands


@click.command()
@click.option("--runs", default=15, show_default=True, type=click.IntRange(1), help="Processes per command.")
def hubctl(runs: int) -> None:
    """Measure the start of hubctl, command by command: all there are."""
    for words, _ in commands(program):
        command = (*words, "--help")
        samples = [_run(*command) for _ in range(runs)]
        wall = statistics.median(sample[0] for sample in samples) * 1000
        cpu = statistics.median(sample[1] for sample in samples) * 1000
        click.echo(f"hubctl {' '.join(command):<44} median of {runs}: {wall:4.0f} ms wall, {cpu:4.0f} ms CPU")


def _run(*arguments: str) -> tuple[float, float]:
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "hubctl", *arguments], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu
