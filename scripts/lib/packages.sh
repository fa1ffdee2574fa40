# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# Debian packages: named, sized and asked for before anything is installed. Nothing is removed.

POLICY=/usr/sbin/policy-rc.d
POLICY_SAVED=/usr/sbin/policy-rc.d.lapse-saved
POLICY_MARK='written by scripts/stack'

as_root() {
  if (($(id -u) == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo: $*"
  fi
}

is_debian() { [[ -f /etc/debian_version ]] && command -v apt-get >/dev/null; }

ask() { # QUESTION
  local answer
  [[ $ASSUME_YES != true ]] || return 0
  [[ -t 0 ]] || die "$1 Not answered: no terminal. Say yes with: scripts/stack up --yes"
  read -r -p "$1 [y/N] " answer
  [[ $answer == [yY]* ]]
}

# packages_ensure installs what the chosen servers need.
packages_ensure() {
  local missing=() needs_debootstrap=''
  case $STACK_BROKER in
    3) [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] || missing+=(rabbitmq-server) ;;
    4) roots_present debian13 || needs_debootstrap=true ;;
  esac
  if [[ $STACK_DATABASE == mysql ]]; then
    mysql_find
    [[ -n $MYSQLD ]] || roots_present debian-mysql || needs_debootstrap=true
  fi
  [[ -z $needs_debootstrap || -x $(server_binary debootstrap) ]] || missing+=(debootstrap)
  # The core packages hold the programs without a system service and its data directory.
  if [[ $STACK_DATABASE == mariadb ]]; then
    [[ -x $(server_binary mariadbd) && -x $(server_binary mariadb-install-db) ]] || missing+=(mariadb-server-core)
  fi
  command -v mariadb >/dev/null || command -v mysql >/dev/null || missing+=(mariadb-client-core)
  ! redis_wanted || [[ -x $(server_binary redis-server) ]] || missing+=(redis-server)
  if ((${#missing[@]})); then
    is_debian || die "the stack needs a running Docker engine, or Debian's packages ${missing[*]}; this machine has neither"
    packages_install "${missing[@]}"
  fi
  [[ $STACK_BROKER != 4 ]] || roots_ensure debian13 trixie rabbitmq-server
  [[ $STACK_DATABASE != mysql ]] || mysql_ensure
}

# tools_ensure installs what tests run beside the servers: Prometheus with promtool and Alertmanager for the alert rules, Chromium with
# a font for Chinese for the console. No service of the system's is started; tests start their own on loopback.
tools_ensure() {
  local missing=()
  command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
  command -v prometheus-alertmanager >/dev/null || command -v alertmanager >/dev/null || missing+=(prometheus-alertmanager)
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
  if is_debian && [[ -z $(fc-list :lang=zh 2>/dev/null) ]]; then missing+=(fontconfig fonts-wqy-zenhei); fi
  ((${#missing[@]})) || return 0
  is_debian || die "not found: ${missing[*]}; put prometheus, promtool and alertmanager (https://prometheus.io/download/) and a chromium on PATH"
  packages_install "${missing[@]}"
}

server_binary() { command -v "$1" 2>/dev/null || printf '/usr/sbin/%s' "$1"; }

apt() { LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get --no-remove --no-upgrade --no-install-recommends "$@"; }

packages_install() {
  local plan sizes
  if ! plan=$(apt -s install "$@" 2>&1); then
    say "no package lists for $*: running apt-get update"
    as_root apt-get update -q >&2 || die "apt-get update failed"
    plan=$(apt -s install "$@" 2>&1) || die "apt-get cannot install $*:"$'\n'"$plan"
  fi
  if grep -q '^Remv ' <<<"$plan"; then
    die "installing $* would remove packages; nothing was done:"$'\n'"$(grep '^Remv ' <<<"$plan")"
  fi
  sizes=$(apt -o Debug::NoLocking=true --assume-no install "$@" 2>&1 | grep -E '^(Need to get|After this|[0-9]+ upgraded)' || true)
  say "To install: $*, with $(grep -c '^Inst ' <<<"$plan") packages in all:"
  say "  $(awk '/^Inst /{print $2}' <<<"$plan" | tr '\n' ' ')"
  say "${sizes//$'\n'/$'\n'}"
  ask "Install them (system services are not started)?" || die "not installed"
  policy_suppress
  if ! packages_apt_install "$@"; then
    say "trying once more with fresh package lists"
    as_root apt-get update -q >&2 || die "apt-get update failed"
    packages_apt_install "$@" || die "installing $* failed"
  fi
  policy_restore
  services_disable "$@"
}

packages_apt_install() {
  as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
    --no-remove --no-upgrade --no-install-recommends "$@" >&2
}

# While packages are installed no service starts. What was there before is put back on every exit,
# and by the next call if this one is killed.
policy_suppress() {
  policy_restore
  trap policy_restore EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  if [[ -e $POLICY ]]; then as_root mv "$POLICY" "$POLICY_SAVED"; fi
  printf '#!/bin/sh\n# %s\nexit 101\n' "$POLICY_MARK" | as_root tee "$POLICY" >/dev/null
  as_root chmod 755 "$POLICY"
}

policy_restore() {
  if grep -qs "$POLICY_MARK" "$POLICY"; then as_root rm -f "$POLICY"; fi
  if [[ -e $POLICY_SAVED ]]; then as_root mv "$POLICY_SAVED" "$POLICY"; fi
}

# services_disable: a freshly installed service must not appear at the next boot either.
services_disable() {
  local unit
  [[ -d /run/systemd/system ]] || return 0
  for unit in "$@"; do
    case $unit in
      redis-server) as_root systemctl disable -q redis-server 2>/dev/null || true ;;
      rabbitmq-server) as_root systemctl disable -q rabbitmq-server epmd.socket epmd.service 2>/dev/null || true ;;
      prometheus | prometheus-alertmanager) as_root systemctl disable -q "$unit" 2>/dev/null || true ;;
    esac
  done
}
