"""Write the names of vLLM's flags for the command line, from vLLM's own parser.

    python3 tools/engine_flags.py            write client/rlfleet/cli/engine_flags.json
    python3 tools/engine_flags.py --check    exit 1 if the file is out of date

vLLM runs in the environment `worker`, which is made first if it is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from envs import interpreter_of

TARGET = Path(__file__).resolve().parent.parent / "client/rlfleet/cli/engine_flags.json"
ASK = """
import importlib, json, warnings
warnings.simplefilter("ignore")
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
flags = sorted({name for action in parser._actions for name in action.option_strings})
print(json.dumps({"vllm": importlib.import_module("vllm").__version__, "flags": flags}))
"""


def text_of(answer: str) -> str:
    """The file for the parser's answer. The version has no patch, and no name of a build."""
    found = json.loads(answer)
    major, minor = found["vllm"].split(".")[:2]
    return json.dumps({"vllm": f"{major}.{minor}", "flags": found["flags"]}, indent=1) + "\n"


def ask(python: str) -> str:
    """Returns the answer of vLLM's parser, as JSON. `python`: an interpreter that has vLLM."""
    # A platform is needed for the defaults of some flags. Their names are the same on every platform.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-P", "-c", ASK], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def main() -> None:
    """Write or check."""
    text = text_of(ask(str(interpreter_of("worker"))))
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        sys.exit(f"out of date, run `python3 tools/engine_flags.py`: {TARGET.name}")


if __name__ == "__main__":
    main()
