#!/bin/sh
# Print the first Python 3.11 or newer that can make a virtual environment; say what to do if none.
#
# `PYTHON=/path/to/python make ...` names one. Each candidate is run, not only looked up: version
# managers put commands on the PATH that do not start.

check='
import sys
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
import platform
if (sys.platform, platform.machine()) == ("darwin", "x86_64"):
    sys.exit("is built for Intel Macs, which MLX does not support")
try:
    import ensurepip, venv
except ImportError:
    sys.exit("cannot make virtual environments (on Debian: apt install python3-venv)")
print(sys.executable)
'

tried=""
for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    path=$(command -v "$name" 2>/dev/null) || continue
    if answer=$("$path" -c "$check" 2>&1); then
        echo "$answer"
        exit 0
    fi
    tried="$tried
  $path $(echo "$answer" | head -n 1)"
done

{
    echo "error: no Python 3.11 or newer that can make a virtual environment${tried:+; tried:$tried}"
    echo
    echo "hint: install one (macOS: brew install python@3.13; Debian or Ubuntu: apt install python3 python3-venv),"
    echo "hint: or name it: make PYTHON=/path/to/python3"
} >&2
exit 1
