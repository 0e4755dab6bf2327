"""The command `doctor`."""

import argparse


def run(options: argparse.Namespace) -> int:
    raise NotImplementedError(options)
