"""etcd over gRPC. `client` loads grpcio, 60 ms that only its users pay; `access` does not."""
