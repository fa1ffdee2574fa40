# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# The RabbitMQ node: own name, cookie, epmd and ports, everything on 127.0.0.1.

rabbitmq_check_ports() {
  process_alive rabbitmq && return 0
  port_check "$PORT_AMQP" AMQP
  port_check "$PORT_AMQPS" 'AMQP with TLS'
  port_check "$PORT_MANAGEMENT" 'RabbitMQ management'
  port_check "$PORT_BROKER_METRICS" 'RabbitMQ metrics'
  port_check "$PORT_DISTRIBUTION" 'RabbitMQ distribution'
  process_alive epmd || port_check "$PORT_EPMD" epmd
}

# rabbitmq_node names the node after the checkout, so that two stacks never share one.
rabbitmq_node() { printf 'lapse-%s@localhost' "$(printf '%s %s' "$CHECKOUT" "$STACK_PORT_BASE" | cksum | cut -d' ' -f1)"; }

rabbitmq_data() { printf '%s/rabbitmq%s' "$STACK_DIR" "$STACK_BROKER"; }

# rabbitmq_view is the data directory as the node sees it.
rabbitmq_view() {
  if [[ $STACK_BROKER == 4 ]]; then printf /stack; else rabbitmq_data; fi
}

rabbitmq_configure() {
  local data view
  data=$(rabbitmq_data)
  view=$(rabbitmq_view)
  mkdir -p "$data"/{conf.d,home,mnesia,log}
  (
    umask 077
    tls_copy "$data/tls"
    cp "$CHECKOUT/configs/broker/rabbitmq.conf" "$data/conf.d/10-lapse.conf"
    cp "$CHECKOUT/configs/broker/advanced.config" "$data/advanced.config"
    cat >"$data/conf.d/90-stack.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$PORT_AMQP
listeners.ssl.1 = 127.0.0.1:$PORT_AMQPS
ssl_options.cacertfile = $view/tls/ca.pem
ssl_options.certfile = $view/tls/server.pem
ssl_options.keyfile = $view/tls/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
management.tcp.ip = 127.0.0.1
management.tcp.port = $PORT_MANAGEMENT
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = $PORT_BROKER_METRICS
default_vhost = lapse
default_user = lapse
default_pass = $STACK_BROKER_PASSWORD
default_user_tags.administrator = true
log.console = true
log.console.level = info
log.file = false
CONF
    printf '[rabbitmq_management,rabbitmq_prometheus].\n' >"$data/enabled_plugins"
    rm -f "$data/home/.erlang.cookie"
    printf '%s' "$STACK_COOKIE" >"$data/home/.erlang.cookie"
    chmod 400 "$data/home/.erlang.cookie"
  )
}

# rabbitmq_environment DATA: the node's environment, with its data seen at DATA.
rabbitmq_environment() {
  local loopback='-kernel inet_dist_use_interface {127,0,0,1}' patient=''
  # A dead-letter worker whose queue was deleted just after its declaration, as tests do all day, crashes,
  # is restarted, crashes again, and takes the supervisor of them all along: no at-least-once queue of the
  # node forwards anything until it is restarted. On this node such a worker is not restarted. RabbitMQ 4
  # bears a hundred crashes a second by itself.
  [[ $STACK_BROKER != 3 ]] || patient='-eval catch(sys:replace_state(rabbit_fifo_dlx_sup,fun(S)->{I,M}=element(4,S),setelement(4,S,{I,maps:map(fun(_,C)->setelement(5,C,temporary)end,M)})end)).'
  RABBITMQ_ENV=(
    "HOME=$1/home" "PATH=/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8
    "ERL_EPMD_PORT=$PORT_EPMD" ERL_EPMD_ADDRESS=127.0.0.1
    "RABBITMQ_NODENAME=$(rabbitmq_node)" "RABBITMQ_DIST_PORT=$PORT_DISTRIBUTION"
    "RABBITMQ_CONF_ENV_FILE=$1/none.conf" "RABBITMQ_CONFIG_FILE=$1/none"
    "RABBITMQ_CONFIG_FILES=$1/conf.d" "RABBITMQ_ADVANCED_CONFIG_FILE=$1/advanced.config"
    "RABBITMQ_ENABLED_PLUGINS_FILE=$1/enabled_plugins"
    "RABBITMQ_MNESIA_BASE=$1/mnesia" "RABBITMQ_LOG_BASE=$1/log" "RABBITMQ_GENERATED_CONFIG_DIR=$1/config"
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=$loopback $patient" "RABBITMQ_CTL_ERL_ARGS=$loopback"
    "RABBITMQ_CTL_DIST_PORT_MIN=$((PORT_DISTRIBUTION + 1))" "RABBITMQ_CTL_DIST_PORT_MAX=$((PORT_DISTRIBUTION + 9))"
    RABBITMQ_LOG=-color
    # The start script then replaces itself by the node, so that the pid is the node's.
    detached=true
  )
}

