"""``python -m di_engine`` is ``di``."""

from di_engine.cli import main

if __name__ == "__main__":
    main()
