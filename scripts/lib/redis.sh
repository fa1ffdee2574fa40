# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# Redis, for the delay mechanism zset: only when it was asked for (scripts/stack up --redis), and remembered then.

redis_wanted() { [[ $STACK_REDIS == true ]]; }

redis_check_ports() {
  process_alive redis && return 0
  port_check "$PORT_REDIS" Redis
}

redis_data() { printf '%s/redis' "$STACK_DIR"; }

redis_configure() {
  local data
  data=$(redis_data)
  mkdir -p "$data"
  (
    umask 077
    cat "$CHECKOUT/configs/redis/redis.conf" - >"$data/redis.conf" <<CONF

# Written by scripts/stack.
bind 127.0.0.1
port $PORT_REDIS
dir $data
requirepass $STACK_REDIS_PASSWORD
CONF
  )
}

redis_start() {
  process_alive redis && return 0
  redis_configure
  say 'starting Redis'
  process_spawn redis "$(server_binary redis-server)" "$(redis_data)/redis.conf"
}

redis_await() { process_await redis 60 redis_answers; }

redis_answers() { port_listens "$PORT_REDIS" && [[ $(redis_ask PING) == *PONG* ]]; }

# redis_ask COMMAND: what one command is answered, without redis-cli.
redis_ask() {
  (
    exec 2>/dev/null
    exec 3<>"/dev/tcp/127.0.0.1/$PORT_REDIS" || exit 1
    printf 'AUTH %s\r\n%s\r\nQUIT\r\n' "$STACK_REDIS_PASSWORD" "$1" >&3
    limited 20 cat <&3
  ) | tr -d '\r' || true
}

# redis_provision marks the server with this checkout's token.
redis_provision() {
  [[ $(redis_token) != "$STACK_TOKEN" ]] || return 0
  redis_ask "SET lapse-stack:token $STACK_TOKEN" >/dev/null
  [[ $(redis_token) == "$STACK_TOKEN" ]] || die 'Redis did not take the fence token'
}

redis_token() {
  local answer
  answer=$(redis_ask 'GET lapse-stack:token')
  if [[ $answer == *"$STACK_TOKEN"* ]]; then printf '%s' "$STACK_TOKEN"; fi
}

redis_version() {
  local answer
  answer=$(redis_ask 'INFO server')
  grep -oE '^redis_version:.*' <<<"$answer" | cut -d: -f2 || true
}

redis_empty() {
  redis_ask FLUSHALL >/dev/null
  redis_provision
}

redis_stop() { process_stop redis 60; }
