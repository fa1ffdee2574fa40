//go:build crashpoints

package crash

import (
	"os"
	"strings"
	"syscall"
)

// Enabled says whether this build can stop itself.
const Enabled = true

// Before marks that nothing of the point has happened yet.
func Before(k Kind, name string) { stop(k, name, "before") }

// After marks that the point has been passed.
func After(k Kind, name string) { stop(k, name, "after") }

// stop ends the process with SIGKILL if this is the point that it was armed for: no deferred call, no farewell.
func stop(k Kind, name, side string) {
	file := os.Getenv(Variable)
	if file == "" || name == "" {
		return
	}
	armed, err := os.ReadFile(file) //nolint:gosec // named by the test
	if err != nil {
		return
	}
	if k == Ack || k == Forward {
		_, name, _ = strings.Cut(name, ".")
	}
	if string(armed) != string(k)+" "+name+" "+side || os.Rename(file, file+HitSuffix) != nil {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
