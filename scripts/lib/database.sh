# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# The database server: MariaDB from Debian, or a real MySQL with --db mysql.

database_check_ports() {
  process_alive database && return 0
  port_check "$PORT_MYSQL" MySQL
}

database_data() { printf '%s/%s' "$STACK_DIR" "$STACK_DATABASE"; }

# database_view is the data directory as the server sees it.
database_view() {
  if [[ $STACK_DATABASE == mysql ]]; then mysql_find; fi
  if [[ $STACK_DATABASE == mysql && -z $MYSQLD ]]; then printf /stack; else database_data; fi
}

# database_socket: nobody uses the socket, but the server insists; its path may have 107 bytes at most.
database_socket() {
  local view
  view=$(database_view)
  if ((${#view} <= 90)); then
    printf '%s/mysql.sock' "$view"
  else
    (umask 077 && mkdir -p "$(short_dir)")
    [[ -O $(short_dir) && ! -L $(short_dir) ]] || die "$(short_dir) belongs to somebody else"
    printf '%s/mysql.sock' "$(short_dir)"
  fi
}

database_configure() {
  local data view socket
  data=$(database_data)
  view=$(database_view)
  socket=$(database_socket)
  mkdir -p "$data/tmp"
  (
    umask 077
    tls_copy "$data/tls"
    cat "$CHECKOUT/configs/database/server.cnf" - >"$data/my.cnf" <<CONF

# Written by scripts/stack.
bind_address      = 127.0.0.1
port              = $PORT_MYSQL
socket            = $socket
pid_file          = $view/mysqld.pid
datadir           = $view/data
tmpdir            = $view/tmp
default_time_zone = '$STACK_DB_TIME_ZONE'
init_file         = $view/init.sql
ssl_ca            = $view/tls/ca.pem
ssl_cert          = $view/tls/server.pem
ssl_key           = $view/tls/server.key
$(database_kind_settings)
CONF
    cat >"$data/init.sql" <<SQL
$(database_accounts root "$STACK_DB_ROOT_PASSWORD")
$(database_accounts lapse "$STACK_DB_PASSWORD")
GRANT ALL PRIVILEGES ON *.* TO 'root'@'localhost' WITH GRANT OPTION;
GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
$(database_grants localhost)
$(database_grants 127.0.0.1)
SQL
    # The client's password stays out of the process list.
    printf '[client]\nprotocol=tcp\nhost=127.0.0.1\nport=%s\nuser=root\npassword=%s\n' \
      "$PORT_MYSQL" "$STACK_DB_ROOT_PASSWORD" >"$data/client.cnf"
  )
}

database_accounts() { # USER PASSWORD
  local host
  for host in localhost 127.0.0.1; do
    printf "CREATE USER IF NOT EXISTS '%s'@'%s' IDENTIFIED BY '%s';\n" "$1" "$host" "$2"
    printf "ALTER USER '%s'@'%s' IDENTIFIED BY '%s';\n" "$1" "$host" "$2"
  done
}

database_grants() { # HOST: databases lapse and lapse_*, nothing else
  printf "GRANT ALL PRIVILEGES ON \`lapse\`.* TO 'lapse'@'%s';\n" "$1"
  printf "GRANT ALL PRIVILEGES ON \`lapse\\\\_%%\`.* TO 'lapse'@'%s';\n" "$1"
}

database_kind_settings() {
  if [[ $STACK_DATABASE == mysql ]]; then
    printf '%s\n' 'innodb_redo_log_capacity = 1G' 'mysqlx = OFF' 'secure_file_priv = NULL'
  else
    printf '%s\n' 'innodb_log_file_size = 1G'
  fi
  printf 'user = %s\n' "$(database_user)"
}

database_start() {
  local data
  process_alive database && return 0
  tls_ensure
  data=$(database_data)
  database_configure
  if [[ ! -f $data/initialised ]]; then
    say "laying out the database"
    rm -rf -- "$data/data"
    database_initialise >>"$STACK_DIR/log/database.log" 2>&1 9>&- || {
      tail -n 25 "$STACK_DIR/log/database.log" >&2
      die "could not lay out the database; log: $STACK_DIR/log/database.log"
    }
    touch "$data/initialised"
  fi
  say "starting $STACK_DATABASE"
  if [[ $STACK_DATABASE == mysql ]]; then
    mysql_command --defaults-file="$(database_view)/my.cnf"
    process_spawn database "${MYSQL_COMMAND[@]}"
  else
    process_spawn database "$(server_binary mariadbd)" --defaults-file="$data/my.cnf"
  fi
}

# Root of the machine, or of the root's user namespace.
database_user() {
  if [[ $(database_view) == /stack ]]; then printf root; else id -un; fi
}

database_initialise() {
  local data
  data=$(database_data)
  if [[ $STACK_DATABASE == mysql ]]; then
    mysql_command --no-defaults --initialize-insecure --datadir="$(database_view)/data" \
      --innodb-redo-log-capacity=1G --user="$(database_user)"
    "${MYSQL_COMMAND[@]}"
  else
    # The defaults would name our init file, which needs a server that is laid out already. Forced: the
    # machine's own name need not resolve.
    "$(server_binary mariadb-install-db)" --no-defaults --force --datadir="$data/data" --skip-test-db \
      --auth-root-authentication-method=normal --user="$(database_user)" --innodb-log-file-size=1G --skip-name-resolve
  fi
}

database_await() { process_await database 120 database_answers; }

database_answers() { [[ $(sql 'SELECT 1' 2>/dev/null) == 1 ]]; }

# sql STATEMENTS: as root.
sql() {
  if [[ $STACK_ENGINE == compose ]]; then
    compose_sql "$1"
    return
  fi
  "$(command -v mariadb || command -v mysql)" --defaults-file="$(database_data)/client.cnf" \
    --connect-timeout=5 --batch --skip-column-names -e "$1"
}

# database_provision creates the database and marks it with this checkout's token.
database_provision() {
  [[ $(database_token) != "$STACK_TOKEN" ]] || return 0
  sql "$(database_fence_sql)" || die "the database did not take the fence token"
}

database_fence_sql() {
  cat <<SQL
CREATE DATABASE IF NOT EXISTS lapse CHARACTER SET utf8mb4;
CREATE TABLE IF NOT EXISTS lapse.lapse_stack (token VARCHAR(64) NOT NULL PRIMARY KEY);
DELETE FROM lapse.lapse_stack;
INSERT INTO lapse.lapse_stack (token) VALUES ('$STACK_TOKEN');
$(if [[ $STACK_ENGINE == compose ]]; then database_grants %; fi)
SQL
}

database_token() { sql 'SELECT token FROM lapse.lapse_stack' 2>/dev/null || true; }

database_version() { sql 'SELECT @@version'; }

database_stop() { process_stop database 60; }
