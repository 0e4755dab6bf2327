"""The command `plan`."""

import argparse


def run(options: argparse.Namespace) -> int:
    raise NotImplementedError(options)
