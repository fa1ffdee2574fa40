// Package release holds what a release is made by against the real parsers and tools: .goreleaser.yaml against GoReleaser's own loader and
// against the files that it names, and the bills of materials that `make sbom` writes against the modules that the binaries were built from.
//
// It is a module of its own, so that none of this is among the product's dependencies, and has tests only. `make release-check` runs it; it
// publishes nothing and needs neither a tag nor a token.
package release
