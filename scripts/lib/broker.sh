# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# The RabbitMQ nodes, one or a cluster of them: own names, cookie, epmd and ports, everything on 127.0.0.1. What begins with node_
# goes by the node that was selected; what begins with rabbitmq_ is of all of them.

# node_select NUMBER: nodes are counted from 1, and the first is the one that a stack of one node has.
node_select() {
  local step=$((($1 - 1) * 30))
  NODE=$1
  NODE_PROCESS=rabbitmq
  (($1 == 1)) || NODE_PROCESS=rabbitmq-$1
  NODE_AMQP=$((PORT_AMQP + step))
  NODE_AMQPS=$((PORT_AMQPS + step))
  NODE_MANAGEMENT=$((PORT_MANAGEMENT + step))
  NODE_METRICS=$((PORT_BROKER_METRICS + step))
  NODE_DISTRIBUTION=$((PORT_DISTRIBUTION + step))
}

# rabbitmq_alive: one of the nodes runs.
rabbitmq_alive() {
  local number
  process_alive rabbitmq && return 0
  for ((number = 2; number <= STACK_NODES; number++)); do
    process_alive "rabbitmq-$number" && return 0
  done
  return 1
}

# node_any selects the first node that runs, or the first.
node_any() {
  local number
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    ! process_alive "$NODE_PROCESS" || return 0
  done
  node_select 1
}

# each_node COMMAND…: for each of them.
each_node() {
  local number
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    "$@"
  done
}

rabbitmq_check_ports() {
  each_node node_check_ports
  process_alive epmd || port_check "$PORT_EPMD" epmd
}

node_check_ports() {
  process_alive "$NODE_PROCESS" && return 0
  local of=''
  ((STACK_NODES == 1)) || of=" of node $NODE"
  port_check "$NODE_AMQP" "AMQP$of"
  port_check "$NODE_AMQPS" "AMQP with TLS$of"
  port_check "$NODE_MANAGEMENT" "RabbitMQ management$of"
  port_check "$NODE_METRICS" "RabbitMQ metrics$of"
  port_check "$NODE_DISTRIBUTION" "RabbitMQ distribution$of"
}

# node_name [NUMBER] names a node after the checkout, so that two stacks never share one.
node_name() {
  local number=${1:-$NODE}
  printf 'lapse-%s' "$(printf '%s %s' "$CHECKOUT" "$STACK_PORT_BASE" | cksum | cut -d' ' -f1)"
  ((number == 1)) || printf -- '-%s' "$number"
  printf '@localhost'
}

node_data() {
  printf '%s/rabbitmq%s' "$STACK_DIR" "$STACK_BROKER"
  ((NODE == 1)) || printf -- '-%s' "$NODE"
}

# node_view is the data directory as the node sees it.
node_view() {
  if [[ $STACK_BROKER == 4 ]]; then printf /stack; else node_data; fi
}

node_configure() {
  local data view
  data=$(node_data)
  view=$(node_view)
  mkdir -p "$data"/{conf.d,home,mnesia,log}
  (
    umask 077
    tls_copy "$data/tls"
    cp "$CHECKOUT/configs/broker/rabbitmq.conf" "$data/conf.d/10-lapse.conf"
    cp "$CHECKOUT/configs/broker/advanced.config" "$data/advanced.config"
    cat >"$data/conf.d/90-stack.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$NODE_AMQP
listeners.ssl.1 = 127.0.0.1:$NODE_AMQPS
ssl_options.cacertfile = $view/tls/ca.pem
ssl_options.certfile = $view/tls/server.pem
ssl_options.keyfile = $view/tls/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
management.tcp.ip = 127.0.0.1
management.tcp.port = $NODE_MANAGEMENT
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = $NODE_METRICS
default_vhost = lapse
default_user = lapse
default_pass = $STACK_BROKER_PASSWORD
default_user_tags.administrator = true
log.console = true
log.console.level = info
log.file = false
CONF
    # The others join the first when they have no data yet; later each knows its cluster by itself.
    if ((NODE > 1)); then
      cat >>"$data/conf.d/90-stack.conf" <<CONF
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = $(node_name 1)
cluster_formation.classic_config.nodes.2 = $(node_name)
CONF
    fi
    printf '[rabbitmq_management,rabbitmq_prometheus].\n' >"$data/enabled_plugins"
    rm -f "$data/home/.erlang.cookie"
    printf '%s' "$STACK_COOKIE" >"$data/home/.erlang.cookie"
    chmod 400 "$data/home/.erlang.cookie"
  )
}

