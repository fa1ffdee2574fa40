# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# Debian roots laid out by debootstrap inside .stack, for servers newer than this machine's. A server
# in one runs in a mount namespace of its own, so nothing stays mounted when it ends.

roots_present() { [[ -f $STACK_DIR/$1/.laid-out ]]; }

# roots_ensure NAME SUITE PACKAGE…: lays the root out once. Only this step needs to be root.
roots_ensure() {
  local name=$1 suite=$2 root=$STACK_DIR/$1
  shift 2
  roots_present "$name" && return 0
  command -v debootstrap >/dev/null || [[ -x /usr/sbin/debootstrap ]] || die "debootstrap is missing"
  say "$* comes from Debian $suite, laid out in $root by debootstrap: about 100 MB to fetch, up to 1 GB on disk."
  (($(id -u) == 0)) || say "Laying it out needs root: sudo will be used for debootstrap and apt-get inside that directory."
  ask "Lay it out?" || die "not laid out"
  as_root rm -rf --one-file-system -- "$root"
  mkdir -p "$root"
  as_root env "PATH=$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase "$suite" "$root" \
    ${STACK_DEBIAN_MIRROR:+"$STACK_DEBIAN_MIRROR"} >>"$STACK_DIR/log/$name.log" 2>&1 9>&- || roots_failed "$name"
  # Nothing in the root starts by itself.
  printf '#!/bin/sh\nexit 101\n' | as_root tee "$root/usr/sbin/policy-rc.d" >/dev/null
  as_root chmod 755 "$root/usr/sbin/policy-rc.d"
  as_root mkdir -p "$root/stack"
  printf '127.0.0.1 localhost\n' | as_root tee "$root/etc/hosts" >/dev/null
  # shellcheck disable=SC2016
  as_root unshare --mount --propagation private sh -ec '
    root=$1; shift
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    export LC_ALL=C DEBIAN_FRONTEND=noninteractive
    exec chroot "$root" apt-get -o Dpkg::Options::=--force-unsafe-io install -y -q --no-install-recommends "$@"' roots "$root" "$@" \
    >>"$STACK_DIR/log/$name.log" 2>&1 9>&- </dev/null || roots_failed "$name"
  as_root rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
  as_root touch "$root/.laid-out"
}

roots_failed() {
  tail -n 25 "$STACK_DIR/log/$1.log" >&2
  die "laying out $1 failed; log: $STACK_DIR/log/$1.log"
}

# roots_command NAME DATA COMMAND…: ROOTS_COMMAND runs COMMAND inside the root, DATA seen as /stack.
# Anybody but root does it in a user namespace, where this user is root.
roots_command() {
  local root=$STACK_DIR/$1 data=$2 unshare=(unshare --mount --propagation private)
  shift 2
  (($(id -u) == 0)) || unshare=(unshare --user --map-root-user --mount --propagation private)
  # shellcheck disable=SC2016
  ROOTS_COMMAND=("${unshare[@]}" /bin/sh -ec '
    root=$1; data=$2; shift 2
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind "$data" "$root/stack"
    cd /
    exec chroot "$root" env -i "$@"' roots "$root" "$data" "$@")
}
