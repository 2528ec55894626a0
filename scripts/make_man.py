#!/usr/bin/env python3
"""Writes man pages from what the program says about itself.

    scripts/make_man.py PROGRAM FOLDER VERSION

FOLDER receives mlxcel.1 and one mlxcel-COMMAND.1 for each command that
`PROGRAM --help` lists.
"""

import re
import subprocess
import sys
from pathlib import Path

HEADING = re.compile(r"^([A-Za-z][A-Za-z0-9 ,()/-]*):\s*$")
ENTRY = re.compile(r"^ {2,4}(\S.*?)(?: {2,}(.*))?$")
# An option whose name fills its column has one space before its text.
OPTION_COLUMN = 34
FULL_OPTION = re.compile(rf"^ {{2}}(-.{{{OPTION_COLUMN - 4}}}) (\S.*)$")


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], check=True,
                          capture_output=True, text=True).stdout


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def sections(text):
    """(heading, lines) of a help text; what precedes a heading has none."""
    heading, lines = "", []
    for line in text.splitlines():
        match = HEADING.match(line)
        if match:
            yield heading, lines
            heading, lines = match.group(1), []
        else:
            lines.append(line.rstrip())
    yield heading, lines


def commands_of(text):
    for heading, lines in sections(text):
        if heading.lower() in ("subcommands", "commands"):
            for line in lines:
                match = ENTRY.match(line)
                if match and re.fullmatch(r"[a-z][a-z0-9-]*", match.group(1)):
                    yield match.group(1), match.group(2) or ""


def body(lines):
    """Entries (name, then its text, wrapped or not) and plain lines."""
    out = []
    for line in lines:
        entry = FULL_OPTION.match(line) or ENTRY.match(line)
        if not line.strip():
            out.append(".PP")
        elif entry:
            out += [".TP", ".B " + escape(entry.group(1).strip())]
            if entry.group(2):
                out.append(escape(entry.group(2).strip()))
        else:
            out.append(escape(line.strip()))
    while out and out[-1] == ".PP":
        out.pop()
    return out


def page(name, summary, text, version, see_also):
    out = [f'.TH {name.upper()} 1 "" "mlxcel {version}" "User commands"',
           ".SH NAME", f"{escape(name)} \\- {escape(summary)}"]
    for heading, lines in sections(text):
        usage = [line for line in lines if line.lower().startswith("usage:")]
        lines = [line for line in lines if line not in usage]
        if not any(line.strip() for line in lines) and not usage:
            continue
        if usage:
            out.append(".SH SYNOPSIS")
            out += [escape(line.split(":", 1)[1].strip()) for line in usage]
        if any(line.strip() for line in lines):
            out.append(f".SH {(heading or 'description').upper()}")
            out += body(lines)
    if see_also:
        out.append(".SH SEE ALSO")
        out.append(", ".join(f"\\fB{escape(other)}\\fR(1)"
                             for other in see_also))
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, folder, version = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    top = help_of(program)
    commands = list(commands_of(top))
    if not commands:
        sys.exit(f"{program} --help lists no commands")
    pages = [f"mlxcel-{name}" for name, _ in commands]
    (folder / "mlxcel.1").write_text(page(
        "mlxcel", "run language models from MLX and Hugging Face checkpoints",
        top, version, pages))
    for name, summary in commands:
        (folder / f"mlxcel-{name}.1").write_text(page(
            f"mlxcel-{name}", summary, help_of(program, name), version,
            ["mlxcel"]))


if __name__ == "__main__":
    main()
