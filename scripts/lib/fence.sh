# shellcheck shell=bash
# What is shown of the running stack, and reset, which only touches servers that carry our token.

cmd_summary() {
  cat <<SUMMARY
RabbitMQ $(rabbitmq_version)
  AMQP        amqp://lapse:$STACK_BROKER_PASSWORD@127.0.0.1:$PORT_AMQP/lapse
  management  http://127.0.0.1:$PORT_MANAGEMENT  (user lapse, password $STACK_BROKER_PASSWORD)
  metrics     http://127.0.0.1:$PORT_BROKER_METRICS/metrics
database $(database_version)
  MySQL       127.0.0.1:$PORT_MYSQL, database lapse  (user lapse, password $STACK_DB_PASSWORD; root $STACK_DB_ROOT_PASSWORD)
For binaries and tests:  eval "\$(scripts/stack env)"
SUMMARY
}
