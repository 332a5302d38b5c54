# MinIO for compose.yaml, from source: MinIO no longer publishes images, and the last ones have a bug in
# conditional writes. The version is the one that Millpond's tests run against (scripts/install-minio.sh).
FROM golang:1.26-bookworm AS build
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOBIN=/out go install -trimpath github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c \
    && mkdir /out/data

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/minio /usr/bin/minio
# A new volume inherits this owner.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
EXPOSE 9000
ENTRYPOINT ["/usr/bin/minio"]
