module github.com/lenonet/leno/tools/sbom

go 1.26

tool github.com/lenonet/leno/tools/sbom

require (
	github.com/google/licenseclassifier/v2 v2.0.0
	github.com/spdx/tools-golang v0.5.7
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/sergi/go-diff v1.1.0 // indirect
)
