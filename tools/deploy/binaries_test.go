package deploy

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBinariesNeedNothing: they name no interpreter and no library, and run where there is no other file.
func TestBinariesNeedNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"publisher", "expirer", "notifier", "lapsectl"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, err := elf.Open(binary(t, name))
			require.NoError(t, err)
			defer file.Close()
			for _, p := range file.Progs {
				require.NotEqual(t, elf.PT_INTERP, p.Type, "it is linked dynamically")
			}
			libraries, err := file.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, libraries)

			bare := t.TempDir()
			// Linked, not written: what this process has open for writing while another test forks cannot be run (golang.org/issue/22315).
			require.NoError(t, os.Link(binary(t, name), filepath.Join(bare, name)))
			version := "-version"
			if name == "lapsectl" {
				version = "--version"
			}
			cmd := exec.CommandContext(t.Context(), "/"+name, version)
			cmd.Env, cmd.Dir, cmd.SysProcAttr = []string{}, "/", &syscall.SysProcAttr{Chroot: bare}
			if os.Geteuid() != 0 { // a namespace in which we may
				cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
				cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
				cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "v9.9.9-check")
		})
	}
}