rabbitmq_start() {
  process_alive rabbitmq && return 0
  tls_ensure
  rabbitmq_configure
  epmd_start
  say "starting RabbitMQ $STACK_BROKER"
  if [[ $STACK_BROKER == 4 ]]; then
    rabbitmq_environment /stack
    roots_command debian13 "$(rabbitmq_data)" "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server
    process_spawn rabbitmq "${ROOTS_COMMAND[@]}"
  else
    rabbitmq_environment "$(rabbitmq_data)"
    process_spawn rabbitmq env -i "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server
  fi
}

rabbitmq_ctl() {
  if [[ $STACK_BROKER == 4 ]]; then
    rabbitmq_environment /stack
    roots_command debian13 "$(rabbitmq_data)" "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmqctl "$@"
    "${ROOTS_COMMAND[@]}"
  else
    rabbitmq_environment "$(rabbitmq_data)"
    env -i "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmqctl "$@"
  fi
}

# Our own epmd: the one on 4369, if there is any, is the system's.
epmd_start() {
  process_alive epmd && return 0
  if [[ $STACK_BROKER == 4 ]]; then
    roots_command debian13 "$(rabbitmq_data)" /usr/bin/epmd -port "$PORT_EPMD" -address 127.0.0.1
    process_spawn epmd "${ROOTS_COMMAND[@]}"
  else
    process_spawn epmd /usr/bin/epmd -port "$PORT_EPMD" -address 127.0.0.1
  fi
  process_await epmd 10 port_listens "$PORT_EPMD"
}

rabbitmq_await() { process_await rabbitmq 180 rabbitmq_answers; }

rabbitmq_answers() { port_listens "$PORT_AMQP" && broker_api GET /api/vhosts/lapse >/dev/null; }

# What the management UI shows of the vhost; the last word is this checkout's token.
rabbitmq_description() {
  printf 'Lapse, private stack for development and tests. P.wait.* is full by design; look at P.due.* and P.parked. Token: %s' "$STACK_TOKEN"
}

rabbitmq_describe() {
  broker_api PUT /api/vhosts/lapse "{\"description\":\"$(rabbitmq_description)\",\"tags\":\"\"}" >/dev/null
}

# rabbitmq_provision marks the vhost with this checkout's token.
rabbitmq_provision() {
  [[ $(rabbitmq_described) != "$(rabbitmq_description)" ]] || return 0
  rabbitmq_describe || true
  [[ $(rabbitmq_token) != "$STACK_TOKEN" ]] || return 0
  # An older node describes a vhost only when it makes it; there is nothing in it yet.
  rabbitmq_recreate
  [[ $(rabbitmq_token) == "$STACK_TOKEN" ]] || die "the broker did not take the fence token"
}

rabbitmq_recreate() {
  broker_api DELETE /api/vhosts/lapse >/dev/null || true
  rabbitmq_describe || die "the broker did not create vhost lapse"
  broker_api PUT /api/permissions/lapse/lapse '{"configure":".*","write":".*","read":".*"}' >/dev/null ||
    die "the broker did not take the permissions of user lapse"
}

rabbitmq_described() {
  broker_api GET /api/vhosts/lapse | grep -oE '"description":"[^"]*"' | head -n1 | cut -d'"' -f4 || true
}

rabbitmq_token() {
  local description
  description=$(rabbitmq_described)
  printf '%s' "${description##* }"
}

rabbitmq_version() {
  broker_api GET /api/overview | grep -oE '"rabbitmq_version":"[^"]*"' | head -n1 | cut -d'"' -f4 || true
}

rabbitmq_stop() { process_stop rabbitmq 60; }
epmd_stop() { process_stop epmd 10; }

# broker_api METHOD PATH [BODY]: the management API without curl; prints the body, fails unless 2xx.
broker_api() {
  local reply status body=${3:-} auth
  auth=$(printf 'lapse:%s' "$STACK_BROKER_PASSWORD" | base64 | tr -d '\n')
  reply=$(
    exec 2>/dev/null
    exec 3<>"/dev/tcp/127.0.0.1/$PORT_MANAGEMENT" || exit 1
    printf '%s %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
      "$1" "$2" "$auth" "${#body}" "$body" >&3
    limited 20 cat <&3
  ) || return 1
  status=${reply#* }
  [[ ${status:0:1} == 2 ]] || return 1
  printf '%s' "${reply#*$'\r\n\r\n'}"
}
