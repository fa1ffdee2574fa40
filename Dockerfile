# One image for the fleet: the three workers and lapsectl, static, on nothing but the certificates of public authorities.
#
#   docker build -t lapse .                       all four; say which: docker run … lapse publisher
#   docker build --target publisher -t lapse .    the same image that is a publisher, with its health command
#
# Behind a mirror: --build-arg REGISTRY=mirror.example/docker.io --build-arg GOPROXY=https://proxy.example
ARG REGISTRY=docker.io
ARG GO_VERSION=1.26

FROM --platform=$BUILDPLATFORM ${REGISTRY}/library/golang:${GO_VERSION}-trixie AS build
ARG GOPROXY=https://proxy.golang.org,direct
ARG GOSUMDB=sum.golang.org
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=dev
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local
WORKDIR /src
# Libraries change less often than code.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY cmd cmd
COPY pkg pkg
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/...
RUN printf 'lapse:x:65532:65532::/:/sbin/nologin\n' >/out/passwd && printf 'lapse:x:65532:\n' >/out/group

# Time zones are in the binaries.
FROM scratch AS files
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/passwd /out/group /etc/
COPY --from=build /out/publisher /out/expirer /out/notifier /out/lapsectl /usr/local/bin/
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="lapse" \
      org.opencontainers.image.description="Coupons expire on time: publisher, expirer, notifier and lapsectl" \
      org.opencontainers.image.url="https://github.com/lapsehq/lapse" \
      org.opencontainers.image.source="https://github.com/lapsehq/lapse" \
      org.opencontainers.image.documentation="https://github.com/lapsehq/lapse/tree/main/docs" \
      org.opencontainers.image.vendor="lapsehq" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
ENV PATH=/usr/local/bin
USER 65532:65532
STOPSIGNAL SIGTERM

FROM files AS publisher
EXPOSE 8080 9101
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["publisher", "-healthcheck"]
ENTRYPOINT ["publisher"]

FROM files AS expirer
EXPOSE 9102
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["expirer", "-healthcheck"]
ENTRYPOINT ["expirer"]

FROM files AS notifier
EXPOSE 9103
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["notifier", "-healthcheck"]
ENTRYPOINT ["notifier"]

# The default, which docker-compose.yml and the chart run: they say which of the four, and have checks of their own.
FROM files AS lapse
CMD ["lapsectl", "--help"]