# node_environment DATA: the node's environment, with its data seen at DATA.
node_environment() {
  local loopback='-kernel inet_dist_use_interface {127,0,0,1}' patient=''
  # A dead-letter worker whose queue was deleted just after its declaration, as tests do all day, crashes,
  # is restarted, crashes again, and takes the supervisor of them all along: no at-least-once queue of the
  # node forwards anything until it is restarted. On this node such a worker is not restarted. RabbitMQ 4
  # bears a hundred crashes a second by itself. In a cluster a worker may have to be, since other nodes come and go.
  [[ $STACK_BROKER != 3 ]] || ((STACK_NODES > 1)) || patient='-eval catch(sys:replace_state(rabbit_fifo_dlx_sup,fun(S)->{I,M}=element(4,S),setelement(4,S,{I,maps:map(fun(_,C)->setelement(5,C,temporary)end,M)})end)).'
  RABBITMQ_ENV=(
    "HOME=$1/home" "PATH=/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8
    "ERL_EPMD_PORT=$PORT_EPMD" ERL_EPMD_ADDRESS=127.0.0.1
    "RABBITMQ_NODENAME=$(node_name)" "RABBITMQ_DIST_PORT=$NODE_DISTRIBUTION"
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

node_start() {
  process_alive "$NODE_PROCESS" && return 0
  tls_ensure
  node_configure
  epmd_start
  if ((STACK_NODES == 1)); then say "starting RabbitMQ $STACK_BROKER"; else say "starting RabbitMQ $STACK_BROKER, node $NODE of $STACK_NODES"; fi
  if [[ $STACK_BROKER == 4 ]]; then
    node_environment /stack
    roots_command debian13 "$(node_data)" "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server
    process_spawn "$NODE_PROCESS" "${ROOTS_COMMAND[@]}"
  else
    node_environment "$(node_data)"
    process_spawn "$NODE_PROCESS" env -i "${RABBITMQ_ENV[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server
  fi
}

# node_tool TOOL ARG…: one of the broker's command lines (rabbitmqctl, rabbitmq-queues, rabbitmq-upgrade) on the selected node.
node_tool() {
  local tool=/usr/lib/rabbitmq/bin/$1
  shift
  if [[ $STACK_BROKER == 4 ]]; then
    node_environment /stack
    roots_command debian13 "$(node_data)" "${RABBITMQ_ENV[@]}" "$tool" "$@"
    "${ROOTS_COMMAND[@]}"
  else
    node_environment "$(node_data)"
    env -i "${RABBITMQ_ENV[@]}" "$tool" "$@"
  fi
}

node_await() {
  process_await "$NODE_PROCESS" 180 node_answers
  touch "$(node_data)/formed"
}

node_answers() { port_listens "$NODE_AMQP" && broker_api GET /api/vhosts/lapse >/dev/null; }

node_formed() { [[ -f $(node_data)/formed ]]; }

# rabbitmq_start starts all nodes. A cluster is formed by one after the other, since each joins what answers; one that was formed
# comes up together, since each waits for the others.
rabbitmq_start() {
  local together=true number
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    node_formed || together=''
  done
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    node_start
    [[ -n $together ]] || ((STACK_NODES == 1)) || node_await
  done
}

rabbitmq_await() {
  each_node node_await
  ((STACK_NODES > 1)) || return 0
  node_select 1
  local deadline=$((SECONDS + 60))
  until (($(rabbitmq_members) == STACK_NODES)); do
    ((SECONDS < deadline)) || die "the nodes did not become one cluster of $STACK_NODES: $(rabbitmq_members) run in that of the first; log: $STACK_DIR/log/rabbitmq.log"
    sleep 0.5
  done
}

# rabbitmq_addresses [PORT] is where every node speaks AMQP, or what the first does at PORT.
rabbitmq_addresses() {
  local number
  for ((number = 1; number <= STACK_NODES; number++)); do
    printf '%s127.0.0.1:%s' "$( ((number == 1)) || printf ,)" "$((${1:-$PORT_AMQP} + (number - 1) * 30))"
  done
}

# rabbitmq_members counts the nodes that run, as the selected one sees it.
rabbitmq_members() { broker_api GET '/api/nodes?columns=name,running' | grep -oE '"running":true' | wc -l || true; }

# Our own epmd: the one on 4369, if there is any, is the system's.
epmd_start() {
  process_alive epmd && return 0
  if [[ $STACK_BROKER == 4 ]]; then
    roots_command debian13 "$(node_data)" /usr/bin/epmd -port "$PORT_EPMD" -address 127.0.0.1
    process_spawn epmd "${ROOTS_COMMAND[@]}"
  else
    process_spawn epmd /usr/bin/epmd -port "$PORT_EPMD" -address 127.0.0.1
  fi
  process_await epmd 10 port_listens "$PORT_EPMD"
}

# What the management UI shows of the vhost; the last word is this checkout's token.
rabbitmq_description() {
  printf 'Lapse, private stack for development and tests. P.wait.* is full by design; look at P.due.* and P.parked. Token: %s' "$STACK_TOKEN"
}

rabbitmq_describe() {
  broker_api PUT /api/vhosts/lapse "{\"description\":\"$(rabbitmq_description)\",\"tags\":\"\"}" >/dev/null
}

# rabbitmq_provision marks the vhost with this checkout's token.
rabbitmq_provision() {
  node_any
  [[ $(node_described) != "$(rabbitmq_description)" ]] || return 0
  rabbitmq_describe || true
  [[ $(rabbitmq_token) != "$STACK_TOKEN" ]] || return 0
  # An older node describes a vhost only when it makes it; there is nothing in it yet.
  rabbitmq_recreate
  [[ $(rabbitmq_token) == "$STACK_TOKEN" ]] || die "the broker did not take the fence token"
}

rabbitmq_recreate() {
  node_any
  broker_api DELETE /api/vhosts/lapse >/dev/null || true
  rabbitmq_describe || die "the broker did not create vhost lapse"
  broker_api PUT /api/permissions/lapse/lapse '{"configure":".*","write":".*","read":".*"}' >/dev/null ||
    die "the broker did not take the permissions of user lapse"
}

rabbitmq_token() {
  node_any
  node_token
}

rabbitmq_version() {
  node_any
  node_version
}

node_described() {
  broker_api GET /api/vhosts/lapse | grep -oE '"description":"[^"]*"' | head -n1 | cut -d'"' -f4 || true
}

node_token() {
  local description
  description=$(node_described)
  printf '%s' "${description##* }"
}

node_version() {
  broker_api GET /api/overview | grep -oE '"rabbitmq_version":"[^"]*"' | head -n1 | cut -d'"' -f4 || true
}

# rabbitmq_stop stops all nodes, at once: of a cluster that is stopped one by one the last is a minority and pauses by itself.
rabbitmq_stop() {
  each_node node_signal TERM
  each_node node_stop
}

node_stop() { process_stop "$NODE_PROCESS" 60; }

# node_signal SIGNAL: if it runs.
node_signal() { ! process_alive "$NODE_PROCESS" || kill "-$1" "$PROCESS_PID"; }

rabbitmq_kill() {
  local number killed=''
  for ((number = 1; number <= STACK_NODES; number++)); do
    node_select "$number"
    process_alive "$NODE_PROCESS" || continue
    process_kill "$NODE_PROCESS"
    killed=true
  done
  [[ -n $killed ]] || die "rabbitmq is not running"
}

epmd_stop() { process_stop epmd 10; }

# node_partition on|off: the selected node and the others refuse each other's connections, by another cookie, and the one that they
# have is ended. It alone is the minority then, and pauses (cluster_partition_handling); it comes back by itself.
node_partition() {
  local number others=''
  for ((number = 1; number <= STACK_NODES; number++)); do
    ((number == NODE)) || others+="${others:+,}'$(node_name "$number")'"
  done
  case $1 in
    on) node_tool rabbitmqctl eval "[begin erlang:set_cookie(N, apart), erlang:disconnect_node(N) end || N <- [$others]]." >&2 ;;
    off) node_tool rabbitmqctl eval "[erlang:set_cookie(N, erlang:get_cookie()) || N <- [$others]]." >&2 ;;
  esac
}

# broker_api METHOD PATH [BODY]: the management API of the selected node without curl; prints the body, fails unless 2xx.
broker_api() {
  local reply status body=${3:-} auth
  auth=$(printf 'lapse:%s' "$STACK_BROKER_PASSWORD" | base64 | tr -d '\n')
  reply=$(
    exec 2>/dev/null
    exec 3<>"/dev/tcp/127.0.0.1/$NODE_MANAGEMENT" || exit 1
    printf '%s %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
      "$1" "$2" "$auth" "${#body}" "$body" >&3
    limited 20 cat <&3
  ) || return 1
  status=${reply#* }
  [[ ${status:0:1} == 2 ]] || return 1
  printf '%s' "${reply#*$'\r\n\r\n'}"
}
