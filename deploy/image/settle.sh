#!/bin/sh
# Adapts an environment created by `uv sync` to an image whose interpreter is /usr/bin/python3.13, and removes what is
# needed only to install or compile: settle.sh ENVIRONMENT
set -eu
cd "$1"
ln -sf /usr/bin/python3.13 bin/python
sed -i 's|^home = .*|home = /usr/bin|' pyvenv.cfg
find bin -mindepth 1 ! -name python ! -name python3 ! -name pgrole-controller -delete
find lib -type f \( -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.pyi' \) -delete
head -n 1 bin/pgrole-controller | grep -qx "#!$PWD/bin/python3\{0,1\}"
