# shellcheck shell=bash disable=SC2034 # variables are shared between these files
# Certificates for tests, made once in .stack/tls: an authority, one certificate for the servers (localhost, 127.0.0.1) and one for
# their clients. The broker's TLS port lets in only who has one of the latter; the database takes TLS without.

tls_dir() { printf '%s/tls' "$STACK_DIR"; }

tls_ensure() {
  local dir
  dir=$(tls_dir)
  [[ ! -f $dir/client.pem ]] || return 0
  command -v openssl >/dev/null || die 'openssl is missing; install it: apt-get install openssl'
  rm -rf -- "$dir"
  mkdir -p "$dir"
  (
    umask 077
    cd "$dir" || exit 1
    printf '[req]\ndistinguished_name=dn\n[dn]\n' >openssl.cnf
    tls_certificate ca '/CN=lapse stack authority' -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign'
    tls_certificate server /CN=localhost -CA ca.pem -CAkey ca.key -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' -addext 'extendedKeyUsage=serverAuth'
    tls_certificate client.new /CN=lapse -CA ca.pem -CAkey ca.key -addext 'extendedKeyUsage=clientAuth'
    mv client.new.key client.key
    mv client.new.pem client.pem # the last, and the sign that all are there
  ) || die "making certificates in $dir failed"
}

# tls_certificate NAME SUBJECT OPTION…: <NAME>.key and <NAME>.pem in the current directory.
tls_certificate() {
  local name=$1 subject=$2
  shift 2
  openssl req -config openssl.cnf -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "$subject" -keyout "$name.key" -out "$name.pem" "$@" 2>/dev/null
}

# tls_copy DIRECTORY: what a server needs, where it can see it.
tls_copy() {
  mkdir -p "$1"
  cp "$(tls_dir)"/{ca.pem,server.pem,server.key} "$1/"
}
