# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# Processes of the stack's own. A pid file holds "pid start-time boot-id": a process counts as ours
# only while all three agree, so a reused pid is never signalled.

process_start_time() { # PID
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  # Fields after the command name begin at the third; the start time is the 22nd of all.
  # shellcheck disable=SC2086
  set -- $stat
  [[ $1 != Z && $1 != X ]] || return 1
  printf '%s' "${20}"
}

boot_id() { cat /proc/sys/kernel/random/boot_id; }

# process_alive NAME: true while the process of that pid file runs; sets PROCESS_PID.
process_alive() {
  local pid started boot
  PROCESS_PID=''
  [[ -f $STACK_DIR/run/$1.pid ]] || return 1
  read -r pid started boot <"$STACK_DIR/run/$1.pid" || return 1
  [[ $boot == "$(boot_id)" && $(process_start_time "$pid") == "$started" ]] || return 1
  PROCESS_PID=$pid
}

# process_spawn NAME COMMAND…: in a session of its own, without our lock, output to the log.
process_spawn() {
  local name=$1 pid log=$STACK_DIR/log/$1.log
  shift
  if [[ -f $log ]] && (($(wc -c <"$log") > 20000000)); then mv -f "$log" "$log.1"; fi
  setsid "$@" </dev/null >>"$log" 2>&1 9>&- &
  pid=$!
  printf '%s %s %s\n' "$pid" "$(process_start_time "$pid" || echo gone)" "$(boot_id)" >"$STACK_DIR/run/$name.pid"
  disown "$pid"
}

# process_stop NAME SECONDS: SIGTERM, then wait for its orderly end.
process_stop() {
  local name=$1 deadline=$((SECONDS + $2)) pid
  if ! process_alive "$name"; then
    rm -f "$STACK_DIR/run/$name.pid"
    return 0
  fi
  pid=$PROCESS_PID
  kill -TERM "$pid"
  kill -CONT "$pid" 2>/dev/null || true # one that was paused would not hear it
  while process_alive "$name"; do
    ((SECONDS < deadline)) || die "$name (pid $pid) did not end within $2 s; scripts/stack kill $name"
    sleep 0.1
  done
  rm -f "$STACK_DIR/run/$name.pid"
  say "stopped $name (pid $pid)"
}

# process_stop_others ends what was started beside the servers, such as a demo's kept fleet: every
# other pid file in .stack/run.
process_stop_others() {
  local file name
  for file in "$STACK_DIR"/run/*.pid; do
    [[ -e $file ]] || continue
    name=$(basename "$file" .pid)
    case $name in
      rabbitmq | rabbitmq-[0-9] | epmd | database | redis) ;;
      *) process_stop "$name" 45 ;;
    esac
  done
}

process_kill() {
  local pid
  process_alive "$1" || die "$1 is not running"
  pid=$PROCESS_PID
  kill -KILL "$pid"
  while process_alive "$1"; do sleep 0.02; done
  rm -f "$STACK_DIR/run/$1.pid"
  say "killed $1 (pid $pid)"
}

# process_again NAME starts a server's process once more. A node of the broker is the one that is selected.
process_again() {
  case $1 in
    rabbitmq | rabbitmq-*) node_start ;;
    *) "${1}_start" ;;
  esac
}

# process_await NAME SECONDS COMMAND…: until the command succeeds; shows the log when it never does.
#
# Our ports lie among those that the kernel gives to outgoing connections: one of them may hold a port for a while
# without listening on it. A server that ended over that is started again, a few times.
process_await() {
  local name=$1 limit=$2 deadline=$((SECONDS + $2)) again=5
  shift 2
  until "$@"; do
    if ! process_alive "$name"; then
      if ((again > 0)) && tail -n 40 "$STACK_DIR/log/$name.log" | grep -qiE 'address already in use|eaddrinuse'; then
        again=$((again - 1))
        say "$name found a port in use; once more"
        sleep 3
        process_again "$name"
        continue
      fi
      tail -n 25 "$STACK_DIR/log/$name.log" >&2 || true
      die "$name ended while starting; log: $STACK_DIR/log/$name.log"
    fi
    if ((SECONDS >= deadline)); then
      tail -n 25 "$STACK_DIR/log/$name.log" >&2 || true
      die "$name did not answer within $limit s; log: $STACK_DIR/log/$name.log"
    fi
    sleep 0.1
  done
}

# port_inode PORT: the inode of the socket that listens there on any address, or nothing.
port_inode() {
  local hex
  printf -v hex '%04X' "$1"
  awk -v port=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10; exit }' \
    /proc/net/tcp /proc/net/tcp6 2>/dev/null || true # without IPv6 there is no second file
}

port_holder() { # INODE: "pid 12 (name)" as far as we may look
  local fd pid
  fd=$(find /proc/[0-9]*/fd -maxdepth 1 -lname "socket:\\[$1\\]" -print -quit 2>/dev/null || true)
  if [[ -z $fd ]]; then
    printf 'a process of another user'
    return
  fi
  pid=${fd#/proc/}
  pid=${pid%%/*}
  printf 'pid %s (%s)' "$pid" "$(cat "/proc/$pid/comm" 2>/dev/null || true)"
}

# port_check PORT WHAT: refuses a port that somebody else holds.
port_check() {
  local inode
  inode=$(port_inode "$1")
  [[ -z $inode ]] ||
    die "port $1 ($2) is held by $(port_holder "$inode"); free it or choose another STACK_PORT_BASE (now $STACK_PORT_BASE)"
}

port_listens() { [[ -n $(port_inode "$1") ]]; }

# limited SECONDS COMMAND…: with a deadline where the machine has timeout(1).
limited() {
  local seconds=$1
  shift
  if command -v timeout >/dev/null; then timeout "$seconds" "$@"; else "$@"; fi
}
