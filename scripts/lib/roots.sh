# shellcheck shell=bash
# Debian roots laid out by debootstrap inside .stack, for servers newer than this machine's.
roots_present() { [[ -f $STACK_DIR/$1/.laid-out ]]; }
roots_assert_unmounted() { :; }
