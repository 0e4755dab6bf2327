"""Prints how many blocks of each page are run, and why the others are not: `python -m tests.docs`."""

from tests.docs.page import COMMANDS, ROOT, pages, read_page


def main() -> None:
    run = excused = 0
    for path in pages():
        blocks = [block for block in read_page(path) if block.language in COMMANDS and block.file is None]
        not_run = [block for block in blocks if not block.is_run]
        run, excused = run + len(blocks) - len(not_run), excused + len(not_run)
        if blocks:
            print(f"{path.relative_to(ROOT)}: {len(blocks) - len(not_run)} run, {len(not_run)} not")  # noqa: T201
        for block in not_run:
            print(f"  line {block.line}: {block.excuse}")  # noqa: T201
    print(f"{run} blocks run, {excused} not")  # noqa: T201


if __name__ == "__main__":
    main()
