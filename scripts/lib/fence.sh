# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# What runs, what it says, and reset, which touches nothing but servers that carry this checkout's token.

cmd_summary() {
  cat <<SUMMARY
RabbitMQ $(rabbitmq_version)
  AMQP        amqp://lapse:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_AMQP/lapse$( ((STACK_NODES == 1)) || printf ' (nodes: %s)' "$(rabbitmq_addresses)")
  management  http://127.0.0.1:$PORT_MANAGEMENT  (user lapse, password $STACK_BROKER_PASSWORD)
  metrics     http://127.0.0.1:$PORT_BROKER_METRICS/metrics
database $(database_version)
  MySQL       127.0.0.1:$PORT_MYSQL, database lapse  (user lapse, password $STACK_DB_PASSWORD; root $STACK_DB_ROOT_PASSWORD)
$(if redis_wanted; then printf 'Redis %s\n  redis://:%s@127.0.0.1:%s/0' "$(redis_version)" "$STACK_REDIS_PASSWORD" "$PORT_REDIS"; else echo 'Redis not asked for (--redis)'; fi)
For binaries and tests:  eval "\$(scripts/stack env)"
SUMMARY
}

require_stack() { [[ -f $STACK_DIR/stack.env ]] || die "no stack here; first: scripts/stack up"; }

# cmd_status ends with 0 only when all servers run and carry our token.
cmd_status() {
  local healthy=0 number
  require_stack
  state_load
  printf 'stack      %s (%s), ports from %s\n' "$STACK_DIR" "$STACK_ENGINE" "$STACK_PORT_BASE"
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    status_line "$NODE_PROCESS" "RabbitMQ $STACK_BROKER" "$NODE_AMQP" || healthy=1
  done
  status_line database "$STACK_DATABASE" "$PORT_MYSQL" || healthy=1
  ! redis_wanted || status_line redis Redis "$PORT_REDIS" || healthy=1
  if [[ $STACK_ENGINE == native ]]; then
    printf 'on disk    %s\n' "$(du -sh "$STACK_DIR" 2>/dev/null | cut -f1)"
  fi
  return "$healthy"
}

status_line() { # SERVER TITLE PORT
  local version token inode of=$1
  # A node of the broker is the one that is selected.
  [[ $1 != rabbitmq* ]] || of=node
  token=$("${of}_token")
  if [[ $token == "$STACK_TOKEN" ]]; then
    version=$("${of}_version")
    if process_alive "$1"; then version="$version, pid $PROCESS_PID"; fi
    printf '%-10s answers on 127.0.0.1:%s (%s)\n' "$1" "$3" "$version"
  elif process_alive "$1"; then
    printf '%-10s %s runs (pid %s) and does not answer on 127.0.0.1:%s: scripts/stack logs %s\n' "$1" "$2" "$PROCESS_PID" "$3" "$1"
    return 1
  else
    inode=$(port_inode "$3")
    if [[ -n $inode ]]; then
      printf '%-10s %s does not run; port %s is held by %s\n' "$1" "$2" "$3" "$(port_holder "$inode")"
    else
      printf '%-10s %s does not run\n' "$1" "$2"
    fi
    return 1
  fi
}

cmd_logs() {
  local follow='' servers=()
  while (($#)); do
    case $1 in
      -f | --follow) follow=-f ;;
      rabbitmq | rabbitmq-[0-9] | database | redis) servers+=("$1") ;;
      *) die "logs: unknown argument $1 (rabbitmq, rabbitmq-2, database, redis, -f)" ;;
    esac
    shift
  done
  require_stack
  state_load
  if [[ $STACK_ENGINE == compose ]]; then
    compose_require
    compose logs --tail 200 ${follow:+-f} ${servers[@]+"${servers[@]}"}
    return
  fi
  ((${#servers[@]})) || servers=(rabbitmq database)
  servers=("${servers[@]/#/$STACK_DIR/log/}")
  tail -n 200 ${follow:+-F} -- "${servers[@]/%/.log}"
}

cmd_reset() {
  local database statements=''
  require_stack
  state_lock
  state_load
  [[ $(rabbitmq_token) == "$STACK_TOKEN" ]] ||
    die "reset: what answers on 127.0.0.1:$PORT_MANAGEMENT does not carry this checkout's token; nothing was changed"
  [[ $(database_token) == "$STACK_TOKEN" ]] ||
    die "reset: what answers on 127.0.0.1:$PORT_MYSQL does not carry this checkout's token; nothing was changed"
  ! redis_wanted || [[ $(redis_token) == "$STACK_TOKEN" ]] ||
    die "reset: what answers on 127.0.0.1:$PORT_REDIS does not carry this checkout's token; nothing was changed"
  while read -r database; do
    statements+="DROP DATABASE IF EXISTS \`$database\`; "
  done < <(sql "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'lapse\\_%'")
  sql "$statements DROP DATABASE IF EXISTS lapse; $(database_fence_sql)" || die "reset: the database refused"
  rabbitmq_recreate
  ! redis_wanted || redis_empty
  say "the servers are empty"
}
