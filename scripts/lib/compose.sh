# shellcheck shell=bash
# The stack in containers, where a Docker engine answers.
docker_answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }
