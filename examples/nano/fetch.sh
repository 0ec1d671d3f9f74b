#!/bin/sh
# Unpack the Debian packages that nano is trained on into .cache/nano/debian, without installing anything.
# Usage: examples/nano/fetch.sh   (on Debian or Ubuntu, from the repository root)
set -eu
target=.cache/nano
mkdir -p "$target/packages" "$target/debian"
(cd "$target/packages" && apt-get download r-cran-janeaustenr python3.11-doc wordnet-base sword-text-web)
for package in "$target"/packages/*.deb; do
    dpkg -x "$package" "$target/debian"
done
