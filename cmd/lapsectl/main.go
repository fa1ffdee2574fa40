// Command lapsectl is for people: it runs the demo and the checks, grants, shows and explains.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // zones of validity rules must not depend on the host
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(run(context.Background(), newSystem(os.Args[1:]))) }
