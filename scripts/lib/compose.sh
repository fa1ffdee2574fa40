# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# The stack in containers, where a Docker engine answers. The project's name is derived from the
# checkout, so that only this checkout's containers are ever stopped.

docker_answers() { command -v docker >/dev/null && limited 10 docker info >/dev/null 2>&1; }

compose_require() {
  docker_answers || die "this stack runs in Docker, and no engine answers (docker info); start it, or: scripts/stack down --purge"
  docker compose version >/dev/null 2>&1 || die "docker has no compose plugin: install docker-compose-plugin"
}

compose() {
  env "STACK_PORT_AMQP=$PORT_AMQP" "STACK_PORT_MANAGEMENT=$PORT_MANAGEMENT" \
    "STACK_PORT_BROKER_METRICS=$PORT_BROKER_METRICS" "STACK_PORT_MYSQL=$PORT_MYSQL" \
    "STACK_PORT_REDIS=$PORT_REDIS" "STACK_REDIS_PASSWORD=$STACK_REDIS_PASSWORD" \
    "STACK_DB_TIME_ZONE=$STACK_DB_TIME_ZONE" "STACK_BROKER_PASSWORD=$STACK_BROKER_PASSWORD" \
    "STACK_DB_PASSWORD=$STACK_DB_PASSWORD" "STACK_DB_ROOT_PASSWORD=$STACK_DB_ROOT_PASSWORD" \
    "COMPOSE_PROFILES=$(if redis_wanted; then printf redis; fi)" \
    docker compose -p "$(compose_project)" -f "$CHECKOUT/docker-compose.yml" --project-directory "$CHECKOUT" "$@" 9>&-
}

compose_project() { printf 'lapse-%s' "$(printf %s "$CHECKOUT" | cksum | cut -d' ' -f1)"; }

compose_running() { docker_answers && [[ -n $(compose ps -q --status running 2>/dev/null) ]]; }

compose_up() {
  compose_require
  if ! compose_running; then
    port_check "$PORT_AMQP" AMQP
    port_check "$PORT_MANAGEMENT" 'RabbitMQ management'
    port_check "$PORT_BROKER_METRICS" 'RabbitMQ metrics'
    port_check "$PORT_MYSQL" MySQL
  fi
  state_save
  compose up -d --wait --wait-timeout 300 >&2 || die "the containers did not become healthy: scripts/stack logs"
  compose_provision
}

compose_provision() {
  database_provision
  rabbitmq_provision
  if redis_wanted; then
    redis_provision
  fi
}

# compose_sql STATEMENTS: as root, with the client of the container.
compose_sql() {
  # shellcheck disable=SC2016
  compose exec -T database sh -c 'MYSQL_PWD=$MYSQL_ROOT_PASSWORD exec mysql -uroot --batch --skip-column-names' <<<"$1"
}

compose_down() { # PURGE
  compose_require
  if [[ -n $1 ]]; then compose down -v >&2; else compose down >&2; fi
}

compose_one() { # VERB SERVER
  compose_require
  case $1 in
    start) compose up -d --wait --wait-timeout 300 "$2" >&2 ;;
    stop) compose stop "$2" >&2 ;;
    restart)
      compose stop "$2" >&2
      compose up -d --wait --wait-timeout 300 "$2" >&2
      ;;
    kill) compose kill -s KILL "$2" >&2 ;;
  esac
  [[ $1 != start && $1 != restart ]] || "${2}_provision"
}
