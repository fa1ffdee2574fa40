package rig_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
)

// echo answers with what it was sent, and tells the port of whoever connects.
func echo(t *testing.T) (addr string, ports <-chan int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	from := make(chan int, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from <- c.RemoteAddr().(*net.TCPAddr).Port
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String(), from
}

func TestANarrowLinkLosesNothing(t *testing.T) {
	t.Parallel()
	addr, ports := echo(t)
	p, err := rig.NewProxy(addr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	p.Bandwidth(1 << 20)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
	require.NoError(t, err)
	defer c.Close()
	port := <-ports // the server may know of the connection before the proxy has noted it
	require.Eventually(t, func() bool { return slices.Contains(p.Ports(), port) }, 10*time.Second, time.Millisecond, "the server knows the connection by this port")
	sent := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, len(sent))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, sent, got)
	p.Bandwidth(0)
	_, err = c.Write([]byte("free"))
	require.NoError(t, err)
	_, err = io.ReadFull(c, got[:4])
	require.NoError(t, err)
}

func TestAProgramsLogCanBeAnotherFile(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t, nil)
	p, err := fleet.Program("one")
	require.NoError(t, err)
	p.Log = filepath.Join(t.TempDir(), "elsewhere")
	fleet.Add(p)
	require.False(t, fleet.Running("one"))
	require.NoError(t, fleet.Launch(bounded(t), "one"))
	require.True(t, fleet.Running("one"))
	require.NoError(t, fleet.WaitReady(bounded(t), "one"))
	body, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	require.Equal(t, "hello from one\n", string(body))
}

// Not in parallel: a fork elsewhere while the script is being written would make it busy.
func TestAnOwnStackIsLaidOutBesideTheCheckouts(t *testing.T) {
	var script strings.Builder
	script.WriteString("here=$(cd \"$(dirname \"$0\")/..\" && pwd)\nmkdir -p \"$here/.stack\"\necho \"$1 $2 $STACK_PORT_BASE $STACK_TOKEN\" >>\"$here/../calls\"\n")
	for name, value := range described() {
		script.WriteString("[ \"$1\" != env ] || echo \"export " + name + "='" + value + "'\"\n")
	}
	from := checkout(t, script.String())
	require.NoError(t, os.MkdirAll(filepath.Join(from, "configs", "broker"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(from, "configs", "broker", "rabbitmq.conf"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(from, "docker-compose.yml"), []byte("y"), 0o600))
	t.Setenv("STACK_TOKEN", "of-the-checkout")
	t.Setenv("STACK_PORT_BASE", "1")
	beside := t.TempDir()
	dir := filepath.Join(beside, "own")
	require.NoError(t, os.Mkdir(dir, 0o700))

	const base = 47_000
	s, down, err := rig.OwnStack(t.Context(), from, dir, base)
	require.NoError(t, err)
	require.Equal(t, "abc", s.Token.Reveal(), "what its own script says")
	require.FileExists(t, filepath.Join(dir, "configs", "broker", "rabbitmq.conf"))
	require.FileExists(t, filepath.Join(dir, "docker-compose.yml"))
	require.NoError(t, down(context.Background(), true))
	require.DirExists(t, dir, "kept")
	require.NoError(t, down(context.Background(), false))
	require.NoDirExists(t, dir)
	calls, err := os.ReadFile(filepath.Join(beside, "calls"))
	require.NoError(t, err)
	port := strconv.Itoa(base)
	lines := strings.Split(string(calls), "\n")
	require.Equal(t, "up  "+port+" ", lines[0], "nothing of the checkout's own stack")
	require.Equal(t, []string{"down  " + port + " ", "down --purge " + port + " "}, lines[2:4])
	require.NoError(t, down(context.Background(), false), "legal again")
}
