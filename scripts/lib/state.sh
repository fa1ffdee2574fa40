# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# What the stack remembers between calls: .stack/stack.env (mode 600), one writer at a time.

say() { printf '%s\n' "$*" >&2; }
warn() { printf 'stack: %s\n' "$*" >&2; }
die() {
  printf 'stack: %s\n' "$*" >&2
  exit 1
}

# state_lock holds an exclusive lock until the script ends; servers are started with it closed.
state_lock() {
  [[ ! -e $STACK_DIR || -O $STACK_DIR ]] || die "$STACK_DIR belongs to $(stat -c %U "$STACK_DIR"); run scripts/stack as that user"
  mkdir -p "$STACK_DIR"/{run,log}
  chmod 700 "$STACK_DIR"
  exec 9>"$STACK_DIR/lock"
  if command -v flock >/dev/null; then
    flock -w 120 9 || die "another scripts/stack has held $STACK_DIR/lock for two minutes"
  fi
}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

# state_load reads the remembered state, or the defaults of a stack that was never up.
state_load() {
  local asked=${STACK_PORT_BASE:-} asked_zone=${STACK_DB_TIME_ZONE:-} asked_mysqld=${STACK_MYSQLD:-}
  STACK_ENGINE='' STACK_BROKER=3 STACK_NODES=1 STACK_DATABASE=mariadb STACK_REDIS=''
  STACK_PORT_BASE=35000 STACK_DB_TIME_ZONE='' STACK_MYSQLD=''
  STACK_BROKER_PASSWORD='' STACK_DB_PASSWORD='' STACK_DB_ROOT_PASSWORD='' STACK_COOKIE='' STACK_TOKEN=''
  STACK_REDIS_PASSWORD=''
  if [[ -f $STACK_DIR/stack.env ]]; then
    # shellcheck source=/dev/null
    source "$STACK_DIR/stack.env"
  fi
  : "${STACK_BROKER_PASSWORD:=$(random_hex 12)}" "${STACK_DB_PASSWORD:=$(random_hex 12)}"
  : "${STACK_DB_ROOT_PASSWORD:=$(random_hex 12)}" "${STACK_COOKIE:=$(random_hex 16)}" "${STACK_TOKEN:=$(random_hex 16)}"
  : "${STACK_REDIS_PASSWORD:=$(random_hex 12)}"
  if [[ -n $asked && $asked != "$STACK_PORT_BASE" ]]; then
    [[ $asked =~ ^[1-9][0-9]{3,4}$ && $asked -ge 1024 && $asked -le 64000 ]] ||
      die "STACK_PORT_BASE: must be between 1024 and 64000, got $asked"
    stack_running && die "STACK_PORT_BASE is $asked but this stack runs on $STACK_PORT_BASE; stop it first: scripts/stack down"
    STACK_PORT_BASE=$asked
  fi
  STACK_DB_TIME_ZONE=${asked_zone:-${STACK_DB_TIME_ZONE:-+08:00}}
  STACK_MYSQLD=${asked_mysqld:-$STACK_MYSQLD}
  PORT_AMQP=$((STACK_PORT_BASE + 672))
  PORT_AMQPS=$((STACK_PORT_BASE + 671))
  PORT_MANAGEMENT=$((STACK_PORT_BASE + 673))
  PORT_BROKER_METRICS=$((STACK_PORT_BASE + 692))
  PORT_EPMD=$((STACK_PORT_BASE + 369))
  PORT_DISTRIBUTION=$((STACK_PORT_BASE + 572))
  PORT_MYSQL=$((STACK_PORT_BASE + 306))
  PORT_REDIS=$((STACK_PORT_BASE + 379))
  node_select 1
}

state_save() {
  local name tmp=$STACK_DIR/stack.env.new
  (
    umask 077
    for name in STACK_ENGINE STACK_BROKER STACK_NODES STACK_DATABASE STACK_REDIS STACK_PORT_BASE STACK_DB_TIME_ZONE STACK_MYSQLD \
      STACK_BROKER_PASSWORD STACK_DB_PASSWORD STACK_DB_ROOT_PASSWORD STACK_REDIS_PASSWORD STACK_COOKIE STACK_TOKEN; do
      printf '%s=%q\n' "$name" "${!name}"
    done >"$tmp"
  )
  mv "$tmp" "$STACK_DIR/stack.env"
}

# state_purge deletes the stack's directory, which only ever is the checkout's own .stack.
state_purge() {
  [[ $STACK_DIR == "$CHECKOUT/.stack" && ! -L $STACK_DIR ]] || die "refusing to delete $STACK_DIR"
  ! grep -qF " $STACK_DIR/" /proc/self/mountinfo 2>/dev/null || die "something is mounted under $STACK_DIR; unmount it first"
  rm -rf -- "$(short_dir)"
  rm -rf --one-file-system -- "$STACK_DIR" 2>/dev/null ||
    as_root rm -rf --one-file-system -- "$STACK_DIR"
}

# short_dir is where sockets go when the checkout's path is too long for one (107 bytes).
short_dir() { printf '/tmp/lapse-stack-%s-%s' "$(id -u)" "$(printf %s "$CHECKOUT" | cksum | cut -d' ' -f1)"; }

require_linux() {
  [[ $(uname -s) == Linux && -r /proc/self/stat ]] ||
    die "without a Docker engine the stack needs Debian (Linux with /proc); start Docker and try again"
}

print_env() {
  local user=lapse
  cat <<ENV
export LAPSE__BROKER__URL='amqp://$user:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_AMQP/lapse'
export LAPSE__BROKER__MANAGEMENT_URL='http://$user:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_MANAGEMENT'
export LAPSE__DATABASE__ADDRESS='127.0.0.1:$PORT_MYSQL'
export LAPSE__DATABASE__USER='$user'
export LAPSE__DATABASE__PASSWORD='$STACK_DB_PASSWORD'
export LAPSE__DATABASE__NAME='lapse'
export TEST_MYSQL_DSN='$user:$STACK_DB_PASSWORD@tcp(127.0.0.1:$PORT_MYSQL)/lapse'
export TEST_AMQP_URL='amqp://$user:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_AMQP/lapse'
export TEST_MANAGEMENT_URL='http://$user:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_MANAGEMENT'
export STACK_MYSQL_ROOT_DSN='root:$STACK_DB_ROOT_PASSWORD@tcp(127.0.0.1:$PORT_MYSQL)/'
export STACK_TOKEN='$STACK_TOKEN'
export STACK_DIR='$STACK_DIR'
export STACK_PORT_BASE='$STACK_PORT_BASE'
ENV
  if [[ $STACK_ENGINE == native ]]; then
    cat <<ENV
export TEST_TLS_DIR='$(tls_dir)'
export TEST_AMQPS_URL='amqps://$user:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_AMQPS/lapse'
ENV
  fi
  if ((STACK_NODES > 1)); then
    cat <<ENV
export LAPSE__BROKER__ADDRESSES='$(rabbitmq_addresses)'
export LAPSE__BROKER__MANAGEMENT_ADDRESSES='$(rabbitmq_addresses "$PORT_MANAGEMENT")'
export TEST_AMQP_ADDRESSES='$(rabbitmq_addresses)'
ENV
  fi
  if redis_wanted; then
    cat <<ENV
export LAPSE__DELAY__REDIS__URL='redis://:$STACK_REDIS_PASSWORD@127.0.0.1:$PORT_REDIS/0'
export TEST_REDIS_URL='redis://:$STACK_REDIS_PASSWORD@127.0.0.1:$PORT_REDIS/0'
ENV
  fi
}
