# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# A real MySQL server for --db mysql: the one in STACK_MYSQLD, a mysqld in PATH that is no MariaDB, or
# Debian unstable's, in a root of its own.

mysql_is_real() { [[ -x $1 ]] && ! "$1" --no-defaults --version 2>/dev/null | grep -qi mariadb; }

# mysql_find sets MYSQLD to a binary of this machine, or to nothing when the root is to be used.
mysql_find() {
  MYSQLD=''
  if [[ -n $STACK_MYSQLD ]]; then
    mysql_is_real "$STACK_MYSQLD" || die "STACK_MYSQLD: $STACK_MYSQLD is not an executable MySQL server"
    MYSQLD=$STACK_MYSQLD
  elif mysql_is_real "$(server_binary mysqld)"; then
    MYSQLD=$(server_binary mysqld)
  fi
}

mysql_ensure() {
  mysql_find
  [[ -z $MYSQLD ]] || return 0
  roots_ensure debian-mysql sid mysql-server-core
}

# mysql_command ARGUMENT…: MYSQL_COMMAND is the server with these arguments.
mysql_command() {
  mysql_find
  if [[ -n $MYSQLD ]]; then
    MYSQL_COMMAND=("$MYSQLD" "$@")
  else
    roots_command debian-mysql "$(database_data)" PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/sbin/mysqld "$@"
    MYSQL_COMMAND=("${ROOTS_COMMAND[@]}")
  fi
}
