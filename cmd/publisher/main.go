// Command publisher is one of Lapse's three workers; see docs/architecture.md.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // zones of validity rules must not depend on the image

	"github.com/lapsehq/lapse/pkg/config"
)

// version is set by the build.
var version = "dev"

func main() {
	os.Exit(run(context.Background(), config.Process{
		Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr,
	}))
}
