"""
``python -m crq.cli``: the command line where no script is installed.
"""

from crq.cli import main

main(prog_name="crq")
