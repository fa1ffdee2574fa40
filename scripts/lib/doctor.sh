# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# What this machine has and lacks for building, testing and running the stack.

cmd_doctor() {
  DOCTOR_MISSING=0
  doctor_go
  doctor_tool git 'apt-get install git'
  doctor_tool make 'apt-get install make'
  doctor_tool gcc 'apt-get install gcc libc6-dev' 'for go test -race'
  doctor_servers
  doctor_space
  doctor_cluster
  if ((DOCTOR_MISSING)); then
    say "$DOCTOR_MISSING missing"
    return 1
  fi
  say 'nothing is missing'
}

doctor_ok() { printf 'ok       %-10s %s\n' "$1" "$2"; }
doctor_missing() {
  DOCTOR_MISSING=$((DOCTOR_MISSING + 1))
  printf 'MISSING  %-10s %s\n' "$1" "$2"
}

doctor_go() {
  local version minor
  version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
  minor=${version#go1.}
  minor=${minor%%[!0-9]*}
  if [[ -z $version ]]; then
    doctor_missing go 'Go 1.26 or newer: https://go.dev/dl/ (unpack to /usr/local/go, add /usr/local/go/bin to PATH)'
  elif [[ -n $minor ]] && ((minor < 26)); then
    doctor_missing go "Go 1.26 or newer, found $version: https://go.dev/dl/"
  else
    doctor_ok go "$version"
  fi
}

doctor_tool() { # NAME HOW [WHAT FOR]
  if command -v "$1" >/dev/null; then
    doctor_ok "$1" "$(command -v "$1")"
  else
    doctor_missing "$1" "$2${3:+ ($3)}"
  fi
}

doctor_servers() {
  local packages='rabbitmq-server, mariadb-server-core, mariadb-client-core'
  if docker_answers; then
    doctor_ok servers 'a Docker engine answers: containers are used'
  elif ! is_debian; then
    doctor_missing servers 'neither a running Docker engine nor Debian: start Docker (docker info must answer)'
  elif [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server && -x $(server_binary mariadbd) ]] && command -v mariadb >/dev/null; then
    doctor_ok servers "Debian's $packages"
  elif (($(id -u) == 0)) || command -v sudo >/dev/null; then
    doctor_ok servers "scripts/stack up will install Debian's $packages, and asks first"
  else
    doctor_missing servers "as root: apt-get install --no-install-recommends ${packages//,/}"
  fi
}

# doctor_cluster: a node takes some 200 MB, and as much again while it starts.
doctor_cluster() {
  local free
  [[ -r /proc/meminfo ]] || return 0
  free=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
  if ((free < 2000)); then
    doctor_ok memory "$free MB free, too little for a cluster of three nodes (up --nodes 3)"
  else
    doctor_ok memory "$free MB free"
  fi
}

doctor_space() {
  local free
  free=$(df -Pk "$CHECKOUT" | awk 'NR == 2 { print int($4 / 1048576) }')
  if ((free < 6)); then
    doctor_missing disk "6 GB free for the stack, found $free GB at $CHECKOUT"
  else
    doctor_ok disk "$free GB free"
  fi
}
